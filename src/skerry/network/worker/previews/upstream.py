"""Connections to a port inside: made by the server, which alone can enter the sandbox's network; kept for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable

import h11

from skerry.network.worker.previews import pages

Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Sandbox and port → a connected socket; ConnectionRefusedError: nothing listens there yet; OSError: it can't be."""

STARTS_WITHIN_S = 10.0  # a server that was just started may take so long until it listens
REACHED_WITHIN_S = 30.0  # a sandbox may have to be woken first; others may wait for the same port
RETRY_S = 0.1
DIALS_AT_ONCE = 16
KEPT_MOST = 8
KEPT_S = 20.0  # shorter than most servers keep an idle connection
HEAD_MOST = 64 << 10
BUFFER = 64 << 10


class Upstream:
    """One connection. `http` is its protocol's state; `used`: it has answered a request before."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MOST)
        self.used = False
        self.kept_at = 0.0
        self._socket: socket.socket | None = writer.get_extra_info("socket")

    async def read(self) -> bytes:
        """What comes next. A program that writes an answer's head and its body one after the other is not allowed by
        its kernel to send the second before we have acknowledged the first: not after 40 ms, but at once."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return await self.reader.read(BUFFER)

    def abort(self) -> None:
        self.writer.transport.abort()

    def next_cycle(self) -> bool:
        """Ready for another request? Not with bytes left over: they would be taken for the next answer."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        if self.http.trailing_data != (b"", False) or not self.quiet:
            return False
        self.http.start_next_cycle()
        self.used = True
        return True

    @property
    def quiet(self) -> bool:
        buffered = getattr(self.reader, "_buffer", b"")  # what came unasked; asyncio has no other way to see it
        return not buffered and not self.reader.at_eof() and not self.writer.is_closing()


class Upstreams:
    """Those of one preview."""

    def __init__(self, dial: Dial, sandbox: str, port: int) -> None:
        self._dial = dial
        self._sandbox = sandbox
        self._port = port
        self._kept: list[Upstream] = []
        self._room = asyncio.Semaphore(DIALS_AT_ONCE)

    def kept(self, most_s: float = KEPT_S) -> Upstream | None:
        """One that is there already, and was used within the last `most_s`."""
        while self._kept and time.monotonic() - self._kept[-1].kept_at < most_s:
            upstream = self._kept.pop()
            if upstream.quiet:
                return upstream
            upstream.abort()
        return None

    async def fresh(self, left: Callable[[], bool]) -> Upstream:
        """A new one, waited for if the program inside is just starting. `left`: nobody wants it any more."""
        until = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                async with asyncio.timeout(REACHED_WITHIN_S), self._room:
                    connected = await self._dial(self._sandbox, self._port)
                break
            except ConnectionRefusedError:
                if time.monotonic() > until or left():
                    raise pages.Ended(pages.nothing_listens(self._port)) from None
            except OSError:
                raise pages.Ended(pages.not_reached(self._port)) from None
            await asyncio.sleep(RETRY_S)
        return Upstream(*await _streams(connected))

    def keep(self, upstream: Upstream) -> None:
        if len(self._kept) < KEPT_MOST and upstream.next_cycle():
            upstream.kept_at = time.monotonic()
            self._kept.append(upstream)
        else:
            upstream.abort()

    def sweep(self) -> None:
        """Let go of those that nobody took for long."""
        now = time.monotonic()
        for upstream in [one for one in self._kept if now - one.kept_at >= KEPT_S or not one.quiet]:
            self._kept.remove(upstream)
            upstream.abort()

    def drop(self) -> None:
        for upstream in self._kept:
            upstream.abort()
        self._kept.clear()


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """At the other side's speed. uvloop calls a connection that has ended meanwhile a programmer's mistake."""
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()


def end(writer: asyncio.StreamWriter) -> None:
    """Nothing more will be written."""
    if not writer.is_closing():
        writer.write_eof()


async def _streams(connected: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        connected.setblocking(False)
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return await asyncio.open_connection(sock=connected, limit=BUFFER)
    except BaseException:
        connected.close()
        raise
