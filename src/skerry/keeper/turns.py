"""A turn of a program that has a channel: bytes for it, and all that it prints and says until the turn is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Literal, TypeVar

import msgspec

from skerry.errors import Conflict
from skerry.keeper import frames
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied
from skerry.keeper.process import EXIT, GAP, LEAST, ON_ITS_WAY, decode
from skerry.keeper.values import OFFSET_MOST, ExitStatus, Nothing, TurnBegun, TurnUsage

T = TypeVar("T")
Said = tuple[Literal["stdout", "stderr", "channel"], bytes]

BODY_MOST: Final = 32 << 20
_STREAMS: Final[dict[int, Literal["stdout", "stderr", "channel"]]] = {
    frames.STDOUT: "stdout",
    frames.STDERR: "stderr",
    frames.CHANNEL: "channel",
}
_begun = msgspec.json.Decoder(TurnBegun)
_usage = msgspec.json.Decoder(TurnUsage)
_nothing = msgspec.json.Decoder(Nothing)


class Turn:
    """`async for kind, data in turn`, in the order in which the program wrote. The loop ends with the turn: `usage`
    says what it took, and `exit`, if that was the process's end, how it ended. It also ends, once, when the program has
    closed its channel (`shut`); another loop goes on from there. `missing` counts bytes that root inside destroyed
    before they could be read; `offset` is where the next byte stands in the journal.

    Reads no faster than it is asked to: the program waits. A turn that is closed early leaves the process alone."""

    def __init__(
        self,
        connection: Connection,
        keep: Callable[[Connection], None],
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
        self.usage: TurnUsage | None = None
        self._connection = connection
        self._keep = keep
        self._signal = signal
        self._decoder = frames.Decoder(frames.TURN)
        self._closed = False
        self._stopping = False
        # Once it is to stop, the keeper has this much of waiting and of bytes left.
        self._wait_s = grace_s
        self._bytes = ON_ITS_WAY + kept
        connection.upgrade()

    async def begin(self) -> None:
        """Reads the first frame."""
        kind, payload = await self._frame()
        if kind != frames.STARTED:
            raise KeeperLied("the keeper did not begin with a started frame")
        begun = decode(_begun, payload)
        self.pid, self.cgroup, self.offset, self.clock = begun.pid, begun.cgroup, begun.offset, begun.clock

    @property
    def ended(self) -> bool:
        return self.usage is not None

    def __aiter__(self) -> AsyncIterator[Said]:
        return self

    async def __anext__(self) -> Said:
        while not self.ended and not self._closed:
            try:
                kind, payload = await self._frame()
                if (stream := _STREAMS.get(kind)) is not None:
                    self._advance(len(payload))
                    return stream, payload
                self._other(kind, payload)
            except KeeperLied:
                await self.aclose()
                raise
            if kind == frames.SHUT:
                break
        raise StopAsyncIteration

    def _other(self, kind: int, payload: bytes) -> None:
        if kind == frames.MISSING:
            missing = decode(GAP, payload).missing
            self.missing += missing
            self._advance(missing)
        elif kind == frames.SHUT and not self.shut:
            decode(_nothing, payload)
            self.shut = True
        elif kind == frames.EXIT:
            self.exit = end = decode(EXIT, payload)
            self.usage = TurnUsage(cpu_s=end.cpu_s, max_rss=end.max_rss, duration_s=end.duration_s)
            self._connection.close()  # it may still be taking what was sent
        elif kind == frames.TURNED and self._stopping:
            self.usage = decode(_usage, payload)
            self._connection.downgrade(self._decoder.rest)
            self._keep(self._connection)
        else:
            raise KeeperLied(f"the keeper sent a frame of type {kind} out of turn")

    def _advance(self, size: int) -> None:
        self.offset += size
        if self.offset > OFFSET_MOST:
            raise KeeperLied("the keeper counts more output than there can be")

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := self._decoder.next()) is None:
            piece = self._connection.piece()
            self._decoder.feed(await (self._in_time(piece) if self._stopping else piece))
        if self._stopping:
            self._bytes -= max(len(frame[1]), LEAST)
            if self._bytes < 0:
                raise KeeperLied("the keeper did not end a turn that is over")
        return frame

    async def _in_time(self, work: Awaitable[T]) -> T:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(max(0.0, self._wait_s)):
                return await work
        except TimeoutError:
            await self.aclose()
            raise Conflict("the program does not take what it was sent: the turn could not be ended") from None
        finally:
            self._wait_s -= clock() - began

    async def send(self, data: bytes) -> None:
        """More bytes for the channel. Waits while the program does not read; after the turn they go nowhere."""
        for frame in frames.encode_stdin(data):
            if self._stopping or self.ended or self._connection.lost:
                break
            await self._connection.send(frame, patient=True)

    async def signal(self, name: str) -> None:
        """To the process group; KILL takes the whole tree. Not on this connection: there it would wait behind what the
        program has not read."""
        with contextlib.suppress(Conflict):  # it has ended: its exit is on its way
            await self._signal(name)

    def stop(self) -> None:
        """Says that the turn is over. What the program has written until now still comes, and then the last frame."""
        if not self._stopping:
            self._stopping = True
            if not self.ended and not self._connection.lost:
                self._connection.post(frames.encode(frames.OVER))

    async def over(self) -> TurnUsage:
        """Ends the turn, passing over what still comes. `Conflict`: the program has not taken what it was sent, so that
        the keeper could not be told; its channel is of no use any more."""
        self.stop()
        while self.usage is None:
            if self._closed:
                raise Conflict("the turn was closed")
            async for _ in self:
                pass
        return self.usage

    async def aclose(self) -> None:
        """The process goes on, and waits for nobody."""
        if not self.ended and not self._closed:
            self._closed = True
            self._connection.hang_up()
