"""A WebSocket connection: the `websockets` package's frame parser, with bounds around it.

uvicorn's own classes are not used: they parse the request a second time past our checks, answer the pings of a peer
that does not read until memory is full, collect empty fragments without end, and wait for ever for a last flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol, State

from skerry.server.answers import Gone

MESSAGE_LIMIT = 1 << 20
QUEUE_LIMIT = 256 << 10  # of messages that nobody has taken yet; past it the peer waits
FRAGMENTS_MOST = 64  # of one message; empty ones cost memory too
CONTROLS_MOST = 1000  # pings and pongs between two of our own pings
PING_EVERY_S = 20.0
SILENT_S = 60.0  # no sign of life for so long: cut off
CLOSE_WITHIN_S = 2.0
SLICE = 4 << 10  # parsed at a time: the smallest frame has 6 bytes, and others want the loop too
_LEAST = 256  # what a message counts for in the queue, however small

NORMAL, GOING_AWAY, NOT_TEXT, POLICY, INTERNAL = 1000, 1001, 1007, 1008, 1011
_log = logging.getLogger("skerry.server.websocket")
_log.setLevel(logging.WARNING)  # the parser tells of every connection; the request's own line does that


class WebSocket(asyncio.Protocol):
    """Messages both ways, each way at the speed of whoever is slower."""

    def __init__(self, connections: set[Any]) -> None:
        self._connections = connections  # uvicorn's: it calls `shutdown` on each at a stop
        self._loop = asyncio.get_running_loop()
        self._protocol = Protocol(SERVER, max_size=MESSAGE_LIMIT, logger=_log)
        self._transport: asyncio.Transport
        self._backlog = b""
        self._fragments: list[bytes] = []
        self._is_text = False
        self._controls = 0
        self._messages: deque[bytes | str] = deque()
        self._queued = 0
        self._news = asyncio.Event()  # a message came, or none will come any more
        self._writable = asyncio.Event()
        self._end = asyncio.Event()
        self._lost = asyncio.Event()
        self._paused = False
        self._due = False
        self._deaf = False
        self._heard = self._loop.time()
        self._stalled: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- what a handler calls -----------------------------------------------------------------------------------------

    async def receive(self) -> bytes | str | None:
        """The next message, text or bytes; None when no more will come."""
        while not self._messages:
            if self._ending:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._queued -= max(len(message), _LEAST)
        self._go_on()
        return message

    async def send(self, message: bytes | str) -> None:
        """Waits while the peer does not read. Gone: it never will."""
        await self._writable.wait()
        if self._ending:
            raise Gone
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        self._flush()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Say why, and wait a moment for the answer. Idempotent."""
        self._begin_close(code, reason)
        await self._lost.wait()

    async def ended(self) -> None:
        """Returns once the end has begun, from whichever side: nothing can be sent any more."""
        await self._end.wait()

    # -- what uvicorn and the loop call -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._writable.set()
        self._set_timer(PING_EVERY_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._lost.set()
        self._wind_up()

    def shutdown(self) -> None:
        self._begin_close(GOING_AWAY, "the server is leaving")

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._backlog += data
        self._work()

    def pause_writing(self) -> None:
        self._stalled = self._loop.time()
        self._writable.clear()

    def resume_writing(self) -> None:
        self._stalled = None
        self._heard = self._loop.time()
        self._writable.set()
        self._go_on()

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def _ending(self) -> bool:
        return self._end.is_set() or self._protocol.state is not State.OPEN

    @property
    def _has_room(self) -> bool:
        """Whether more may be read. Not from a peer that leaves our answers unread: each ping makes one."""
        return self._stalled is None and (self._ending or self._queued < QUEUE_LIMIT)

    def _go_on(self) -> None:
        if not self._due and (self._backlog or self._paused):
            self._due = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Parse one slice of what came; the rest in the loop's next round. Reading goes on when nothing is left."""
        self._due = False
        if self._backlog and self._has_room:
            piece, self._backlog = self._backlog[:SLICE], self._backlog[SLICE:]
            self._parse(piece)
        if self._backlog and self._has_room:
            self._go_on()
        pause = bool(self._backlog) or not self._has_room
        if pause != self._paused and not self._transport.is_closing():
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()
        if self._ending:
            self._wind_up()

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                self._complete()
            elif len(self._fragments) >= FRAGMENTS_MOST:
                self._fail(POLICY, f"a message in more than {FRAGMENTS_MOST} fragments")
        elif frame.opcode is not Opcode.CLOSE:
            self._controls += 1
            if self._controls > CONTROLS_MOST:
                self._fail(POLICY, "too many pings")

    def _complete(self) -> None:
        whole = b"".join(self._fragments)
        self._fragments.clear()
        if self._deaf:  # not by the parser's state: a close that came in the same slice has set that already
            return
        message: bytes | str = whole
        if self._is_text:
            try:
                message = whole.decode()
            except UnicodeDecodeError:
                self._fail(NOT_TEXT, "text that is not UTF-8")
                return
        self._messages.append(message)
        self._queued += max(len(message), _LEAST)
        self._news.set()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, code: int, reason: str) -> None:
        self._deaf = True
        if self._protocol.state is State.OPEN:
            self._protocol.fail(code, reason)

    def _begin_close(self, code: int, reason: str) -> None:
        if not self._ending:
            self._protocol.send_close(code, _fitting(reason))
            self._flush()
            self._wind_up()
            self._go_on()

    def _wind_up(self) -> None:
        """Nobody sends any more. The peer's own close ends it; a peer that keeps silent or reads nothing is cut off."""
        if not self._end.is_set():
            self._deaf = True
            self._end.set()
            self._news.set()
            self._writable.set()
            self._set_timer(CLOSE_WITHIN_S, self._transport.abort)
        if self._lost.is_set() and self._timer is not None:
            self._timer.cancel()
        elif self._protocol.eof_sent:
            self._transport.close()

    def _set_timer(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, action)

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)

    def _look(self) -> None:
        """Every so often: is it still there?"""
        now = self._loop.time()
        stalled = self._stalled is not None and now - self._stalled > SILENT_S
        silent = not self._paused and now - self._heard > SILENT_S
        if stalled or silent:
            self._transport.abort()
            return
        self._controls = 0
        if self._stalled is None:
            self._protocol.send_ping(b"")
            self._flush()
        self._set_timer(PING_EVERY_S, self._look)


def _fitting(reason: str) -> str:
    """A close frame has room for 123 bytes of it."""
    return reason.encode()[:123].decode("utf-8", "ignore")
