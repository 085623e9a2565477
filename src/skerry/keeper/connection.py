"""One connection to a keeper: bounded buffers both ways, and nothing believed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, cast

from skerry.keeper import messages
from skerry.keeper.failures import KeeperLied, KeeperSilent

_HIGH: Final = 512 << 10  # the transport stops reading above this, so a frame of 1 MiB still fits in about 2
_LOW: Final = 128 << 10
_SENT_AT_ONCE: Final = 512 << 10  # as far as the host allows it: a large piece in one call


class Connection(asyncio.Protocol):
    """Bytes from the keeper wait in `buffer`, or, after an upgrade, in pieces as they came; reading pauses while there
    is much and nobody waits for more."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._upgraded = False
        self._pieces: deque[bytes] = deque()
        self._waiting = 0  # bytes in pieces
        self.lost = False
        self._transport: asyncio.Transport | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._full = False
        self._paused = False

    @classmethod
    async def open(cls, sock: socket.socket) -> Connection:
        try:
            loop = asyncio.get_running_loop()
            if sock.family == socket.AF_UNIX:
                _, connection = await loop.create_unix_connection(cls, sock=sock)
            else:
                _, connection = await loop.create_connection(cls, sock=sock)
        except BaseException:
            sock.close()
            raise
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_AT_ONCE)
        self._transport.set_write_buffer_limits(_HIGH)

    def data_received(self, data: bytes) -> None:
        if self._upgraded:
            self._pieces.append(data)
            self._waiting += len(data)
        else:
            self.buffer += data
        self._wake()
        if len(self.buffer) + self._waiting > _HIGH and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._wake()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake_writer()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    @property
    def idle(self) -> bool:
        """Usable for another request: alive, and with nothing said out of turn."""
        return not self.lost and not self.buffer and not self._pieces

    def upgrade(self) -> None:
        """From now on bytes are taken in pieces."""
        self._upgraded = True
        if self.buffer:
            self._pieces.append(bytes(self.buffer))
            self._waiting = len(self.buffer)
            self.buffer.clear()

    def downgrade(self, rest: bytes) -> None:
        """The last piece has been taken, but for the rest of it."""
        self.buffer += rest + b"".join(self._pieces)
        self._pieces.clear()
        self._waiting, self._upgraded = 0, False

    async def piece(self) -> bytes:
        """What has come, as it came."""
        while not self._pieces:
            await self.more()
        piece = self._pieces.popleft()
        self._waiting -= len(piece)
        return piece

    async def more(self) -> None:
        """Waits for bytes beyond those in the buffer."""
        if self.lost:
            raise KeeperLied("the keeper broke off in the middle of an answer")
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    async def send(self, *data: bytes, patient: bool = False) -> None:
        """Writes, and waits while the keeper does not take it; unless patient, only until an answer comes."""
        if self.lost or self._transport is None:
            raise KeeperSilent("the keeper is gone")
        self._transport.writelines(data)
        while self._full and not self.lost and (patient or not self.buffer):
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    def post(self, data: bytes) -> None:
        """Writes a little, and does not wait."""
        if self._transport is not None:
            self._transport.write(data)

    async def head(self) -> messages.Head:
        while (head := messages.decode_head(self.buffer)) is None:
            await self.more()
        return head

    async def body(self, head: messages.Head) -> AsyncIterator[bytes]:
        """The answer's body in pieces of no more than the buffer holds."""
        if (length := head.length) is not None:
            async for piece in self._exactly(length):
                yield piece
            return
        while size := await self._chunk_size():
            async for piece in self._exactly(size):
                yield piece
            await self._line_end()
        await self._line_end()

    async def whole(self, head: messages.Head, limit: int) -> bytes:
        """The answer's body at once, refused beyond the limit."""
        if (head.length or 0) > limit:
            raise KeeperLied(f"the keeper sent an answer of more than {limit} bytes")
        parts = bytearray()
        async for piece in self.body(head):
            parts += piece
            if len(parts) > limit:
                raise KeeperLied(f"the keeper sent an answer of more than {limit} bytes")
        return bytes(parts)

    async def _exactly(self, length: int) -> AsyncIterator[bytes]:
        while length > 0:
            while not self.buffer:
                await self.more()
            size = min(length, len(self.buffer))
            piece = bytes(memoryview(self.buffer)[:size])
            del self.buffer[:size]
            length -= size
            yield piece

    async def _chunk_size(self) -> int:
        while (size := messages.decode_chunk_size(self.buffer)) is None:
            await self.more()
        return size

    async def _line_end(self) -> None:
        while len(self.buffer) < 2:
            await self.more()
        if self.buffer[:2] != b"\r\n":
            raise KeeperLied("the keeper sent a bad chunk")
        del self.buffer[:2]

    def hang_up(self) -> None:
        """Closes it, and the keeper can see that now: an aborted transport closes its socket only in its next turn."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None and not self.lost:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.lost = True
