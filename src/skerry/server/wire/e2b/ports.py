"""Ports of sandboxes under their host names, and with routing headers: HTTP and WebSockets to the programs inside.

The server connects like a preview does, and checks both sides: heads are parsed and written again, bodies stream at the
slower side's speed. Every byte of the program is hostile.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import h11
from starlette.types import Receive, Scope, Send
from websockets.exceptions import ProtocolError
from websockets.frames import EXTERNAL_CLOSE_CODES, Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from skerry.codecs import h11_headers
from skerry.errors import Conflict, InvalidRequest, PermissionDenied, QuotaExceeded, SkerryError
from skerry.network.worker.previews import headers as preview_headers
from skerry.network.worker.previews.address import PreviewAddress
from skerry.server.http.endpoint import RequestContext
from skerry.server.http.protocol import CONNECTION, KNOWN_CALLER
from skerry.server.http.responses import ClientDisconnected
from skerry.server.http.upgrade import Upgrade, handshake
from skerry.server.http.websocket import MESSAGE_LIMIT, NORMAL, WebSocket
from skerry.server.wire.e2b.access import SandboxPort, sandbox_caller
from skerry.server.wire.e2b.errors import BadAccessToken, SandboxGone
from skerry.server.wire.e2b.values import SandboxMark, mark_of
from skerry.types import SANDBOX_ID, Caller

if TYPE_CHECKING:
    from skerry.engine.engine import Engine
    from skerry.engine.processes.ports import Connection
    from skerry.server.control import Control

h11_headers.harden()
MAX_EXCHANGES: Final = 256  # of one sandbox at once
MAX_HEAD: Final = 64 << 10
_CREDENTIALS: Final = (b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port")
_MASK: Final = re.compile(r"[A-Za-z0-9._-]{1,253}(?::(?:[0-9]{1,5}|\$\{PORT\}))?")
_BODILESS: Final = (204, 304)


class TrafficDenied(PermissionDenied):
    """A request without the access token that the sandbox's ports need."""

    status: ClassVar[int] = 403


class PortClosed(SandboxGone):
    """No program listens on the port, or it broke off before its response."""


class BadResponse(SandboxGone):
    """The program's response is not HTTP/1.1."""


def check_mask(mask: str | None) -> None:
    if mask is not None and not _MASK.fullmatch(mask):
        raise InvalidRequest(f"network.maskRequestHost: {mask[:80]!r} is not a host", hint='like "localhost:${PORT}"')


@dataclass(frozen=True)
class PortRequest:
    """A request for a port, after the checks."""

    sandbox: str
    port: int
    caller: Caller
    host: str
    secure: bool
    peer: str


class PortTraffic:
    """Answers requests for ports of sandboxes. `domain`: the parent of their host names."""

    def __init__(self, engine: Engine, control: Control, domain: str | None) -> None:
        self._engine, self._control, self._domain = engine, control, domain
        self._open: Counter[str] = Counter()

    async def answer(
        self, target: SandboxPort, scope: Scope, receive: Receive, send: Send, context: RequestContext
    ) -> None:
        """Check the caller before any effect, above all before the sandbox resumes."""
        if scope["method"] in ("CONNECT", "TRACE"):  # a tunnel past the checks; an echo of the headers
            raise InvalidRequest(f"the method {scope['method']} is not allowed")
        caller, mark = self._admit(target, context)
        if context.caller is not None:
            scope[KNOWN_CALLER] = True
        sandbox = str(target.sandbox)
        context.log |= {"path": "port", "sandbox": sandbox, "port": target.port}
        request = self._request(target, scope, context, caller, mark)
        with self._counted(sandbox), self._call(context.caller, scope):
            await self._engine.adoption.wait(caller, sandbox)
            connection = await self._connect(request)
            exchange = PortExchange(connection, request, scope, receive, send, context)
            try:
                await _until_set(self._control.stopping, exchange.run())
            finally:
                await connection.aclose()

    def _admit(self, target: SandboxPort, context: RequestContext) -> tuple[Caller, SandboxMark]:
        """Return the caller: of the access token, or the owner of a sandbox with public ports."""
        found = self._engine.registry.get(target.sandbox or "") if SANDBOX_ID.fullmatch(target.sandbox or "") else None
        if found is None:
            raise SandboxGone("The sandbox was not found")
        info = found.record.info()
        mark = mark_of(info)
        try:
            context.caller = sandbox_caller(self._engine.tokens, context.headers, target)
        except BadAccessToken:
            context.caller = None  # the program may use a header of that name
        if context.caller is not None:
            context.log["owner"] = context.caller.owner
            if not found.record.is_seen_by(context.caller):
                raise SandboxGone("The sandbox was not found")
            return context.caller, mark
        if not mark.public:
            raise TrafficDenied("Sandbox access denied: invalid traffic access token")
        return Caller(owner=info.owner, scope="use"), mark

    def _request(
        self, target: SandboxPort, scope: Scope, context: RequestContext, caller: Caller, mark: SandboxMark
    ) -> PortRequest:
        own = f"{target.port}-{target.sandbox}.{self._domain or 'localhost'}"
        received = (context.headers.get(b"host") or "").lower()
        host = received if received.partition(":")[0] == own else own
        if mark.mask is not None and _MASK.fullmatch(mark.mask):
            host = mark.mask.replace("${PORT}", str(target.port))
        secure = context.headers.get(b"x-forwarded-proto") == "https"
        client = scope.get("client")
        peer = str(client[0]) if client is not None and client[0] else "127.0.0.1"
        return PortRequest(str(target.sandbox), target.port, caller, host, secure, peer)

    def _call(self, caller: Caller | None, scope: Scope) -> contextlib.AbstractContextManager[None]:
        """Count an open call of a token, and end it with the token. Requests without one must not use up the calls of
        the owner; the listener and `MAX_EXCHANGES` bound them."""
        return self._control.call(caller, scope.get(CONNECTION)) if caller is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _counted(self, sandbox: str) -> Iterator[None]:
        if self._open[sandbox] >= MAX_EXCHANGES:
            raise QuotaExceeded(f"more than {MAX_EXCHANGES} requests at once for the ports of one sandbox")
        self._open[sandbox] += 1
        try:
            yield
        finally:
            self._open[sandbox] -= 1
            if not self._open[sandbox]:
                del self._open[sandbox]

    async def _connect(self, request: PortRequest) -> Connection:
        try:
            return await self._engine.ports.connect(request.caller, request.sandbox, request.port)
        except Conflict as error:
            raise PortClosed("The sandbox is running but port is not open", details={"port": request.port}) from error


class PortExchange:
    """One request and its response, or a WebSocket."""

    def __init__(
        self,
        connection: Connection,
        request: PortRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
        context: RequestContext,
    ) -> None:
        self._connection, self._request, self._context = connection, request, context
        self._scope, self._receive, self._send = scope, receive, send
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._address = PreviewAddress(None, request.host, "", secure=request.secure)
        self._started = False

    async def run(self) -> None:
        received: preview_headers.Headers = [(name.lower(), value) for name, value in self._scope["headers"]]
        websocket = self._scope["method"] == "GET" and preview_headers.asks_for_websocket(received)
        accepted = handshake(self._scope, self._context.headers) if websocket else {}
        try:
            await self._write(self._head(received, websocket))
            if websocket:
                await self._write(h11.EndOfMessage())
                await self._serve_websocket(accepted)
            else:
                await self._both_ways()
        except (OSError, EOFError) as error:
            self._fail(PortClosed("The program closed the connection before its response"), error)
        except h11.RemoteProtocolError as error:
            self._fail(BadResponse("The program's response is not valid HTTP"), error)
        except h11.LocalProtocolError as error:
            raise InvalidRequest("the request cannot be sent to the program") from error

    def _fail(self, error: SkerryError, cause: Exception) -> None:
        """Report an error while that is possible; later, only a truncated response shows it."""
        if not self._started:
            raise error from cause
        raise ClientDisconnected from cause

    def _head(self, received: preview_headers.Headers, websocket: bool) -> h11.Request:
        request = self._request
        ours = f"{request.sandbox}.".encode()
        kept = [
            (name, value) for name, value in received
            if name not in _CREDENTIALS
            and not (name == b"x-access-token" and value.startswith(ours))
            and not (websocket and name == b"sec-websocket-extensions")  # messages pass here, not frames
        ]  # fmt: skip
        lines = preview_headers.request_headers(kept, self._address, request.peer, websocket)
        lines = [(b"Host" if name == b"host" else name, value) for name, value in lines]  # some programs compare names
        if any(name == b"transfer-encoding" for name, _ in received):
            lines = [(name, value) for name, value in lines if name != b"content-length"]
            lines.append((b"transfer-encoding", b"chunked"))
        query = self._scope["query_string"]
        target = self._scope["raw_path"] + (b"?" + query if query else b"")
        return h11.Request(method=self._scope["method"], target=target, headers=lines)

    async def _write(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self._connection.write(data)

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    async def _both_ways(self) -> None:
        """Send the body while the response may arrive already: a program may answer before it has read all."""
        uploading = asyncio.ensure_future(self._upload())
        answering = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait((uploading, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and uploading.done() and not isinstance(uploading.exception(), OSError):
                uploading.result()
            watching = asyncio.ensure_future(self._gone(uploading))
            try:
                await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
            finally:
                watching.cancel()
                await asyncio.wait((watching,))
            if not answering.done():
                self._connection.reset()
                raise ClientDisconnected
            answering.result()
        finally:
            for task in (uploading, answering):
                task.cancel()
            await asyncio.wait((uploading, answering))
            if not uploading.cancelled():
                uploading.exception()

    async def _upload(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            if message.get("body"):
                await self._write(h11.Data(data=message["body"]))
            if not message.get("more_body"):
                await self._write(h11.EndOfMessage())
                return

    async def _gone(self, uploading: asyncio.Future[None]) -> None:
        """Wait until the client disconnects."""
        await asyncio.wait((uploading,))
        if isinstance(uploading.exception(), ClientDisconnected):
            return
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _answer(self) -> None:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._read()
            elif isinstance(event, h11.Response):
                await self._begin(event)
            elif isinstance(event, h11.Data):
                if self._has_body:
                    await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            elif not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise EOFError  # closed, or switched to a protocol that was not requested

    async def _read(self) -> None:
        data = await self._connection.read()
        if not data and not self._started:
            raise EOFError
        self._http.receive_data(data)

    @property
    def _has_body(self) -> bool:
        return self._scope["method"] != "HEAD" and self._context.reply.status not in _BODILESS

    async def _begin(self, event: h11.Response) -> None:
        self._started = True
        self._context.reply.status = event.status_code
        lines = preview_headers.response_headers(list(event.headers), self._address)
        if event.status_code in _BODILESS:
            lines = [(name, value) for name, value in lines if name != b"content-length"]
        await self._send({"type": "http.response.start", "status": event.status_code, "headers": lines})

    # -- WebSocket ----------------------------------------------------------------------------------------------------

    async def _serve_websocket(self, accepted: dict[str, str]) -> None:
        """Pass messages in both directions once the program has accepted. Its refusal is an ordinary response."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._read()
            elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                break
            elif isinstance(event, h11.Response):
                await self._begin(event)
                await self._answer()
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise EOFError
        self._started = True
        chosen = preview_headers.value(event.headers, b"sec-websocket-protocol")
        accepted.pop("Sec-WebSocket-Protocol", None)
        more = {"Sec-WebSocket-Protocol": chosen} if chosen is not None else {}
        first, _ = self._http.trailing_data
        relay = MessageRelay(self._connection, first)
        await self._context.reply.upgrade(
            self._scope, {**accepted, **more}, Upgrade(relay.serve, self._connection.aclose)
        )


class MessageRelay:
    """Copies the messages of a WebSocket in both directions, each at the slower side's speed."""

    def __init__(self, connection: Connection, first: bytes) -> None:
        self._connection, self._first = connection, first
        self._protocol = Protocol(CLIENT, max_size=MESSAGE_LIMIT)
        self._writing = asyncio.Lock()
        self._parts: list[bytes] = []
        self._is_text = False

    async def serve(self, socket: WebSocket) -> None:
        ways = [asyncio.ensure_future(way) for way in (self._inward(socket), self._outward(socket))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                if way.done():
                    way.result()
        except (OSError, ProtocolError):
            self._connection.reset()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
        sent = self._protocol.close_rcvd
        code = sent.code if sent is not None and sent.code in EXTERNAL_CLOSE_CODES else NORMAL
        await socket.close(code, sent.reason if sent is not None else "")

    async def _inward(self, socket: WebSocket) -> None:
        while (message := await socket.receive()) is not None:
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
            await self._flush()
        if self._protocol.state.name == "OPEN":
            self._protocol.send_close(NORMAL)
            await self._flush()

    async def _outward(self, socket: WebSocket) -> None:
        data = self._first or await self._connection.read()
        while data:
            self._protocol.receive_data(data)
            await self._flush()  # pongs, and the end
            for event in self._protocol.events_received():
                if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    await self._pass(event, socket)
            if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None:
                return
            data = await self._connection.read()

    async def _pass(self, frame: Frame, socket: WebSocket) -> None:
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        if frame.data or not self._parts:  # empty fragments cost memory too
            self._parts.append(bytes(frame.data))
        if frame.fin:
            whole = b"".join(self._parts)
            self._parts.clear()
            await socket.send(whole.decode("utf-8", "replace") if self._is_text else whole)

    async def _flush(self) -> None:
        async with self._writing:  # two writers: messages, and answers to pings
            data = b"".join(self._protocol.data_to_send())
            if data:
                await self._connection.write(data)


async def _until_set(stop: asyncio.Event, work: Any) -> None:
    """Run `work`; cancel it when the server stops: streams of programs may never end."""
    task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        task.result()
    finally:
        for one in (task, stopping):
            one.cancel()
        await asyncio.wait((task, stopping))
