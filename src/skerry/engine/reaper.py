"""Ends sandboxes that are idle or whose life is over, and finishes ends that failed half-way. Idle is API.md's word: no
call, no running process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from skerry.engine.live import Live
from skerry.engine.rows import HALF_ENDED
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import Keeper

log = logging.getLogger("skerry.engine")
TICK_S = 1.0
RETRY_S = 5.0


@dataclass(frozen=True)
class Ends:
    """The ways in which the engine ends a sandbox."""

    life: Callable[[Live], Awaitable[None]]
    idle: Callable[[Live], Awaitable[None]]
    half: Callable[[Live], Awaitable[None]]
    failed: Callable[[Live, Keeper, SandboxUnavailable], Awaitable[None]]


class Reaper:
    """Each sandbox is looked at by a task of its own, so that one whose keeper is silent keeps nobody waiting."""

    def __init__(
        self, lives: dict[str, Live], ends: Ends, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._lives = lives
        self._ends = ends
        self._spawn = spawn
        self._looking: set[Live] = set()
        self._not_before: dict[str, float] = {}

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._not_before = {sandbox: then for sandbox, then in self._not_before.items() if then > now}
            for live in self._lives.values():
                if live not in self._looking and not live.lock.locked() and live.row.id not in self._not_before:
                    end = self._due(live)
                    if end is not None:
                        self._looking.add(live)
                        self._spawn(self._bring(live, end))

    def _due(self, live: Live) -> Callable[[Live], Awaitable[None]] | None:
        state, unnamed = live.row.state, live.row.name is None
        if state == "creating" or state in HALF_ENDED:  # and nobody is at it
            return self._ends.half
        if live.life_over and (state in ("running", "paused") or (unnamed and state in ("stopped", "failed"))):
            return self._ends.life
        if not live.idle_due:
            return None
        return self._ends.idle if state == "paused" else self._unless_at_work

    async def _bring(self, live: Live, end: Callable[[Live], Awaitable[None]]) -> None:
        try:
            await end(live)
        except Exception as error:
            self._not_before[live.row.id] = time.monotonic() + RETRY_S
            unforeseen = None if isinstance(error, SkerryError) else error
            log.warning("could not be ended", extra={"sandbox": live.row.id, "error": str(error)}, exc_info=unforeseen)
        finally:
            self._looking.discard(live)

    async def _unless_at_work(self, live: Live) -> None:
        """A two-hour build with nobody watching is not idle."""
        keeper = live.keeper
        if keeper is None:
            return
        try:
            processes = await keeper.processes()
        except SandboxUnavailable as error:
            await self._ends.failed(live, keeper, error)
            return
        resting = live.work.is_resting
        if any(one.children or (one.state == "running" and not resting(one.id)) for one in processes):
            live.touch()
        else:
            await self._ends.idle(live)
