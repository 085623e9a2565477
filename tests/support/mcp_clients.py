"""Real clients of the Model Context Protocol, over each transport and in both of its modes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from skerry import AsyncClient
from support.fork_server import bin_directory
from support.server import Server

T = TypeVar("T")
MODES = ("2026-07-28", "legacy")
TIMEOUT_S = 60.0


@dataclass
class Talk:
    """One connection. `call` is for calls that work, `fails` for those that must not. `again` is another connection of
    the same caller, with further options of `skerry mcp` or of the URL's query; `sdk` the SDK's client of theirs."""

    client: Client
    server: Server
    again: Callable[..., AbstractAsyncContextManager[Talk]]
    token: str | None = None

    def wide(self) -> AbstractAsyncContextManager[Talk]:
        """Connect as a client that may use all sandboxes of the caller."""
        return self.again("--all") if self.token is None else self.again(query="?all=true")

    def naming(self, sandbox: str) -> AbstractAsyncContextManager[Talk]:
        """Connect as a client with a configuration that names a sandbox."""
        return self.again("--sandbox", sandbox) if self.token is None else self.again(query=f"?sandbox={sandbox}")

    def sdk(self) -> AsyncClient:
        return AsyncClient(self.server.address, token=self.token)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.raw(tool, arguments)
        assert not result.is_error, text_of(result)
        assert isinstance(result.structured_content, dict)
        assert json.loads(text_of(result)) == result.structured_content
        return result.structured_content

    async def fails(self, tool: str, **arguments: Any) -> str:
        result = await self.raw(tool, arguments)
        assert result.is_error, result.structured_content
        return text_of(result)

    async def raw(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> CallToolResult:
        return await self.client.call_tool(tool, dict(arguments), **options)


def text_of(result: CallToolResult) -> str:
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


def skerry() -> str:
    """The program; one that need not load itself first, as in other tests."""
    return str(bin_directory() / "skerry")


@asynccontextmanager
async def on_stdio(
    server: Server, mode: str, *options: str, cwd: Path | None = None, errors: TextIO = sys.stderr
) -> AsyncIterator[Talk]:
    """`skerry mcp` as a client starts it."""
    words = ["--server", server.address, "mcp", *options]
    transport = stdio_client(StdioServerParameters(command=skerry(), args=words, cwd=cwd), errlog=errors)
    async with Client(transport, mode=mode, read_timeout_seconds=TIMEOUT_S) as client:
        yield Talk(client, server, partial(on_stdio, server, mode, *options))


def new_token(server: Server, scope: str = "use", owner: str | None = None) -> str:
    with server.http() as http:
        made = http.post("/v1/tokens", json={"scope": scope, "owner": owner})
    secret: str = made.raise_for_status().json()["secret"]
    return secret


@asynccontextmanager
async def on_http(server: Server, mode: str, token: str | None = None, *, query: str = "") -> AsyncIterator[Talk]:
    """Connect to `/mcp` with a separate token."""
    transport = httpx2.AsyncHTTPTransport(uds=server.address.removeprefix("unix://"))
    token = token or new_token(server)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=TIMEOUT_S) as http:
        there = streamable_http_client(f"http://localhost/mcp{query}", http_client=http)
        async with Client(there, mode=mode, read_timeout_seconds=TIMEOUT_S) as client:
            yield Talk(client, server, partial(on_http, server, mode, token), token)


TRANSPORTS: dict[str, Callable[[Server, str], AbstractAsyncContextManager[Talk]]] = {"stdio": on_stdio, "http": on_http}
WAYS = [(transport, mode) for transport in TRANSPORTS for mode in MODES]


@asynccontextmanager
async def held(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """The same in a separate task: a fixture is entered in one task and left in another."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def hold() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except Exception as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = asyncio.ensure_future(hold())
    yield await entered
    leave.set()
    await task
