"""MCP over HTTP, for the server's `/mcp`: one MCP server for all callers, and one state per token.

The state of a token is a caller that uses the token as a client of this same server, the sessions of the older
protocol, and the open calls. A session is known only to its token: for another token it is not found.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from pydantic_core import to_json
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from skerry.client._async.client import AsyncClient
from skerry.client.transport.address import parse_address
from skerry.codecs.json_bounds import JsonCounter
from skerry.mcp.call import McpAccess, McpCaller
from skerry.mcp.server import build_server

MAX_BODY: Final = 8 << 20
MAX_VALUES: Final = 10_000  # values in a message: the library and pydantic make and check objects for all of them
MAX_SESSIONS: Final = 64  # of one token
MAX_REQUESTS: Final = 128  # open requests of one token; the owner's other tokens and calls keep their share
SESSION_IDLE_S: Final = 30 * 60.0
TOKEN_IDLE_S: Final = SESSION_IDLE_S + 60  # all of its sessions have expired by then
# Tools must not see the token. Streams cannot be resumed, and the library would answer an attempt with silence.
_HIDDEN_HEADERS: Final = frozenset((b"authorization", b"last-event-id"))
_REQUEST: Final = "skerry.mcp_request"  # in the request's scope


class RequestScope:
    """One HTTP request of a caller. Its work is cancelled when the request ends: in the older protocol, a session would
    continue it, but no client could fetch the answer."""

    def __init__(self, caller: McpCaller, access: McpAccess) -> None:
        self.caller = caller
        self.access = access
        self._scopes: set[anyio.CancelScope] = set()
        self._over = False

    @contextlib.contextmanager
    def work(self) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._over:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def end(self) -> None:
        self._over = True
        for scope in self._scopes:
            scope.cancel()


class TokenState:
    """The caller and the sessions of one token."""

    def __init__(self, server: MCPServer[Any], address: str, token: str, secret: str | None) -> None:
        client = AsyncClient(address, token=secret)
        client.headers = {"skerry-actor": token}
        client.address = parse_address(address, secret)  # ignore a token in the server's environment
        name = _default_name(secret)
        self._caller = McpCaller(client, name=name, keep=True, label=name)
        self._sessions = StreamableHTTPSessionManager(
            server._lowlevel_server, session_idle_timeout=SESSION_IDLE_S, max_sessions=MAX_SESSIONS,
            max_request_body_size=MAX_BODY,
        )  # fmt: skip
        self._open = 0
        self._used = time.monotonic()
        self._leave = asyncio.Event()
        self._ready = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    @property
    def gone(self) -> bool:
        return self._life.done()

    @property
    def idle_s(self) -> float:
        return 0.0 if self._open else time.monotonic() - self._used

    async def _live(self) -> None:
        """Run the session manager. A separate task, because its task group must be entered and left by the same
        task."""
        try:
            async with self._sessions.run():
                self._ready.set()
                await self._leave.wait()
        finally:
            self._ready.set()
            await self._caller.aclose()

    async def serve(self, access: McpAccess, scope: Scope, receive: Receive, send: Send) -> None:
        if self._open >= MAX_REQUESTS:
            await _refuse(send, 429, f"more than {MAX_REQUESTS} open requests of this token")
            return
        request = RequestScope(self._caller, access)
        headers = [pair for pair in scope["headers"] if pair[0] not in _HIDDEN_HEADERS]
        self._open += 1
        try:
            body = await _read(receive) if scope["method"] == "POST" else b""
            if body is None:
                await _refuse(send, 413, f"a message has at most {MAX_BODY >> 20} MiB and {MAX_VALUES:,} values")
                return
            await self._ready.wait()
            inner = {**scope, "headers": headers, _REQUEST: request}
            await self._sessions.handle_request(inner, _replay(body, receive), _with_429(send))
        finally:
            request.end()
            self._open -= 1
            self._used = time.monotonic()

    def leave(self) -> asyncio.Task[None]:
        self._leave.set()
        return self._life


class McpEndpoint:
    """The `/mcp` endpoint of a server that listens at `address`: the states of all tokens."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._server = build_server(_caller_of)
        self._server.middleware.append(_cancel_with_request)
        self._states: dict[str, TokenState] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def app_for(
        self, token: str, secret: str | None, names: Iterable[str], everything: bool
    ) -> Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]:
        """Return the ASGI app for a token by its ID, or for a user of the unix socket: `uid:N`, without a secret."""
        return partial(self._serve, token, secret, McpAccess(frozenset(names), everything))

    async def _serve(
        self, token: str, secret: str | None, access: McpAccess, scope: Scope, receive: Receive, send: Send
    ) -> None:
        state = self._states.get(token)
        if state is None or state.gone:
            self._sweep()
            state = self._states[token] = TokenState(self._server, self._address, token, secret)
        await state.serve(access, scope, receive, send)

    def _sweep(self) -> None:
        for token, state in list(self._states.items()):
            if state.idle_s > TOKEN_IDLE_S:
                self.revoke(token)

    def revoke(self, token: str) -> None:
        """Close the sessions and the open calls of a token."""
        state = self._states.pop(token, None)
        if state is not None:
            self._leaving.add(task := state.leave())
            task.add_done_callback(self._leaving.discard)

    async def aclose(self) -> None:
        for token in list(self._states):
            self.revoke(token)
        await asyncio.gather(*self._leaving, return_exceptions=True)


async def _read(receive: Receive) -> bytes | None:
    """Return the body; None if it is too large or has too many values."""
    body, counter, more = bytearray(), JsonCounter(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        piece, more = message.get("body", b""), message.get("more_body", False)
        body += piece
        counter.feed(piece)
        if len(body) > MAX_BODY or counter.values > MAX_VALUES:
            return None
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending = [body]

    async def again() -> Message:
        return {"type": "http.request", "body": pending.pop(), "more_body": False} if pending else await receive()

    return again


def _with_429(send: Send) -> Send:
    """The library answers a session above the limit with 503, as if the server had failed."""

    async def changed(message: Message) -> None:
        await send({**message, "status": 429} if message.get("status") == 503 else message)

    return changed


async def _refuse(send: Send, status: int, message: str) -> None:
    body = to_json({"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": message}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _caller_of(context: Context[Any, Any]) -> tuple[McpCaller, McpAccess]:
    http_request: Request = context.request_context.request  # type: ignore[assignment]  # always set on HTTP
    scope: RequestScope = http_request.scope[_REQUEST]
    return scope.caller, scope.access


def _default_name(secret: str | None) -> str:
    """Return the name of the default sandbox of a token, stable across restarts."""
    return "mcp" if secret is None else f"mcp-{hashlib.sha256(secret.encode()).hexdigest()[:10]}"


async def _cancel_with_request(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    if ctx.request is None or ctx.request_id is None:
        return await call_next(ctx)
    scope: RequestScope = ctx.request.scope[_REQUEST]
    with scope.work():
        return await call_next(ctx)
    raise MCPError(INTERNAL_ERROR, "the caller has disconnected")
