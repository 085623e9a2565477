"""Byte streams of a connection's sides. `SocketStream` is a plain socket; TLS over it has the same interface
(`ByteStream`)."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
from typing import Final, Protocol

CHUNK: Final = 256 << 10
_LINGER_ZERO, _NO_LINGER = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
_UNSPECIFIED: Final = struct.pack("=H14x", socket.AF_UNSPEC)
_libc = ctypes.CDLL(None, use_errno=True)


class ByteStream(Protocol):
    """The stream that the HTTP proxy reads and writes. `read` returns b"" at the end; both raise OSError on failure."""

    async def read(self, max_bytes: int = CHUNK) -> bytes: ...

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Return when the kernel has taken the data, so that a slow peer slows the writer."""
        ...

    async def finish(self) -> None:
        """Close the sending side; reading goes on."""
        ...

    def unread(self, data: bytes) -> None:
        """Put back bytes that were read too far: the next `read` begins with them."""
        ...

    def close(self) -> None: ...

    def abort(self) -> None:
        """Reset the connection, so that the peer does not take a part for the whole."""
        ...


class SocketStream:
    """A non-blocking socket, read and written on the running loop. One reader and one writer at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # a socket pair in a test has neither
            # if the worker is killed, the peer gets a reset and does not take a part for the whole
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
        self.sock = sock
        self.pending = b""

    @property
    def closed(self) -> bool:
        return self.sock.fileno() < 0

    async def read(self, max_bytes: int = CHUNK) -> bytes:
        if self.pending:
            data, self.pending = self.pending[:max_bytes], self.pending[max_bytes:]
            return data
        return await asyncio.get_running_loop().sock_recv(self.sock, max_bytes)

    def unread(self, data: bytes) -> None:
        self.pending = data + self.pending

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def finish(self) -> None:
        with contextlib.suppress(OSError):
            self.shutdown_write()

    def shutdown_write(self) -> None:
        self._end_in_order()
        self.sock.shutdown(socket.SHUT_WR)

    def _end_in_order(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    async def readable(self) -> None:
        """Wait until there is data, the end or an error to read, and take nothing."""
        if self.pending:
            return
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        number = self.sock.fileno()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(number, wake)
        try:
            await ready
        finally:
            loop.remove_reader(number)

    @property
    def stale(self) -> bool:
        """Whether an idle connection cannot be used again: its end, an error, or unexpected bytes."""
        if self.closed or self.pending:
            return True
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    @property
    def ended(self) -> bool:
        """Whether the peer has closed and nothing remains to be read."""
        try:
            return self.closed or (not self.pending and not self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def wait_reset(self) -> bool:
        """Wait for any event from the peer; return True if it is a reset."""
        await self.readable()
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False

    def close(self) -> None:
        self._end_in_order()
        self.sock.close()

    def reset(self) -> None:
        """Reset the connection now without closing the socket. A task that waits on it notices and closes it: if it
        were closed here, its number could become another socket's before the loop has removed it. connect(2) to
        AF_UNSPEC resets in the kernel."""
        if not self.closed:
            _libc.connect(self.sock.fileno(), _UNSPECIFIED, len(_UNSPECIFIED))

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self.sock.close()
