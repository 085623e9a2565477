"""A WebSocket connection: the `websockets` package's frame parser, with bounds around it.

uvicorn's own classes are not used: they parse the request a second time after the checks, answer the pings of a peer
that does not read until memory is full, collect empty fragments without limit, and wait forever for a last flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol, State

from skerry.server.http.responses import ClientDisconnected

if TYPE_CHECKING:
    from skerry.server.http.protocol import Admission

MESSAGE_LIMIT = 1 << 20
QUEUE_LIMIT = 256 << 10  # bytes of unread messages; beyond it the peer waits
MAX_FRAGMENTS = 64  # per message; empty fragments cost memory too
MAX_CONTROLS = 1000  # pings and pongs between two pings of the server
PING_EVERY_S = 20.0
SILENCE_TIMEOUT_S = 60.0  # close the connection after this time without data
CLOSE_TIMEOUT_S = 2.0
REVOKE_TIMEOUT_S = 0.5  # for the close frame that names the reason
SLICE = 4 << 10  # bytes parsed at a time: the smallest frame has 6 bytes, and other tasks need the loop
_MIN_COST = 256  # the least that a message counts in the queue

NORMAL, GOING_AWAY, NOT_TEXT, POLICY, INTERNAL = 1000, 1001, 1007, 1008, 1011
_log = logging.getLogger("skerry.server.http.websocket")
_log.setLevel(logging.WARNING)  # the parser logs every connection; the request's log line suffices


class WebSocket(asyncio.Protocol):
    """Messages in both directions, each at the speed of the slower side."""

    def __init__(self, connections: set[Any], admission: Admission) -> None:
        self._connections = connections  # uvicorn's set: it calls `shutdown` on each at a stop
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._protocol = Protocol(SERVER, max_size=MESSAGE_LIMIT, logger=_log)
        self._transport: asyncio.Transport
        self._backlog = b""
        self._fragments: list[bytes] = []
        self._is_text = False
        self._controls = 0
        self._messages: deque[bytes | str] = deque()
        self._queued = 0
        self._changed = asyncio.Event()  # a message arrived, or no more will arrive
        self._writable = asyncio.Event()
        self._end = asyncio.Event()
        self._lost = asyncio.Event()
        self._paused = False
        self._scheduled = False
        self._ignoring = False
        self.revoked = False
        self._last_data = self._loop.time()
        self._stalled: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- called by handlers -------------------------------------------------------------------------------------------

    async def receive(self) -> bytes | str | None:
        """Return the next message, text or bytes; None when no more will arrive."""
        while not self._messages:
            if self._ending:
                return None
            self._changed.clear()
            await self._changed.wait()
        message = self._messages.popleft()
        self._queued -= max(len(message), _MIN_COST)
        self._resume()
        return message

    async def send(self, message: bytes | str) -> None:
        """Send a message, waiting while the peer does not read. ClientDisconnected: it never will."""
        await self._writable.wait()
        if self._ending:
            raise ClientDisconnected
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        self._flush()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send the reason, and wait briefly for the peer's close. Idempotent."""
        self._begin_close(code, reason)
        await self._lost.wait()

    async def ended(self) -> None:
        """Wait until one side starts to close: nothing can be sent any more."""
        await self._end.wait()

    # -- called by uvicorn and the event loop -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._writable.set()
        self._set_timer(PING_EVERY_S, self._check_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._admission.release()
        self._lost.set()
        self._start_end()

    def shutdown(self) -> None:
        self._begin_close(GOING_AWAY, "the server is stopping")

    def revoke(self) -> None:
        """Disconnect a peer that has lost its rights. Discard its messages that no handler has received."""
        self.revoked = True
        self._messages.clear()
        self._begin_close(POLICY, "the token was deleted")
        self._set_timer(REVOKE_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._last_data = self._loop.time()
        self._backlog += data
        self._work()

    def pause_writing(self) -> None:
        self._stalled = self._loop.time()
        self._writable.clear()

    def resume_writing(self) -> None:
        self._stalled = None
        self._last_data = self._loop.time()
        self._writable.set()
        self._resume()

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def _ending(self) -> bool:
        return self._end.is_set() or self._protocol.state is not State.OPEN

    @property
    def _has_room(self) -> bool:
        """Whether more may be read. Not from a peer that does not read: each of its pings makes a response."""
        return self._stalled is None and (self._ending or self._queued < QUEUE_LIMIT)

    def _resume(self) -> None:
        if not self._scheduled and (self._backlog or self._paused):
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Parse one slice of the received bytes, and the rest in later iterations of the loop. Then resume reading."""
        self._scheduled = False
        if self._backlog and self._has_room:
            piece, self._backlog = self._backlog[:SLICE], self._backlog[SLICE:]
            self._parse(piece)
        if self._backlog and self._has_room:
            self._resume()
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
            self._start_end()

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                self._complete()
            elif len(self._fragments) >= MAX_FRAGMENTS:
                self._fail(POLICY, f"a message in more than {MAX_FRAGMENTS} fragments")
        elif frame.opcode is not Opcode.CLOSE:
            self._controls += 1
            if self._controls > MAX_CONTROLS:
                self._fail(POLICY, "too many pings")

    def _complete(self) -> None:
        whole = b"".join(self._fragments)
        self._fragments.clear()
        if self._ignoring:  # not the parser's state: a close in the same slice has already changed that
            return
        message: bytes | str = whole
        if self._is_text:
            try:
                message = whole.decode()
            except UnicodeDecodeError:
                self._fail(NOT_TEXT, "text that is not UTF-8")
                return
        self._messages.append(message)
        self._queued += max(len(message), _MIN_COST)
        self._changed.set()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, code: int, reason: str) -> None:
        self._ignoring = True
        if self._protocol.state is State.OPEN:
            self._protocol.fail(code, reason)

    def _begin_close(self, code: int, reason: str) -> None:
        if not self._ending:
            self._protocol.send_close(code, _fitting(reason))
            self._flush()
            self._start_end()
            self._resume()

    def _start_end(self) -> None:
        """Stop sending. The peer's close ends the connection; a peer that is silent or does not read is cut off."""
        if not self._end.is_set():
            self._ignoring = True
            self._end.set()
            self._changed.set()
            self._writable.set()
            self._set_timer(CLOSE_TIMEOUT_S, self._transport.abort)
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

    def _check_alive(self) -> None:
        """Check periodically that the peer is alive."""
        now = self._loop.time()
        stalled = self._stalled is not None and now - self._stalled > SILENCE_TIMEOUT_S
        silent = not self._paused and now - self._last_data > SILENCE_TIMEOUT_S
        if stalled or silent:
            self._transport.abort()
            return
        self._controls = 0
        if self._stalled is None:
            self._protocol.send_ping(b"")
            self._flush()
        self._set_timer(PING_EVERY_S, self._check_alive)


def _fitting(reason: str) -> str:
    """Return the part of the reason that fits into a close frame: 123 bytes."""
    return reason.encode()[:123].decode("utf-8", "ignore")
