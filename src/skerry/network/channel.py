"""Messages and file descriptors between server and worker: a stream of frames over a unix socket.

A frame is the length of its body (4 bytes), the number of its descriptors (1 byte), and one message as JSON. The
descriptors travel with the first byte. After any violation of this format the channel cannot be used.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from skerry.network.messages import MAX_MESSAGE_SIZE, DialResult, ListenPreviews, Message, OpenGateway

M = TypeVar("M", bound=Message)
_HEADER: Final = struct.Struct("!IB")
_MAX_FDS: Final = 5
_MAX_PENDING_FDS: Final = 16
_READ_SIZE: Final = 256 << 10
MAX_UNSENT: Final = 64 << 20
_SO_PASSRIGHTS: Final = 83  # since Linux 6.16


class ChannelError(ConnectionError):
    """The peer violates the protocol, does not read, or has closed."""


def fd_count(message: Message) -> int:
    """Return the number of descriptors that must accompany a message."""
    if isinstance(message, OpenGateway):
        return 4 if message.rules.cassette is None else 5
    if isinstance(message, ListenPreviews):
        return 1
    return int(isinstance(message, DialResult) and message.error is None)


def reject_fds(one: socket.socket) -> None:
    """Refuse descriptors on a side that never receives any: closing an unwanted one could block (SO_LINGER)."""
    try:
        one.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return


class WorkerChannel(Generic[M]):
    """One end. `receives`: the union of messages that the peer may send; `max_message`: the longest of them."""

    def __init__(self, one: socket.socket, receives: Any, max_message: int = MAX_MESSAGE_SIZE) -> None:
        one.setblocking(False)
        self._max_message = max_message
        self._socket = one
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(receives).decode
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._unsent_bytes = 0
        self._broken: ChannelError | None = None
        self._waiting: asyncio.Future[None] | None = None

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not read yet."""
        return self._unsent_bytes

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send now, or as soon as the peer reads, in order. The caller keeps its descriptors."""
        if self._broken is not None:
            raise self._broken
        if len(fds) != fd_count(message):
            raise ValueError(f"{type(message).__name__} goes with {fd_count(message)} descriptors, not {len(fds)}")
        body = self._encode(message)
        if len(body) > MAX_MESSAGE_SIZE:
            raise ValueError(f"{type(message).__name__} is {len(body):,} bytes long")
        if self._unsent_bytes + len(body) > MAX_UNSENT:
            raise self._break("the peer does not read")
        frame = memoryview(_HEADER.pack(len(body), len(fds)) + body)
        self._unsent.append((frame, [os.dup(fd) for fd in fds] if self._unsent else list(fds)))
        self._unsent_bytes += len(frame)
        if len(self._unsent) == 1:
            self._flush(copies=False)

    def _flush(self, copies: bool = True) -> None:
        """Send as much as possible. `copies`: the descriptors are duplicates; the first ones of a call to `send` are
        the caller's."""
        while self._unsent:
            frame, fds = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                sent = self._socket.sendmsg([frame[:_READ_SIZE]], rights)
            except (BlockingIOError, InterruptedError):
                if not copies:
                    self._unsent[0] = frame, [os.dup(fd) for fd in fds]
                asyncio.get_running_loop().add_writer(self._socket.fileno(), self._flush)
                return
            except OSError as error:
                if not copies:
                    self._unsent[0] = frame, []
                self._break(f"the peer is gone: {error.strerror}")
                return
            self._unsent_bytes -= sent
            if copies:
                _close(fds)
            if sent == len(frame):
                self._unsent.popleft()
            else:
                self._unsent[0] = frame[sent:], []
            copies = True
        if self._broken is None:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())

    # -- receiving ----------------------------------------------------------------------------------------------------

    @property
    def unread(self) -> bool:
        """Whether received data waits to be read."""
        if self._buffer:
            return True
        waiting = array.array("i", [0])
        return self._broken is None and not fcntl.ioctl(self._socket, termios.FIONREAD, waiting) and waiting[0] > 0

    async def receive(self) -> tuple[M, list[int]]:
        """Return the next message, with descriptors that the caller must close. Raise EOFError at an orderly end."""
        while True:
            if self._broken is not None:
                raise self._broken
            found = self._next()
            if found is not None:
                return found
            if not self._fill():
                await self._readable()

    def _next(self) -> tuple[M, list[int]] | None:
        if len(self._buffer) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._buffer)
        if length > self._max_message or count > _MAX_FDS:
            raise self._break("a frame is too long")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        try:
            message: M = self._decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._break(f"a message cannot be decoded: {error}") from error
        if count != fd_count(message) or count > len(self._fds):
            raise self._break(f"{type(message).__name__} came with {count} descriptors")
        return message, [self._fds.popleft() for _ in range(count)]

    def _fill(self) -> bool:
        """Read from the socket; return whether anything came."""
        space = socket.CMSG_SPACE(_MAX_FDS * 4)
        try:
            data, extra, flags, _ = self._socket.recvmsg(_READ_SIZE, space, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise self._break(f"the peer is gone: {error.strerror}") from error
        for level, kind, rights in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC or len(self._fds) > _MAX_PENDING_FDS:
            raise self._break("too many descriptors came")
        if not data:
            cut = bool(self._buffer)
            self._break("the peer has closed")
            raise self._broken if cut and self._broken else EOFError
        self._buffer += data
        return True

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = waiting = loop.create_future()
        loop.add_reader(self._socket.fileno(), _settle, waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            if self._socket.fileno() >= 0:
                loop.remove_reader(self._socket.fileno())

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._break("the channel is closed")
        if self._socket.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_writer(self._socket.fileno())
            loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _break(self, why: str) -> ChannelError:
        """Stop both directions and close descriptors that were not taken."""
        if self._broken is None:
            self._broken = ChannelError(why)
            _close(self._fds)
            for _, fds in self._unsent:
                _close(fds)
            self._fds.clear()
            self._unsent.clear()
            self._unsent_bytes = 0
            self._buffer.clear()
            if self._socket.fileno() >= 0:
                asyncio.get_running_loop().remove_writer(self._socket.fileno())
            if self._waiting is not None:
                _settle(self._waiting)
        return self._broken


def _settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _close(fds: Sequence[int] | deque[int]) -> None:
    for fd in fds:
        os.close(fd)
