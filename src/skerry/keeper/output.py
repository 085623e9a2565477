"""The journal of a process, readable from any byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from skerry.errors import InvalidRequest
from skerry.keeper import frames
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError, KeeperTimeout
from skerry.keeper.process import EXIT, GAP, Output, ProcessConnection, decode
from skerry.keeper.values import MAX_OFFSET, JournalGap, JournalStarted, OutputPaused

_opened = msgspec.json.Decoder(JournalStarted)
_paused = msgspec.json.Decoder(OutputPaused)


class JournalRange(msgspec.Struct, frozen=True, kw_only=True):
    """The part to read: from byte `since` (negative: counted from the end), following new output or not, and at most
    `limit` bytes. `pace`: the process waits for this reader, unless it waits for another one."""

    since: int = 0
    follow: bool = False
    limit: int | None = None
    pace: bool = False

    def __post_init__(self) -> None:
        if abs(self.since) > MAX_OFFSET or (self.limit is not None and not 0 < self.limit <= MAX_OFFSET):
            raise InvalidRequest("since or limit: out of range")

    def query(self) -> dict[str, str]:
        query = {"since": str(self.since), "follow": str(int(self.follow))} | ({"pace": "1"} if self.pace else {})
        return query if self.limit is None else query | {"limit": str(self.limit)}


class OutputStream(ProcessConnection):
    """`async for piece in stream`: ("stdout" or "stderr", bytes), or a `JournalGap` where bytes were dropped. `offset`
    is the position of the next byte.

    It ends with the process (`ended`; `exit` has the status), at the end of the present output, or at the limit
    (`more`: the journal holds more). It reads only on demand, and the process waits for a paced reader only. Closing it
    does not affect the process."""

    def __init__(
        self,
        connection: KeeperConnection,
        release: Callable[[KeeperConnection], None],
        output_range: JournalRange,
        grace_s: float,
    ) -> None:
        super().__init__(connection, release, frames.JOURNAL)
        self.offset = max(output_range.since, 0)
        self.more = False
        self._range = output_range
        self._left = MAX_OFFSET if output_range.limit is None else output_range.limit
        self._grace_s = grace_s
        self._over = False

    async def read_header(self) -> None:
        """Read the first frame."""
        kind, payload = await self._frame()
        if kind != frames.STARTED:
            raise KeeperProtocolError("the keeper's first frame is not a started frame")
        opened = decode(_opened, payload)
        if self._range.since >= 0 and opened.offset != self._range.since:
            raise KeeperProtocolError(f"the keeper started at {opened.offset}, not at {self._range.since}")
        self.pid, self.offset = opened.pid, opened.offset

    @property
    def ended(self) -> bool:
        """The process has ended, and all of its output was read."""
        return self._exit is not None

    def __aiter__(self) -> AsyncIterator[Output | JournalGap]:
        return self

    async def __anext__(self) -> Output | JournalGap:
        if self._over:
            raise StopAsyncIteration
        try:
            kind, payload = await self._frame()
            while kind == frames.CHANNEL:  # channel messages belong to the exchange only
                self._count(payload)
                kind, payload = await self._frame()
            if kind in frames.OUTPUT:
                self._count(payload)
                return ("stdout" if kind == frames.STDOUT else "stderr"), payload
            if kind == frames.MISSING:
                gap = decode(GAP, payload)
                self._advance(gap.missing)
                return gap
            self._last(kind, payload)
        except BaseException:
            self._connection.close()
            raise
        self._over = True
        self._end()
        raise StopAsyncIteration

    def _count(self, payload: bytes) -> None:
        self._left -= len(payload)
        if self._left < 0:
            raise KeeperProtocolError("the keeper sent more output than was requested")
        self._advance(len(payload))

    def _advance(self, size: int) -> None:
        self.offset += size
        if self.offset > MAX_OFFSET:
            raise KeeperProtocolError("the keeper reported an impossible output offset")

    def _last(self, kind: int, payload: bytes) -> None:
        if kind == frames.EXIT:
            self._exit = decode(EXIT, payload)
            return
        if kind != frames.PAUSE or (self._range.follow and self._left > 0):
            raise KeeperProtocolError(f"the keeper sent an unexpected frame of type {kind}")
        paused = decode(_paused, payload)
        if paused.offset != self.offset or (paused.more and self._left > 0):
            raise KeeperProtocolError(f"the keeper paused at {paused.offset}, not at {self.offset}")
        self.more = paused.more

    async def _frame(self) -> tuple[int, bytes]:
        """Recorded output must arrive in time; output that is still to be printed may take any time."""
        while (frame := self._decoder.next()) is None:
            try:
                async with asyncio.timeout(None if self._range.follow else self._grace_s):
                    self._decoder.push(await self._connection.piece())
            except TimeoutError:
                self._connection.close()
                raise KeeperTimeout("the keeper stopped in the middle of the output") from None
        return frame

    async def aclose(self) -> None:
        if not self._over:
            self._over = True
            self._connection.close()
