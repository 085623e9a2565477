"""Handle a request: checks, decoding, the handler, the response, one log line. Pure ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry import telemetry
from skerry.errors import AuditUnavailable, InvalidRequest, SandboxUnavailable, SkerryError
from skerry.server.http import audit
from skerry.server.http.auth import Authenticator, check_scope
from skerry.server.http.call import Call, Empty, Headers
from skerry.server.http.decode import decode_json, decode_query
from skerry.server.http.frames import events_of
from skerry.server.http.protocol import CONNECTION, KNOWN_CALLER, LIVE_BODY
from skerry.server.http.responses import (
    EVENTS,
    JSON,
    NDJSON,
    AsgiResponse,
    ClientDisconnected,
    LastPiece,
    MethodNotAllowed,
    NoSuchPath,
    StatusResponse,
    StreamResponse,
    Unauthenticated,
    error_body,
    headers_of,
    internal_error,
    status_of,
)
from skerry.server.http.upgrade import TAKE_OVER, Upgrade, handshake, serve_socket
from skerry.server.log import REQUEST_ID
from skerry.types import Caller

if TYPE_CHECKING:
    from skerry.engine.engine import Engine
    from skerry.engine.records.audit.service import Action
    from skerry.server.control import Control
    from skerry.server.http.route import Route

log = logging.getLogger("skerry.server")
_encoder = msgspec.json.Encoder()
_EMPTY = Empty()
_AUTH_HINT = "send Authorization: Bearer skt_…; `skerry` and the SDK take it from SKERRY_TOKEN"
_ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_PROBES = ("/healthz", "/readyz", "/metrics")  # asked every few seconds
# The answer to a browser's preflight request is the same for each path: it reveals nothing to a caller without a token.
# Credentials of the browser, such as cookies, are never allowed: a page has to hold a token.
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, Range, Idempotency-Key, Last-Event-ID, Mcp-Method, Mcp-Name, "
        "Mcp-Protocol-Version, Mcp-Session-Id, Traceparent, Tracestate"
    ),
    "Access-Control-Max-Age": "600",
}
_EXPOSED = b"Accept-Ranges, Content-Range, Mcp-Protocol-Version, Mcp-Session-Id, WWW-Authenticate, X-Request-ID"
_DISCONNECTED = 499  # in the log only: the caller disconnected before the response


class ResponseWriter:
    """Send a response. `page`: the origin of the web page that may read it."""

    __slots__ = ("_send", "page", "request_id", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status: int | None = None
        self.page: str | None = None

    def _headers(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        own = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        if self.page is not None:
            own += [
                (b"access-control-allow-origin", self.page.encode("latin-1")), (b"vary", b"Origin"),
                (b"access-control-expose-headers", _EXPOSED),
            ]  # fmt: skip
        return [(b"x-request-id", self.request_id.encode()), *_ALWAYS, *own]

    async def start(self, status: int, media_type: str | None, headers: Mapping[str, str]) -> None:
        kind = {} if media_type is None else {"Content-Type": media_type}
        self.status = status
        start = {"type": "http.response.start", "status": status, "headers": self._headers({**kind, **headers})}
        await self._send(start)

    async def upgrade(self, scope: Scope, headers: Mapping[str, str], answer: Upgrade) -> None:
        try:
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in self._headers(headers))
            socket = scope["extensions"][TAKE_OVER](b"HTTP/1.1 101 Switching Protocols\r\n" + lines + b"\r\n")
            self.status = 101
            await serve_socket(socket, answer.serve)
        finally:
            await answer.close()

    async def chunk(self, data: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, status: int, body: bytes | None, headers: Mapping[str, str] = {}) -> None:
        if body is None:
            await self.start(status, None, headers)
        else:
            await self.start(status, JSON, {"Content-Length": str(len(body)), **headers})
        await self.chunk(body or b"", more=False)

    async def stream(self, call: Call[Any, Any], stream: StreamResponse) -> None:
        if stream.media_type == NDJSON and call.wants_events:
            stream = replace(stream, media_type=EVENTS, chunks=events_of(stream.chunks))
        try:
            length = {"Content-Length": str(stream.length)} if stream.length is not None else {}
            await self.start(stream.status, stream.media_type, {**length, **stream.headers})
            if call.method != "HEAD":  # uvicorn sends no body for HEAD, and would read a whole file for nothing
                until = call.control.stopping if stream.endless else None
                if await call.until_disconnect(self._pump(stream), until=until):
                    return
            await self.chunk(b"", more=False)
        finally:
            if stream.close is not None:
                await stream.close()

    async def forward(self, call: Call[Any, Any], scope: Scope, answer: AsgiResponse) -> None:
        complete = False

        async def send(message: Message) -> None:
            nonlocal complete
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            await self._send(self._with_headers(message))

        bare = {name: value for name, value in scope.items() if not name.startswith("skerry")}
        work = answer.app(bare, call.receive, send)
        await (call.until_shutdown(work) if answer.endless else work)
        if self.status is None:
            raise ClientDisconnected
        if not complete:
            await self.chunk(b"", more=False)

    def _with_headers(self, message: Message) -> Message:
        if message["type"] != "http.response.start":
            return message
        self.status = message["status"]
        theirs = {name.lower() for name, _ in message["headers"]}
        ours = [pair for pair in self._headers({}) if pair[0] not in theirs]
        return {**message, "headers": [*ours, *message["headers"]]}

    async def _pump(self, stream: StreamResponse) -> bool:
        """Return whether the response is complete."""
        sent = 0
        async with contextlib.aclosing(stream.chunks) as chunks:
            async for data in chunks:
                sent += len(data)
                if stream.length is not None and sent > stream.length:
                    break
                if isinstance(data, LastPiece):
                    await self.chunk(data, more=False)
                    return True
                await self.chunk(data)
        if stream.length is not None and sent != stream.length:
            raise SandboxUnavailable("the file changed while it was read")
        return False


@dataclass
class RequestContext:
    """The results of the listener's checks, passed to the endpoint in the ASGI scope."""

    headers: Headers
    caller: Caller | None
    reply: ResponseWriter
    log: dict[str, Any] = field(default_factory=dict)


class Endpoint:
    """All methods of one path."""

    def __init__(self, routes: tuple[Route, ...], engine: Engine, control: Control) -> None:
        self.routes = {route.method: route for route in routes}
        if "GET" in self.routes:
            self.routes["HEAD"] = self.routes["GET"]
        self._engine = engine
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context: RequestContext = scope["skerry"]
        method: str = scope["method"]
        route = self.routes.get(method)
        if route is not None:
            context.log["path"] = route.path
        caller = _authorize(context.caller, route)
        if route is None:
            raise MethodNotAllowed(method, tuple(self.routes))
        call: Call[Any, Any] = Call(
            self._engine, self._control, caller, method, context.headers, scope["path_params"], receive, context.log,
            scope.get(CONNECTION),
        )  # fmt: skip
        if caller is not ANYONE:
            scope[KNOWN_CALLER] = True
            if route.streams_body:
                scope[LIVE_BODY] = True
        with self._control.call(caller, call.connection), _span(route, call, context):
            await self._serve(route, call, context.reply, scope)

    @staticmethod
    async def _serve(route: Route, call: Call[Any, Any], reply: ResponseWriter, scope: Scope) -> None:
        accepted = handshake(scope, call.headers) if route.is_websocket else {}
        call.query = decode_query(scope["query_string"], route.query)
        call.body = await _body(call, route)
        if "ref" in call.parameters:
            await call.engine.adoption.wait(call.caller, call.parameters["ref"])
        if route.effect is not None:
            await call.engine.audit.check()
        with _recorded(route, call, scope, reply) as action:
            answer = await route.handler(call)
            if isinstance(answer, (StreamResponse, Upgrade, AsgiResponse)) and action is not None:
                await _make_durable(action, answer)
            if isinstance(answer, StreamResponse):
                await reply.stream(call, answer)
            elif isinstance(answer, Upgrade):
                await reply.upgrade(scope, accepted, answer)
            elif isinstance(answer, AsgiResponse):
                await reply.forward(call, scope, answer)
            else:
                status, value = (
                    (answer.status, answer.value) if isinstance(answer, StatusResponse) else (route.status, answer)
                )
                if action is not None:
                    sandbox, details = audit.outcome(call, value)
                    call.outcome |= details or {}
                    if sandbox is not None:  # a new one
                        call.log["sandbox"] = sandbox
                    action.end(status, None, sandbox, details)
                    await _make_durable(action, answer)
                await reply.whole(status, _encoded(value))


@contextlib.contextmanager
def _span(route: Route, call: Call[Any, Any], context: RequestContext) -> Iterator[None]:
    """Make a span for a call of a known caller. Its errors are those of the response."""
    if call.caller is ANYONE or route.path in _PROBES:
        yield
        return
    parent, state = call.headers.get(b"traceparent"), call.headers.get(b"tracestate")
    with telemetry.server_span(call.method, route.path, parent, state) as added:
        if added is None:
            yield
            return
        added["skerry.request_id"], status = context.reply.request_id, 200
        try:
            yield
        except BaseException as error:
            status, added["error.type"] = _failure(error)
            raise
        finally:
            added["skerry.sandbox"] = context.log.get("sandbox")
            added["http.response.status_code"] = context.reply.status or status


@contextlib.contextmanager
def _recorded(route: Route, call: Call[Any, Any], scope: Scope, reply: ResponseWriter) -> Iterator[Action | None]:
    """Record the action of a route with an effect: before it begins, and its result at the end. A single response is
    sent after the result was recorded, and after it is on disk if the action waits for the disk. A command's stream
    records it before the exit code, other streams after their last byte."""
    if route.effect is None:
        yield None
        return
    action = call.action = audit.begin(route.effect, call, scope)
    step = call.step = audit.begin_step(route.effect, call, action)
    try:
        yield action
    except BaseException as error:
        if step is not None:
            step.end(error=error)
        status, code = _failure(error)
        with contextlib.suppress(AuditUnavailable):  # the first error is reported
            if isinstance(error, AuditUnavailable):
                action.replace_result(reply.status or status, code)
            action.end(reply.status or status, code, *audit.outcome(call, None))
        raise
    action.end(reply.status or 200, None, *audit.outcome(call, None))
    if step is not None:
        step.end(result=call.outcome)


def _failure(error: BaseException) -> tuple[int, str]:
    if isinstance(error, SkerryError):
        return status_of(error), error.code
    gone = isinstance(error, (ClientDisconnected, asyncio.CancelledError))
    return (_DISCONNECTED, "disconnected") if gone else (500, "internal")


async def _make_durable(action: Action, answer: Any) -> None:
    """Wait until the record is on disk, if the action waits. A response that is never sent must still be closed."""
    try:
        await action.durable()
    except BaseException:
        if isinstance(answer, (StreamResponse, Upgrade)) and answer.close is not None:
            await answer.close()
        raise


def _encoded(value: Any) -> bytes | None:
    return None if value is None else _encoder.encode(value)


def _authorize(caller: Caller | None, route: Route | None) -> Caller:
    if caller is None:
        if route is None or route.scope is not None:
            raise Unauthenticated("a token is required", hint=_AUTH_HINT)
        return ANYONE
    if route is not None and route.scope is not None:
        check_scope(caller, route.scope)
    return caller


ANYONE = Caller(owner="", scope="use")  # owns nothing; only routes without a scope receive it


async def _body(call: Call[Any, Any], route: Route) -> Any:
    if route.takes is not None:
        return _EMPTY
    if route.takes_json:
        return decode_json(await call.read(route.limit), route.body)
    if call.headers.has_body:
        raise InvalidRequest("this route takes no body")
    return _EMPTY


async def _path_not_found(scope: Scope, receive: Receive, send: Send) -> None:
    context: RequestContext = scope["skerry"]
    if context.caller is None:
        raise Unauthenticated("a token is required", hint=_AUTH_HINT)
    raise NoSuchPath("path not found", hint="GET /openapi.json lists all paths")


class Wire(Protocol):
    """Another product's protocol on the same listeners, with its own authentication and its own form of errors."""

    def claims(self, scope: Scope, headers: Headers) -> bool: ...

    async def answer(
        self, authenticator: Authenticator, scope: Scope, receive: Receive, send: Send, context: RequestContext
    ) -> None: ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Do background work in the block."""


class Application:
    """The route table for one engine; each listener serves it with its own authenticator."""

    def __init__(
        self, table: tuple[Route, ...], engine: Engine, control: Control, wires: tuple[Wire, ...] = ()
    ) -> None:
        self.wires = wires
        paths: dict[str, tuple[Route, ...]] = {}
        for route in table:
            paths[route.path] = (*paths.get(route.path, ()), route)
        self._control = control
        self._plain = {path: Endpoint(routes, engine, control) for path, routes in paths.items() if "{" not in path}
        self.router = Router(
            [StarletteRoute(path, Endpoint(routes, engine, control)) for path, routes in paths.items()],
            redirect_slashes=False,
            default=_path_not_found,
        )

    def app_for(self, authenticator: Authenticator) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                with self._control.request():
                    await self._answer(authenticator, scope, receive, send)

        return app

    async def _answer(self, authenticator: Authenticator, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        reply = ResponseWriter(send, secrets.token_hex(8))
        REQUEST_ID.set(reply.request_id)  # each request has its own task, so this ends with it
        entry: dict[str, Any] = {}
        try:
            await self._dispatch(authenticator, scope, receive, send, reply, entry)
        except ClientDisconnected:
            reply.status = reply.status or _DISCONNECTED
            entry["disconnected"] = True
        except SkerryError as error:
            entry["code"] = error.code
            await self._send_error(reply, error)
        except Exception:
            log.exception("request failed with an unexpected error", extra={"request_id": reply.request_id})
            await self._send_error(reply, internal_error(reply.request_id))
        finally:
            seconds = time.perf_counter() - began
            self._control.requests.observe(scope["method"], entry.get("path"), reply.status, seconds)
            _write_log(scope, reply, entry, seconds)

    async def _dispatch(
        self,
        authenticator: Authenticator,
        scope: Scope,
        receive: Receive,
        send: Send,
        reply: ResponseWriter,
        entry: dict[str, Any],
    ) -> None:
        headers = Headers(scope["headers"])
        if authenticator.proxies and scope["client"]:
            scope["client"] = (authenticator.client_of(scope["client"][0], scope["headers"]), 0)
        for wire in self.wires:
            if wire.claims(scope, headers):
                scope["skerry"] = RequestContext(headers, None, reply, entry)
                await wire.answer(authenticator, scope, receive, send, scope["skerry"])
                return
        authenticator.check_source(headers, (scope["server"] or ("",))[0])
        reply.page = authenticator.page(headers)
        if reply.page is not None and headers.get(b"access-control-request-method") and scope["method"] == "OPTIONS":
            await reply.whole(204, None, _PREFLIGHT)
            return
        caller = authenticator.authenticate(headers, scope["path"])
        if caller is not None:
            entry["owner"] = caller.owner
        scope["skerry"] = RequestContext(headers, caller, reply, entry)
        plain = self._plain.get(scope["path"])  # most requests skip the search through all routes
        if plain is not None:
            scope["path_params"] = {}
            await plain(scope, receive, send)
        else:
            await self.router(scope, receive, send)

    @staticmethod
    async def _send_error(reply: ResponseWriter, error: SkerryError) -> None:
        # After the status line, a failure can only be reported by truncating the response:
        # returning without an end makes uvicorn close the connection.
        if reply.status is None:
            await reply.whole(status_of(error), error_body(error), headers_of(error))


def _write_log(scope: Scope, reply: ResponseWriter, entry: dict[str, Any], seconds: float) -> None:
    """Log the path's template, never the path; no query, no header, no body."""
    level = logging.DEBUG if entry.get("path") in _PROBES else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields = {"request_id": reply.request_id, "method": scope["method"], "path": None, "status": reply.status}
    fields |= {**entry, "ms": round(seconds * 1000, 3)}
    # log.log would walk the stack for a line number: a tenth of the time of a small request.
    log.handle(log.makeRecord(log.name, level, "", 0, "request", (), None, extra=fields))
