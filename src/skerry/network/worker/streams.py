"""Bytes to and from one side of a connection. `Wire` is a plain socket; TLS over it has the same shape (`Stream`)."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
from typing import Final, Protocol

CHUNK: Final = 256 << 10
_RESET: Final = struct.pack("ii", 1, 0)
_NOWHERE: Final = struct.pack("=H14x", socket.AF_UNSPEC)
_libc = ctypes.CDLL(None, use_errno=True)


class Stream(Protocol):
    """What HTTP mode reads from and writes to. `read` gives b"" at the end; both raise OSError when it broke."""

    async def read(self, most: int = CHUNK) -> bytes: ...

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Returns when the data is on its way; the other side's slowness is felt here."""
        ...

    async def finish(self) -> None:
        """No more will be written; reading goes on."""
        ...

    def unread(self, data: bytes) -> None:
        """Puts back what was read too far: the next `read` begins with it."""
        ...

    def close(self) -> None: ...

    def abort(self) -> None:
        """A reset, so that nobody takes what came so far for all of it."""
        ...


class Wire:
    """A non-blocking socket, read and written on the running loop. One reader and one writer at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # a socket pair in a test has neither
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

    async def read(self, most: int = CHUNK) -> bytes:
        if self.pending:
            data, self.pending = self.pending[:most], self.pending[most:]
            return data
        return await asyncio.get_running_loop().sock_recv(self.sock, most)

    def unread(self, data: bytes) -> None:
        self.pending = data + self.pending

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def finish(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    async def readable(self) -> None:
        """Waits until there is something to read, or the end, or an error, and takes nothing."""
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
        """Whether an idle connection can't be used again: its end, an error, or bytes that nobody asked for."""
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
        """Whether the other side has closed, and nothing of it is left to be read."""
        try:
            return self.closed or (not self.pending and not self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def reset(self) -> bool:
        """Waits until the other side says or does something: True if that is a reset."""
        await self.readable()
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False

    def close(self) -> None:
        self.sock.close()

    def cut(self) -> None:
        """Resets it now. Whoever waits on it finds out, and closes it: were it closed here, its number could be another
        socket's before the loop has let go of it. connect(2) to AF_UNSPEC is how the kernel is told to."""
        if not self.closed:
            _libc.connect(self.sock.fileno(), _NOWHERE, len(_NOWHERE))

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()
