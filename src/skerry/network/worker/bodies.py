"""Bodies of requests and responses on their way. A body that nobody filters goes from socket to socket by `splice`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import h11

from skerry.network.worker.heads import HEAD_MOST, trailing
from skerry.network.worker.hooks import Filter
from skerry.network.worker.limits import Meter
from skerry.network.worker.relay import Lot, Way
from skerry.network.worker.streams import CHUNK, Stream, Wire

_TURN: Final = 256
_SPLICED: Final = 64 << 10  # a shorter body is faster read and written


class BrokenOff(ConnectionError):
    """A body ended before its end."""


@dataclass(frozen=True)
class Belt:
    """From one side to the other. `count` is told how many bytes went on."""

    source: Stream
    sink: Stream
    meter: Meter
    pipes: Lot
    count: Callable[[int], None]
    most: int = CHUNK  # of what is read at once

    async def plain(self, left: int | None, watch: Filter | None, wrap: Callable[[bytes], bytes] | None) -> None:
        """`left` bytes; None: all there are. `wrap` frames each piece for the sink."""
        if (
            watch is None
            and wrap is None
            and isinstance(self.source, Wire)
            and isinstance(self.sink, Wire)
            and (left is None or left > _SPLICED)
        ):
            way = Way(self.source, self.sink, self.pipes, self.meter, self.count, left)
            if await way.run() and left is not None:
                raise BrokenOff("it broke off")
            return
        while left is None or left:
            data = await self.source.read(await self.meter.room(self.most if left is None else min(self.most, left)))
            if not data:
                if left is not None:
                    raise BrokenOff("it broke off")
                break
            left = None if left is None else left - len(data)
            await self._pass(data, watch, wrap)
        await self._last(watch, wrap)

    async def chunked(
        self, reader: h11.Connection, watch: Filter | None, wrap: Callable[[bytes], bytes] | None
    ) -> list[tuple[bytes, bytes]]:
        """What `reader` takes out of its chunks, to the end of them; what follows is put back. Gives the trailers."""
        held = bytearray()  # of chunks that came together: they go on as one
        for number in itertools.count(1):
            event = reader.next_event()
            if isinstance(event, h11.Data):
                held += event.data
                if number % _TURN == 0:  # chunks of a byte each are much work, and others are waiting
                    await asyncio.sleep(0)
                if len(held) < CHUNK:
                    continue
            await self._pass(bytes(held), watch, wrap)
            held.clear()
            if event is h11.NEED_DATA:
                data = await self.source.read(await self.meter.room(CHUNK))
                reader.receive_data(data)
            elif isinstance(event, h11.EndOfMessage):
                self.source.unread(bytes(reader.trailing_data[0]))
                await self._last(watch, wrap)
                return list(trailing(tuple((bytes(n), bytes(v)) for n, v in event.headers)))
            elif not isinstance(event, h11.Data):
                break
        raise BrokenOff("it broke off")

    async def _pass(self, data: bytes, watch: Filter | None, wrap: Callable[[bytes], bytes] | None) -> None:
        if watch is not None and data:
            data = watch.feed(data)
        if data:
            await self.sink.write(wrap(data) if wrap is not None else data)
            self.count(len(data))

    async def _last(self, watch: Filter | None, wrap: Callable[[bytes], bytes] | None) -> None:
        data = watch.end() if watch is not None else b""
        if data:
            await self.sink.write(wrap(data) if wrap is not None else data)
            self.count(len(data))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: list[tuple[bytes, bytes]]) -> bytes:
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % (name.title(), value) for name, value in trailers) + b"\r\n"


def chunk_reader(head: bytes) -> h11.Connection:
    """For the chunks that follow a request's head, which was found to be good."""
    reader = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MOST)
    reader.receive_data(head)
    reader.next_event()
    return reader
