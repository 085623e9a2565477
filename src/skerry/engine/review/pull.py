"""Pulls: the user's later edits in a sandbox's workspace.

The client merges, because host paths belong to it. The server receives the result in one request and checks that the
merged versions are still current. Then it writes the files, commits them to the ledger as the user's, and moves the
base, so that the edits are not hunks of the review. The user's files as read last (`Ledger.synced`) move after that: a
pull that is repeated after any interruption finds the same edits again, merges them with files that contain them
already, and changes nothing but the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec

from skerry.engine.concurrency import stream_from_thread
from skerry.engine.faults import fault_point
from skerry.engine.review.collect import Collected, NewCommit, Spool, pointer
from skerry.engine.review.service import ReviewService
from skerry.engine.review.tables import LargeFile
from skerry.engine.review.workspace import ReviewedWorkspace
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, FileError, InvalidRequest, SkerryError
from skerry.keeper import Keeper
from skerry.review.hunks.atoms import parse_atoms
from skerry.review.hunks.decisions import AppliedSpan, shift_decisions
from skerry.review.hunks.review_state import ReviewState, encode_decisions, file_entries
from skerry.review.ledger.commit_message import CommitInfo
from skerry.review.ledger.diff import Delta
from skerry.review.ledger.ledger import BASE, SYNCED, Drop, Ledger, Put
from skerry.types import (
    PULL_GROUP,
    Caller,
    PullContent,
    PullFile,
    PullHead,
    PullResult,
    RepoCopy,
    TreeFile,
    TreeHead,
    TreeVersion,
    decode_path,
    encode_path,
)
from skerry.types.paths import refused
from skerry.types.review import MAX_IGNORE, MAX_IGNORE_LINES

MAX_LINE: Final = 4 << 20  # a group of files with the longest paths
_LINES: Final = 500  # files that are listed in one piece
_PIECE: Final = 1 << 20
Entry = tuple[str, str]  # mode and blob
T = TypeVar("T")
_head = msgspec.json.Decoder(PullHead)
_group = msgspec.json.Decoder(list[PullFile])
_content = msgspec.json.Decoder(PullContent)
_encoder = msgspec.json.Encoder()


class _Stale(Conflict):
    """The files changed since they were merged: the client merges again."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} changed during the pull", hint="pull again", details={"stale": True})


@dataclass(frozen=True)
class _Content:
    """A received content in the spool. `entry`: the blob in the ledger, which for a large file is a pointer."""

    start: int
    size: int
    sha256: str | None


@dataclass
class _Pull:
    """A request, read completely."""

    head: PullHead
    files: dict[bytes, PullFile]
    contents: dict[str, _Content]
    spool: Spool

    def data(self, oid: str) -> Iterator[bytes]:
        content = self.contents[oid]
        return self.spool.read(content.start, content.size)

    def put(self, path: bytes, version: TreeVersion) -> Put:
        """Return the version as the ledger stores it."""
        content = self.contents.get(version.oid)
        if content is None:
            return Put(path, version.mode, oid=version.oid)
        if content.sha256 is not None:
            return Put(path, version.mode, pointer(content.sha256, content.size))
        return Put(path, version.mode, self.data(version.oid), content.size)

    def entry(self, version: TreeVersion) -> Entry:
        content = self.contents.get(version.oid)
        if content is None or content.sha256 is None:
            return version.mode, version.oid
        data = pointer(content.sha256, content.size)
        return version.mode, hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()

    @property
    def large(self) -> dict[str, LargeFile]:
        versions = [one for file in self.files.values() for one in (file.merged, file.new, file.base) if one]
        found = [(self.entry(one)[1], self.contents.get(one.oid)) for one in versions]
        return {oid: LargeFile(sha256=one.sha256, size=one.size) for oid, one in found if one and one.sha256}


class PullService:
    """`engine.pulls`."""

    def __init__(self, reviews: ReviewService, lifecycle: Lifecycle, tasks: Tasks) -> None:
        self._reviews, self._lifecycle, self._tasks = reviews, lifecycle, tasks

    async def copies(self, caller: Caller, origin: str | None) -> list[RepoCopy]:
        """List copies of repositories, without `listing`, for which ledgers are read; or those of one, with it."""
        return [
            RepoCopy(
                sandbox=one.sandbox_id, name=one.sandbox.record.name, origin=one.state.origin, head=one.state.head,
                copied_at=one.state.copied_at, listing=await self._listing(one) if origin is not None else None,
            )
            for one in self._reviews.of(caller)
            if one.state.origin is not None and origin in (None, one.state.origin)
        ]  # fmt: skip

    async def _listing(self, workspace: ReviewedWorkspace) -> str | None:
        try:
            return await self._reviews.threads.read(workspace, workspace.ledger.synced_listing)
        except (SkerryError, OSError):  # damaged, or deleted meanwhile
            return None

    async def tree(self, caller: Caller, ref: str, paths: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
        """Return the files as the user had them, with applied changes, and as they are in the sandbox."""
        workspace = await self._reviews.settled(caller, ref)
        threads = self._reviews.threads
        return stream_from_thread(partial(threads.read, workspace), _listed(workspace, frozenset(paths)))

    async def pull(self, caller: Caller, ref: str, body: AsyncIterator[bytes]) -> PullResult:
        workspace = self._reviews.get(caller, ref)
        async with self._lifecycle.use(caller, ref) as (_, keeper):
            tools = self._reviews.tools
            with Spool(workspace.place, await tools.room(workspace), tools.in_thread) as spool:
                pull = await _received(body, spool, tools.max_file_size)
                await self._reviews.settle(workspace)
                return await self._tasks.shield(self._perform(workspace, keeper, pull))

    async def _perform(self, workspace: ReviewedWorkspace, keeper: Keeper, pull: _Pull) -> PullResult:
        decisions, tools, ledger = self._reviews.decisions, self._reviews.tools, workspace.ledger
        async with decisions.locked(workspace) as current:
            await tools.in_thread(_check, ledger, current, pull)
            if fresh := pull.large:
                workspace.keep(tools.table, large={**workspace.state.large, **fresh})
            await _Writer(workspace.sandbox, keeper, workspace.path, pull).write()
            fault_point("refresh.files")
            info = CommitInfo(kind="pulled", at=time.time(), note=pull.head.head or "")
            commit = await tools.in_thread(ledger.commit, info, _changes(pull, _merged), current.tip)
            fault_point("refresh.commit")
            self._forget(workspace, pull)
            decided = await tools.in_thread(_shifted, current, pull)
            # Decisions refer to lines of the base. Between the two, nothing is decided: an old decision never applies
            # to other lines.
            await decisions.put(workspace, dict.fromkeys(decided, b""))
            fault_point("refresh.undecided")
            moved = CommitInfo(kind="moved", at=time.time())
            await tools.in_thread(ledger.move, BASE, _changes(pull, _base), moved)
            await decisions.put(workspace, decided)
            fault_point("refresh.base")
            await tools.in_thread(ledger.move, SYNCED, _changes(pull, _new), moved)
            fault_point("refresh.synced")
            self._record(workspace, pull)
            fault_point("refresh.record")
        if commit is not None:
            self._reviews.announce(workspace, Collected(NewCommit(commit, current.tip)))
        return PullResult(sandbox=workspace.sandbox_id, commit=commit, head=pull.head.head)

    def _forget(self, workspace: ReviewedWorkspace, pull: _Pull) -> None:
        """Let the next collection read the written files again, in case a program changed them meanwhile."""
        if workspace.manifest is None:
            return
        for path, file in pull.files.items():
            if file.merged is not None:
                workspace.manifest.put(path, None)
            else:
                workspace.manifest.drop(path)

    def _record(self, workspace: ReviewedWorkspace, pull: _Pull) -> None:
        """Store the new state of the copy. New files of the user count in spite of the ignore rules, which are those of
        the start."""
        state, head = workspace.state, pull.head
        added = (_text(path) for path, file in pull.files.items() if file.new is not None and file.tip is None)
        tracked = tuple(dict.fromkeys((*state.tracked, *filter(None, added))))
        if len(tracked) > MAX_IGNORE_LINES or sum(map(len, tracked)) > MAX_IGNORE // 2:
            tracked = state.tracked
        if tracked != state.tracked:
            workspace.keeper = None  # the next collection starts tracking again
        workspace.keep(
            self._reviews.tools.table, head=head.head, known=head.known or state.known, copied_at=head.copied_at,
            tracked=tracked,
        )  # fmt: skip


def _text(path: bytes) -> str | None:
    text, raw = encode_path(os.fsdecode(path))
    return text if raw is None else None


# -- listing ----------------------------------------------------------------------------------------------------------


def _listed(workspace: ReviewedWorkspace, paths: frozenset[bytes]) -> Generator[bytes, None, None]:
    ledger, large = workspace.ledger, workspace.state.large
    commits = ledger.synced, ledger.base, ledger.tip
    head = TreeHead(
        synced=commits[0], base=commits[1], tip=commits[2], path=workspace.path, origin=workspace.state.origin
    )
    yield _encoder.encode(head) + b"\n"
    known: dict[str, dict[bytes, Entry]] = {commit: file_entries(ledger, commit) for commit in {*commits}}
    synced, base, tip = (known[commit] for commit in commits)
    named = {path for one in known.values() for path in one}
    lines = bytearray()
    for number, path in enumerate(sorted(named & paths if paths else named)):
        lines += _encoder.encode(_file(path, synced.get(path), base.get(path), tip.get(path), large)) + b"\n"
        if number % _LINES == 0:
            yield bytes(lines)
            lines.clear()
    yield bytes(lines) + _encoder.encode(TreeFile(end=True)) + b"\n"


def _file(
    path: bytes, synced: Entry | None, base: Entry | None, tip: Entry | None, large: Mapping[str, LargeFile]
) -> TreeFile:
    shown, raw = encode_path(os.fsdecode(path))
    changed = (_version(base, large), _version(tip, large)) if (base, tip) != (synced, synced) else None
    return TreeFile(path=shown, raw_path=raw, synced=_version(synced, large), changed=changed)


def _version(entry: Entry | None, large: Mapping[str, LargeFile]) -> TreeVersion | None:
    if entry is None:
        return None
    mode, oid = entry
    return TreeVersion(mode, oid, large[oid].sha256 if oid in large else None)  # type: ignore[arg-type]


# -- receiving --------------------------------------------------------------------------------------------------------


class _Body:
    """Lines and bytes of a body as it arrives."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces, self._held = pieces, bytearray()

    async def line(self) -> bytes:
        while (end := self._held.find(b"\n")) < 0:
            if len(self._held) > MAX_LINE:
                raise InvalidRequest(f"a line of the pull is longer than {MAX_LINE >> 20} MiB")
            await self._more()
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return line

    async def exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            if not self._held:
                await self._more()
            piece = bytes(self._held[: min(size, _PIECE)])
            del self._held[: len(piece)]
            size -= len(piece)
            yield piece

    async def end(self) -> None:
        if self._held or await anext(self._pieces, b"") != b"":
            raise InvalidRequest("the pull has more bytes than it announced")

    async def _more(self) -> None:
        piece = await anext(self._pieces, b"")
        if not piece:
            raise InvalidRequest("the pull ended early")
        self._held += piece


async def _received(pieces: AsyncIterator[bytes], spool: Spool, max_file_size: int) -> _Pull:
    body = _Body(pieces)
    pull = _Pull(_decoded(_head, await body.line()), {}, {}, spool)
    while len(pull.files) < pull.head.files:
        group = _decoded(_group, await body.line())
        if not 0 < len(group) <= PULL_GROUP:
            raise InvalidRequest(f"files: a group has at most {PULL_GROUP} files and at least one")
        for file in group:
            _add(pull.files, file)
    if len(pull.files) != pull.head.files:
        raise InvalidRequest("files: not the announced number")
    for _ in range(pull.head.contents):
        announced = _decoded(_content, await body.line())
        pull.contents[announced.oid] = await _spooled(body, announced, spool, max_file_size)
    await body.end()
    return pull


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"pull: {error}") from None


def _add(files: dict[bytes, PullFile], file: PullFile) -> None:
    path = decode_path(file.path, file.raw_path).encode("utf-8", "surrogateescape")
    versions = (file.merged, file.new, file.base)
    link = any(one is not None and one.mode == "120000" for one in versions)
    if path in files or (why := refused(path, link=link)) is not None:
        raise InvalidRequest(f"{file.path[:200]!r}: {'named twice' if path in files else why}")
    files[path] = file


async def _spooled(body: _Body, announced: PullContent, spool: Spool, max_file_size: int) -> _Content:
    start, sha256 = spool.size, hashlib.sha256()
    sha1 = hashlib.sha1(b"blob %d\0" % announced.size, usedforsecurity=False)
    async for piece in body.exactly(announced.size):
        await spool.add(piece)
        sha1.update(piece)
        if announced.size > max_file_size:
            sha256.update(piece)
    if sha1.hexdigest() != announced.oid:
        raise InvalidRequest(f"a content is not {announced.oid}")
    return _Content(start, announced.size, sha256.hexdigest() if announced.size > max_file_size else None)


# -- merging ----------------------------------------------------------------------------------------------------------


def _check(ledger: Ledger, current: ReviewState, pull: _Pull) -> None:
    """Check that the client merged the current versions, and that the result is a tree."""
    if (pull.head.synced, pull.head.base) != (ledger.synced, current.base):
        raise _Stale("the review")
    tip = file_entries(ledger, current.tip)
    for path, file in pull.files.items():
        if tip.get(path) != (None if file.tip is None else (file.tip.mode, file.tip.oid)):
            raise _Stale(file.path)
    named = {one.oid for file in pull.files.values() for one in (file.merged, file.new, file.base) if one is not None}
    ledger.check_blobs(named - pull.contents.keys())
    unsent = (file for file in pull.files.values() if file.merged is not None and file.merged != file.tip)
    if missing := next((file for file in unsent if file.merged and file.merged.oid not in pull.contents), None):
        raise InvalidRequest(f"{missing.path[:200]!r}: its content is missing")
    gone = {path for path, file in pull.files.items() if file.merged is None}
    after = {path for path in tip if path not in gone} | {path for path in pull.files if path not in gone}
    above = {parent for path in after for parent in _parents(path)}
    if mixed := next(iter(after & above), None):
        raise InvalidRequest(f"{os.fsdecode(mixed)[:200]!r}: it would be a file and a directory")


def _parents(path: bytes) -> Iterator[bytes]:
    while path := posixpath.dirname(path):
        yield path


def _merged(file: PullFile) -> TreeVersion | None:
    return file.merged


def _base(file: PullFile) -> TreeVersion | None:
    return file.base


def _new(file: PullFile) -> TreeVersion | None:
    return file.new


def _changes(pull: _Pull, side: Callable[[PullFile], TreeVersion | None]) -> Iterable[Put | Drop]:
    for path, file in pull.files.items():
        version = side(file)
        yield Drop(path) if version is None else pull.put(path, version)


def _shifted(current: ReviewState, pull: _Pull) -> dict[bytes, bytes]:
    """Return the decisions about the pulled files in the new base."""
    ledger, base = current.ledger, file_entries(current.ledger, current.base)
    decided = [path for path in pull.files if path in current.decided]
    found: dict[bytes, bytes] = {}
    for path in decided:
        old, version = base.get(path), pull.files[path].base
        if (None if version is None else pull.entry(version)) == old:
            continue
        found[path] = b""
        if old is not None and version is not None:
            new = _stored(ledger, pull, version)
            delta = Delta(path=path, kind="modified", old_oid=old[1], new_oid=new)
            ((_, patch),) = ledger.changes_of([delta])
            spans = [AppliedSpan(one.start, one.end, one.new_end - one.new_start) for one in parse_atoms(patch)]
            found[path] = encode_decisions(shift_decisions(current.decisions(path), spans))
    return found


def _stored(ledger: Ledger, pull: _Pull, version: TreeVersion) -> str:
    """Return the blob of a version, written to the ledger if the request brought it."""
    content = pull.contents.get(version.oid)
    if content is None or content.sha256 is not None:
        return pull.entry(version)[1]
    return ledger.write(b"".join(pull.data(version.oid)))


# -- writing ----------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes merged files with the permissions of the sandbox's user. Where that user is denied, as in a directory that
    root made, root writes, if programs inside may become root too."""

    def __init__(self, sandbox: Sandbox, keeper: Keeper, root: str, pull: _Pull) -> None:
        self._files, self._root, self._pull = keeper.files, root, pull
        self._as_root = sandbox.record.spec.options.sudo

    async def write(self) -> None:
        """Write all. Removals come first: a file may replace a directory."""
        changed = [(path, file) for path, file in self._pull.files.items() if file.merged != file.tip]
        for path, file in sorted(changed, key=lambda one: one[0], reverse=True):
            if file.tip is not None and (file.merged is None or _is_link(file.merged) or _is_link(file.tip)):
                await self._remove(path)
                if file.merged is None:
                    await self._remove_empty(path)
        for path, file in sorted(changed, key=lambda one: one[0]):
            if file.merged is not None:
                await self._put(path, file.merged, file.tip)

    def _inside(self, path: bytes) -> str:
        return f"{self._root}/{os.fsdecode(path)}"

    async def _put(self, path: bytes, version: TreeVersion, tip: TreeVersion | None) -> None:
        inside, data = self._inside(path), partial(self._pull.data, version.oid)
        if _is_link(version):
            target = os.fsdecode(b"".join(data()))
            await self._permitted(lambda user: self._files.link(target, inside, user))
            return
        mode = None if tip is not None and tip.mode == version.mode else 0o755 if version.mode == "100755" else 0o644
        size = self._pull.contents[version.oid].size
        await self._permitted(
            lambda user: self._files.write(inside, _in_turn(data()), mode=mode, user=user, parents=True, size=size)
        )

    async def _remove(self, path: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            await self._permitted(lambda user: self._files.remove(self._inside(path), user=user))

    async def _remove_empty(self, path: bytes) -> None:
        """Remove the directories that have no entry any more, as git does."""
        with contextlib.suppress(FileError):
            for parent in _parents(path):
                await self._files.remove(self._inside(parent))

    async def _permitted(self, work: Callable[[str | None], Awaitable[object]]) -> None:
        try:
            await work(None)
        except PermissionError:
            if not self._as_root:
                raise
            await work("root")


def _is_link(version: TreeVersion) -> bool:
    return version.mode == "120000"


async def _in_turn(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
