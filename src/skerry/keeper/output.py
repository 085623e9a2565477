"""A process's journal, read from any byte on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from skerry.errors import InvalidRequest
from skerry.keeper import frames
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied, KeeperSilent
from skerry.keeper.process import EXIT, GAP, Output, Talk, decode
from skerry.keeper.values import OFFSET_MOST, Gap, Opened, Paused

_opened = msgspec.json.Decoder(Opened)
_paused = msgspec.json.Decoder(Paused)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What to read: from byte `since` on (below 0: counted from the end), as it comes or only what there is now, and no
    more than `limit` bytes."""

    since: int = 0
    follow: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if abs(self.since) > OFFSET_MOST or (self.limit is not None and not 0 < self.limit <= OFFSET_MOST):
            raise InvalidRequest("since or limit: out of range")

    def query(self) -> dict[str, str]:
        query = {"since": str(self.since), "follow": str(int(self.follow))}
        return query if self.limit is None else query | {"limit": str(self.limit)}


class OutputStream(Talk):
    """`async for piece in stream`: ("stdout" or "stderr", bytes), or a `Gap` where bytes were dropped. `offset` is
    where the next byte stands.

    It ends with the process (`ended`; then `exit` says how), or where there is no more now or the limit was met (`more`
    then says whether the journal holds more). Reads no faster than it is asked to; nobody waits for it. Closing it does
    nothing to the process."""

    def __init__(self, connection: Connection, keep: Callable[[Connection], None], view: View, grace_s: float) -> None:
        super().__init__(connection, keep, frames.JOURNAL)
        self.offset = max(view.since, 0)
        self.more = False
        self._view = view
        self._left = OFFSET_MOST if view.limit is None else view.limit
        self._grace_s = grace_s
        self._over = False

    async def begin(self) -> None:
        """Reads the first frame."""
        kind, payload = await self._frame()
        if kind != frames.STARTED:
            raise KeeperLied("the keeper did not begin with a started frame")
        opened = decode(_opened, payload)
        if self._view.since >= 0 and opened.offset != self._view.since:
            raise KeeperLied(f"the keeper began at {opened.offset}, not at {self._view.since}")
        self.pid, self.offset = opened.pid, opened.offset

    @property
    def ended(self) -> bool:
        """The process has, and all of its output was read."""
        return self._exit is not None

    def __aiter__(self) -> AsyncIterator[Output | Gap]:
        return self

    async def __anext__(self) -> Output | Gap:
        if self._over:
            raise StopAsyncIteration
        try:
            kind, payload = await self._frame()
            while kind == frames.CHANNEL:  # what a program said in its turns is between it and who took them
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
            raise KeeperLied("the keeper sent more output than was asked for")
        self._advance(len(payload))

    def _advance(self, size: int) -> None:
        self.offset += size
        if self.offset > OFFSET_MOST:
            raise KeeperLied("the keeper counts more output than there can be")

    def _last(self, kind: int, payload: bytes) -> None:
        if kind == frames.EXIT:
            self._exit = decode(EXIT, payload)
            return
        if kind != frames.PAUSE or (self._view.follow and self._left > 0):
            raise KeeperLied(f"the keeper sent a frame of type {kind} out of turn")
        paused = decode(_paused, payload)
        if paused.offset != self.offset or (paused.more and self._left > 0):
            raise KeeperLied(f"the keeper paused at {paused.offset}, not at {self.offset}")
        self.more = paused.more

    async def _frame(self) -> tuple[int, bytes]:
        """What is there already has to come soon; what is yet to be printed may take any time."""
        while (frame := self._decoder.next()) is None:
            try:
                async with asyncio.timeout(None if self._view.follow else self._grace_s):
                    self._decoder.feed(await self._connection.piece())
            except TimeoutError:
                self._connection.close()
                raise KeeperSilent("the keeper stopped in the middle of an output") from None
        return frame

    async def aclose(self) -> None:
        if not self._over:
            self._over = True
            self._connection.close()
