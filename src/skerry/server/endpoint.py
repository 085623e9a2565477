"""From a request to a handler's answer: checks, decoding, sending, one log line. Pure ASGI."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry.errors import InvalidRequest, SandboxUnavailable, SkerryError
from skerry.server.answers import (
    JSON,
    Answered,
    Gone,
    MethodNotAllowed,
    NoSuchPath,
    Passed,
    Stream,
    Unauthenticated,
    error_body,
    headers_of,
    internal_error,
    status_of,
)
from skerry.server.call import Call, Headers, Nothing
from skerry.server.decode import decode_json, decode_query
from skerry.server.door import Door, check_scope
from skerry.server.upgrade import TAKE_OVER, Upgrade, converse, handshake
from skerry.types import Caller

if TYPE_CHECKING:
    from skerry.engine.engine import Engine
    from skerry.server.control import Control
    from skerry.server.route import Route

log = logging.getLogger("skerry.server")
_encoder = msgspec.json.Encoder()
_NOTHING = Nothing()
_SEND_ONE = "send Authorization: Bearer skt_…; `skerry` and the SDK take it from SKERRY_TOKEN"
_ALWAYS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_GONE = 499  # in the log only: the caller left before the answer


class Reply:
    """The answer's way out."""

    __slots__ = ("_send", "request_id", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status: int | None = None

    def _headers(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        own = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
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
            await converse(socket, answer.serve)
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

    async def stream(self, call: Call[Any, Any], stream: Stream) -> None:
        try:
            length = {"Content-Length": str(stream.length)} if stream.length is not None else {}
            await self.start(stream.status, stream.media_type, {**length, **stream.headers})
            if call.method != "HEAD":  # uvicorn sends no body then, and would read a whole file for it
                await call.while_here(self._pump(stream), until=call.control.stopping if stream.endless else None)
            await self.chunk(b"", more=False)
        finally:
            if stream.close is not None:
                await stream.close()

    async def passed(self, call: Call[Any, Any], scope: Scope, answer: Passed) -> None:
        complete = False

        async def send(message: Message) -> None:
            nonlocal complete
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            await self._send(self._marked(message))

        bare = {name: value for name, value in scope.items() if name != "skerry"}
        work = answer.app(bare, call.receive, send)
        await (call.unless_stopping(work) if answer.endless else work)
        if self.status is None:
            raise Gone
        if not complete:
            await self.chunk(b"", more=False)

    def _marked(self, message: Message) -> Message:
        if message["type"] != "http.response.start":
            return message
        self.status = message["status"]
        theirs = {name.lower() for name, _ in message["headers"]}
        ours = [pair for pair in self._headers({}) if pair[0] not in theirs]
        return {**message, "headers": [*ours, *message["headers"]]}

    async def _pump(self, stream: Stream) -> None:
        sent = 0
        async with contextlib.aclosing(stream.chunks) as chunks:
            async for data in chunks:
                sent += len(data)
                if stream.length is not None and sent > stream.length:
                    break
                await self.chunk(data)
        if stream.length is not None and sent != stream.length:
            raise SandboxUnavailable("the file changed while it was read")


@dataclass
class Context:
    """What the door found out, handed on to the endpoint in the ASGI scope."""

    headers: Headers
    caller: Caller | None
    reply: Reply
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
        context: Context = scope["skerry"]
        method: str = scope["method"]
        route = self.routes.get(method)
        if route is not None:
            context.log["path"] = route.path
        caller = _admitted(context.caller, route)
        if route is None:
            raise MethodNotAllowed(method, tuple(self.routes))
        call: Call[Any, Any] = Call(
            self._engine, self._control, caller, method, context.headers, scope["path_params"], receive, context.log
        )
        with self._control.call(caller):
            await self._serve(route, call, context.reply, scope)

    @staticmethod
    async def _serve(route: Route, call: Call[Any, Any], reply: Reply, scope: Scope) -> None:
        accepted = handshake(scope, call.headers) if route.is_websocket else {}
        call.query = decode_query(scope["query_string"], route.query)
        call.body = await _body(call, route)
        answer = await route.handler(call)
        if isinstance(answer, Stream):
            await reply.stream(call, answer)
        elif isinstance(answer, Upgrade):
            await reply.upgrade(scope, accepted, answer)
        elif isinstance(answer, Passed):
            await reply.passed(call, scope, answer)
        elif isinstance(answer, Answered):
            await reply.whole(answer.status, _encoded(answer.value))
        else:
            await reply.whole(route.status, _encoded(answer))


def _encoded(value: Any) -> bytes | None:
    return None if value is None else _encoder.encode(value)


def _admitted(caller: Caller | None, route: Route | None) -> Caller:
    if caller is None:
        if route is None or route.scope is not None:
            raise Unauthenticated("a token is needed", hint=_SEND_ONE)
        return ANYONE
    if route is not None and route.scope is not None:
        check_scope(caller, route.scope)
    return caller


ANYONE = Caller(owner="", scope="use")  # owns nothing; only routes without a scope ever see it


async def _body(call: Call[Any, Any], route: Route) -> Any:
    if route.takes is not None:
        return _NOTHING
    if route.takes_json:
        return decode_json(await call.read(route.limit), route.body)
    if call.headers.has_body:
        raise InvalidRequest("this takes no body")
    return _NOTHING


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    context: Context = scope["skerry"]
    if context.caller is None:
        raise Unauthenticated("a token is needed", hint=_SEND_ONE)
    raise NoSuchPath("there is nothing at this path", hint="GET /openapi.json lists what there is")


class Application:
    """The table's routes, for one engine; listeners serve it through their doors."""

    def __init__(self, table: tuple[Route, ...], engine: Engine, control: Control) -> None:
        paths: dict[str, tuple[Route, ...]] = {}
        for route in table:
            paths[route.path] = (*paths.get(route.path, ()), route)
        self._control = control
        self._plain = {path: Endpoint(routes, engine, control) for path, routes in paths.items() if "{" not in path}
        self.router = Router(
            [StarletteRoute(path, Endpoint(routes, engine, control)) for path, routes in paths.items()],
            redirect_slashes=False,
            default=_nowhere,
        )

    def behind(self, door: Door) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                with self._control.request():
                    await self._answer(door, scope, receive, send)

        return app

    async def _answer(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        reply = Reply(send, secrets.token_hex(8))
        entry: dict[str, Any] = {}
        try:
            await self._checked(door, scope, receive, send, reply, entry)
        except Gone:
            reply.status = reply.status or _GONE
            entry["gone"] = True
        except SkerryError as error:
            entry["code"] = error.code
            await self._refuse(reply, error)
        except Exception:
            log.exception("unexpected error", extra={"request_id": reply.request_id})
            await self._refuse(reply, internal_error(reply.request_id))
        finally:
            _write_log(scope, reply, entry, time.perf_counter() - began)

    async def _checked(
        self, door: Door, scope: Scope, receive: Receive, send: Send, reply: Reply, entry: dict[str, Any]
    ) -> None:
        headers = Headers(scope["headers"])
        door.check_source(headers, (scope["server"] or ("",))[0])
        caller = door.authenticate(headers)
        if caller is not None:
            entry["owner"] = caller.owner
        scope["skerry"] = Context(headers, caller, reply, entry)
        plain = self._plain.get(scope["path"])  # most are found without a look at every route
        if plain is not None:
            scope["path_params"] = {}
            await plain(scope, receive, send)
        else:
            await self.router(scope, receive, send)

    @staticmethod
    async def _refuse(reply: Reply, error: SkerryError) -> None:
        # Once the status line is out, the only honest way to tell of a failure is to cut the answer short:
        # returning without an end makes uvicorn close the connection.
        if reply.status is None:
            await reply.whole(status_of(error), error_body(error), headers_of(error))


def _write_log(scope: Scope, reply: Reply, entry: dict[str, Any], seconds: float) -> None:
    """Paths by their template, never as they came; no query, no header, no body."""
    level = logging.DEBUG if entry.get("path") == "/healthz" else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields = {"request_id": reply.request_id, "method": scope["method"], "path": None, "status": reply.status}
    fields |= {**entry, "ms": round(seconds * 1000, 3)}
    # log.log would walk the stack for a line number that nobody reads: a tenth of a small request's time.
    log.handle(log.makeRecord(log.name, level, "", 0, "request", (), None, extra=fields))
