"""The ledger: the history of a workspace in a bare repository, exact to the byte, for any file names."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from support.ledgers import begun, contents, git, put, said, sound

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.review.ledger.diff import Delta
from skerry.review.ledger.ledger import Drop, Ledger, Put

STRANGE = [
    b"new\nline", b'quo"te', b"back\\slash", b"tab\there", b"\x1b[31mred\x1b[0m", "\u202egnp.exe".encode(), b"CON",
    b"trailing.", b"trailing ", "caf\u00e9".encode(), "cafe\u0301".encode(), b"n" * 255, b"\xff\xfe", b" ", b"-rf",
    b":(glob)**", b"*", b"?", b"[a]", b"#comment", b"!not", b"~", b"$HOME", b"`id`", b"%00", b"a:b", b".gitattributes",
    b".gitignore", b".gitmodules", b".gitconfig", b"README", b"readme", b"HEAD", b"refs", b"\x01\x02\x7f", b"...",
]  # fmt: skip


def test_the_first_commit_is_the_base_too_and_the_next_ones_are_not(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l" / "ledger.git")
    with pytest.raises(NotFound):
        _ = ledger.tip
    assert ledger.history() == []
    first = ledger.commit(said("", kind="base"), [put(b"a", b"1")])
    assert ledger.tip == ledger.base == first
    second = ledger.commit(said("edit"), [put(b"a", b"2")])
    assert (ledger.tip, ledger.base) == (second, first)
    assert Ledger.open(tmp_path / "l" / "ledger.git").tip == second
    assert sound(ledger)


def test_an_empty_workspace_has_a_base(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    assert list(ledger.files(ledger.base)) == []
    assert sound(ledger)


def test_an_empty_change_makes_no_commit_and_leaves_nothing(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a/b", b"1"), put(b"c"))
    before = sorted(os.walk(ledger.path))
    assert ledger.commit(said(), [put(b"a/b", b"1"), Drop(b"not/there"), Drop(b"c/below/a/file")]) is None
    assert sorted(os.walk(ledger.path)) == before


@pytest.mark.parametrize("directory", [b"", b"deep/er/"])
def test_every_file_name_round_trips(tmp_path: Path, directory: bytes) -> None:
    ledger = begun(tmp_path, *(put(directory + name, name) for name in STRANGE))
    assert contents(ledger, ledger.tip) == {directory + name: ("100644", name) for name in STRANGE}
    assert sound(ledger)
    edited = ledger.commit(said(), [put(directory + name, name + b"!") for name in STRANGE])
    assert edited is not None
    deltas = ledger.deltas(ledger.base, edited)
    assert sorted(one.path for one in deltas) == sorted(directory + name for name in STRANGE)
    for name in STRANGE:
        (delta,) = ledger.deltas(ledger.base, edited, [directory + name])
        assert delta.path == directory + name
        assert ledger.entry_of(edited, directory + name) == ("100644", delta.new_oid)
    assert [text.splitlines()[-2] for _, text in ledger.changes_of(deltas)] == [
        b"+" + one.path.removeprefix(directory).rpartition(b"\n")[2] + b"!" for one in deltas
    ]


@pytest.mark.parametrize(
    "path",
    [b"", b"/", b"a//b", b"/a", b"a/", b"..", b"a/../b", b".", b"./a", b"a\0b", b".git", b"a/.GIT/config", b"git~1"],
)  # fmt: skip
def test_invalid_paths_are_rejected(tmp_path: Path, path: bytes) -> None:
    ledger = begun(tmp_path, put(b"a"))
    with pytest.raises(InvalidRequest):
        ledger.commit(said(), [put(b"fine"), put(path)])
    assert ledger.tip == ledger.base
    assert ledger.commit(said(), [Drop(path)]) is None


def test_files_directories_and_links_replace_each_other(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a"), put(b"d/x"), put(b"d/y"), put(b"l", b"../out", "120000"), put(b"keep"))
    tip = ledger.commit(
        said(),
        [
            put(b"a/b/c", b"now below"),
            Drop(b"a"),
            put(b"d", b"now a file"),
            Drop(b"d/x"),
            Drop(b"l"),
            put(b"l/in", b"1"),
        ],
    )
    assert tip is not None
    assert contents(ledger, tip) == {
        b"a/b/c": ("100644", b"now below"), b"d": ("100644", b"now a file"), b"l/in": ("100644", b"1"),
        b"keep": ("100644", b"text\n"),
    }  # fmt: skip
    back = ledger.commit(said(), [put(b"a"), Drop(b"d"), put(b"d/x"), put(b"d/y"), put(b"l", b"../out", "120000")])
    assert back is not None
    assert ledger.deltas(ledger.base, back) == []
    assert sound(ledger)


def test_empty_directories_are_left_out(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a/b/c"), put(b"z"))
    tip = ledger.commit(said(), [Drop(b"a/b/c")])
    assert tip is not None
    assert git(ledger, "ls-tree", "-r", "-t", "--name-only", tip) == b"z\n"


def test_modes_links_renames_and_binaries_are_distinguished(tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % i for i in range(40))
    ledger = begun(
        tmp_path, put(b"run", b"#!/bin/sh\n"), put(b"old", lines), put(b"pic", bytes(range(256))),
        put(b"link", b"a", "120000"), put(b"gone", b"bye\n"), put(b"text", b"1\n2\n"),
    )  # fmt: skip
    tip = ledger.commit(
        said(),
        [
            put(b"run", b"#!/bin/sh\n", "100755"), Drop(b"old"), put(b"new", lines + b"more\n"),
            put(b"pic", bytes(256)), put(b"link", b"b", "120000"), Drop(b"gone"), put(b"born", b"x"),
            put(b"text", b"1\n2", "120000"),
        ],
    )  # fmt: skip
    assert tip is not None
    found = {one.path: one for one in ledger.deltas(ledger.base, tip)}
    shape = {path: (one.kind, one.old_mode, one.new_mode, one.added, one.removed) for path, one in found.items()}
    assert shape == {
        b"run": ("modified", "100644", "100755", 0, 0),
        b"new": ("renamed", "100644", "100644", 1, 0),
        b"pic": ("modified", "100644", "100644", None, None),
        b"link": ("modified", "120000", "120000", 1, 1),
        b"gone": ("deleted", "100644", None, 0, 1),
        b"text": ("modified", "100644", "120000", 1, 1),
        b"born": ("added", None, "100644", 1, 0),
    }
    assert found[b"new"].old_path == b"old"
    assert found[b"pic"].binary
    assert (found[b"pic"].old_size, found[b"pic"].new_size) == (256, 256)
    assert (found[b"gone"].old_size, found[b"gone"].new_size, found[b"gone"].new_oid) == (4, None, None)
    texts = {one.path: text for one, text in ledger.changes_of(list(found.values()))}
    assert texts[b"new"] == b"@@ -40,0 +41 @@\n+more\n"
    assert texts[b"born"] == b"@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"
    assert texts[b"run"] == texts[b"pic"] == b""


def test_a_patch_is_gits_own_and_applies(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a b", b"1\n2\n3\n"), put(b"d/e", b"x\n"))
    tip = ledger.commit(said(), [put(b"a b", b"1\n2!\n3\n"), Drop(b"d/e"), put(b'"q"\n', b"new\n")])
    assert tip is not None
    patch = b"".join(ledger.patch(ledger.base, tip))
    assert patch == git(ledger, "diff", "-M", "--full-index", ledger.base, tip)
    for path, data in ((b"a b", b"1\n2\n3\n"), (b"d/e", b"x\n")):
        (tmp_path / "w" / os.fsdecode(path)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "w" / os.fsdecode(path)).write_bytes(data)
    subprocess.run(["git", "apply"], input=patch, cwd=tmp_path / "w", check=True)
    assert (tmp_path / "w" / '"q"\n').read_bytes() == b"new\n"
    assert not (tmp_path / "w" / "d").exists()
    assert b"".join(ledger.patch(ledger.base, tip, paths=[b"d"])).count(b"diff --git") == 1
    assert len(b"".join(ledger.patch(ledger.base, tip, max_bytes=100))) == 100


def test_trees_equal_those_that_git_writes(tmp_path: Path) -> None:
    """Over random changes, with names that sort differently as files and as directories."""
    chance = random.Random(6)
    names = [b"a", b"a.b", b"a-b", b"a0", b"ab", b"b", b"a/", "\u00e9".encode(), b"Z"]
    ledger, now = begun(tmp_path), {}
    index = {**os.environ, "GIT_INDEX_FILE": str(tmp_path / "index"), "GIT_DIR": str(ledger.path)}
    for _ in range(20):
        changes: list[Put | Drop] = []
        for _ in range(chance.randrange(1, 12)):
            path = b"/".join(chance.choice(names).strip(b"/") for _ in range(chance.randrange(1, 5)))
            if chance.random() < 0.3:
                changes.append(Drop(path))
            else:
                changes.append(put(path, b"%d" % chance.randrange(5), chance.choice(["100644", "100755", "120000"])))
        for one in [c for c in changes if isinstance(c, Drop)]:
            now = {p: v for p, v in now.items() if p != one.path and not p.startswith(one.path + b"/")}
        for one in [c for c in changes if isinstance(c, Put)]:
            above = {one.path[:at] for at, c in enumerate(one.path) if c == ord("/")}
            now = {p: v for p, v in now.items() if p not in above and not p.startswith(one.path + b"/")}
            now[one.path] = (one.mode, one.data)
        ledger.commit(said(), changes)
        assert contents(ledger, ledger.tip) == now
        subprocess.run(["git", "read-tree", "--empty"], env=index, check=True)
        listed = git(ledger, "ls-tree", "-r", "-z", ledger.tip)
        subprocess.run(["git", "update-index", "-z", "--index-info"], env=index, input=listed, check=True)
        tree = subprocess.run(["git", "write-tree"], env=index, check=True, capture_output=True).stdout
        assert tree == git(ledger, "rev-parse", ledger.tip + "^{tree}")
    assert sound(ledger)


def test_the_deepest_allowed_tree_is_stored(tmp_path: Path) -> None:
    deep = b"/".join([b"d"] * 1024)
    ledger = begun(tmp_path, put(deep))
    tip = ledger.commit(said(), [put(deep, b"2\n")])
    assert tip is not None
    assert [one.path for one in ledger.deltas(ledger.base, tip)] == [deep]
    with pytest.raises(InvalidRequest):
        ledger.commit(said(), [put(b"d/" + deep)])


def test_data_in_pieces_must_match_its_size(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    data = os.urandom(3 << 20)
    pieces = [data[at : at + 70_000] for at in range(0, len(data), 70_000)]
    tip = ledger.commit(
        said(), [Put(b"a", "100644", iter(pieces), len(data)), Put(b"b", "100644", iter(pieces), len(data))]
    )
    assert tip is not None
    assert contents(ledger, tip) == {b"a": ("100644", data), b"b": ("100644", data)}
    assert ledger.size() < 4 << 20
    for size in (len(data) - 1, len(data) + 1, 0):
        with pytest.raises(InvalidRequest):
            ledger.commit(said(), [Put(b"c", "100644", iter(pieces), size)])
    assert ledger.tip == tip
    with pytest.raises(InvalidRequest):
        ledger.commit(said(), [put(b"c", b"", "160000")])


def test_the_base_moves_by_applied_changes(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1\n"), put(b"b", b"1\n"))
    base = ledger.base
    tip = ledger.commit(said(), [put(b"a", b"2\n"), put(b"b", b"2\n"), put(b"c", b"new\n")])
    assert tip is not None
    half = ledger.write(b"one and a half\n")
    moved = ledger.move_base({b"a": ("100644", half), b"b": None}, said("", kind="applied"))
    assert (ledger.base, ledger.tip) == (moved, tip)
    assert contents(ledger, moved) == {b"a": ("100644", b"one and a half\n")}
    assert [one.kind for one in ledger.history()] == ["base", "command", "applied"]
    assert git(ledger, "rev-parse", f"{moved}^").strip().decode() == base
    with pytest.raises(NotFound):
        ledger.move_base({b"a": ("100644", "1" * 40)}, said("", kind="applied"))
    with pytest.raises(NotFound):
        ledger.move_base({b"a": ("100644", tip)}, said("", kind="applied"))
    assert ledger.base == moved
    assert ledger.move_base({}, said("", kind="unapplied")) != moved
    assert sound(ledger)


def test_a_commit_on_an_outdated_tip_is_rejected(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1"))
    ledger.commit(said(), [put(b"a", b"2")], parent=ledger.base)
    with pytest.raises(Conflict):
        ledger.commit(said(), [put(b"a", b"3")], parent=ledger.base)


def test_blobs_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1\n"))
    assert b"".join(ledger.blob(ledger.write(b"data"))) == b"data"
    assert ledger.size_of(ledger.write(b"")) == 0
    for oid in ("0" * 40, ledger.tip):
        with pytest.raises(NotFound):
            b"".join(ledger.blob(oid))
    for oid in ("--help", "HEAD", "refs/heads/main", "1" * 39, ""):
        with pytest.raises(InvalidRequest):
            ledger.blob(oid)
        with pytest.raises(InvalidRequest):
            ledger.deltas(oid, ledger.tip)
    with pytest.raises(InvalidRequest):
        ledger.rev("refs/../HEAD")


def test_the_patch_of_many_files_comes_in_one_call_and_in_their_order(tmp_path: Path) -> None:
    ledger = begun(
        tmp_path, *(put(b"%d" % i, b"diff --git a/000000001 b/000000001\n@@ -1 +1 @@\n%d\n" % i) for i in range(300))
    )
    tip = ledger.commit(said(), [put(b"%d" % i, b"@@ -1 +1 @@\n%d\n" % (i + 1)) for i in range(300)])
    assert tip is not None
    deltas = ledger.deltas(ledger.base, tip)
    same = Delta(path=b"same", kind="modified", old_oid=deltas[0].old_oid, new_oid=deltas[0].old_oid)
    asked = [same, *deltas, same]
    got = list(ledger.changes_of(asked))
    assert [one for one, _ in got] == asked
    assert [bool(text) for _, text in got] == [False, *[True] * 300, False]
    for one, text in got[1:-1]:
        number = int(one.path)
        heading = b"diff --git a/000000001 b/000000001\n"
        assert text == b"@@ -1 +0,0 @@\n-%s@@ -3 +2 @@ %s-%d\n+%d\n" % (heading, heading, number, number + 1)


def test_requested_paths_are_literal(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    tip = ledger.commit(said(), [put(b"src/a"), put(b"src2"), put(b"*"), put(b"x/src/a")])
    assert tip is not None

    def found(*paths: bytes) -> list[bytes]:
        return [one.path for one in ledger.deltas(ledger.base, tip, paths)]

    assert found(b"src") == found(b"src/") == found(b"./src") == [b"src/a"]
    assert found(b"*") == [b"*"]
    assert found() == found(b".") == found(b"./", b"src") == [b"*", b"src/a", b"src2", b"x/src/a"]
    assert found(b"none") == []
    assert found(*(b"%d" % number for number in range(2000)), b"src2") == [b"src2"]
    for wrong in (b"../x", b"a/../b", b"/etc", b"a//b", b".git"):
        with pytest.raises(InvalidRequest):
            found(wrong)


def test_a_fork_has_a_separate_ledger(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1\n"))
    fork = ledger.copy_to(tmp_path / "fork" / "ledger.git")
    mine, other = ledger.commit(said(), [put(b"a", b"2\n")]), fork.commit(said(), [put(b"a", b"3\n")])
    assert (ledger.tip, fork.tip) == (mine, other)
    ledger.remove()
    assert not ledger.path.exists()
    assert contents(Ledger.open(fork.path), fork.tip) == {b"a": ("100644", b"3\n")}
    assert sound(fork)
    with pytest.raises(Conflict):
        fork.copy_to(fork.path)
    with pytest.raises(NotFound):
        Ledger.open(ledger.path)
