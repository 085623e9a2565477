"""Ends sandboxes that are idle or whose life is over. Idle is API.md's word: no call, no running process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from skerry.engine.live import Live
from skerry.errors import SkerryError

log = logging.getLogger("skerry.engine")
TICK_S = 1.0


class Reaper:
    def __init__(
        self,
        lives: dict[str, Live],
        end_life: Callable[[Live], Awaitable[None]],
        end_idle: Callable[[Live], Awaitable[None]],
    ) -> None:
        self._lives = lives
        self._end_life = end_life
        self._end_idle = end_idle

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for live in list(self._lives.values()):
                try:
                    await self._look_at(live)
                except SkerryError as error:
                    log.warning("could not be ended", extra={"sandbox": live.row.id, "error": str(error)})

    async def _look_at(self, live: Live) -> None:
        if live.lock.locked():
            return
        state, unnamed = live.row.state, live.row.name is None
        if live.life_over and (state in ("running", "paused") or (unnamed and state in ("stopped", "failed"))):
            await self._end_life(live)
        elif state == "running" and live.idle_due:
            if await self._works(live):
                live.touch()
            else:
                await self._end_idle(live)

    @staticmethod
    async def _works(live: Live) -> bool:
        """A two-hour build with nobody watching is not idle."""
        if live.keeper is None:
            return False
        processes = await live.keeper.processes()
        return any(process.state == "running" or process.children for process in processes)
