"""uvicorn's HTTP protocol with bounds on the input before a handler can bound it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from skerry.errors import InvalidRequest
from skerry.network.listen import source_of
from skerry.server.http.responses import ClientDisconnected, error_body
from skerry.server.http.upgrade import TAKE_OVER
from skerry.server.http.websocket import WebSocket

HEAD_LIMIT = 64 << 10
FRAMING_SHARE = 16  # a chunked body may spend this many bytes of framing for each byte of content
SLICE = 16 << 10  # bytes parsed at a time
FIELD_FRAMING = 4  # bytes of a header field besides its name and value
_TOO_LARGE = "the request's headers, trailers or framing are too large"
SEND_BUFFER = 1 << 20  # requested; the kernel limits it
KNOWN_CALLER = "skerry.known_caller"  # in the scope: the caller has a token or the unix socket
ACTOR_HEADER = "skerry-actor"  # the user of an MCP tool; of requests by this process only
CONNECTION = "skerry.connection"  # in the scope: the protocol, whose `revoke` cuts the caller off
TIMEOUT_BODY = "skerry.timeout_body"  # in the scope: the error, in the form of another product's protocol
LIVE_BODY = "skerry.live_body"  # in the scope: the body is a stream that may pause, like a terminal's input


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of a listener. `request_timeout_s`: for a head, for the next bytes of a body, and for a peer without a
    token that does not read. `idle_timeout_s`: between two requests."""

    max_connections: int = 4096
    max_per_address: int = 1024
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0


class ConnectionTable:
    """The open connections of one listener by source."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open = 0
        self._sources: Counter[str] = Counter()

    def admit(self, transport: asyncio.BaseTransport) -> Admission | None:
        """Count a connection. Return None if there are too many."""
        source = _source(transport.get_extra_info("peername"))
        if self._open >= self.limits.max_connections:
            return None
        if source and self._sources[source] >= self.limits.max_per_address:
            return None
        self._open += 1
        self._sources[source] += 1
        return Admission(self, source)

    def release(self, source: str) -> None:
        self._open -= 1
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]


class Admission:
    """A counted connection. It stays counted when it becomes a WebSocket."""

    def __init__(self, table: ConnectionTable, source: str) -> None:
        self._table, self._source = table, source

    def release(self) -> None:
        self._table.release(self._source)


def _source(peer: Any) -> str:
    """Return the source of a connection; empty for a unix socket."""
    return source_of(peer[0]) if isinstance(peer, tuple) else ""


class JoiningTransport(asyncio.Transport):
    """Holds the head of a response for the first bytes of its body, but not beyond the current turn of the event loop:
    both are one system call, and the reader wakes once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._head = b""
        self.expects_head = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.expects_head:
            self.expects_head, self._head = False, bytes(data)
            self._loop.call_soon(self.flush)
        elif self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._head = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def release(self) -> asyncio.Transport:
        """Return the transport itself, for another protocol."""
        self.flush()
        return self._transport


class BoundedProtocol(HttpToolsProtocol):
    """httptools has no limit for headers, trailers and chunk extensions, and uvicorn has one timer, which any byte
    cancels: one connection without a token could fill the memory, and a thousand could hold all descriptors.

    Here every state of a connection has a timer that further bytes do not extend, except those of a body that a handler
    waits for:

        head     from the connection, or the first byte of a later request, to the end of its head
        body     a request in progress: since the last byte of its body
        rest     the rest of a body after the response
        idle     between requests
        closing  until the peer has read the last bytes
        stalled  a reader that does not read, beside the others
    """

    def __init__(self, *args: Any, table: ConnectionTable, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._limits = table.limits
        self._admission: Admission | None = None
        self._backlog = b""
        self._received = 0
        self._content = 0
        self._head_size = 0
        self._requests = 0
        self._in_head = True
        self._in_body = False
        self._upgrading = False
        self.peer: tuple[int, int] | None = None  # pid and uid of a unix socket's other end, once they were read
        self._lost = False
        self._task: asyncio.Task[Any] | None = None
        self._running: RequestResponseCycle | None = None
        self._socket: WebSocket | None = None
        self._state = ("", 0)
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._admission = self._table.admit(transport)
        if self._admission is None:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self.transport = self._joining = JoiningTransport(transport, self.loop)
        with contextlib.suppress(OSError):  # pieces of output fit, and the reader wakes less often
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admission is not None:
            self._admission.release()
            self._admission = None
        self._cancel_timers()
        self.pipeline.clear()
        self._lost = True
        if self._task is not None:
            self._task.cancel()
        if self._running is not None and not self._running.response_complete:  # uvicorn notifies only the last request
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._backlog += data
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived, up to the first request that waits for the response of another: uvicorn would make
        objects for all of them, a hundred times the size of a short request."""
        data, self._backlog, start = self._backlog, b"", 0
        while start < len(data) and not self.pipeline and not self.transport.is_closing():
            self._parse_piece(data[start : start + SLICE], start + SLICE < len(data))
            start += SLICE
        self._backlog = data[start:]
        if self.pipeline:
            self.flow.pause_reading()
        self._watch()

    def _parse_piece(self, data: bytes, more: bool) -> None:
        early = self._upgrading
        self._received += len(data)  # without the piece that starts a message: on_message_begin resets the count
        if not early:
            super().data_received(data)
            early = self._upgrading and (more or not data.endswith(b"\r\n\r\n"))
        if early:  # a client must wait for the response before it uses the other protocol
            self._send_error(400, "data arrived before the response to the upgrade")
        elif self._received - FRAMING_SHARE * self._content > HEAD_LIMIT and not self.transport.is_closing():
            self._send_error(431, _TOO_LARGE)

    def eof_received(self) -> None:
        super().eof_received()  # the transport closes itself
        self._set_timer("closing")

    def on_message_begin(self) -> None:
        self._received = self._content = self._head_size = 0
        self._requests += 1
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer is not a header: it would arrive after the checks
            self._grow_head(len(name) + len(value) + FIELD_FRAMING)
            super().on_header(name, value)

    def _grow_head(self, size: int) -> None:
        """Limit a head that arrives in one piece. An exception in a callback of the parser ends it."""
        self._head_size += size
        if self._head_size > HEAD_LIMIT:
            raise ValueError(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        super().on_headers_complete()
        self.cycle.scope[CONNECTION] = self  # type: ignore[literal-required]
        if self.parser.should_upgrade():  # the next bytes belong to another protocol: respond, then close
            self.cycle.keep_alive = False
            if dict(self.headers).get(b"upgrade", b"").lower() == b"websocket":
                self._upgrading = True
                self.cycle.scope["extensions"] = {TAKE_OVER: partial(self._hand_over, self.cycle)}  # type: ignore[dict-item]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._joining.expects_head = True
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._content += len(body)
        super().on_body(body)
        if not self.cycle.response_complete:
            self._state = ("", 0)  # the body makes progress: start a new timer

    def on_message_complete(self) -> None:
        self._received = self._content = 0
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the timer of uvicorn that any byte cancels
        self._parse()

    def send_400_response(self, msg: str) -> None:
        if self._head_size > HEAD_LIMIT:
            self._send_error(431, _TOO_LARGE)
        else:
            self._send_error(400, "the request is not valid HTTP/1.1")

    def _hand_over(self, cycle: RequestResponseCycle, head: bytes) -> WebSocket:
        """Turn the connection into a WebSocket with `head` as the response; uvicorn sends nothing more."""
        if self.transport.is_closing() or self._admission is None:
            raise ClientDisconnected
        cycle.response_started = cycle.response_complete = True
        self.connections.discard(self)
        self._cancel_timers()
        self._socket = socket = WebSocket(self.connections, self._admission)
        self._admission = None
        transport = self._joining.release()
        transport.set_protocol(socket)
        transport.write(head)
        socket.connection_made(transport)
        return socket

    @contextlib.contextmanager
    def serving(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Cancel the task of the block when the connection is lost; the block raises ClientDisconnected."""
        if self._lost:
            raise ClientDisconnected
        before, self._task = task.cancelling(), task
        try:
            yield
        except asyncio.CancelledError:
            if self._lost and task.uncancel() <= before:
                raise ClientDisconnected from None
            raise
        finally:
            self._task = None

    def revoke(self) -> None:
        """Disconnect a caller that has lost its rights, now and without the rest of its output."""
        if self._socket is not None:
            self._socket.revoke()
        else:
            self.transport.abort()

    # -- timers -------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self._limits.request_timeout_s, self._stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stalled(self) -> None:
        self._stall_timer = None
        if not self._serves(KNOWN_CALLER):  # open calls of known callers are counted, and may wait for a reader
            self.transport.abort()

    def _serves(self, mark: str) -> bool:
        """Return whether a request with this mark in its scope is in progress."""
        running = self._running
        return running is not None and not running.response_complete and mark in running.scope

    def _current_state(self) -> str:
        if self.transport.is_closing():
            return "closing"
        if self._in_head and not self._backlog:
            return "head"
        if not self.cycle.response_complete:
            return "body"
        return "rest" if self._in_body else "idle"

    def _watch(self) -> None:
        """Start the timer of a new state. A timer that runs is kept."""
        if self._admission is None:
            return
        state = (self._current_state(), self._requests)
        if state != self._state:
            self._set_timer(state[0])

    def _set_timer(self, state: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._state = (state, self._requests)
        seconds = self._limits.idle_timeout_s if state == "idle" else self._limits.request_timeout_s
        self._timer = self.loop.call_later(seconds, self._expired)

    def _expired(self) -> None:
        self._timer = None
        state = self._state[0]
        if state == "closing":
            self.transport.abort()
        elif state == "head":
            self._send_error(408, "the request's head did not arrive in time")
        elif state == "body" and self._in_body and not self._serves(LIVE_BODY) and not self.flow.read_paused:
            scope: Mapping[str, Any] = self._running.scope if self._running is not None else {}
            self._send_error(408, "the request's body did not arrive in time", scope.get(TIMEOUT_BODY))
        elif state in ("rest", "idle"):
            self.transport.close()
        self._set_timer(self._current_state())

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None

    def _send_error(self, status: int, message: str, body: bytes | None = None) -> None:
        # A response in progress cannot be replaced: only close the connection.
        if self._running is not None and self._running.response_started and not self._running.response_complete:
            self.transport.abort()
            return
        body = body or error_body(InvalidRequest(message))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
