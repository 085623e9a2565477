"""MCP without a server: a client lists the tools before the first call."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from support.mcp_clients import MODES, TIMEOUT_S, skerry, text_of


@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_listed_and_a_call_names_the_missing_server(mode: str, tmp_path: Path) -> None:
    words = ["--server", f"unix://{tmp_path}/none.sock", "mcp"]
    transport = stdio_client(StdioServerParameters(command=skerry(), args=words))
    async with Client(transport, mode=mode, read_timeout_seconds=TIMEOUT_S) as client:
        assert "run" in {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("run", {"command": "true"})
    assert result.is_error
    assert "no server at" in text_of(result)
