"""Background work, and work that cancellation must not interrupt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

log = logging.getLogger("skerry.engine")
T = TypeVar("T")


class Tasks:
    """Every task that the engine starts. `closing`: the server is stopping, and no sandbox may start any more."""

    def __init__(self) -> None:
        self.closing = False
        self._background: set[asyncio.Task[None]] = set()
        self._shielded: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work in the background. `close` cancels it; a failure is logged. It has an empty context: its log lines
        and spans do not belong to the request that started it."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._background.add(task)
        task.add_done_callback(self._finished)
        return task

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end even if the caller is cancelled. `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._shielded.add(task)
        task.add_done_callback(self._shielded.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel background work and wait until all work has ended."""
        self.closing = True
        while pending := self._background | self._shielded:
            for task in list(self._background):
                task.cancel()
            await asyncio.wait(pending)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background task failed", exc_info=task.exception())
