"""Process events of a sandbox as they happen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Literal

import msgspec

from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError
from skerry.keeper.http1 import Head
from skerry.keeper.lines import LineReader
from skerry.keeper.transport import decode
from skerry.keeper.values import EventsHello, ProcessEvent

_MAX_LINE: Final = 64 << 10
_hello = msgspec.json.Decoder(EventsHello)
_event = msgspec.json.Decoder(ProcessEvent)


class _EventType(msgspec.Struct):
    type: Literal["hello", "process_started", "process_ended"]


_event_type = msgspec.json.Decoder(_EventType)


class EventStream:
    """An endless stream: `async for event in stream`.

    `hello` is the position at the start; a reader that falls too far behind receives another hello. `seq` is the last
    event that was delivered: pass it as `since` to continue after a break."""

    hello: EventsHello

    def __init__(self, connection: KeeperConnection, head: Head, since: int | None) -> None:
        if head.length is not None:
            raise KeeperProtocolError("the keeper's events have an end")
        self._connection = connection
        self._lines = LineReader(connection.body(head), _MAX_LINE)
        self._since = since
        self.seq = 0

    async def read_header(self) -> None:
        """Read the first line."""
        self.hello = decode(_hello, await self._next())
        since = self._since
        if since is not None and since > self.hello.seq and not self.hello.lost:
            raise KeeperProtocolError(f"the keeper has {self.hello.seq} events and lost none after {since}")
        self.seq = self.hello.seq if since is None or self.hello.lost else since

    def __aiter__(self) -> AsyncIterator[ProcessEvent | EventsHello]:
        return self

    async def __anext__(self) -> ProcessEvent | EventsHello:
        try:
            event = self._decode(await self._next())
        except BaseException:
            self._connection.close()
            raise
        self.seq = event.seq
        return event

    def _decode(self, line: bytes) -> ProcessEvent | EventsHello:
        event: ProcessEvent | EventsHello
        if decode(_event_type, line).type == "hello":
            event = decode(_hello, line)
            follows = event.seq > self.seq and event.lost
        else:
            event = decode(_event, line)
            follows = event.seq == self.seq + 1
        if not follows:
            raise KeeperProtocolError(f"the keeper sent event {event.seq} after {self.seq}")
        return event

    async def _next(self) -> bytes:
        line = await self._lines.next()
        if line is None:
            raise KeeperProtocolError("the keeper's events have an end")
        return line

    async def aclose(self) -> None:
        self._connection.close()
