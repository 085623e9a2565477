"""One collection: what changed in a workspace since it was last looked at, into its ledger.

Until the commit is safe nothing is taken over: neither the place in the keeper's count of changes, nor what was seen of
the files, nor that the commands are done with. Whatever goes wrong before, the next collection tells the same again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from skerry.engine.actors import NAMED_MOST, Actor, Look, shown
from skerry.engine.faults import passed
from skerry.engine.manifest import Found, Manifest
from skerry.engine.review_table import Large, ReviewTable
from skerry.engine.spool import Spool
from skerry.engine.tracked import Tracked
from skerry.errors import NotFound, QuotaExceeded
from skerry.keeper import Keeper, Process
from skerry.keeper.tracking import Content, Entry
from skerry.review.facts import Facts
from skerry.review.ledger import MAIN, Drop, Put

T = TypeVar("T")
P = ParamSpec("P")
FILES_MOST = 500_000
BUSY = 2_000  # entries above which a comparison leaves the event loop
ASKED_MOST = 16  # commands that are asked for one by one whether they have ended
SAVE_EVERY_S = 5.0
LARGE_MOST = 10_000  # versions of large files that are known as such
WHOLE_MOST = 1 << 20  # bytes of a file that are handed over in one piece


class InThread(Protocol):
    def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...


@dataclass(frozen=True)
class Tools:
    """`in_thread`: blocking work. `hosts`: whom processes of a sandbox contacted, of what was told after so many."""

    in_thread: InThread
    hosts: Callable[[str, tuple[str, ...], int], Awaitable[tuple[str, ...]]]
    table: ReviewTable
    file_most: int
    ledger_most: int


@dataclass(frozen=True)
class Made:
    """A new commit, and the one before it."""

    commit: str
    parent: str


@dataclass(frozen=True)
class _Piece:
    """A file as it was read: where its bytes are in the spool."""

    entry: Entry
    start: int
    size: int
    steady: bool
    sha256: str | None = None


async def collect(tools: Tools, tracked: Tracked, keeper: Keeper, *, base: bool = False) -> Made | None:
    """What it made, if anything changed. `base`: what is there now is what the user has. The lock is held."""
    manifest = await _attached(tools, tracked, keeper)
    await _ask_for_ends(tracked, keeper)
    look, began = tracked.actors.look(), time.time()
    scan = await keeper.tracking.scan(tracked.tracker, tracked.seq)
    async with aclosing(scan):
        entries = [entry async for entry in scan]
    found = await _compared(tools, manifest, entries, scan.full)
    made = None
    if found or base:
        facts = Facts(kind="base", at=time.time(), command="") if base else await _facts(tools, tracked, look)
        made = await _committed(tools, tracked, keeper, manifest, found, facts)
    if len(entries) > BUSY:
        await tools.in_thread(manifest.list, found, first=base)
    else:
        manifest.list(found, first=base)
    if tracked.state.rolled_back is not None:
        _forget_rollback(tools, tracked)
    tracked.seq = scan.seq
    tracked.actors.seen(look)
    await _save(tools, tracked, bool(found))
    tracked.looked(began)  # one that ended since is not done with
    if made is not None:
        passed("collect.done")
    return made


# -- before -----------------------------------------------------------------------------------------------------------


async def _attached(tools: Tools, tracked: Tracked, keeper: Keeper) -> Manifest:
    """Its keeper tells what changes; a new one, or one that a server before this talked to, begins anew."""
    manifest = tracked.manifest
    if manifest is None:
        manifest = tracked.manifest = await tools.in_thread(tracked.load)
    if tracked.keeper is not keeper:
        looked_at = await tools.in_thread(tracked.looked_at)
        for process in await keeper.processes():
            if not process.channel and (process.state == "running" or (process.ended_at or 0.0) >= looked_at):
                tracked.actors.begin(Actor(process.id, _command(process)))
                if process.state == "exited":
                    tracked.actors.end(process.id, process)
        state = tracked.state
        tracked.tracker = await keeper.tracking.begin(state.path, state.ignore, state.tracked, tools.file_most)
        tracked.seq, tracked.keeper = 0, keeper
    return manifest


async def _ask_for_ends(tracked: Tracked, keeper: Keeper) -> None:
    """Its events may be on their way still, while who started a command knows that it has ended."""
    running = tracked.actors.running
    if len(running) > ASKED_MOST:
        for process in await keeper.processes():
            if process.state == "exited":
                tracked.actors.end(process.id, process)
        return
    for name in running:
        try:
            process = await keeper.process(name)
        except NotFound:  # long ended, and forgotten
            tracked.actors.end(name)
            continue
        if process.state == "exited":
            tracked.actors.end(name, process)


def _command(process: Process) -> str:
    return shown(process.shell if process.shell is not None else process.argv or ())


async def _compared(tools: Tools, manifest: Manifest, entries: list[Entry], full: bool) -> Found:
    compare = partial(manifest.compare, entries, full=full)
    found = await tools.in_thread(compare) if len(entries) > BUSY else compare()
    if len(manifest.files) + len(found.read) + len(found.links) - len(found.gone) > FILES_MOST:
        raise QuotaExceeded(
            f"there are more than {FILES_MOST:,} files to look after", hint="have the project's .gitignore name some"
        )
    return found


async def _facts(tools: Tools, tracked: Tracked, look: Look) -> Facts:
    if (why := tracked.state.rolled_back) is not None:
        return Facts(kind="rollback", at=time.time(), command=why)
    names = tuple(dict.fromkeys(actor.process for actor in look.commands[:NAMED_MOST]))
    hosts: tuple[str, ...] = ()
    if names:
        hosts = await tools.hosts(tracked.sandbox, names, min(actor.heard for actor in look.commands))
    return Facts(
        kind=look.kind, at=time.time(), command=look.text, processes=names,
        exit_code=look.alone.exit_code if look.alone else None,
        duration_s=look.alone.duration_s if look.alone else None,
        running=look.running, hosts=hosts,
    )  # fmt: skip


# -- the commit -------------------------------------------------------------------------------------------------------


async def _committed(
    tools: Tools, tracked: Tracked, keeper: Keeper, manifest: Manifest, found: Found, facts: Facts
) -> Made | None:
    ledger = tracked.ledger
    parent = await tools.in_thread(ledger.rev, MAIN)
    room = tools.ledger_most - await tools.in_thread(ledger.size)
    with Spool(tracked.place, room, tools.in_thread) as spool:
        pieces = [piece async for piece in _read(tracked, keeper, found, spool)]
        passed("collect.read")
        _remember_large(tools, tracked, pieces)
        facts = replace(facts, left_out=len(found.left_out))
        commit = await tools.in_thread(ledger.commit, facts, _changes(found, pieces, spool))
    passed("collect.commit")
    if len(pieces) + len(found.gone) > BUSY:
        await tools.in_thread(_take_over, manifest, found, pieces)
    else:
        _take_over(manifest, found, pieces)
    return Made(commit, parent or commit) if commit is not None else None


def _take_over(manifest: Manifest, found: Found, pieces: list[_Piece]) -> None:
    for path in found.gone:
        manifest.drop(path)
    for piece in pieces:
        manifest.put(piece.entry.path, piece.entry if piece.steady else None)


async def _read(tracked: Tracked, keeper: Keeper, found: Found, spool: Spool) -> AsyncIterator[_Piece]:
    for entry in found.links:
        target = entry.target or b""
        start = spool.size
        await spool.add(target)
        yield _Piece(entry, start, len(target), steady=True)
    async with aclosing(keeper.tracking.read(tracked.tracker, [entry.path for entry in found.read])) as contents:
        async for content in contents:
            if content.error is not None:
                found.left_out[content.entry.path] = f"it can't be read: {content.error}"
            elif content.entry.type == "file":  # else it is something else by now, which the next scan tells
                yield await _taken(content, spool)


async def _taken(content: Content, spool: Spool) -> _Piece:
    start = spool.size
    if content.sha256 is not None:
        await spool.add(pointer(content.sha256, content.entry.size))
    for piece in content.pieces:
        await spool.add(piece)
    return _Piece(content.entry, start, spool.size - start, not content.unsteady, content.sha256)


def _changes(found: Found, pieces: list[_Piece], spool: Spool) -> Iterator[Put | Drop]:
    """What goes comes first: a file may be where a directory was, and the other way round."""
    for path in found.gone:
        yield Drop(path)
    for piece in pieces:
        entry = piece.entry
        data = spool.read(piece.start, piece.size)
        yield Put(entry.path, _mode(entry), b"".join(data) if piece.size <= WHOLE_MOST else data, piece.size)


def _mode(entry: Entry) -> str:
    if entry.type == "link":
        return "120000"
    return "100755" if entry.mode & 0o100 else "100644"


def pointer(sha256: str, size: int) -> bytes:
    """What the ledger has in place of a file that is too large for it."""
    return f"skerry large file\nsha256 {sha256}\nsize {size}\n".encode()


def _remember_large(tools: Tools, tracked: Tracked, pieces: list[_Piece]) -> None:
    """Before the commit: a pointer that nobody knows to be one would be a file like any other."""
    fresh = {
        _oid(pointer(piece.sha256, piece.entry.size)): Large(sha256=piece.sha256, size=piece.entry.size)
        for piece in pieces
        if piece.sha256 is not None
    }
    if not fresh.keys() <= tracked.state.large.keys():
        known = {**tracked.state.large, **fresh}
        tracked.keep(tools.table, large=dict(list(known.items())[-LARGE_MOST:]))


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


async def _save(tools: Tools, tracked: Tracked, changed: bool) -> None:
    """Now and then."""
    tracked.unsaved |= changed
    if tracked.unsaved and time.monotonic() - tracked.saved_at > SAVE_EVERY_S:
        await save_now(tools, tracked)


async def save_now(tools: Tools, tracked: Tracked) -> None:
    """The lock is held, or nothing looks any more."""
    if tracked.unsaved:
        await tools.in_thread(tracked.save)
        tracked.unsaved, tracked.saved_at = False, time.monotonic()


def _forget_rollback(tools: Tools, tracked: Tracked) -> None:
    tracked.keep(tools.table, rolled_back=None)
