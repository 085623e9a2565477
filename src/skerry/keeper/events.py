"""What happens to a sandbox's processes, as it happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Literal

import msgspec

from skerry.keeper.channel import decode
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied
from skerry.keeper.messages import Head
from skerry.keeper.values import EventsHello, ProcessEvent

_LINE: Final = 64 << 10
_hello = msgspec.json.Decoder(EventsHello)
_event = msgspec.json.Decoder(ProcessEvent)


class _Kind(msgspec.Struct):
    type: Literal["hello", "process_started", "process_ended"]


_kind = msgspec.json.Decoder(_Kind)


class EventStream:
    """`async for event in stream`, without end. `hello` says where it stands; one who falls too far behind gets another
    hello. `seq` is the last event that was given, and where to ask from after a break."""

    hello: EventsHello

    def __init__(self, connection: Connection, head: Head, since: int | None) -> None:
        if head.length is not None:
            raise KeeperLied("the keeper's events have an end")
        self._connection = connection
        self._pieces = connection.body(head)
        self._since = since
        self._line = bytearray()
        self.seq = 0

    async def begin(self) -> None:
        """Reads the first line."""
        self.hello = decode(_hello, await self._next())
        since = self._since
        if since is not None and since > self.hello.seq and not self.hello.lost:
            raise KeeperLied(f"the keeper knows {self.hello.seq} events, and lost none after {since}")
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
        if decode(_kind, line).type == "hello":
            event = decode(_hello, line)
            follows = event.seq > self.seq and event.lost
        else:
            event = decode(_event, line)
            follows = event.seq == self.seq + 1
        if not follows:
            raise KeeperLied(f"the keeper gave event {event.seq} after {self.seq}")
        return event

    async def _next(self) -> bytes:
        while (end := self._line.find(b"\n")) < 0:
            if len(self._line) > _LINE:
                raise KeeperLied("the keeper sent an event without end")
            try:
                self._line += await anext(self._pieces)
            except StopAsyncIteration:
                raise KeeperLied("the keeper's events have an end") from None
        line = bytes(self._line[:end])
        del self._line[: end + 1]
        return line

    async def aclose(self) -> None:
        self._connection.close()
