"""/mcp: the Model Context Protocol for clients that speak HTTP.

The door is every route's. What a tool does, it does as a client of this server, over its own socket and with the token
that came with the call: it may do what that token may, and nothing else. The protocol's library is loaded, in a thread,
when the first client comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from skerry.server.answers import Passed
from skerry.server.call import Call, Nothing

if TYPE_CHECKING:
    from skerry.mcp.http import Hub

LISTENING = "subscriptions/listen"  # the one call of the stateless protocol that ends only when somebody leaves


class Room:
    """Where the clients are served, once there is one."""

    def __init__(self) -> None:
        self._hub: Hub | None = None
        self._opening = asyncio.Lock()

    async def hub(self, address: str) -> Hub:
        async with self._opening:
            if self._hub is None:
                self._hub = await asyncio.to_thread(_open, address)
            return self._hub

    async def aclose(self) -> None:
        if self._hub is not None:
            await self._hub.aclose()


def _open(address: str) -> Hub:
    from skerry.mcp.http import Hub

    return Hub(address)


async def post(call: Call[Nothing, Nothing]) -> Passed:
    return await _passed(call, endless=call.headers.get(b"mcp-method") == LISTENING)


async def listen(call: Call[Nothing, Nothing]) -> Passed:
    return await _passed(call, endless=True)


async def end(call: Call[Nothing, Nothing]) -> Passed:
    return await _passed(call)


async def _passed(call: Call[Nothing, Nothing], endless: bool = False) -> Passed:
    hub = await call.control.mcp.hub(call.control.addresses[0])
    given = call.headers.get(b"authorization")
    return Passed(hub.app_for(given.partition(" ")[2].strip() if given is not None else None), endless)
