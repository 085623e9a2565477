"""A connection to a keeper, with bounded buffers in both directions. Input is not trusted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, cast

from skerry.keeper import http1
from skerry.keeper.errors import KeeperProtocolError, KeeperTimeout

_HIGH: Final = 512 << 10  # reading pauses above this, so a frame of 1 MiB needs about 2 MiB
_LOW: Final = 128 << 10
_SENT_AT_ONCE: Final = 512 << 10  # a large piece in one call, if the host allows that much


class KeeperConnection(asyncio.Protocol):
    """Bytes from the keeper wait in `buffer` or, after an upgrade, in pieces as they arrived. Reading pauses while much
    is buffered and no reader waits for more."""

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
    async def open(cls, sock: socket.socket) -> KeeperConnection:
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
        """Usable for another request: open, and without unexpected bytes."""
        return not self.lost and not self.buffer and not self._pieces

    def upgrade(self) -> None:
        """From now on keep bytes in pieces."""
        self._upgraded = True
        if self.buffer:
            self._pieces.append(bytes(self.buffer))
            self._waiting = len(self.buffer)
            self.buffer.clear()

    def downgrade(self, rest: bytes) -> None:
        """Return to the buffer. `rest` is the unread end of the last piece."""
        self.buffer += rest + b"".join(self._pieces)
        self._pieces.clear()
        self._waiting, self._upgraded = 0, False

    async def piece(self) -> bytes:
        """Return the next bytes as they arrived."""
        while not self._pieces:
            await self.more()
        piece = self._pieces.popleft()
        self._waiting -= len(piece)
        return piece

    async def more(self) -> None:
        """Wait for bytes beyond those in the buffer."""
        if self.lost:
            raise KeeperProtocolError("the keeper closed the connection in the middle of a response")
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    async def send(self, *data: bytes, patient: bool = False) -> None:
        """Write, and wait while the keeper does not read; unless patient, only until a response arrives."""
        if self.lost or self._transport is None:
            raise KeeperTimeout("the connection to the keeper is closed")
        self._transport.writelines(data)
        while self._full and not self.lost and (patient or not self.buffer):
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    def post(self, data: bytes) -> None:
        """Write a little without waiting."""
        if self._transport is not None:
            self._transport.write(data)

    async def head(self) -> http1.Head:
        while (head := http1.decode_head(self.buffer)) is None:
            await self.more()
        return head

    async def body(self, head: http1.Head) -> AsyncIterator[bytes]:
        """Yield the response's body in pieces no larger than the buffer."""
        if (length := head.length) is not None:
            async for piece in self._exactly(length):
                yield piece
            return
        while size := await self._chunk_size():
            async for piece in self._exactly(size):
                yield piece
            await self._line_end()
        await self._line_end()

    async def whole(self, head: http1.Head, limit: int) -> bytes:
        """Return the response's body. Raise `KeeperProtocolError` if it exceeds the limit."""
        if (head.length or 0) > limit:
            raise KeeperProtocolError(f"the keeper sent a response of more than {limit} bytes")
        parts = bytearray()
        async for piece in self.body(head):
            parts += piece
            if len(parts) > limit:
                raise KeeperProtocolError(f"the keeper sent a response of more than {limit} bytes")
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
        while (size := http1.decode_chunk_size(self.buffer)) is None:
            await self.more()
        return size

    async def _line_end(self) -> None:
        while len(self.buffer) < 2:
            await self.more()
        if self.buffer[:2] != b"\r\n":
            raise KeeperProtocolError("the keeper sent an invalid chunk")
        del self.buffer[:2]

    def hang_up(self) -> None:
        """Close, and let the keeper see it at once: an aborted transport closes its socket only in the next loop
        turn."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None and not self.lost:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.lost = True
