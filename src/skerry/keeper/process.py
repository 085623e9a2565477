"""A running command, seen from the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal, TypeVar

import msgspec

from skerry.errors import Conflict
from skerry.keeper import frames
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied, KeeperSilent
from skerry.keeper.values import ExitStatus, Gap, ProcessSpec, Started

T = TypeVar("T")
Output = tuple[Literal["stdout", "stderr"], bytes]

ON_ITS_WAY: Final = 8 << 20  # more than all pipes, sockets and buffers between a program and its reader hold
KEPT: Final = 64 << 20  # by a journal, unless something else was asked for
LEAST: Final = 1 << 10  # what a frame counts for, however small: many of them are as dear
EXIT: Final = msgspec.json.Decoder(ExitStatus)
GAP: Final = msgspec.json.Decoder(Gap)
_started = msgspec.json.Decoder(Started)


class Talk:
    """What a host may say to a process on a connection that speaks frames, and how that connection ends."""

    def __init__(
        self, connection: Connection, keep: Callable[[Connection], None], kinds: frames.Kinds = frames.RUN
    ) -> None:
        self.pid = 0
        self._connection = connection
        self._keep = keep
        self._spoke = False
        self._exit: ExitStatus | None = None
        self._decoder = frames.Decoder(kinds)
        connection.upgrade()

    @property
    def exit(self) -> ExitStatus:
        if self._exit is None:
            raise Conflict("the command has not ended yet")
        return self._exit

    async def send_stdin(self, data: bytes) -> None:
        """Waits while the program does not read. After the command's end it goes nowhere."""
        for frame in frames.encode_stdin(data):
            await self._send(frame)

    async def close_stdin(self) -> None:
        await self._send(frames.encode(frames.STDIN_EOF))

    async def signal(self, name: str) -> None:
        """To the command's process group; KILL takes the whole tree."""
        await self._send(frames.encode(frames.SIGNAL, name.encode()))

    async def resize(self, cols: int, rows: int) -> None:
        """Of its terminal."""
        await self._send(frames.encode(frames.RESIZE, b'{"cols":%d,"rows":%d}' % (cols, rows)))

    async def _send(self, frame: bytes) -> None:
        if self._exit is None and not self._connection.lost:
            self._spoke = True
            await self._connection.send(frame, patient=True)

    def _end(self) -> None:
        """The connection speaks HTTP again, unless frames of ours may still be on their way: then it is not used."""
        self._connection.downgrade(self._decoder.rest)
        if self._spoke:
            self._connection.close()
        else:
            self._keep(self._connection)

    async def aclose(self) -> None:
        if self._exit is None:
            self._connection.close()


class ProcessStream(Talk):
    """`async for kind, data in stream` until the command has ended; then `exit` says how. `missing` counts bytes that
    root inside destroyed before they could be read.

    Reads no faster than it is asked to: the program waits. Closing it early ends a command that was not detached."""

    def __init__(
        self, connection: Connection, keep: Callable[[Connection], None], spec: ProcessSpec, grace_s: float, kept: int
    ) -> None:
        super().__init__(connection, keep)
        self.cgroup = 0
        self.missing = 0
        timeout_s = spec.timeout_s
        self._ends_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s + grace_s
        # After that, a reader may still be slow; the keeper has this much of waiting and of bytes left, and no more.
        self._overtime_s = grace_s
        self._overtime_bytes = ON_ITS_WAY + (spec.journal or kept)

    async def begin(self) -> None:
        """Reads the first frame."""
        kind, payload = await self._frame()
        if kind != frames.STARTED:
            raise KeeperLied("the keeper did not begin with a started frame")
        started = decode(_started, payload)
        self.pid, self.cgroup = started.pid, started.cgroup

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while self._exit is None:
            try:
                kind, payload = await self._frame()
                if kind == frames.STDOUT:
                    return "stdout", payload
                if kind == frames.STDERR:
                    return "stderr", payload
                self._other(kind, payload)
            except KeeperLied:
                self._connection.close()
                raise
        raise StopAsyncIteration

    async def passed_on(self) -> AsyncIterator[bytes]:
        """Instead of iterating: the output as the frames that it is, for somebody who takes those."""
        self._decoder.pass_on()
        while self._exit is None:
            try:
                kind, data = await self._frame()
                if kind != frames.AS_IS:
                    self._other(kind, data)
                    continue
            except KeeperLied:
                self._connection.close()
                raise
            yield data

    def _other(self, kind: int, payload: bytes) -> None:
        if kind == frames.EXIT:
            self._exit = decode(EXIT, payload)
            self._end()
        elif kind == frames.MISSING:
            self.missing += decode(GAP, payload).missing
        else:
            raise KeeperLied(f"the keeper sent a frame of type {kind} out of turn")

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := self._decoder.next()) is None:
            self._decoder.feed(await self._more())
        if self._ends_at is not None and asyncio.get_running_loop().time() > self._ends_at:
            self._overtime_bytes -= max(len(frame[1]), LEAST)
            if self._overtime_bytes < 0:
                raise KeeperLied("the keeper did not end a command whose time was out")
        return frame

    async def _more(self) -> bytes:
        """The keeper itself ends a command that has a time-out: past that, and some grace, its silence is a failure."""
        if self._ends_at is None:
            return await self._connection.piece()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(max(self._ends_at - began, self._overtime_s)):
                piece = await self._connection.piece()
        except TimeoutError:
            self._connection.close()
            raise KeeperSilent("the keeper did not end a command whose time was out") from None
        self._overtime_s -= max(0.0, clock() - max(began, self._ends_at))
        return piece


def decode(decoder: msgspec.json.Decoder[T], payload: bytes) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KeeperLied(f"the keeper sent a malformed frame: {error}") from None
