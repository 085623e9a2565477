"""/mcp: the Model Context Protocol over HTTP.

Authentication is the same as for every route. A tool acts as a client of this server, over the server's socket and
with the token of the call: it has the rights of that token and no others. The protocol's library is loaded in a thread
when the first client connects.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from skerry import extras
from skerry.server.http.audit import peer
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import AsgiResponse
from skerry.types import Answer, Value

if TYPE_CHECKING:
    from skerry.mcp.transports.http import McpEndpoint


class McpError(Answer, frozen=True, kw_only=True):
    """`code`: of JSON-RPC."""

    code: int
    message: str


class McpErrorResponse(Answer, frozen=True, kw_only=True):
    """An error in the form of the Model Context Protocol (JSON-RPC)."""

    jsonrpc: str
    error: McpError
    id: str | int | None = None


class McpQuery(Value, frozen=True, kw_only=True):
    """`sandbox`: the name or ID of a sandbox that the client may use beside those that it created; repeatable.
    `all=true`: all sandboxes of the token."""

    sandbox: tuple[str, ...] = ()
    all: bool = False


LISTENING = "subscriptions/listen"  # in the stateless protocol, this call ends only when the client disconnects


class McpMount:
    """The MCP application, created for the first client."""

    def __init__(self) -> None:
        self._hub: McpEndpoint | None = None
        self._opening = asyncio.Lock()

    async def hub(self, address: str) -> McpEndpoint:
        async with self._opening:
            if self._hub is None:
                self._hub = await asyncio.to_thread(_open, address)
            return self._hub

    def revoke(self, token: str) -> None:
        if self._hub is not None:
            self._hub.revoke(token)

    async def aclose(self) -> None:
        if self._hub is not None:
            await self._hub.aclose()


def _open(address: str) -> McpEndpoint:
    extras.require("mcp")
    from skerry.mcp.transports.http import McpEndpoint

    return McpEndpoint(address)


async def post(call: Call[McpQuery, Empty]) -> AsgiResponse:
    return await _passed(call, endless=call.headers.get(b"mcp-method") == LISTENING)


async def listen(call: Call[McpQuery, Empty]) -> AsgiResponse:
    return await _passed(call, endless=True)


async def end(call: Call[McpQuery, Empty]) -> AsgiResponse:
    return await _passed(call)


async def _passed(call: Call[McpQuery, Empty], endless: bool = False) -> AsgiResponse:
    hub = await call.control.mcp.hub(call.control.addresses[0])
    given = call.headers.get(b"authorization")
    secret = given.partition(" ")[2].strip() if given is not None else None
    key = call.caller.token or f"uid:{peer(call.connection)[1]}"
    return AsgiResponse(hub.app_for(key, secret, call.query.sandbox, call.query.all), endless)
