"""Connections to a port inside, made by the server, which alone can enter the sandbox's network; kept for reuse."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable

import h11

from skerry.network.worker.previews import pages

DialPort = Callable[[str, int], Awaitable[socket.socket]]
"""Returns a socket connected to a port of a sandbox. ConnectionRefusedError: nothing listens there yet."""

START_TIMEOUT_S = 10.0  # a server that was just started may need so long to listen
DIAL_TIMEOUT_S = 30.0  # a sandbox may have to resume first; others may wait for the same port
RETRY_S = 0.1
MAX_CONCURRENT_DIALS = 16
MAX_KEPT = 8
KEPT_S = 20.0  # shorter than most servers keep an idle connection
MAX_HEAD = 64 << 10
BUFFER_SIZE = 64 << 10


class PreviewUpstream:
    """One connection. `http` is the protocol state; `reused`: it has answered a request before. `sent` and `received`:
    bytes from and to the program inside."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self.reused = False
        self.idle_since = 0.0
        self.sent = self.received = 0
        self._socket: socket.socket | None = writer.get_extra_info("socket")

    async def read(self) -> bytes:
        """Read the next bytes. With TCP_QUICKACK: a program that writes a response's head and body separately may, by
        Nagle's algorithm, not send the body before the head is acknowledged, which would take 40 ms."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        data = await self.reader.read(BUFFER_SIZE)
        self.sent += len(data)
        return data

    async def write(self, data: bytes) -> None:
        self.received += len(data)
        await write(self.writer, data)

    def take_counts(self) -> tuple[int, int]:
        """Return the bytes since the last call."""
        counts, self.sent, self.received = (self.sent, self.received), 0, 0
        return counts

    def abort(self) -> None:
        self.writer.transport.abort()

    def next_cycle(self) -> bool:
        """Prepare for another request; return False if bytes are left over: they would be taken for the next
        response."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        if self.http.trailing_data != (b"", False) or not self.is_idle:
            return False
        self.http.start_next_cycle()
        self.reused = True
        return True

    @property
    def is_idle(self) -> bool:
        buffered = getattr(self.reader, "_buffer", b"")  # unexpected bytes; asyncio has no public way to see them
        return not buffered and not self.reader.at_eof() and not self.writer.is_closing()


class UpstreamPool:
    """The connections of one preview."""

    def __init__(self, dial: DialPort, sandbox: str, port: int) -> None:
        self._dial = dial
        self._sandbox = sandbox
        self._port = port
        self._idle: list[PreviewUpstream] = []
        self._dial_slots = asyncio.Semaphore(MAX_CONCURRENT_DIALS)

    def take_idle(self, max_idle_s: float = KEPT_S) -> PreviewUpstream | None:
        """Return an idle connection that was used within the last `max_idle_s`."""
        while self._idle and time.monotonic() - self._idle[-1].idle_since < max_idle_s:
            upstream = self._idle.pop()
            if upstream.is_idle:
                return upstream
            upstream.abort()
        return None

    async def connect(self, client_gone: Callable[[], bool]) -> PreviewUpstream:
        """Connect, and wait if the program inside is just starting, unless the client has gone."""
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_S), self._dial_slots:
                    connected = await self._dial(self._sandbox, self._port)
                break
            except ConnectionRefusedError:
                if time.monotonic() > until or client_gone():
                    raise pages.EndedWithPage(pages.nothing_listens(self._port)) from None
            except OSError:
                raise pages.EndedWithPage(pages.not_reached(self._port)) from None
            await asyncio.sleep(RETRY_S)
        return PreviewUpstream(*await _streams(connected))

    def put_back(self, upstream: PreviewUpstream) -> None:
        if len(self._idle) < MAX_KEPT and upstream.next_cycle():
            upstream.idle_since = time.monotonic()
            self._idle.append(upstream)
        else:
            upstream.abort()

    def sweep(self) -> None:
        """Close connections that were idle for long."""
        now = time.monotonic()
        for upstream in [one for one in self._idle if now - one.idle_since >= KEPT_S or not one.is_idle]:
            self._idle.remove(upstream)
            upstream.abort()

    def drop(self) -> None:
        for upstream in self._idle:
            upstream.abort()
        self._idle.clear()


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write at the peer's speed. uvloop treats writing to a closed connection as a programming error."""
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


def end(writer: asyncio.StreamWriter) -> None:
    """Close the sending side."""
    if not writer.is_closing():
        writer.write_eof()


async def _streams(connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        connected.setblocking(False)
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return await asyncio.open_connection(sock=connected, limit=BUFFER_SIZE)
    except BaseException:
        connected.close()
        raise
