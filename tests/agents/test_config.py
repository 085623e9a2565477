"""MCP servers of the user's own settings: only entries without secrets are copied into a sandbox."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from skerry.cli.commands.agent_config import _tables, plain_server

PLAIN: list[dict[str, Any]] = [
    {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory@1.2.3", "--port=8080"], "env": {}},
    {"type": "stdio", "command": "uvx", "args": ["mcp-server-git"]},
    {"type": "http", "url": "https://mcp.example.com/mcp", "headers": {}},
    {"command": ["npx", "server"], "type": "local", "enabled": True, "environment": {}},
    {"httpUrl": "https://mcp.example.com/v1", "timeout": 5000},
]
SECRET: list[Any] = [
    {"command": "npx", "args": ["server"], "env": {"API_KEY": "value"}},
    {"command": "npx", "args": ["server", "--token", "plover"]},
    {"command": "npx", "args": ["server", "--api-key=plover"]},
    {"command": "npx", "args": ["server", "sk-live"]},
    {"command": "npx", "args": ["server", "a8f5f167f44f4964e6c998dee827110c"]},
    {"command": "npx", "args": ["postgres://me:plover@db.example.com/x"]},
    {"command": "npx", "args": ["https://me:plover@example.com/"]},
    {"command": "npx", "args": ["server", "/home/me/private"]},
    {"command": "npx", "args": ["server", "~/private"]},
    {"command": "npx", "args": ["server", "$(cat key)"]},
    {"command": "npx", "args": ["server", ["nested"]]},
    {"command": "npx", "args": "server"},
    {"command": "/home/me/bin/server"},
    {"command": "sh", "args": ["-c", "echo hi"]},
    {"type": "http", "url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer x"}},
    {"url": "https://mcp.example.com/mcp?api_key=1"},
    {"url": "https://me:plover@mcp.example.com/mcp"},
    {"url": "https://mcp.example.com/s/a8f5f167f44f4964e6c998dee827110c/mcp"},
    {"url": "https://mcp.example.com/token/plover"},
    {"url": "file:///etc/passwd"},
    {"url": "https://mcp.example.com", "bearer_token_env_var": "TOKEN"},
    {"url": "https://mcp.example.com", "command": "npx"},
    {"command": "npx", "cwd": "/home/me"},
    {"command": "npx", "description": "x" * 200},
    {"command": "npx", "enabled": {"a": 1}},
    {}, [], "npx", None, 5,
]  # fmt: skip


@pytest.mark.parametrize("server", PLAIN)
def test_server_without_secrets_is_copied(server: dict[str, Any]) -> None:
    found = plain_server("memory", server)
    assert found == {key: value for key, value in server.items() if value != {}}


@pytest.mark.parametrize("server", SECRET)
def test_server_that_may_have_a_secret_is_left_out(server: Any) -> None:
    assert plain_server("memory", server) is None


@pytest.mark.parametrize("name", ["", "a.b", "a]\n[x", "x" * 65, "ü", "-a"])
def test_server_with_an_unusual_name_is_left_out(name: str) -> None:
    assert plain_server(name, {"command": "npx"}) is None


def test_servers_are_written_as_toml() -> None:
    servers = {"one": PLAIN[1], "two": PLAIN[4]}
    assert tomllib.loads("a = 1\n\n" + _tables("mcp_servers", servers)) == {"a": 1, "mcp_servers": servers}
