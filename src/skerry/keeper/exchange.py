"""An exchange with a program that has a channel: bytes for it, and its output and messages until the exchange ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Literal, TypeVar

import msgspec

from skerry.codecs.frames import FrameDecoder, encode, encode_parts
from skerry.errors import Conflict
from skerry.keeper import frames
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError
from skerry.keeper.process import EXIT, GAP, MAX_IN_FLIGHT, MIN_FRAME_COST, decode
from skerry.keeper.values import MAX_OFFSET, ExchangeStarted, ExchangeUsage, ExitStatus, NoFields

T = TypeVar("T")
Piece = tuple[Literal["stdout", "stderr", "channel"], bytes]

MAX_BODY: Final = 32 << 20
_STREAMS: Final[dict[int, Literal["stdout", "stderr", "channel"]]] = {
    frames.STDOUT: "stdout",
    frames.STDERR: "stderr",
    frames.CHANNEL: "channel",
}
_begun = msgspec.json.Decoder(ExchangeStarted)
_usage = msgspec.json.Decoder(ExchangeUsage)
_nothing = msgspec.json.Decoder(NoFields)


class Exchange:
    """`async for kind, data in exchange`, in the order in which the program wrote.

    The loop ends with the exchange: `usage` has its resources, and `exit` the status if the process ended. It also
    ends, once, when the program has closed its channel (`shut`); another loop continues from there. `missing` counts
    bytes that root inside destroyed before they could be read; `offset` is the position of the next byte in the
    journal.

    It reads only on demand, and the program waits. Closing an exchange early does not affect the process."""

    def __init__(
        self,
        connection: KeeperConnection,
        release: Callable[[KeeperConnection], None],
        signal: Callable[[str], Awaitable[None]],
        grace_s: float,
        kept: int,
    ) -> None:
        self.pid = 0
        self.cgroup = 0
        self.offset = 0
        self.clock = 0
        self.missing = 0
        self.shut = False
        self.exit: ExitStatus | None = None
        self.usage: ExchangeUsage | None = None
        self._connection = connection
        self._release = release
        self._signal = signal
        self._decoder = FrameDecoder(frames.EXCHANGE)
        self._closed = False
        self._stopping = False
        # After `stop`, the keeper has this much time and this many bytes left.
        self._wait_s = grace_s
        self._bytes = MAX_IN_FLIGHT + kept
        connection.upgrade()

    async def read_header(self) -> None:
        """Read the first frame."""
        kind, payload = await self._frame()
        if kind != frames.STARTED:
            raise KeeperProtocolError("the keeper's first frame is not a started frame")
        begun = decode(_begun, payload)
        self.pid, self.cgroup, self.offset, self.clock = begun.pid, begun.cgroup, begun.offset, begun.clock

    @property
    def ended(self) -> bool:
        return self.usage is not None

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while not self.ended and not self._closed:
            try:
                kind, payload = await self._frame()
                if (stream := _STREAMS.get(kind)) is not None:
                    self._advance(len(payload))
                    return stream, payload
                self._other(kind, payload)
            except KeeperProtocolError:
                await self.aclose()
                raise
            if kind == frames.CHANNEL_CLOSED:
                break
        raise StopAsyncIteration

    def _other(self, kind: int, payload: bytes) -> None:
        if kind == frames.MISSING:
            missing = decode(GAP, payload).missing
            self.missing += missing
            self._advance(missing)
        elif kind == frames.CHANNEL_CLOSED and not self.shut:
            decode(_nothing, payload)
            self.shut = True
        elif kind == frames.EXIT:
            self.exit = end = decode(EXIT, payload)
            self.usage = ExchangeUsage(cpu_s=end.cpu_s, max_rss=end.max_rss, duration_s=end.duration_s)
            self._connection.close()  # the keeper may still be reading input
        elif kind == frames.EXCHANGE_ENDED and self._stopping:
            self.usage = decode(_usage, payload)
            self._connection.downgrade(self._decoder.rest)
            self._release(self._connection)
        else:
            raise KeeperProtocolError(f"the keeper sent an unexpected frame of type {kind}")

    def _advance(self, size: int) -> None:
        self.offset += size
        if self.offset > MAX_OFFSET:
            raise KeeperProtocolError("the keeper reported an impossible output offset")

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := self._decoder.next()) is None:
            piece = self._connection.piece()
            self._decoder.push(await (self._in_time(piece) if self._stopping else piece))
        if self._stopping:
            self._bytes -= max(len(frame[1]), MIN_FRAME_COST)
            if self._bytes < 0:
                raise KeeperProtocolError("the keeper did not end the exchange")
        return frame

    async def _in_time(self, work: Awaitable[T]) -> T:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(max(0.0, self._wait_s)):
                return await work
        except TimeoutError:
            await self.aclose()
            raise Conflict("the program does not read its input: the exchange could not be ended") from None
        finally:
            self._wait_s -= clock() - began

    async def send(self, data: bytes) -> None:
        """Send bytes to the channel, and wait while the program does not read. After the exchange they are
        discarded."""
        for frame in encode_parts(frames.STDIN, data):
            if self._stopping or self.ended or self._connection.lost:
                break
            await self._connection.send(frame, patient=True)

    async def signal(self, name: str) -> None:
        """Signal the process group; KILL ends the whole process tree. The signal takes another connection: on this one
        it would wait behind unread input."""
        with contextlib.suppress(Conflict):  # the process has ended: its exit frame is in flight
            await self._signal(name)

    def stop(self) -> None:
        """Ask the keeper to end the exchange. Output written so far still arrives, then the last frame."""
        if not self._stopping:
            self._stopping = True
            if not self.ended and not self._connection.lost:
                self._connection.post(encode(frames.END_EXCHANGE))

    async def finish(self) -> ExchangeUsage:
        """End the exchange and discard further output. `Conflict`: the program did not read its input, so the request
        to end could not be delivered; its channel is unusable."""
        self.stop()
        while self.usage is None:
            if self._closed:
                raise Conflict("the exchange was closed")
            async for _ in self:
                pass
        return self.usage

    async def aclose(self) -> None:
        """Close the exchange. The process continues."""
        if not self.ended and not self._closed:
            self._closed = True
            self._connection.hang_up()
