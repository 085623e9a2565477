"""A run of code in a kernel: what it prints and gives as it comes, its time-out, and the truth about its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from skerry.code import wire
from skerry.engine import denials
from skerry.engine.code_ends import Course, Where, end_of
from skerry.engine.code_results import Listener, is_large, output_of
from skerry.engine.code_runs import Piece
from skerry.engine.contexts import Asked
from skerry.engine.made import made
from skerry.engine.work import is_killed
from skerry.errors import Conflict, NotFound, SandboxUnavailable, SkerryError
from skerry.keeper import KeeperSilent, Turn
from skerry.types import CodeEnd, MadeFile

log = logging.getLogger("skerry.engine")
GRACE_S: Final = 2.0  # to stop in, once interrupted
SLOW_MOST: Final = 2  # so many graces for what waits for a slow reader
READ_WITHIN_S: Final = 0.5
FROZEN_S: Final = 0.5
GONE_S: Final = 10.0
WAITS_MOST: Final = 2  # so long each, to hear that one which was killed is gone
EARLY_MOST: Final = 4 << 10


@dataclass(frozen=True)
class Begun:
    """A turn that has begun. `new`: its kernel has; `lost`: why one that there was has not. `heard`: tries to get out
    that were told before."""

    process: str
    run: str
    turn: Turn
    new: bool
    lost: str | None
    at: float
    heard: int


@dataclass(frozen=True)
class Hands:
    """What a run needs of its kernels: to end a sandbox whose keeper lied, to do work beside, to note how it ended."""

    failed: Callable[[SandboxUnavailable], Awaitable[None]]
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    over: Callable[[KernelRun, CodeEnd | None], None]


class KernelRun:
    """A `CodeRun`. One that is closed early is interrupted, then killed, beside; the context is its own until then."""

    def __init__(self, asked: Asked, begun: Begun, hands: Hands) -> None:
        self.id, self.pid, self.offset = begun.process, begun.turn.pid, begun.turn.offset
        self.asked, self.begun = asked, begun
        self.course = Course(Listener(begun.run), begun.new)
        self._turn, self._hands = begun.turn, hands
        self._reading = False
        self._one = asyncio.Lock()  # reads at a time
        self._signals = asyncio.Lock()  # none may reach the run after this one
        self._over = asyncio.Event()
        self._early = bytearray()
        self._ending: asyncio.Future[CodeEnd] | None = None
        self._end: CodeEnd | None = None
        self._closed = self._left = False
        self._lie: KeeperSilent | None = None
        self._in_use = contextlib.ExitStack()
        self._in_use.enter_context(asked.live.in_use())
        self._timer: asyncio.TimerHandle | None = None
        if asked.request.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(asked.request.timeout, self._time_out)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            while not self._over.is_set():
                for piece in await self._advance():
                    yield piece
            self._end = await self._finished()
        except SandboxUnavailable as error:
            self._close(None)
            await self._turn.aclose()
            await self._hands.failed(error)
            raise

    def end(self) -> CodeEnd:
        if self._end is None:
            raise SandboxUnavailable("the run's end is not known")
        return self._end

    async def aclose(self) -> None:
        """Idempotent."""
        if not self._closed and not self._left:
            self._left = True
            self._hands.spawn(self._abandon())

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def _advance(self) -> list[Piece]:
        """What the next frame brings. Output can overtake the word that the run has begun, which is the last before it:
        what is printed in the turn is the run's."""
        async with self._one:
            if self._over.is_set():
                return []
            self._reading = True
            try:
                said = await anext(self._turn, None)
            finally:
                self._reading = False
            if self._lie is not None:
                raise self._lie
            if said is None:
                self.course.broken = self._turn.exit is None
                self._over.set()
                return []
            kind, data = said
            if kind == "channel":
                return await self._results(data)
            if kind == "stderr" and not self.course.listener.begun:
                self._early += data[: EARLY_MOST - len(self._early)]
            return [(kind, data)]

    async def _results(self, data: bytes) -> list[Piece]:
        """All that was said is taken in before anything is waited for: one that is cut off there knows its end."""
        said: list[dict[str, bytes]] = []
        try:
            said += self.course.listener.feed(data)
        except wire.Violation as violation:
            log.info("a kernel broke its protocol", extra={"process_id": self.id, "error": str(violation)})
            self.course.broken = True
        if self.course.broken or self.course.listener.status is not None:
            self._over.set()
        return [await asyncio.to_thread(output_of, one) if is_large(one) else output_of(one) for one in said]

    def _time_out(self) -> None:
        if not self._over.is_set():
            self.course.timed_out = True
            self._interrupt()

    def _interrupt(self) -> None:
        """Frozen, it does not run on either, and nobody can be told."""
        if self.asked.live.row.state == "paused":
            self._timer = asyncio.get_running_loop().call_later(FROZEN_S, self._interrupt)
        elif not self._over.is_set():
            self._hands.spawn(self._wind_down())

    async def _wind_down(self) -> None:
        """Interrupted, it has a moment to stop; longer only while it waits for who reads what it prints. In the middle
        of that moment it is interrupted again: a signal that comes just before a call that blocks is not seen by it."""
        try:
            await self.asked.live.moving.wait()
            for half in range(2 * SLOW_MOST):
                if half < 2:
                    await self.signal("INT")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S / 2):
                        await self._over.wait()
                if self._over.is_set() or (half % 2 and self._reading):
                    break
            if not self._over.is_set():
                self.course.killed = True
                await self.signal("KILL")
                await self.ended()
        except SkerryError as error:  # its sandbox ended, or does not answer: who reads is told
            log.info("not interrupted", extra={"process_id": self.id, "error": error.message})

    async def signal(self, name: str) -> None:
        async with self._signals:
            if not self._over.is_set():
                await self._turn.signal(name)

    async def ended(self) -> None:
        """It was killed. The next one does not wait for a reader who does not read: what is left, they lose."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_WITHIN_S):
                await self._over.wait()
        waits = 0
        while not self._over.is_set():
            try:
                async with asyncio.timeout(GONE_S):
                    while not self._over.is_set():
                        self.course.missing += len(await self._advance())
            except TimeoutError:
                waits += self._is_awake()
                if waits == WAITS_MOST:
                    await self._lied()
        with contextlib.suppress(SandboxUnavailable):  # who reads is told
            await self._finished()

    async def _lied(self) -> None:
        """Its keeper did. Who reads is told, and who does not is not waited for."""
        self._lie = KeeperSilent("the keeper did not end a kernel that was killed")
        self._close(None)
        await self._turn.aclose()
        await self._hands.failed(self._lie)
        raise self._lie

    def _is_awake(self) -> bool:
        """Whether its keeper could have spoken just now."""
        live = self.asked.live
        return live.row.state == "running" and not live.stood_still_within(GONE_S)

    async def _abandon(self) -> None:
        """Nobody reads it any more."""
        try:
            if not self.course.timed_out:
                self._interrupt()
            while not self._over.is_set():
                await self._advance()
            await self._finished()
        except SandboxUnavailable as error:
            with contextlib.suppress(SkerryError):
                await self._hands.failed(error)
        except SkerryError as error:  # this host is short of something
            log.warning("not ended", extra={"process_id": self.id, "error": error.message})
        finally:
            self._close(None)
            await self._turn.aclose()

    # -- its end ------------------------------------------------------------------------------------------------------

    async def _finished(self) -> CodeEnd:
        """Once, and whole, also if who waits for it is cut off."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._finish())
            self._ending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._ending)

    async def _finish(self) -> CodeEnd:
        asked, turn, course = self.asked, self._turn, self.course
        if self._timer is not None:
            self._timer.cancel()
        async with self._signals:  # one that is on its way arrives while this is still its turn
            row = asked.seat.row if asked.seat is not None else None
        spec, request = asked.live.row.spec, asked.request
        place = (row.cwd, row.user) if row is not None else (request.cwd or spec.cwd, request.user or spec.user)
        _, (files, more) = await asyncio.gather(self._stop(), self._made(*place))
        course.exit, course.usage = turn.exit, turn.usage
        course.missing += turn.missing
        course.ending = asked.seat.ending if asked.seat is not None else None
        course.early = bytes(self._early).decode("utf-8", "replace").strip()
        course.oom = self._oom()
        where = Where(
            process=self.id, language=asked.language.name, memory=spec.limits.memory_bytes, lost=self.begun.lost,
            version=course.listener.version or asked.version or (row.version if row is not None else None),
            context=row.name if row is not None else None,
        )  # fmt: skip
        refused = await asked.live.refused(self.id, self.begun.heard)
        end = end_of(where, course, files, more)
        end = denials.add(end, tuple(attempt for attempt in refused if attempt.at >= self.begun.at))
        self._close(end)
        return end

    async def _stop(self) -> None:
        """The turn is over, or the process is."""
        if self._turn.exit is None and not self.course.broken:
            try:
                await self._turn.over()
            except Conflict:  # it did not even read what it was asked to run
                self.course.broken = True
        if self._turn.exit is None and (self.course.broken or self.asked.seat is None or self.asked.seat.gone):
            await self._kill()

    async def _kill(self) -> None:
        with contextlib.suppress(NotFound, Conflict):
            await self.asked.keeper.signal(self.id, "KILL")
        try:
            async with asyncio.timeout(GONE_S):
                for _ in range(2):  # the loop may have ended, or end once, with its channel
                    async for _ in self._turn:
                        pass
        except TimeoutError:
            await self._turn.aclose()
            raise KeeperSilent("the keeper did not end a kernel that was killed") from None

    async def _made(self, path: str, user: str) -> tuple[tuple[MadeFile, ...], bool]:
        if not self.asked.request.files:
            return (), False
        files, more = await made(self.asked.keeper, path, self._turn.clock, user)
        if (seat := self.asked.seat) is not None:
            # The clocks of files and of turns go in steps, not in the same ones: what the last run made may look new.
            told, seat.told = seat.told, {file.path: (file.size, file.mtime) for file in files}
            files = tuple(one for one in files if told.get(one.path) != (one.size, one.mtime))
        return files, more

    def _oom(self) -> bool | None:
        live, course = self.asked.live, self.course
        by_us = course.timed_out or course.killed or course.broken or course.ending is not None
        killed = is_killed(course.exit_code, course.signal, by_us)
        return live.work.end(self.id, live.count_oom_kills, killed)

    def _close(self, end: CodeEnd | None) -> None:
        """The next one's turn."""
        if not self._closed:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._hands.over(self, end)
            self._in_use.close()
