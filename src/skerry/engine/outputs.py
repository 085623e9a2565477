"""What a process has printed, and prints: read from its journal at the reader's speed. Nobody waits for the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from skerry.engine import denials
from skerry.engine.live import Live
from skerry.engine.runs import Gathered, result_of
from skerry.errors import SandboxUnavailable
from skerry.keeper import Gap, OutputStream
from skerry.types import Attempt, OutputPage, RunResult, is_text

Piece = tuple[str, bytes] | Gap


@dataclass(frozen=True)
class View:
    """Which part: from byte `since` on (below 0: counted from the end), at most `limit` bytes; to follow, also what
    comes, to the process's end, or no longer than `within` seconds."""

    since: int = 0
    limit: int | None = None
    follow: bool = False
    within: float | None = None


class Reading:
    """Iterate for the pieces. Then `result` is how the process ended, or None: then `offset` is where to go on."""

    def __init__(self, live: Live, process: str, stream: OutputStream, view: View, stack: AsyncExitStack) -> None:
        self.id = process
        self.pid = stream.pid
        self.start = stream.offset
        self._live = live
        self._stream = stream
        self._view = view
        self._stack = stack
        self._denied: tuple[Attempt, ...] = ()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async with self._stack:  # it has to see what goes wrong: a keeper that lies in the middle fails its sandbox
            pieces = self._until(self._view.within) if self._view.within else self._stream
            async for piece in pieces:
                yield piece
            if self._stream.ended:
                self._denied = await self._live.refused(self.id)

    async def _until(self, within: float) -> AsyncIterator[Piece]:
        clock = asyncio.get_running_loop().time
        until = clock() + within
        while clock() < until:  # a program may never fall silent
            try:
                async with asyncio.timeout_at(until):
                    piece = await anext(self._stream)
            except (TimeoutError, StopAsyncIteration):
                return
            yield piece

    @property
    def offset(self) -> int:
        return self._stream.offset

    @property
    def more(self) -> bool:
        return self._stream.more

    @property
    def ended(self) -> bool:
        """The process has, and all of it was read."""
        return self._stream.ended

    @property
    def result(self) -> RunResult | None:
        if not self._stream.ended:
            return None
        return denials.add(result_of(self._live, self.id, self._stream.exit), self._denied)

    async def aclose(self) -> None:
        await self._stream.aclose()
        await self._stack.aclose()


async def page(reading: Reading) -> OutputPage:
    """One answer's worth, both streams as they came."""
    data, missing = bytearray(), 0
    try:
        async for piece in reading:
            if isinstance(piece, Gap):
                missing += piece.missing
            else:
                data += piece[1]
    finally:
        await reading.aclose()
    whole = bytes(data)
    return OutputPage(
        data=whole.decode("utf-8", "replace"), data_base64=None if is_text(whole) else whole, offset=reading.offset,
        missing=missing, more=reading.more, state="exited" if reading.ended else "running",
    )  # fmt: skip


async def ending(reading: Reading) -> RunResult:
    """How a process ended, with a bounded part of what it printed."""
    gathered = Gathered()
    try:
        async for piece in reading:
            if isinstance(piece, Gap):
                gathered.missing += piece.missing
            else:
                gathered.add(*piece)
    finally:
        await reading.aclose()
    if reading.result is None:
        raise SandboxUnavailable("the process's end is not known")
    return gathered.result(reading.result)
