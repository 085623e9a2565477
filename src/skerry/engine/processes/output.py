"""The output of a process: read from its journal at the reader's speed, without slowing the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from skerry.engine.network import denials
from skerry.engine.processes.run import CollectedOutput, result_of
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import SandboxUnavailable
from skerry.keeper import JournalGap, OutputStream
from skerry.types import NetworkAttempt, OutputPage, RunResult, is_text

Piece = tuple[str, bytes] | JournalGap


@dataclass(frozen=True)
class OutputRange:
    """A part of the output: from byte `since` on (negative: from the end), at most `limit` bytes. With `follow`, also
    new output until the process ends, or for at most `within` seconds. `pace`: the process waits for this reader,
    unless it waits for another one; a reader that falls behind misses output."""

    since: int = 0
    limit: int | None = None
    follow: bool = False
    within: float | None = None
    pace: bool = False


class OutputReader:
    """Iterate for the pieces. Then `result` is how the process ended, or None: then `offset` is where to go on."""

    def __init__(
        self, sandbox: Sandbox, process: str, stream: OutputStream, view: OutputRange, stack: AsyncExitStack
    ) -> None:
        self.id = process
        self.pid = stream.pid
        self.start = stream.offset
        self._sandbox = sandbox
        self._stream = stream
        self._view = view
        self._stack = stack
        self._denied: tuple[NetworkAttempt, ...] = ()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async with self._stack:  # it has to see errors: a keeper that misbehaves in the middle fails its sandbox
            pieces = self._until(self._view.within) if self._view.within else self._stream
            async for piece in pieces:
                yield piece
            if self._stream.ended:
                self._denied = await self._sandbox.denied_attempts(self.id)

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
        return denials.add(result_of(self._sandbox, self.id, self._stream.exit), self._denied)

    async def aclose(self) -> None:
        await self._stream.aclose()
        await self._stack.aclose()


async def read_page(reading: OutputReader) -> OutputPage:
    """One answer's worth, both streams as they came."""
    data, missing = bytearray(), 0
    try:
        async for piece in reading:
            if isinstance(piece, JournalGap):
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


async def read_result(reading: OutputReader) -> RunResult:
    """Return the result of a process with a bounded part of its output."""
    gathered = CollectedOutput()
    try:
        async for piece in reading:
            if isinstance(piece, JournalGap):
                gathered.missing += piece.missing
            else:
                gathered.add(*piece)
    finally:
        await reading.aclose()
    end = reading.result
    if end is None:
        raise SandboxUnavailable("the process's end is not known")
    return gathered.result(end)
