"""The MCP clients that `skerry mcp install` supports: their files and the format of an entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Format = Literal["json", "toml"]
Scope = Literal["user", "project"]
Entry = Mapping[str, Any]

TOKEN_VARIABLE: Final = "SKERRY_TOKEN"  # noqa: S105 - the name of a variable
_AUTHORIZATION: Final = {"Authorization": "Bearer {token}"}
_COMMAND: Final = {"command": "{command}", "args": "{args}"}


@dataclass(frozen=True)
class McpClient:
    """One client.

    user: the file of a user, by platform; `moved` names a variable that moves it to another directory.
    project: the file in a project, if supported.
    keys: the path in the file to the object of servers by name.
    stdio, http: templates of an entry; `{command}`, `{args}`, `{url}`, `{token}` and `{variable}` are replaced. http is
    None if the client only starts programs. `reference` is the syntax for an environment variable, with {} as its name;
    None: not supported, so that a token must be in clear text. `clear` is the entry with such a token, if different.
    then: how to make the client read its file again.
    """

    name: str
    title: str
    user: Mapping[str, str]
    keys: tuple[str, ...]
    stdio: Entry
    http: Entry | None
    then: str
    project: str | None = None
    moved: tuple[str, str] | None = None
    format: Format = "json"
    reference: str | None = None
    clear: Entry | None = None


def _everywhere(path: str) -> dict[str, str]:
    return {"linux": path, "darwin": path}


def _applications(path: str) -> dict[str, str]:
    return {"linux": f"~/.config/{path}", "darwin": f"~/Library/Application Support/{path}"}


CLIENTS: Final = {
    client.name: client
    for client in (
        McpClient(
            "claude-code", "Claude Code", _everywhere("~/.claude.json"), ("mcpServers",),
            stdio={"type": "stdio", **_COMMAND},
            http={"type": "http", "url": "{url}", "headers": _AUTHORIZATION},
            project=".mcp.json", moved=("CLAUDE_CONFIG_DIR", ".claude.json"), reference="${{{}}}",
            then="start a new `claude`; /mcp shows it",
        ),
        McpClient(
            "claude-desktop", "Claude Desktop", _applications("Claude/claude_desktop_config.json"), ("mcpServers",),
            stdio=_COMMAND, http=None, then="quit Claude Desktop and start it again",
        ),
        McpClient(
            "cursor", "Cursor", _everywhere("~/.cursor/mcp.json"), ("mcpServers",),
            stdio={"type": "stdio", **_COMMAND}, http={"url": "{url}", "headers": _AUTHORIZATION},
            project=".cursor/mcp.json", reference="${{env:{}}}", then="restart Cursor",
        ),
        McpClient(
            "vscode", "VS Code", _applications("Code/User/mcp.json"), ("servers",),
            stdio={"type": "stdio", **_COMMAND},
            http={"type": "http", "url": "{url}", "headers": _AUTHORIZATION},
            project=".vscode/mcp.json", reference="${{env:{}}}", then="run `MCP: List Servers` in VS Code and start it",
        ),
        McpClient(
            "codex", "Codex", _everywhere("~/.codex/config.toml"), ("mcp_servers",), format="toml",
            stdio=_COMMAND, http={"url": "{url}", "bearer_token_env_var": "{variable}"},
            project=".codex/config.toml", moved=("CODEX_HOME", "config.toml"), reference="{}",
            clear={"url": "{url}", "http_headers": _AUTHORIZATION}, then="start a new `codex`; /mcp shows it",
        ),
        McpClient(
            "windsurf", "Windsurf", _everywhere("~/.codeium/windsurf/mcp_config.json"), ("mcpServers",),
            stdio=_COMMAND, http={"serverUrl": "{url}", "headers": _AUTHORIZATION}, reference="${{env:{}}}",
            then="refresh the list of MCP servers in Cascade",
        ),
        McpClient(
            "zed", "Zed", _everywhere("~/.config/zed/settings.json"), ("context_servers",),
            stdio=_COMMAND, http={"url": "{url}", "headers": _AUTHORIZATION}, then="it is available at once",
        ),
        McpClient(
            "gemini-cli", "Gemini CLI", _everywhere("~/.gemini/settings.json"), ("mcpServers",),
            stdio=_COMMAND, http={"httpUrl": "{url}", "headers": _AUTHORIZATION},
            project=".gemini/settings.json", reference="${{{}}}", then="start a new `gemini`; /mcp shows it",
        ),
        McpClient(
            "cline", "Cline", _everywhere("~/.cline/data/settings/cline_mcp_settings.json"), ("mcpServers",),
            stdio=_COMMAND, http={"type": "streamableHttp", "url": "{url}", "headers": _AUTHORIZATION},
            then="start a new `cline`",
        ),
    )
}  # fmt: skip
