"""What the server holds for one sandbox while it is alive: its row, its keeper, who is using it."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skerry.engine.attempts import Tries
from skerry.engine.rows import Row
from skerry.engine.turns import Shells
from skerry.engine.work import Work
from skerry.errors import SandboxUnavailable
from skerry.keeper import Keeper
from skerry.runtimes import Runtime
from skerry.types import Attempt, parse_span

if TYPE_CHECKING:
    from skerry.engine.tracked import Tracked

LAST_WORDS_S = 1.0
IDLE = "idle"  # the reason of a pause or stop


class Live:
    """`lock` is held by whoever changes the sandbox's state; calls into a running one need no lock."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.lock = asyncio.Lock()
        self.runtime: Runtime | None = None
        self.keeper: Keeper | None = None
        self._pidfd: int | None = None
        self._calls = 0
        self._used_at = time.monotonic()
        self._ended = asyncio.Event()
        self.sessions = Shells()
        self.starting = False  # on its way from stopped to running: its row does not tell yet
        self.deleted = False
        self.ended_because: str | None = None  # why it was stopped last, also once it runs again
        self.moving = asyncio.Event()  # not set: it stands still for a snapshot, and its keeper answers nobody
        self.moving.set()
        self._stood_still_at = -math.inf
        self.input_held = 0  # bytes that came with starts and that programs have not read yet
        self.work = Work()
        self.watching: asyncio.Task[None] | None = None  # hears what its keeper tells
        self.tries = Tries()
        self.tracked: Tracked | None = None  # its workspace is under review
        self.denied: Callable[[str, int], Awaitable[tuple[Attempt, ...]]] | None = None  # of a process; see Doors

    def attach(self, runtime: Runtime, keeper: Keeper, pidfd: int, ended: Callable[[], None]) -> None:
        """The sandbox runs; `ended` is called when its first process is gone."""
        self.runtime, self.keeper, self._pidfd = runtime, keeper, pidfd
        self._ended.clear()
        asyncio.get_running_loop().add_reader(pidfd, self._end, ended)
        self.touch()

    def _end(self, ended: Callable[[], None]) -> None:
        self.unwatch()
        self._ended.set()
        ended()

    @contextmanager
    def first_process(self) -> Iterator[int]:
        """A pidfd of it: a copy, since ours is closed, and its number another's, as soon as it ends."""
        if self._pidfd is None:
            raise SandboxUnavailable(f"{self.row.id} is not running", details={"state": self.row.info().state})
        copy = os.dup(self._pidfd)
        try:
            yield copy
        finally:
            os.close(copy)

    async def refused(self, process: str, before: int = 0) -> tuple[Attempt, ...]:
        """What a process of it that has ended tried to reach in vain. `before`: tries told before it began."""
        return await self.denied(process, before) if self.denied is not None else ()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def first_process_ended(self) -> None:
        await self._ended.wait()

    def unwatch(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    async def detach(self) -> None:
        """Let go of it: the sandbox itself is not touched."""
        await self._stop_listening()
        self.unwatch()
        if self.keeper is not None:
            await self.keeper.close()
            self.keeper = None
        self.work.over()

    async def _stop_listening(self) -> None:
        """A keeper that has ended may have told more than was read yet."""
        task, self.watching = self.watching, None
        if task is None:
            return
        if self._ended.is_set():
            await asyncio.wait((task,), timeout=LAST_WORDS_S)
        task.cancel()
        await asyncio.wait((task,))

    def count_oom_kills(self) -> int | None:
        return self.runtime.oom_kills(self.row.id) if self.runtime is not None else None

    def cut_off(self) -> SandboxUnavailable:
        """What a call is told that did not last, through no fault of the keeper's."""
        how, reason = ("paused", self.row.reason) if self.row.state == "paused" else ("ended", self.ended_because)
        return SandboxUnavailable(
            f"{self.row.id} was {how} in the middle of the call" + (f": {reason}" if reason else ""),
            details={"state": self.row.info().state, "reason": reason},
        )

    def touch(self) -> None:
        self._used_at = time.monotonic()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A call is under way: not idle until it ends."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self.touch()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """It is frozen: calls that come meanwhile wait."""
        self.moving.clear()
        try:
            yield
        finally:
            self._stood_still_at = time.monotonic()
            self.moving.set()

    def stood_still_within(self, seconds: float) -> bool:
        """A keeper that was silent so long need not have been at fault."""
        return not self.moving.is_set() or time.monotonic() - self._stood_still_at < seconds

    @property
    def idle_due(self) -> bool:
        """It has been idle for its time. One that was paused for that has another such time before it is stopped; one
        that somebody paused waits for somebody."""
        idle, row = self.row.spec.lifecycle.idle, self.row
        asleep = row.state == "paused" and row.reason == IDLE
        if idle is None or self._calls or not (asleep or (row.state == "running" and not self.work.busy)):
            return False
        return time.monotonic() - self._used_at > parse_span(idle)

    @property
    def life_over(self) -> bool:
        return self.row.ends_at is not None and time.time() >= self.row.ends_at

    @property
    def takes_room(self) -> bool:
        """It counts among the live ones. One that is being ended does so until its end is complete."""
        return self.starting or self.row.state not in ("stopped", "failed")
