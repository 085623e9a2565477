"""One use of a tool: who calls, and how they hear that it goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

from skerry.client._async.sandbox import AsyncSandbox
from skerry.client.outcome import Output
from skerry.mcp.callers import Caller
from skerry.mcp.text import in_one_line

T = TypeVar("T")
FIRST = 0.5  # seconds until a client hears that a call goes on
EVERY = 1.0  # and then each so many
ROOM = 6 << 20
HTTP_ROOM = 1_000_000
CLEARING = 10.0  # seconds that a call which was broken off has to clear up
_TAIL = 2000


def room_of(context: Context[Any, Any]) -> int:
    """How many bytes an answer may have: clients that read events of HTTP take a MiB of one."""
    return ROOM if context.headers is None else HTTP_ROOM


class Call:
    """What a tool gets beside its arguments."""

    def __init__(self, caller: Caller, context: Context[Any, Any]) -> None:
        self.caller = caller
        self._context = context

    @property
    def room(self) -> int:
        return room_of(self._context)

    async def sandbox(self, ref: str | None) -> AsyncSandbox:
        return await self.caller.sandbox(ref)

    @asynccontextmanager
    async def going_on(self, within: float | None = None) -> AsyncIterator[Progress]:
        """While it is entered, the client hears each second that the call goes on, with the last line of output."""
        progress = Progress(self._context, within)
        try:
            yield progress
        finally:
            await progress.end()


class Progress:
    """Most calls have ended before there is anything to tell: the task that tells it is begun late."""

    def __init__(self, context: Context[Any, Any], within: float | None) -> None:
        self._context = context
        self._within = within
        self._began = time.monotonic()
        self._tail = b""
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(FIRST, self._begin)

    def output(self, piece: Output) -> None:
        self._tail = (self._tail + piece.data)[-_TAIL:]

    async def end(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        while True:
            lines = self._tail.decode("utf-8", "replace").strip().splitlines()
            seconds = round(time.monotonic() - self._began, 1)
            try:
                await self._context.report_progress(seconds, self._within, in_one_line(lines[-1]) if lines else None)
            except (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # nobody listens any more
            await asyncio.sleep(EVERY)


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """Run it as a task of its own. The protocol's library breaks a call off by cancelling again and again, whatever is
    being awaited; the client ends what it began inside when it is cancelled, and needs to be cancelled once for that.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task], timeout=CLEARING)
        raise
