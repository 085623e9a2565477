"""uvicorn's HTTP protocol with bounds on what comes before a handler is there to bound it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from skerry.errors import InvalidRequest
from skerry.server.answers import Gone, error_body
from skerry.server.upgrade import TAKE_OVER
from skerry.server.websocket import WebSocket

HEAD_LIMIT = 64 << 10
HEAD_WITHIN_S = 30.0
FRAMING_SHARE = 16  # a chunked body may spend this many bytes of framing for each byte of content
CONNECTIONS = 4096
SEND_BUFFER = 1 << 20  # asked for; the kernel has a bound of its own


class BoundedProtocol(HttpToolsProtocol):
    """httptools sets no limit to headers, trailers and chunk extensions, and uvicorn no time to a request that never
    ends its head: one connection without a token could fill the memory, and a thousand could hold all descriptors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._received = 0
        self._content = 0
        self._in_head = True
        self._upgrading = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= CONNECTIONS:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        with contextlib.suppress(OSError):  # pieces of output fit, and their reader is woken less often
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._patience = self.loop.call_later(HEAD_WITHIN_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        early = self._upgrading
        self._received += len(data)  # the piece in which a message begins is not counted: on_message_begin resets
        if not early:
            super().data_received(data)
            early = self._upgrading and not data.endswith(b"\r\n\r\n")
        if early:  # a client waits for the answer before it speaks the other protocol
            self._refuse(400, "more came before the upgrade was answered")
        elif self._received - FRAMING_SHARE * self._content > HEAD_LIMIT and not self.transport.is_closing():
            self._refuse(431, "the request's headers, trailers or framing are too large")
        elif self._in_head and self._patience is None:
            self._patience = self.loop.call_later(HEAD_WITHIN_S, self._too_slow)

    def on_message_begin(self) -> None:
        self._received = self._content = 0
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer is no header: it would come after the checks
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._calm()
        super().on_headers_complete()
        if self.parser.should_upgrade():  # what follows would be another protocol's: answer, then end
            self.cycle.keep_alive = False
            if dict(self.headers).get(b"upgrade", b"").lower() == b"websocket":
                self._upgrading = True
                self.cycle.scope["extensions"] = {TAKE_OVER: partial(self._hand_over, self.cycle)}  # type: ignore[dict-item]

    def on_body(self, body: bytes) -> None:
        self._content += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._received = self._content = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not HTTP/1.1 as we understand it")

    def _hand_over(self, cycle: RequestResponseCycle, head: bytes) -> WebSocket:
        """The connection becomes a WebSocket with `head` as the answer; uvicorn has nothing to send any more."""
        if self.transport.is_closing():
            raise Gone
        cycle.response_started = cycle.response_complete = True
        self.connections.discard(self)
        socket = WebSocket(self.connections)
        self.transport.set_protocol(socket)
        self.transport.write(head)
        socket.connection_made(self.transport)
        return socket

    def _too_slow(self) -> None:
        self._patience = None
        if self._in_head and not self.transport.is_closing():
            self._refuse(408, "the request's head did not come in time")

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, status: int, message: str) -> None:
        # An answer under way can't be interrupted by another one: then the connection just ends.
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
            return
        body = error_body(InvalidRequest(message))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
