"""One collection: the changes in a workspace since the last one, committed to its ledger.

Nothing is taken over until the commit is safe: neither the position in the keeper's count of changes, nor the manifest,
nor the ends of writers. After any earlier failure the next collection finds the same changes again."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ParamSpec, TypeVar

import msgspec

from skerry.engine.faults import fault_point
from skerry.engine.network.gateway import GatewayManager
from skerry.engine.records.trace.service import TraceService
from skerry.engine.review.commands import CommandRecord
from skerry.engine.review.commands import ended as command_ended
from skerry.engine.review.manifest import Changes, Manifest
from skerry.engine.review.tables import LargeFile, ReviewTable
from skerry.engine.review.threads import ReviewThreads
from skerry.engine.review.workspace import ReviewedWorkspace
from skerry.engine.review.writers import MAX_NAMED, Collection, Writer, shown
from skerry.errors import NotFound, QuotaExceeded
from skerry.keeper import Keeper, Process
from skerry.keeper.tracking import TrackedContent, TrackedEntry
from skerry.review.ledger.commit_message import CommitInfo
from skerry.review.ledger.ledger import MAIN, Drop, Put
from skerry.types import TraceChange, TraceChanges, encode_path, readable_size

MAX_HELD = 8 << 20
_PIECE = 1 << 20


@dataclass(frozen=True)
class LedgerRoom:
    """The bytes that a ledger may still take, and the reason why not more."""

    bytes: int
    message: str
    hint: str
    details: dict[str, Any]

    @property
    def error(self) -> QuotaExceeded:
        return QuotaExceeded(self.message, hint=self.hint, details=self.details)


def ledger_room(size: int, max_size: int, growth: int, free: int, min_free: int) -> LedgerRoom:
    """Return the tightest bound. `growth`: bytes that the sandbox's disk limit still leaves; `free`: space on the
    server's disk, which a change takes twice for a moment."""
    return min(
        (
            LedgerRoom(
                max_size - size,
                "the ledger of this sandbox's changes is full",
                "the setting review.max_ledger_size is the most that it may take on disk",
                {"setting": "review.max_ledger_size"},
            ),
            LedgerRoom(
                growth,
                "the ledger of this sandbox's changes is full: they take as much as the sandbox's disk limit",
                "raise the limit: `skerry update --disk SIZE`",
                {"limit": "disk"},
            ),
            LedgerRoom(
                (free - min_free) // 2,
                f"the server's disk is almost full: {readable_size(free)} free,"
                f" of which {readable_size(min_free)} stay free",
                "free space on the server's disk; the setting is storage.min_free_space",
                {"setting": "storage.min_free_space", "free": free},
            ),
        ),
        key=lambda room: room.bytes,
    )


class Spool:
    """`room`: how many bytes may come at most."""

    def __init__(
        self, place: Path, room: LedgerRoom, in_thread: Callable[..., Awaitable[None]] = asyncio.to_thread
    ) -> None:
        self._place, self._room, self._in_thread = place, room, in_thread
        self._held = bytearray()
        self._start = 0  # where the held bytes stand in all of them
        self._file: IO[bytes] | None = None

    @property
    def size(self) -> int:
        return self._start + len(self._held)

    async def add(self, piece: bytes) -> None:
        self._held += piece
        if self.size > self._room.bytes:
            raise self._room.error
        if len(self._held) > MAX_HELD:
            held, self._held = self._held, bytearray()
            self._start += len(held)
            await self._in_thread(self._write, held)

    def read(self, start: int, size: int) -> Iterator[bytes]:
        """In any thread, once all is here."""
        end = start + size
        while start < min(end, self._start):
            most = min(_PIECE, min(end, self._start) - start)
            piece = os.pread(self._file.fileno(), most, start) if self._file is not None else b""
            if not piece:
                raise OSError("a spool is shorter than it was")
            yield piece
            start += len(piece)
        if start < end:
            yield bytes(self._held[start - self._start : end - self._start])

    def _write(self, data: bytearray) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._place, buffering=0)  # noqa: SIM115 -- closed with the spool
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


T = TypeVar("T")
P = ParamSpec("P")
MAX_FILES = 500_000
MAX_TRACED = 1_000  # changed files that a step of a trace names
BUSY = 2_000  # entries above which a comparison leaves the event loop
MAX_ASKED = 16  # commands that are queried one by one for their end
SAVE_EVERY_S = 5.0
MAX_LARGE = 10_000  # versions of large files that are known as such
MAX_WHOLE = 1 << 20  # bytes of a file that are handed over in one piece


@dataclass(frozen=True)
class CollectTools:
    threads: ReviewThreads
    gateways: GatewayManager
    table: ReviewTable
    traces: TraceService
    max_file_size: int
    max_ledger_size: int
    min_free: int

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.threads.in_thread(work, *args, **kwargs)

    async def room(self, workspace: ReviewedWorkspace, *, base: bool = False) -> LedgerRoom:
        """Return the space for new objects. The files at the start of a review (`base`) do not count against the
        sandbox's disk limit: they may be inherited."""
        size, disk = await self.in_thread(workspace.ledger.size), await self.in_thread(os.statvfs, workspace.place)
        growth = workspace.sandbox.record.spec.limits.disk_bytes + workspace.state.base_size - size
        free = disk.f_bavail * disk.f_frsize
        return ledger_room(size, self.max_ledger_size, sys.maxsize if base else growth, free, self.min_free)


@dataclass(frozen=True)
class NewCommit:
    """A new commit, and the one before it. `alone`: the only command that it can be of, if that has ended."""

    commit: str
    parent: str
    alone: str | None = None


@dataclass(frozen=True)
class Collected:
    """The new commit, if anything changed, and the commands that ended and are complete now."""

    commit: NewCommit | None
    ended: tuple[CommandRecord, ...] = ()


@dataclass(frozen=True)
class _ReadFile:
    """A file as it was read: where its bytes are in the spool."""

    entry: TrackedEntry
    start: int
    size: int
    steady: bool
    sha256: str | None = None


async def collect(
    tools: CollectTools, workspace: ReviewedWorkspace, keeper: Keeper, *, base: bool = False
) -> Collected:
    """Collect changes. `base`: the current files are the user's. The caller holds the lock."""
    manifest = await _attach(tools, workspace, keeper)
    await _query_ends(workspace, keeper)
    collection, began = workspace.writers.start_collection(), time.time()
    scan = await keeper.tracking.scan(workspace.tracker, workspace.seq)
    async with aclosing(scan):
        entries = [entry async for entry in scan]
    found = await _compare(tools, manifest, entries, scan.full)
    made = None
    if found or base:
        facts = (
            CommitInfo(kind="base", at=time.time(), command="") if base else await _facts(tools, workspace, collection)
        )
        made = await _commit(tools, workspace, keeper, manifest, found, facts, await tools.room(workspace, base=base))
    if len(entries) > BUSY:
        await tools.in_thread(manifest.list, found, first=base)
    else:
        manifest.list(found, first=base)
    if workspace.state.rolled_back is not None:
        await _forget_rollback(tools, workspace)
    workspace.seq = scan.seq
    finished = workspace.writers.finish_collection(collection, committed=made is not None)
    ended = [command_ended(writer, time.time()) for writer in finished if writer.command is not None]
    if ended:
        await tools.in_thread(workspace.commands.append, ended)
    workspace.writers.forget_all(finished)
    await _save(tools, workspace, bool(found))
    workspace.looked(began)  # a writer that ended since is not done
    if made is not None:
        fault_point("collect.done")
        made = replace(made, alone=collection.alone.id if collection.alone else None)
    return Collected(made, tuple(ended))


# -- preparation ------------------------------------------------------------------------------------------------------


async def _attach(tools: CollectTools, workspace: ReviewedWorkspace, keeper: Keeper) -> Manifest:
    """Start tracking in the keeper. A new keeper, or one that an earlier server used, starts from the beginning."""
    manifest = workspace.manifest
    if manifest is None:
        manifest = workspace.manifest = await tools.in_thread(workspace.load)
    if workspace.keeper is not keeper:
        looked_at = await tools.in_thread(workspace.looked_at)
        for process in await keeper.processes():
            if not process.channel and (process.state == "running" or (process.ended_at or 0.0) >= looked_at):
                workspace.writers.begin(Writer(process.id, _command(process)))
                if process.state == "exited":
                    workspace.writers.end(process.id, process)
        state = workspace.state
        workspace.tracker = await keeper.tracking.start(state.path, state.ignore, state.tracked, tools.max_file_size)
        workspace.seq, workspace.keeper = 0, keeper
    return manifest


async def _query_ends(workspace: ReviewedWorkspace, keeper: Keeper) -> None:
    """Query the ends of commands: the keeper's events may still be on their way when the caller of a command knows its
    end."""
    running = workspace.writers.running
    if len(running) > MAX_ASKED:
        for process in await keeper.processes():
            if process.state == "exited":
                workspace.writers.end(process.id, process)
        return
    for name in running:
        try:
            process = await keeper.process(name)
        except NotFound:  # long ended, and forgotten
            workspace.writers.end(name)
            continue
        if process.state == "exited":
            workspace.writers.end(name, process)


def _command(process: Process) -> str:
    return shown(process.shell if process.shell is not None else process.argv or ())


async def _compare(tools: CollectTools, manifest: Manifest, entries: list[TrackedEntry], full: bool) -> Changes:
    compare = partial(manifest.compare, entries, full=full)
    found = await tools.in_thread(compare) if len(entries) > BUSY else compare()
    if len(manifest.files) + len(found.read) + len(found.links) - len(found.gone) > MAX_FILES:
        raise QuotaExceeded(
            f"there are more than {MAX_FILES:,} files to look after", hint="have the project's .gitignore name some"
        )
    return found


async def _facts(tools: CollectTools, workspace: ReviewedWorkspace, collection: Collection) -> CommitInfo:
    if (why := workspace.state.rolled_back) is not None:
        return CommitInfo(kind="rollback", at=time.time(), command=why)
    names = tuple(dict.fromkeys(writer.process for writer in collection.commands[:MAX_NAMED]))
    hosts: tuple[str, ...] = ()
    if names:
        hosts = await tools.gateways.contacted_hosts(
            workspace.sandbox_id, names, min(writer.heard for writer in collection.commands)
        )
    return CommitInfo(
        kind=collection.kind, at=time.time(), command=collection.text, processes=names,
        runs=tuple(writer.id for writer in collection.commands[-MAX_NAMED:]),
        exit_code=collection.alone.exit_code if collection.alone else None,
        duration_s=collection.alone.duration_s if collection.alone else None,
        running=collection.running, hosts=hosts,
    )  # fmt: skip


# -- the commit -------------------------------------------------------------------------------------------------------


async def _commit(
    tools: CollectTools,
    workspace: ReviewedWorkspace,
    keeper: Keeper,
    manifest: Manifest,
    found: Changes,
    facts: CommitInfo,
    room: LedgerRoom,
) -> NewCommit | None:
    ledger = workspace.ledger
    parent = await tools.in_thread(ledger.rev, MAIN)
    if room.bytes <= 0 and (found.read or found.links):  # removals take next to nothing
        raise room.error
    with Spool(workspace.place, room, tools.in_thread) as spool:
        pieces = [piece async for piece in _read(workspace, keeper, found, spool)]
        fault_point("collect.read")
        _remember_large(tools, workspace, pieces)
        facts = replace(facts, left_out=len(found.left_out))
        commit = await tools.in_thread(ledger.commit, facts, _changes(found, pieces, spool))
        if commit is not None and facts.kind != "base":
            changes = await tools.in_thread(_traced, workspace.path, commit, facts, found, pieces, spool)
            tools.traces.changes(workspace.sandbox_id, changes)
    fault_point("collect.commit")
    if len(pieces) + len(found.gone) > BUSY:
        await tools.in_thread(_take_over, manifest, found, pieces)
    else:
        _take_over(manifest, found, pieces)
    return NewCommit(commit, parent or commit) if commit is not None else None


def _take_over(manifest: Manifest, found: Changes, pieces: list[_ReadFile]) -> None:
    for path in found.gone:
        manifest.drop(path)
    for piece in pieces:
        manifest.put(piece.entry.path, piece.entry if piece.steady else None)


async def _read(workspace: ReviewedWorkspace, keeper: Keeper, found: Changes, spool: Spool) -> AsyncIterator[_ReadFile]:
    for entry in found.links:
        target = entry.target or b""
        start = spool.size
        await spool.add(target)
        yield _ReadFile(entry, start, len(target), steady=True)
    async with aclosing(keeper.tracking.read(workspace.tracker, [entry.path for entry in found.read])) as contents:
        async for content in contents:
            if content.error is not None:
                found.left_out[content.entry.path] = f"it can't be read: {content.error}"
            elif content.entry.type == "file":  # otherwise its type has changed, which the next scan reports
                yield await _spool_file(content, spool)


async def _spool_file(content: TrackedContent, spool: Spool) -> _ReadFile:
    start = spool.size
    if content.sha256 is not None:
        await spool.add(pointer(content.sha256, content.entry.size))
    for piece in content.pieces:
        await spool.add(piece)
    return _ReadFile(content.entry, start, spool.size - start, not content.unsteady, content.sha256)


def _changes(found: Changes, pieces: list[_ReadFile], spool: Spool) -> Iterator[Put | Drop]:
    """Yield changes, removals first: a file may replace a directory, and vice versa."""
    for path in found.gone:
        yield Drop(path)
    for piece in pieces:
        entry = piece.entry
        data = spool.read(piece.start, piece.size)
        yield Put(entry.path, _mode(entry), b"".join(data) if piece.size <= MAX_WHOLE else data, piece.size)


def _traced(
    root: str, commit: str, facts: CommitInfo, found: Changes, pieces: list[_ReadFile], spool: Spool
) -> TraceChanges:
    """Return the changes as a trace records them."""
    files = [_traced_file(root, path) for path in found.gone]
    for piece in pieces:
        entry, sha256, size = piece.entry, piece.sha256, piece.entry.size
        if sha256 is None:
            content, size = hashlib.sha256(), piece.size
            for part in spool.read(piece.start, piece.size):
                content.update(part)
            sha256 = content.hexdigest()
        files.append(_traced_file(root, entry.path, mode=_mode(entry), sha256=sha256, size=size))
    files.sort(key=lambda file: file.raw_path or file.path.encode())
    return TraceChanges(
        root=root, commit=commit, files=tuple(files[:MAX_TRACED]), omitted=max(0, len(files) - MAX_TRACED),
        sha256=hashlib.sha256(msgspec.json.encode(files)).hexdigest(), processes=facts.processes,
        running=facts.running,
    )  # fmt: skip


def _traced_file(root: str, path: bytes, **more: Any) -> TraceChange:
    shown, raw = encode_path(f"{root.rstrip('/')}/{os.fsdecode(path)}")
    return TraceChange(path=shown, raw_path=raw, **more)


def _mode(entry: TrackedEntry) -> str:
    if entry.type == "link":
        return "120000"
    return "100755" if entry.mode & 0o100 else "100644"


def pointer(sha256: str, size: int) -> bytes:
    """Return the ledger's content for a file that is too large for it."""
    return f"skerry large file\nsha256 {sha256}\nsize {size}\n".encode()


def _remember_large(tools: CollectTools, workspace: ReviewedWorkspace, pieces: list[_ReadFile]) -> None:
    """Store pointers before the commit: an unknown pointer would count as an ordinary file."""
    fresh = {
        _oid(pointer(piece.sha256, piece.entry.size)): LargeFile(sha256=piece.sha256, size=piece.entry.size)
        for piece in pieces
        if piece.sha256 is not None
    }
    if not fresh.keys() <= workspace.state.large.keys():
        known = {**workspace.state.large, **fresh}
        workspace.keep(tools.table, large=dict(list(known.items())[-MAX_LARGE:]))


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


async def _save(tools: CollectTools, workspace: ReviewedWorkspace, changed: bool) -> None:
    """Now and then."""
    workspace.unsaved |= changed
    if workspace.unsaved and time.monotonic() - workspace.saved_at > SAVE_EVERY_S:
        await save_now(tools, workspace)


async def save_now(tools: CollectTools, workspace: ReviewedWorkspace) -> None:
    """Save the manifest. The caller holds the lock, or no collection runs any more."""
    if workspace.unsaved:
        await tools.in_thread(workspace.save)
        workspace.unsaved, workspace.saved_at = False, time.monotonic()


async def _forget_rollback(tools: CollectTools, workspace: ReviewedWorkspace) -> None:
    """The rollback is recorded. Files that were pulled may be gone with it: the next pull merges them again."""
    await tools.in_thread(workspace.ledger.forget_synced)
    state = workspace.state
    workspace.keep(tools.table, rolled_back=None, copied_at=state.copied_at and min(state.copied_at, state.begun_at))
