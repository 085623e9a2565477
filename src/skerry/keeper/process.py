"""A running command, as the host sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal, TypeVar

import msgspec

from skerry.codecs.frames import RAW, FrameDecoder, FrameKinds, encode, encode_parts
from skerry.errors import Conflict
from skerry.keeper import frames
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError, KeeperTimeout
from skerry.keeper.values import ExitStatus, JournalGap, ProcessSpec, ProcessStarted

T = TypeVar("T")
Output = tuple[Literal["stdout", "stderr"], bytes]

MAX_IN_FLIGHT: Final = 8 << 20  # more than the pipes, sockets and buffers between program and reader hold
DEFAULT_JOURNAL: Final = 64 << 20  # bytes that a journal keeps by default
MIN_FRAME_COST: Final = 1 << 10  # bytes that a frame counts at least: many small frames cost as much as large ones
EXIT: Final = msgspec.json.Decoder(ExitStatus)
GAP: Final = msgspec.json.Decoder(JournalGap)
_started = msgspec.json.Decoder(ProcessStarted)


class ProcessConnection:
    """A framed connection to a process: messages from the host, and the end of the connection."""

    def __init__(
        self, connection: KeeperConnection, release: Callable[[KeeperConnection], None], kinds: FrameKinds = frames.RUN
    ) -> None:
        self.pid = 0
        self._connection = connection
        self._release = release
        self._sent = False
        self._exit: ExitStatus | None = None
        self._decoder = FrameDecoder(kinds)
        connection.upgrade()

    @property
    def exit(self) -> ExitStatus:
        if self._exit is None:
            raise Conflict("the command is still running")
        return self._exit

    async def send_stdin(self, data: bytes) -> None:
        """Send bytes, and wait while the program does not read. After the command's end they are discarded."""
        for frame in encode_parts(frames.STDIN, data):
            await self._send(frame)

    async def close_stdin(self) -> None:
        await self._send(encode(frames.STDIN_EOF))

    async def signal(self, name: str) -> None:
        """Signal the command's process group; KILL ends the whole process tree."""
        await self._send(encode(frames.SIGNAL, name.encode()))

    async def resize(self, cols: int, rows: int) -> None:
        """Resize the terminal."""
        await self._send(encode(frames.RESIZE, b'{"cols":%d,"rows":%d}' % (cols, rows)))

    async def _send(self, frame: bytes) -> None:
        if self._exit is None and not self._connection.lost:
            self._sent = True
            await self._connection.send(frame, patient=True)

    def _end(self) -> None:
        """Return the connection to HTTP, or close it if frames from the host may still be in flight."""
        self._connection.downgrade(self._decoder.rest)
        if self._sent:
            self._connection.close()
        else:
            self._release(self._connection)

    async def aclose(self) -> None:
        if self._exit is None:
            self._connection.close()


class ProcessStream(ProcessConnection):
    """`async for kind, data in stream` until the command has ended; then `exit` has the status. `missing` counts bytes
    that root inside destroyed before they could be read.

    It reads only on demand, and the program waits. Closing it early ends a command that was not detached."""

    def __init__(
        self,
        connection: KeeperConnection,
        release: Callable[[KeeperConnection], None],
        spec: ProcessSpec,
        grace_s: float,
        kept: int,
    ) -> None:
        super().__init__(connection, release)
        self.cgroup = 0
        self.missing = 0
        timeout_s = spec.timeout_s
        self._ends_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s + grace_s
        # After that time a reader may still be slow; the keeper gets this much more time and this many more bytes.
        self._overtime_s = grace_s
        self._overtime_bytes = MAX_IN_FLIGHT + (spec.journal or kept)

    async def read_header(self) -> None:
        """Read the first frame."""
        kind, payload = await self._frame()
        if kind != frames.STARTED:
            raise KeeperProtocolError("the keeper's first frame is not a started frame")
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
            except KeeperProtocolError:
                self._connection.close()
                raise
        raise StopAsyncIteration

    async def raw_frames(self) -> AsyncIterator[bytes]:
        """Yield the output as encoded frames, instead of iterating."""
        self._decoder.keep_raw()
        while self._exit is None:
            try:
                kind, data = await self._frame()
                if kind != RAW:
                    self._other(kind, data)
                    continue
            except KeeperProtocolError:
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
            raise KeeperProtocolError(f"the keeper sent an unexpected frame of type {kind}")

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := self._decoder.next()) is None:
            self._decoder.push(await self._more())
        if self._ends_at is not None and asyncio.get_running_loop().time() > self._ends_at:
            self._overtime_bytes -= max(len(frame[1]), MIN_FRAME_COST)
            if self._overtime_bytes < 0:
                raise KeeperProtocolError("the keeper did not end a command after its timeout")
        return frame

    async def _more(self) -> bytes:
        """Return more bytes. The keeper ends a command at its timeout; silence after the timeout and a grace period
        fails."""
        if self._ends_at is None:
            return await self._connection.piece()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(max(self._ends_at - began, self._overtime_s)):
                piece = await self._connection.piece()
        except TimeoutError:
            self._connection.close()
            raise KeeperTimeout("the keeper did not end a command after its timeout") from None
        self._overtime_s -= max(0.0, clock() - max(began, self._ends_at))
        return piece


def decode(decoder: msgspec.json.Decoder[T], payload: bytes) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KeeperProtocolError(f"the keeper sent a malformed frame: {error}") from None
