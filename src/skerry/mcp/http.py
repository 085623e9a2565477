"""The tools over HTTP, for the server's `/mcp`: one MCP server for all callers, and for each of them a seat.

A *seat* is what one token has here: a caller that acts by it as a client of this very server, the sessions of the older
protocol, and the calls that are open. Sessions are known at their own seat only: another token's is not found.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from skerry.client._async.client import AsyncClient
from skerry.client.address import parse_address
from skerry.mcp.build import make
from skerry.mcp.callers import Caller

BODY_MOST: Final = 8 << 20
SESSIONS_MOST: Final = 64  # of one token
SESSION_IDLE_S: Final = 30 * 60.0
SEAT_IDLE_S: Final = SESSION_IDLE_S + 60  # none of its sessions can be left by then
# The token is nothing for tools to see; no stream can be taken up again, which the library would answer with silence.
_UNSAID: Final = frozenset((b"authorization", b"last-event-id"))
_VISIT: Final = "skerry.visit"  # in the request's scope


class Visit:
    """One HTTP request of a caller. The work that it asked for ends with it: in the older protocol a session would go
    on with it, for an answer that nobody can fetch any more."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
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


class Seat:
    """One token's place."""

    def __init__(self, server: MCPServer[Any], address: str, secret: str | None) -> None:
        client = AsyncClient(address, token=secret)
        client.address = parse_address(address, secret)  # a token of the server's own environment is not meant
        self._caller = Caller(client, name=_default_name(secret), keep=True)
        self._sessions = StreamableHTTPSessionManager(
            server._lowlevel_server, session_idle_timeout=SESSION_IDLE_S, max_sessions=SESSIONS_MOST,
            max_request_body_size=BODY_MOST,
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
        """In a task of its own: what the sessions' tasks are entered by must be left by the same."""
        try:
            async with self._sessions.run():
                self._ready.set()
                await self._leave.wait()
        finally:
            self._ready.set()
            await self._caller.aclose()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = Visit(self._caller)
        headers = [pair for pair in scope["headers"] if pair[0] not in _UNSAID]
        self._open += 1
        try:
            await self._ready.wait()
            await self._sessions.handle_request({**scope, "headers": headers, _VISIT: visit}, receive, send)
        finally:
            visit.end()
            self._open -= 1
            self._used = time.monotonic()

    def leave(self) -> asyncio.Task[None]:
        self._leave.set()
        return self._life


class Hub:
    """All seats of one server, which listens at `address`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._server = make(_caller_of)
        self._server.middleware.append(_while_its_caller_waits)
        self._seats: dict[str | None, Seat] = {}

    def app_for(self, secret: str | None) -> Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]:
        """What answers who came with this token; None: who came in by the unix socket without one."""
        return partial(self._serve, secret)

    async def _serve(self, secret: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        seat = self._seats.get(secret)
        if seat is None or seat.gone:
            self._sweep()
            seat = self._seats[secret] = Seat(self._server, self._address, secret)
        await seat.serve(scope, receive, send)

    def _sweep(self) -> None:
        for secret, seat in list(self._seats.items()):
            if seat.idle_s > SEAT_IDLE_S:
                del self._seats[secret]
                seat.leave()

    async def aclose(self) -> None:
        seats, self._seats = list(self._seats.values()), {}
        await asyncio.gather(*(seat.leave() for seat in seats), return_exceptions=True)


async def _caller_of(context: Context[Any, Any]) -> Caller:
    request: Request = context.request_context.request  # type: ignore[assignment]  # on HTTP there is one
    visit: Visit = request.scope[_VISIT]
    return visit.caller


def _default_name(secret: str | None) -> str:
    """Of the sandbox that is meant when none is named: one for each token, also after a restart."""
    return "mcp" if secret is None else f"mcp-{hashlib.sha256(secret.encode()).hexdigest()[:10]}"


async def _while_its_caller_waits(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    if ctx.request is None or ctx.request_id is None:
        return await call_next(ctx)
    visit: Visit = ctx.request.scope[_VISIT]
    with visit.work():
        return await call_next(ctx)
    raise MCPError(INTERNAL_ERROR, "the caller is gone")
