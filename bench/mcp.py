"""Calls of a model compared with those of a program: the cost of MCP in a run, an import and a start."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from bench.measure import Figure, Part, Row, row
from skerry import AsyncClient, AsyncSandbox

BY_SDK, BY_MCP = "run true, by the SDK", "run true, by MCP on stdio"
BY_MCP_BEFORE, BY_HTTP = "the same, protocol of 2025", "run true, by MCP over HTTP"
RUNS = 200
STARTS = 7


def mcp(_: int) -> Part:
    runs = asyncio.run(_runs())
    imports = _imports("import skerry", "skerry")
    starts = _imports("import of the server", "skerry.server.serve")
    added = _part_of_import("skerry.server.serve", "skerry.server.routes.mcp")
    sdk = runs[0]
    figures = [
        Figure(f"{one.name}, ms above the SDK's", one.p50 - sdk.p50, f"{one.p50:.2f} ms - {sdk.p50:.2f} ms", most=most)
        for one, most in zip(runs[1:], (3.0, 3.0, None), strict=True)
    ]
    figures += [
        Figure("import skerry, ms", imports.p50, "", most=150.0),
        Figure("of the server's import for MCP, ms", added, f"of {starts.p50:.0f} ms", most=3.0),
    ]
    return [*runs, imports, starts], figures


async def _runs() -> list[Row]:
    """In turns, in one loop: both clients pay for the same machine."""
    spent: dict[str, list[float]] = {BY_SDK: [], BY_MCP: [], BY_MCP_BEFORE: [], BY_HTTP: []}
    words = ["-m", "skerry", "mcp"]
    async with (
        AsyncSandbox() as sandbox,
        Client(stdio_client(StdioServerParameters(command=sys.executable, args=words)), mode="2026-07-28") as now,
        Client(stdio_client(StdioServerParameters(command=sys.executable, args=words)), mode="legacy") as before,
        httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=AsyncClient().address.socket)) as http,
        Client(streamable_http_client("http://localhost/mcp", http_client=http), mode="2026-07-28") as served,
    ):
        asked = {"command": ["true"], "sandbox": sandbox.id}
        works: dict[str, Callable[[], Awaitable[object]]] = {
            BY_SDK: lambda: sandbox.run(["true"]),
            BY_MCP: lambda: now.call_tool("run", asked),
            BY_MCP_BEFORE: lambda: before.call_tool("run", asked),
            BY_HTTP: lambda: served.call_tool("run", asked),
        }
        for turn in range(RUNS + 5):
            for name, once in works.items():
                began = time.perf_counter()
                await once()
                if turn >= 5:
                    spent[name].append((time.perf_counter() - began) * 1000)
    return [row(name, times) for name, times in spent.items()]


def _imports(name: str, module: str) -> Row:
    script = f"import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"
    run = [sys.executable, "-c", script]
    return row(name, [float(subprocess.run(run, capture_output=True, check=True).stdout) * 1000 for _ in range(STARTS)])


def _part_of_import(program: str, module: str) -> float:
    """Return the milliseconds of the module itself. The server imports its dependencies anyway."""
    run = [sys.executable, "-X", "importtime", "-c", f"import {program}"]
    stderr = subprocess.run(run, capture_output=True, text=True, check=True).stderr
    found = re.search(rf"(\d+) \|\s*\d+ \|\s*{re.escape(module)}$", stderr, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1000
