"""Ledgers as git remotes show them: each sandbox's history, and beside it what the agent committed by itself.

The agent's commits are packed by git inside, with whatever settings that repository has there, and taken in here as
the hostile bytes that they are (review/agent.py). Nobody is woken for it: of a sandbox that does not run, what came
out last is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import IO
from weakref import WeakValueDictionary

from skerry.engine import plan
from skerry.engine.live import Live
from skerry.engine.pulling import pulled
from skerry.engine.reviews import Reviews
from skerry.engine.tracked import Tracked
from skerry.errors import InvalidRequest, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper, ProcessSpec, ProcessStream
from skerry.review.agent import PACK_MOST, Bounds, Taken
from skerry.types import OBJECT_ID, Caller, PackRequest, ReviewRefs

log = logging.getLogger("skerry.engine")
AT_ONCE = 4
SECONDS = 60.0
SAID_MOST = 16 << 20
SHOWN = "git (skerry brings out what was committed here)"
_PIECE = 1 << 20
_REFS = ("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)", "refs/heads", "refs/tags")


class _Failed(SkerryError):
    """git inside did not do it."""


class Remotes:
    """`engine.remotes`."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews
        self._agents: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by sandbox, while in use

    async def list(self, caller: Caller, origin: str | None) -> list[ReviewRefs]:
        """Of all sandboxes of the caller's that have a review: of one origin, if that is named. Each who asks has turns
        of their own: how long one takes is up to the sandbox."""
        turns = asyncio.Semaphore(AT_ONCE)
        found = [one for one in self._reviews.of(caller) if origin is None or one.state.origin == origin]
        return list(await asyncio.gather(*(self._refs(tracked, turns) for tracked in found if tracked.sound)))

    async def pack(self, caller: Caller, ref: str, request: PackRequest) -> AsyncGenerator[bytes, None]:
        """Only what a ref names can be wanted."""
        tracked = self._reviews.get(caller, ref)
        named = await self._reviews.in_thread(_named, tracked)
        if stray := set(request.wants) - named:
            raise InvalidRequest(f"{sorted(stray)[0]} is no ref of {tracked.sandbox}", hint="list its refs again")
        pieces = await self._reviews.read(tracked, tracked.ledger.pack, request.wants, request.haves)
        return pulled(partial(self._reviews.read, tracked), _passed_on(pieces))

    async def _refs(self, tracked: Tracked, turns: asyncio.Semaphore) -> ReviewRefs:
        async with turns:
            with contextlib.suppress(TimeoutError):  # its ledger is there all the same
                async with asyncio.timeout(SECONDS):
                    await self._reviews.settle(tracked)
            taken = await self._bring_out(tracked)
            refused = dict(taken.refused) | ({"": taken.failed} if taken.failed else {})
            row = tracked.live.row
            agent = {name.removeprefix("refs/"): oid for name, oid in taken.refs.items()}
            return ReviewRefs(
                sandbox=row.id, name=row.name, origin=tracked.state.origin, tip=tracked.ledger.tip, agent=agent,
                refused=refused,
            )  # fmt: skip

    async def _bring_out(self, tracked: Tracked) -> Taken:
        """What can't be brought out is said, and keeps nobody from the ledger."""
        live, keeper = tracked.live, tracked.live.keeper
        known = await self._reviews.in_thread(tracked.ledger.agent)
        if live.row.state != "running" or keeper is None:
            return Taken(refs=known)
        with live.in_use():
            async with self._agents.setdefault(tracked.sandbox, asyncio.Lock()):
                try:
                    await live.moving.wait()
                    async with asyncio.timeout(SECONDS):
                        return await _Inside(self._reviews, live, keeper, tracked).bring_out(known)
                except (SkerryError, TimeoutError, OSError) as error:
                    said = error.message if isinstance(error, SkerryError) else str(error) or "it took too long"
                    log.info("agent's commits not brought out", extra={"sandbox": tracked.sandbox, "error": said})
                    return Taken(refs=known, failed=said)


class _Inside:
    def __init__(self, reviews: Reviews, live: Live, keeper: Keeper, tracked: Tracked) -> None:
        self._reviews, self._live, self._keeper, self._tracked = reviews, live, keeper, tracked

    async def bring_out(self, known: dict[str, str]) -> Taken:
        state = self._tracked.state
        listed = _listed(await self._said(_REFS))
        theirs = {name: oid for name, (oid, commit) in listed.items() if commit not in state.known}
        if theirs == known:
            return Taken(refs=known)
        mine = [oid for oid in {*state.known, *([state.head] if state.head else ())} if OBJECT_ID.fullmatch(oid)]
        walk = ("rev-list", "--boundary", "--ignore-missing", "--stdin")
        lines = (await self._said(walk, _lines(theirs.values(), mine))).split()
        edges = sorted({line[1:].decode() for line in lines if line.startswith(b"-")})
        fresh = {line.decode() for line in lines if not line.startswith(b"-")}
        theirs = {name: oid for name, oid in theirs.items() if listed[name][1] in fresh}
        if theirs == known:
            return Taken(refs=known)
        return await self._take(theirs, known, edges)

    async def _take(self, theirs: dict[str, str], known: dict[str, str], edges: Sequence[str]) -> Taken:
        ledger = self._tracked.ledger
        room = self._reviews.tools.ledger_most - await self._reviews.in_thread(ledger.size)
        most = max(0, min(PACK_MOST, room))
        with tempfile.TemporaryFile(dir=self._tracked.place) as file:
            if theirs:
                shallow = [f"--shallow {edge}" for edge in edges]
                wants = _lines(theirs.values(), known.values())
                given = "".join(f"{line}\n" for line in shallow).encode() + wants
                command = ("pack-objects", "--revs", "--stdout", "--shallow", "--quiet", "--delta-base-offset")
                size = 0
                async for piece in self._run(command, given):
                    size += len(piece)
                    if size > most:
                        raise _Failed(
                            f"the agent's commits are larger than the {most} bytes that its ledger has room for"
                        )
                    await self._reviews.in_thread(file.write, piece)
                file.seek(0)
            bounds = Bounds(pack=most)
            return await self._reviews.read(
                self._tracked, ledger.take_agent, _pieces(file), theirs, shallow=edges, bounds=bounds
            )

    async def _said(self, words: Sequence[str], given: bytes | None = None) -> bytes:
        said = bytearray()
        async for piece in self._run(words, given):
            said += piece
            if len(said) > SAID_MOST:
                raise _Failed(f"git {words[0]} inside prints more than {SAID_MOST} bytes")
        return bytes(said)

    async def _run(self, words: Sequence[str], given: bytes | None = None) -> AsyncGenerator[bytes, None]:
        """A command of ours in the sandbox, as its user: what it prints is as hostile as all that comes from there."""
        process = plan.new_id("p-")
        spec = ProcessSpec(
            id=process, argv=["git", *words], cwd=self._tracked.path, stdin="none" if given is None else "pipe",
            env={"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}, timeout_s=SECONDS, show=SHOWN, journal=1 << 16,
        )  # fmt: skip
        stream = await self._keeper.start(spec)
        feeding = asyncio.ensure_future(_feed(stream, given)) if given is not None else None
        error = bytearray()
        try:
            async for name, data in stream:
                if name == "stdout":
                    yield data
                elif len(error) < 2000:
                    error += data
            if stream.exit.exit_code != 0:
                text = error[:2000].decode("utf-8", "replace").strip()
                raise _Failed(f"git {words[0]} inside: {text or 'it failed, and said nothing'}")
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait((feeding,))
            with contextlib.suppress(SkerryError, OSError):
                await stream.aclose()
            with contextlib.suppress(SkerryError, OSError):
                await self._keeper.remove(process)


async def _feed(stream: ProcessStream, data: bytes) -> None:
    with contextlib.suppress(SandboxUnavailable, OSError):
        for start in range(0, len(data), 1 << 18):
            await stream.send_stdin(data[start : start + (1 << 18)])
        await stream.close_stdin()


def _listed(said: bytes) -> dict[str, tuple[str, str]]:
    """By name: what it names, and the commit behind that."""
    found = {}
    for line in said.decode("utf-8", "replace").splitlines():
        oid, peeled, name = [*line.split(" ", 2), "", ""][:3]
        if OBJECT_ID.fullmatch(oid) and name.startswith(("refs/heads/", "refs/tags/")):
            found[name] = (oid, peeled if OBJECT_ID.fullmatch(peeled) else oid)
    return found


def _lines(wants: Iterable[str], nots: Iterable[str]) -> bytes:
    text = "".join(f"{oid}\n" for oid in wants)
    text += "".join(f"^{oid}\n" for oid in nots)
    return text.encode()


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _passed_on(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from pieces


def _named(tracked: Tracked) -> set[str]:
    return {tracked.ledger.tip, *tracked.ledger.agent().values()}
