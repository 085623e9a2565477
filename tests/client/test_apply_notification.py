"""`sandbox.review.apply` and a server: fetched contents, notifications, and a misbehaving server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from support.kills import killed_at, steps_of
from support.lying_server import SANDBOX, Asked, Lying, Said, lying, refused, said
from support.patch_sets import Files, accept, blobs, git, in_memory, lay, place_of, recover, repository, tree_of, undo
from support.patch_sets import apply as apply_to

from skerry import AsyncSandbox, Sandbox
from skerry.client._sync import apply
from skerry.client.apply.content import oid_of
from skerry.client.apply.journal import ApplyRecord, Journal
from skerry.client.repository.origin import origin_of
from skerry.errors import Conflict, InvalidRequest, SandboxUnavailable
from skerry.types.review import PatchSet, PatchSetFile

LINES = b"".join(b"line %d\n" % number for number in range(1, 21))
BASE: Files = {"f": LINES}
NEW: Files = {"f": LINES.replace(b"line 3\n", b"three\n"), "new": b"new\n"}


@dataclass
class Ledger:
    """Its side of the story, as a test wants it."""

    accepted: PatchSet
    blobs: Mapping[str, bytes]
    told: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    refuses: bool = False
    files: dict[str, bytes] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Said:
        what = asked.path.rpartition("/review/")[2]
        if what == "patch-set":
            return Said(200, msgspec.json.encode(self.accepted))
        if what.startswith("blobs/"):
            data = self.blobs.get(what.removeprefix("blobs/"))
            return refused(404, "not_found") if data is None else Said(200, data, "application/octet-stream")
        if what.startswith("applies"):
            if self.refuses:
                return Said(0)
            undone = what.removeprefix("applies/")
            body = {"id": undone} if asked.method == "DELETE" else json.loads(asked.body)
            self.told.append((asked.method, body))
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


def test_needed_contents_are_fetched_and_the_server_is_notified(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    done = sandbox.review.apply(root)
    assert tree_of(root) == NEW
    assert [(file.path, file.how) for file in done.files] == [("f", "written"), ("new", "written")]
    assert done.notified
    assert ledger.told == [("POST", {"id": done.id, "digest": "d" * 64, "hunks": list(done.hunks)})]
    undone = sandbox.review.undo(root)
    assert tree_of(root) == BASE
    assert [(file.path, file.how) for file in undone.files] == [("f", "written"), ("new", "removed")]
    assert [(what, said["id"]) for what, said in ledger.told] == [("POST", done.id), ("DELETE", done.id)]
    sandbox.close()


TREES: tuple[Files, Files] = (
    {"f": LINES, "dir/gone": b"gone\n", "was/file": b"1"},
    {"f": b"new\n" + LINES, "made/new": b"2", "made/deep/below": b"3"},
)


def converges(call: Callable[[], object], root: Path, after: Files, step: str) -> None:
    """One more call ends in the wanted state, or finds it; nothing is left in the tree."""
    with suppress(Conflict):  # an undo that was completed finds no apply
        call()
    assert tree_of(root) == after, step
    assert [path.name for path in root.rglob(".skerry-*")] == [], step


def test_next_undo_converges_after_a_kill_at_any_step(tmp_path: Path, serve: Serve) -> None:
    base, new = TREES
    sandbox = sandbox_of(serve(honest(base, new)))
    apply_to(lay(tmp_path / "count", base), base, new)
    steps = steps_of(lambda step: undo(tmp_path / "count", step))
    for number, name in enumerate(steps):
        root = lay(tmp_path / str(number), base)
        apply_to(root, base, new)
        killed_at(number, lambda step, root=root: undo(root, step))  # type: ignore[misc]
        converges(lambda root=root: sandbox.review.undo(root), root, base, name)  # type: ignore[misc]
    sandbox.close()


def test_next_apply_or_undo_converges_after_a_kill_of_apply_at_any_step(tmp_path: Path, serve: Serve) -> None:
    base, new = TREES
    sandbox = sandbox_of(serve(honest(base, new)))
    steps = steps_of(lambda step: apply_to(lay(tmp_path / "count", base), base, new, step=step))
    for number, name in enumerate(steps):
        root = lay(tmp_path / str(number), base)
        killed_at(number, lambda step, root=root: apply_to(root, base, new, step=step))  # type: ignore[misc]
        if number % 2:
            converges(lambda root=root: sandbox.review.apply(root), root, new, name)  # type: ignore[misc]
        else:
            converges(lambda root=root: sandbox.review.undo(root), root, base, name)  # type: ignore[misc]
    sandbox.close()


def test_interrupted_apply_of_another_sandbox_does_not_replace_an_undo(root: Path, serve: Serve) -> None:
    """Its reverted apply is a notice; the requested undo still happens."""
    sandbox = sandbox_of(serve(honest()))
    sandbox.review.apply(root)
    journal = Journal(place_of(root).journal)
    journal.save(ApplyRecord(id="0" * 32, sandbox="sb-bbbbbbbbbb", root=str(root), state="writing", at=1.0))
    journal.close()
    done = sandbox.review.undo(root)
    assert "an earlier apply was interrupted; it was reverted" in done.notes
    assert tree_of(root) == BASE
    sandbox.close()


async def test_async_client_does_the_same(root: Path, serve: Serve) -> None:
    ledger = honest()
    async with AsyncSandbox(server=serve(ledger).address) as sandbox:
        await sandbox.review.apply(root)
        assert tree_of(root) == NEW
        await sandbox.review.undo(root)
        assert tree_of(root) == BASE


async def test_cancelled_apply_is_atomic_and_releases_the_tree(root: Path, serve: Serve) -> None:
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


def test_unreachable_server_is_notified_by_the_next_call(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    ledger.refuses = True
    heard: list[str] = []
    done = sandbox.review.apply(root, on_notice=heard.append)
    assert tree_of(root) == NEW
    assert not done.notified
    assert "the server was not notified" in heard[0]
    ledger.refuses = False
    sandbox.review.undo(root)
    assert [(what, said["id"]) for what, said in ledger.told] == [("POST", done.id), ("DELETE", done.id)]
    sandbox.close()


def test_apply_without_accepted_changes_does_nothing(root: Path, serve: Serve) -> None:
    ledger = honest(BASE, BASE)
    sandbox = sandbox_of(serve(ledger))
    done = sandbox.review.apply(root)
    assert (done.files, done.hunks, ledger.told) == ((), (), [])
    sandbox.close()


def test_dry_run_returns_the_plan_and_changes_nothing(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    done = sandbox.review.apply(root, dry_run=True)
    assert [(file.path, file.how) for file in done.files] == [("f", "written"), ("new", "written")]
    assert tree_of(root) == BASE
    assert ledger.told == []
    (root / "f").write_bytes(b"mine\n")
    with pytest.raises(Conflict, match="in the way"):
        sandbox.review.apply(root, dry_run=True)
    with pytest.raises(InvalidRequest):
        sandbox.review.apply(root, dry_run=True, check="true")
    sandbox.close()


def test_conflict_notifies_nothing_and_leaves_nothing(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    (root / "new").write_bytes(b"mine")
    with pytest.raises(Conflict, match="new: a different file of that name"):
        sandbox.review.apply(root)
    assert ledger.told == []
    assert list((root / ".git/skerry/applies").iterdir()) == []
    sandbox.close()


def test_contents_that_differ_from_the_accepted_ones_are_not_written(root: Path, serve: Serve) -> None:
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
def test_server_cannot_choose_a_path(path: str, root: Path, serve: Serve) -> None:
    ledger = honest({}, {path: b"evil"})
    sandbox = sandbox_of(serve(ledger))
    for how in ({}, {"commit": True}, {"branch": "b"}):
        with pytest.raises(Conflict):
            sandbox.review.apply(root, **how)  # type: ignore[arg-type]
    with pytest.raises(Conflict):
        sandbox.review.patch()
    assert git(root, "rev-list", "--all", "--count") == "1\n"
    sandbox.close()


def test_large_file_is_read_from_the_sandbox_and_must_match_its_hash(root: Path, serve: Serve) -> None:
    large = b"\0large" * 1000
    sha256 = hashlib.sha256(large).hexdigest()
    pointer = b"skerry large file\nsha256 %b\nsize %d\n" % (sha256.encode(), len(large))
    file = PatchSetFile(
        path="big", kind="added", hunks=("h-0123456789abcdef",), new_mode="100644", new_oid=oid_of(pointer),
        new_size=len(large), large=True, sha256=sha256,
    )  # fmt: skip
    ledger = honest()
    ledger.accepted = msgspec.structs.replace(ledger.accepted, files=(file,))
    ledger.blobs = {oid_of(pointer): pointer}
    sandbox = sandbox_of(serve(ledger))
    ledger.files = {"/workspace/big": large[:-1] + b"x"}
    with pytest.raises(SandboxUnavailable, match="differs from the accepted one"):
        sandbox.review.apply(root)
    ledger.files = {"/workspace/big": large}
    sandbox.review.apply(root)
    assert (root / "big").read_bytes() == large
    with pytest.raises(Conflict, match="large file"):
        sandbox.review.patch()
    sandbox.close()


def test_large_sparse_file_keeps_its_holes_and_is_bounded(root: Path, serve: Serve) -> None:
    ledger = honest()

    def offer(large: bytes, size: int) -> None:
        sha256 = hashlib.sha256(large).hexdigest()
        pointer = b"skerry large file\nsha256 %b\nsize %d\n" % (sha256.encode(), size)
        file = PatchSetFile(
            path="big", kind="added", hunks=("h-0123456789abcdef",), new_mode="100644", new_oid=oid_of(pointer),
            new_size=len(large), large=True, sha256=sha256,
        )  # fmt: skip
        ledger.accepted = msgspec.structs.replace(ledger.accepted, files=(file,))
        ledger.blobs, ledger.files = {oid_of(pointer): pointer}, {"/workspace/big": large}

    sandbox = sandbox_of(serve(ledger))
    large = bytes(8 << 20) + b"data" + bytes(8 << 20)
    offer(large, len(large))
    sandbox.review.apply(root)
    assert (root / "big").read_bytes() == large
    assert (root / "big").stat().st_blocks * 512 <= 1 << 16
    offer(b"", 1 << 40)
    with pytest.raises(InvalidRequest, match="large files: the transfer exceeds"):
        sandbox.review.apply(root)
    sandbox.close()


def test_large_file_before_and_after_is_identified_by_its_hash(root: Path, serve: Serve) -> None:
    def stand_in(data: bytes) -> bytes:
        return b"skerry large file\nsha256 %b\nsize %d\n" % (hashlib.sha256(data).hexdigest().encode(), len(data))

    old, new = b"\0old" * 1000, b"\0new" * 1000
    (root / "big").write_bytes(old)
    git(root, "add", "big")
    git(root, "commit", "-q", "-m", "big")
    file = PatchSetFile(
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


def test_patch_notifies_nothing(root: Path, serve: Serve) -> None:
    ledger = honest()
    sandbox = sandbox_of(serve(ledger))
    (root.parent / "patch").write_bytes(sandbox.review.patch())
    git(root, "apply", str(root.parent / "patch"))
    assert tree_of(root) == NEW
    assert ledger.told == []
    sandbox.close()


def test_apply_waits_for_another_one_to_the_same_tree(
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
    assert heard == ["another apply to this tree is in progress; waiting for it"]
    assert tree_of(root) == NEW
    third = Journal(place_of(root).journal)
    assert third.try_lock()
    monkeypatch.setattr(apply, "LOCK_TIMEOUT", 0.0)
    with pytest.raises(Conflict, match="is in progress"):
        sandbox.review.undo(root)
    third.close()
    sandbox.close()


def test_changes_are_applied_to_the_source_directory(tmp_path: Path, root: Path, serve: Serve) -> None:
    """Though it lies in a repository."""
    place = lay(root / "below", BASE)
    ledger = honest()
    ledger.accepted = msgspec.structs.replace(ledger.accepted, origin=origin_of(place))
    sandbox = sandbox_of(serve(ledger))
    sandbox.review.apply(place)
    assert tree_of(place) == NEW
    assert (root / "f").read_bytes() == LINES
    sandbox.close()


def test_journal_record_of_an_earlier_version_is_read() -> None:
    record = msgspec.json.decode(b'{"id":"a","sandbox":"sb","root":"/","told":true}', type=ApplyRecord)
    assert record.reported
    assert b'"told":true' in msgspec.json.encode(record)
