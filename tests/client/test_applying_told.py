"""`sandbox.review.apply` and a server: what it fetches, what it tells, and what it makes of one that lies."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from client.applies import Files, accept, blobs, git, in_memory, lay, place_of, recover, repository, tree_of, undo
from client.lying import SANDBOX, Asked, Lying, Said, lying, refused, said

from skerry import AsyncSandbox, Sandbox
from skerry.client._sync import applying
from skerry.client.applying.content import oid_of
from skerry.client.applying.record import Journal
from skerry.client.repository.origin import origin_of
from skerry.errors import Conflict, InvalidRequest, SandboxUnavailable
from skerry.types.review import Accepted, AcceptedFile

LINES = b"".join(b"line %d\n" % number for number in range(1, 21))
BASE: Files = {"f": LINES}
NEW: Files = {"f": LINES.replace(b"line 3\n", b"three\n"), "new": b"new\n"}


@dataclass
class Ledger:
    """Its side of the story, as a test wants it."""

    accepted: Accepted
    blobs: Mapping[str, bytes]
    told: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    refuses: bool = False
    files: dict[str, bytes] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Said:
        what = asked.path.rpartition("/review/")[2]
        if what == "accepted":
            return Said(200, msgspec.json.encode(self.accepted))
        if what.startswith("blobs/"):
            data = self.blobs.get(what.removeprefix("blobs/"))
            return refused(404, "not_found") if data is None else Said(200, data, "application/octet-stream")
        if what in ("applied", "unapplied"):
            if self.refuses:
                return Said(0)
            self.told.append((what, json.loads(asked.body)))
            return Said(204)
        if asked.path.endswith("/files"):
            return Said(200, self.files[asked.query["path"][0]], "application/octet-stream")
        return said(SANDBOX)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as path:
        yield path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path / "tree", BASE)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Ledger], Lying]]:
    opened = []

    def start(ledger: Ledger) -> Lying:
        one = lying(tmp_path, ledger.answer)
        opened.append(one)
        return one.__enter__()

    yield start
    for one in opened:
        one.__exit__(None, None, None)


Serve = Callable[[Ledger], Lying]


def sandbox_of(server: Lying) -> Sandbox:
    return Sandbox.get("sb-aaaaaaaaaa", server=server.address)


def honest(base: Files = BASE, new: Files = NEW) -> Ledger:
    return Ledger(accept(base, new), blobs(base, new))


def test_what_is_needed_is_fetched_and_what_was_done_is_told(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    done = sandbox.review.apply(root)
    assert tree_of(root) == NEW
    assert [(file.path, file.how) for file in done.files] == [("f", "written"), ("new", "written")]
    assert done.told
    assert ledger.told == [("applied", {"id": done.id, "digest": "d" * 64, "hunks": list(done.hunks)})]
    undone = sandbox.review.undo(root)
    assert tree_of(root) == BASE
    assert [(file.path, file.how) for file in undone.files] == [("f", "written"), ("new", "removed")]
    assert [(what, said["id"]) for what, said in ledger.told] == [("applied", done.id), ("unapplied", done.id)]
    sandbox.close()


async def test_the_async_client_does_the_same(root: Path, serve: Serve) -> None:
    ledger = honest()
    async with AsyncSandbox(server=serve(ledger).address) as sandbox:
        await sandbox.review.apply(root)
        assert tree_of(root) == NEW
        await sandbox.review.undo(root)
        assert tree_of(root) == BASE


async def test_a_cancelled_apply_is_all_or_nothing_and_lets_go_of_the_tree(root: Path, serve: Serve) -> None:
    async with AsyncSandbox(server=serve(honest()).address) as sandbox:
        for number in range(12):
            task = asyncio.ensure_future(sandbox.review.apply(root))
            await asyncio.wait([task], timeout=number * 0.004)
            task.cancel()
            await asyncio.wait([task])
            recover(root)
            if tree_of(root) == NEW:
                undo(root)
            assert tree_of(root) == BASE


def test_a_server_that_could_not_be_told_is_told_by_the_next_call(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    ledger.refuses = True
    heard: list[str] = []
    done = sandbox.review.apply(root, on_notice=heard.append)
    assert tree_of(root) == NEW
    assert not done.told
    assert "the server was not told" in heard[0]
    ledger.refuses = False
    sandbox.review.undo(root)
    assert [(what, said["id"]) for what, said in ledger.told] == [("applied", done.id), ("unapplied", done.id)]
    sandbox.close()


def test_nothing_accepted_is_nothing_done(root: Path, serve: Serve) -> None:
    ledger = honest(BASE, BASE)
    sandbox = sandbox_of(serve(ledger))
    done = sandbox.review.apply(root)
    assert (done.files, done.hunks, ledger.told) == ((), (), [])
    sandbox.close()


def test_a_dry_run_tells_what_would_be_done_and_does_nothing(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    done = sandbox.review.apply(root, dry_run=True)
    assert [(file.path, file.how) for file in done.files] == [("f", "written"), ("new", "written")]
    assert tree_of(root) == BASE
    assert ledger.told == []
    (root / "f").write_bytes(b"mine\n")
    with pytest.raises(Conflict, match="in the way"):
        sandbox.review.apply(root, dry_run=True)
    for wrong in ({"all": True}, {"check": "true"}):
        with pytest.raises(InvalidRequest):
            sandbox.review.apply(root, dry_run=True, **wrong)  # type: ignore[arg-type]
    sandbox.close()


def test_a_conflict_is_nothing_told_and_nothing_left(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    (root / "new").write_bytes(b"mine")
    with pytest.raises(Conflict, match="new: there is another one"):
        sandbox.review.apply(root)
    assert ledger.told == []
    assert list((root / ".git/skerry/applies").iterdir()) == []
    sandbox.close()


def test_contents_that_are_not_what_was_accepted_land_nowhere(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    true = dict(ledger.blobs)
    for lie in (b"evil", b"n", b""):
        ledger.blobs = {**true, oid_of(b"new\n"): lie}
        with pytest.raises(SandboxUnavailable):
            sandbox.review.apply(root)
        assert tree_of(root) == BASE
    sandbox.close()


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "../outside", "/etc/cron.d/x", "a/.GIT/config"])
def test_a_server_that_names_a_path_of_its_own_gets_nowhere(path: str, root: Path, serve: Serve) -> None:
    ledger = honest({}, {path: b"evil"})
    sandbox = sandbox_of(serve(ledger))
    for how in ({}, {"commit": True}, {"branch": "b"}):
        with pytest.raises(Conflict):
            sandbox.review.apply(root, **how)  # type: ignore[arg-type]
    with pytest.raises(Conflict):
        sandbox.review.patch()
    assert git(root, "rev-list", "--all", "--count") == "1\n"
    sandbox.close()


def test_a_large_file_is_the_sandboxs_own_and_must_have_its_hash(root: Path, serve: Serve) -> None:
    large = b"\0large" * 1000
    sha256 = hashlib.sha256(large).hexdigest()
    pointer = b"skerry large file\nsha256 %b\nsize %d\n" % (sha256.encode(), len(large))
    file = AcceptedFile(
        path="big", kind="added", hunks=("h-0123456789abcdef",), new_mode="100644", new_oid=oid_of(pointer),
        new_size=len(large), large=True, sha256=sha256,
    )  # fmt: skip
    ledger = honest()
    ledger.accepted = msgspec.structs.replace(ledger.accepted, files=(file,))
    ledger.blobs = {oid_of(pointer): pointer}
    sandbox = sandbox_of(serve(ledger))
    ledger.files = {"/workspace/big": large[:-1] + b"x"}
    with pytest.raises(SandboxUnavailable, match="not the one that was accepted"):
        sandbox.review.apply(root)
    ledger.files = {"/workspace/big": large}
    sandbox.review.apply(root)
    assert (root / "big").read_bytes() == large
    with pytest.raises(Conflict, match="large file"):
        sandbox.review.patch()
    sandbox.close()


def test_a_large_file_that_was_one_before_is_known_by_its_hash(root: Path, serve: Serve) -> None:
    def stand_in(data: bytes) -> bytes:
        return b"skerry large file\nsha256 %b\nsize %d\n" % (hashlib.sha256(data).hexdigest().encode(), len(data))

    old, new = b"\0old" * 1000, b"\0new" * 1000
    (root / "big").write_bytes(old)
    git(root, "add", "big")
    git(root, "commit", "-q", "-m", "big")
    file = AcceptedFile(
        path="big", kind="modified", hunks=("h-0123456789abcdef",), large=True, sha256=hashlib.sha256(new).hexdigest(),
        old_mode="100644", old_oid=oid_of(stand_in(old)), old_size=len(old),
        new_mode="100644", new_oid=oid_of(stand_in(new)), new_size=len(new),
    )  # fmt: skip
    ledger = honest()
    ledger.accepted = msgspec.structs.replace(ledger.accepted, files=(file,))
    ledger.blobs = {oid_of(stand_in(data)): stand_in(data) for data in (old, new)}
    ledger.files = {"/workspace/big": new}
    sandbox = sandbox_of(serve(ledger))
    sandbox.review.apply(root, branch="aside")
    assert git(root, "cat-file", "-s", "aside:big") == f"{len(new)}\n"
    sandbox.review.apply(root)
    assert (root / "big").read_bytes() == new
    sandbox.review.undo(root)
    assert (root / "big").read_bytes() == old
    (root / "big").write_bytes(b"\0mine")
    with pytest.raises(Conflict, match="too large to merge"):
        sandbox.review.apply(root)
    sandbox.close()


def test_a_patch_is_given_and_nothing_is_told(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    (root.parent / "patch").write_bytes(sandbox.review.patch())
    git(root, "apply", str(root.parent / "patch"))
    assert tree_of(root) == NEW
    assert ledger.told == []
    sandbox.close()


def test_another_apply_to_the_same_tree_is_waited_for(
    root: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    other = Journal(place_of(root).journal)
    assert other.try_lock()
    heard: list[str] = []

    def hear(notice: str) -> None:
        heard.append(notice)
        other.close()

    sandbox.review.apply(root, on_notice=hear)
    assert heard == ["another apply to this tree is under way; waiting for it"]
    assert tree_of(root) == NEW
    third = Journal(place_of(root).journal)
    assert third.try_lock()
    monkeypatch.setattr(applying, "TURN_WITHIN", 0.0)
    with pytest.raises(Conflict, match="is under way"):
        sandbox.review.undo(root)
    third.close()
    sandbox.close()


def test_a_directory_that_it_was_made_of_is_where_it_lands(tmp_path: Path, root: Path, serve: Serve) -> None:
    """Though it lies in a repository."""
    place = lay(root / "below", BASE)
    ledger = honest()
    ledger.accepted = msgspec.structs.replace(ledger.accepted, origin=origin_of(place))
    sandbox = sandbox_of(serve(ledger))
    sandbox.review.apply(place)
    assert tree_of(place) == NEW
    assert (root / "f").read_bytes() == LINES
    sandbox.close()
