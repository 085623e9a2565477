"""The agent's own commits come out beside the ledger: checked, bounded, and refused one by one or as a whole."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.ledgers import begun, git, put, said, sound

from skerry.errors import InvalidRequest
from skerry.review.ledger.agent_import import ImportLimits
from skerry.review.ledger.ledger import Ledger
from skerry.review.ledger.ref_names import check_refs, ref_problem

WHO = b"A <a@b> 1700000000 +0000"
KINDS = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}


def header(kind: int, size: int) -> bytes:
    out, byte, size = bytearray(), kind << 4 | size & 15, size >> 4
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    return bytes(out + bytes([byte]))


def pack(objects: Iterable[bytes], count: int | None = None) -> bytes:
    listed = list(objects)
    body = b"PACK" + struct.pack(">II", 2, len(listed) if count is None else count) + b"".join(listed)
    return body + hashlib.sha1(body).digest()


def whole(kind: str, data: bytes) -> bytes:
    return header(KINDS[kind], len(data)) + zlib.compress(data)


def oid(kind: str, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data).hexdigest()


def commit(tree: str, *parents: str) -> bytes:
    above = b"".join(b"parent %s\n" % parent.encode() for parent in parents)
    return b"tree %s\n%sauthor %s\ncommitter %s\n\nmine\n" % (tree.encode(), above, WHO, WHO)


def entry(name: bytes, blob: str, mode: bytes = b"100644") -> bytes:
    return mode + b" " + name + b"\0" + bytes.fromhex(blob)


def history(tree: bytes, *blobs: bytes) -> tuple[list[bytes], str]:
    top = commit(oid("tree", tree))
    return [*(whole("blob", b) for b in blobs), whole("tree", tree), whole("commit", top)], oid("commit", top)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return begun(tmp_path, put(b"a", b"ours\n"))


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """The agent's repository, with two branches and a tag."""
    place = tmp_path / "inside"
    script = """git init -q -b work . && git config user.email a@b && git config user.name a
        echo 1 > f && git add f && git commit -qm one && git tag -a v1 -m v1
        git checkout -qb side/line && echo 2 > f && git commit -qam two"""
    place.mkdir()
    subprocess.run(["sh", "-ec", script], cwd=place, check=True)
    return place


def refs_of(place: Path) -> dict[str, str]:
    out = subprocess.run(["git", "show-ref"], cwd=place, check=True, capture_output=True, text=True).stdout
    return {name: one for one, name in (line.split() for line in out.splitlines())}


def pack_of(place: Path, revisions: str = "", *options: str) -> bytes:
    command = ["git", "pack-objects", "--revs", "--all", "--stdout", "-q", *options]
    return subprocess.run(command, cwd=place, check=True, capture_output=True, input=revisions.encode()).stdout


def untouched(ledger: Ledger) -> bool:
    packs = [name for name in os.listdir(ledger.path / "objects" / "pack") if name.endswith(".pack")]
    left = [name for name in os.listdir(ledger.path) if name.startswith("incoming-")]
    return len(packs) == 1 and left == [] and sound(ledger)


def test_agent_branches_and_tags_are_imported_and_deleted(ledger: Ledger, inside: Path) -> None:
    taken = ledger.import_agent([pack_of(inside)], refs_of(inside))
    assert taken.failed is None
    assert taken.refused == {}
    assert taken.refs == ledger.agent_refs() == refs_of(inside)
    assert set(taken.refs) == {"refs/heads/work", "refs/heads/side/line", "refs/tags/v1"}
    assert git(ledger, "show", "refs/agent/heads/side/line:f") == b"2\n"
    assert ledger.tip == ledger.base
    before = refs_of(inside)["refs/heads/side/line"]
    subprocess.run(
        ["sh", "-ec", "git branch -qm side/line side; git tag -d v1; echo 3 >> f; git commit -qam three"],
        cwd=inside, check=True, capture_output=True,
    )  # fmt: skip
    thin = pack_of(inside, f"^{before}\n", "--thin")
    assert ledger.import_agent([thin[:20], thin[20:]], refs_of(inside)).failed is None
    assert set(ledger.agent_refs()) == {"refs/heads/work", "refs/heads/side"}
    assert Ledger.open(ledger.path).agent_refs() == refs_of(inside)
    assert sound(ledger)
    assert ledger.import_agent([], refs_of(inside)).refs == refs_of(inside)
    assert ledger.import_agent([], {}).refs == ledger.agent_refs() == {}


def test_agent_commits_can_be_fetched_with_the_ledger(ledger: Ledger, inside: Path, tmp_path: Path) -> None:
    tip = ledger.commit(said(), [put(b"a", b"theirs\n")])
    assert tip is not None
    ledger.import_agent([pack_of(inside)], refs_of(inside))
    wants = [tip, *ledger.agent_refs().values()]
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "user")], check=True)
    index = ["git", "-C", str(tmp_path / "user"), "index-pack", "--stdin", "--strict", "--fix-thin"]
    subprocess.run(index, input=b"".join(ledger.pack(wants)), check=True, capture_output=True)
    later = ledger.commit(said(), [put(b"b", b"more\n")])
    assert later is not None
    small = b"".join(ledger.pack([later], [tip, "1" * 40]))
    assert len(small) < 1000
    subprocess.run(index, input=small, check=True, capture_output=True)
    for wrong in ("--all", "HEAD", "1" * 40):
        with pytest.raises(InvalidRequest):
            ledger.pack([wrong])


def test_shallow_history_is_imported_as_shallow(ledger: Ledger, inside: Path) -> None:
    refs = {"refs/heads/side": refs_of(inside)["refs/heads/side/line"]}
    tip = refs["refs/heads/side"]
    listed = subprocess.run(
        ["git", "rev-parse", f"{tip}^{{tree}}", f"{tip}:f"], cwd=inside, check=True, capture_output=True
    )
    alone = subprocess.run(
        ["git", "pack-objects", "--stdout", "-q"], cwd=inside, check=True, capture_output=True,
        input=f"{tip}\n{listed.stdout.decode()}".encode(),
    ).stdout  # fmt: skip
    assert "rejects" in str(ledger.import_agent([alone], refs).failed)
    assert ledger.import_agent([alone], refs, shallow=[tip]).refs == refs
    assert git(ledger, "log", "--format=%s", tip) == b"two\n"
    assert ledger.import_agent([], refs).refs == refs
    assert sound(ledger)


def test_agent_cannot_make_ledger_history_shallow(ledger: Ledger) -> None:
    tip = ledger.commit(said(), [put(b"a", b"2\n")])
    assert tip is not None
    assert ledger.import_agent([], {"refs/heads/x": tip}, shallow=[tip, ledger.base, "--all", "1" * 40]).failed is None
    assert len(ledger.history()) == 2
    assert not (ledger.path / "shallow").exists()


def bad_trees() -> dict[str, bytes]:
    b = oid("blob", b"x")
    return {
        "dot git": entry(b".git", b), "another case": entry(b".GiT", b), "a short name": entry(b"git~1", b),
        "invisible characters": entry(".g\u200cit".encode(), b), "up": entry(b"..", b), "here": entry(b".", b),
        "a slash": entry(b"a/b", b), "no name": entry(b"", b), "twice": entry(b"a", b) * 2,
        "file and directory": entry(b"a", b) + entry(b"a", oid("tree", b""), b"40000"),
        "out of order": entry(b"b", b) + entry(b"a", b),
        "no object": entry(b"a", "0" * 40), "what is not there": entry(b"a", "1" * 40), "cut short": b"100644 a\0abc",
        "modules by a link": entry(b".gitmodules", b, b"120000"),
    }  # fmt: skip


@pytest.mark.parametrize("what", bad_trees())
def test_harmful_trees_are_rejected(ledger: Ledger, what: str) -> None:
    objects, top = history(bad_trees()[what], b"x")
    taken = ledger.import_agent([pack([*objects, whole("tree", b"")])], {"refs/heads/x": top})
    assert taken.failed
    assert taken.refs == ledger.agent_refs() == {}
    assert untouched(ledger)


def test_submodules_with_a_command_as_url_are_rejected(ledger: Ledger) -> None:
    for url in ("-u./payload", "../../../etc", "ext::sh -c id"):
        modules = b'[submodule "x"]\n\tpath = x\n\turl = %s\n\tupdate = !id\n' % url.encode()
        objects, top = history(entry(b".gitmodules", oid("blob", modules)), modules)
        assert ledger.import_agent([pack(objects)], {"refs/heads/x": top}).failed
    assert untouched(ledger)


def test_damaged_packs_are_rejected(ledger: Ledger, inside: Path) -> None:
    good, refs = pack_of(inside), refs_of(inside)
    chance = random.Random(6)
    bad = [good[:-1], good[:-20], good[: len(good) // 2], good + b"x", b"PACK", b"hello" * 100, b"\0" * 5000]
    bad += [
        good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
        for at in (5, 9, 13, 40, len(good) - 5)
    ]
    for one in bad:
        taken = ledger.import_agent([one], refs)
        assert taken.failed
        assert taken.refs == {}
    assert untouched(ledger)
    assert ledger.import_agent([good], refs).failed is None


def test_refs_without_a_commit_are_rejected_individually(ledger: Ledger, inside: Path) -> None:
    good = refs_of(inside)
    blob = subprocess.run(
        ["git", "rev-parse", "work:f"], cwd=inside, check=True, capture_output=True, text=True
    ).stdout.strip()
    wrong = {
        "refs/heads/missing": "1" * 40, "refs/heads/blob": blob, "refs/heads/tag": good["refs/tags/v1"],
        "refs/heads/text": "main", "refs/heads/option": "--all", "refs/heads/../../../x": good["refs/heads/work"],
        "refs/heads/work/": good["refs/heads/work"],
        "refs/stash": good["refs/heads/work"], "HEAD": good["refs/heads/work"],
        "refs/replace/" + "1" * 40: good["refs/heads/work"],
        "refs/heads/Work": good["refs/heads/work"], "refs/heads/work/below": good["refs/heads/work"],
    }  # fmt: skip
    taken = ledger.import_agent([pack_of(inside)], {**good, **wrong})
    assert taken.failed is None
    before = sorted(os.listdir(ledger.path / "objects" / "pack"))
    again = ledger.import_agent([pack_of(inside, "", "--window=0")], {**good, **wrong})
    assert again == taken
    assert sorted(os.listdir(ledger.path / "objects" / "pack")) == before
    assert set(taken.refused) | set(taken.refs) == set(good) | set(wrong)
    assert len(set(taken.refs) & {"refs/heads/work", "refs/heads/Work"}) == 1
    assert {"refs/heads/side/line", "refs/tags/v1"} <= set(taken.refs)
    assert sorted(os.listdir(ledger.path / "refs")) == ["agent", "heads", "skerry"]
    assert ledger.tip == ledger.base


@pytest.mark.parametrize(
    "name",
    ["", "x", "HEAD", "refs/heads/", "refs/heads/a..b", "refs/heads/.a", "refs/heads/a.", "refs/heads/-a",
     "refs/heads/a b", "refs/heads/a\nb", "refs/heads/a~1", "refs/heads/a^", "refs/heads/a:b", "refs/heads/a*",
     "refs/heads/[a", "refs/heads/a\\b", "refs/heads/@{x", "refs/heads/@", "refs/heads/a//b", "refs/heads/HEAD",
     "refs/heads/a/../b", "refs/heads/\x1b[31m", "refs/heads/\u202ea", "refs/heads/" + "1" * 40, "refs/heads/con",
     "refs/heads/a?", "refs/heads/a.lock", "refs/heads/a/", "refs/heads/git~1", "refs/heads/" + "a" * 300,
     "refs/notes/commits", "refs/remotes/origin/x", "refs/agent/heads/x"],
)  # fmt: skip
def test_refs_with_a_special_name_are_rejected(name: str) -> None:
    assert ref_problem(name)


def test_colliding_ref_names_are_rejected() -> None:
    good, bad = check_refs(
        ["refs/heads/a", "refs/heads/a/b", "refs/heads/A", "refs/heads/b/c", "refs/heads/B", "refs/tags/a"]
    )
    assert sorted(good) == ["refs/heads/A", "refs/heads/B", "refs/tags/a"]
    assert set(bad) == {"refs/heads/a", "refs/heads/a/b", "refs/heads/b/c"}
    many, rest = check_refs([f"refs/heads/b{number}" for number in range(1005)])
    assert (len(many), len(rest)) == (1000, 5)
    for name in (
        "refs/heads/feature/#12-fix_login",
        "refs/heads/v1.2.3+x",
        "refs/tags/release@2024",
        "refs/heads/a,b=c%",
    ):
        assert ref_problem(name) is None


def delta(base: str, size: int, out: int, *steps: bytes) -> bytes:
    def number(value: int) -> bytes:
        found = bytearray()
        while value > 0x7F:
            found.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(found + bytes([value]))

    body = number(size) + number(out) + b"".join(steps)
    return header(7, len(body)) + bytes.fromhex(base) + zlib.compress(body)


def test_bombs_are_rejected_within_the_limits(ledger: Ledger) -> None:
    """Each is small, and says or becomes something huge."""
    limits = ImportLimits(pack=1 << 20, unpacked=64 << 20, objects=1000, seconds=20, memory=256 << 20)
    zeros = zlib.compress(b"\0" * (100 << 20))
    base = b"\0" * (1 << 20)
    copy = b"\xf0\xff\xff\xff"  # 16 MiB - 1 from the beginning, as one step; as much as a base has: less here
    small = b"\xe0\xff\xff"  # 65,535
    bombs = {
        "one that unpacks to more than may be": pack([header(3, 100 << 20) + zeros]),
        "one that says it is huge": pack([header(3, 1 << 40) + zlib.compress(b"x")]),
        "one of many objects": pack([], count=2_000_000_000),
        "a delta that becomes a gigabyte": pack(
            [whole("blob", base), delta(oid("blob", base), len(base), 16384 * 65535, *[b"\xb0" + small[1:]] * 16384)]
        ),
        "a delta that says so": pack([whole("blob", base), delta(oid("blob", base), len(base), 1 << 42, copy)]),
        "deltas that build on nothing": pack([delta("1" * 40, 5, 5, b"\x01x")] * 3),
    }
    for what, bomb in bombs.items():
        assert len(bomb) < 1 << 20, what
        taken = ledger.import_agent([bomb], {"refs/heads/x": "1" * 40}, limits=limits)
        assert taken.failed, what
    endless = (bytes(1 << 16) for _ in iter(int, 1))
    assert "larger" in str(ledger.import_agent(endless, {}, limits=limits).failed)
    assert untouched(ledger)
