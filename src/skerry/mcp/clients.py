"""The programs that `skerry mcp install` sets up: where each keeps its MCP servers, and how one looks there. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Format = Literal["json", "toml"]
Scope = Literal["user", "project"]
Entry = Mapping[str, Any]

TOKEN_VARIABLE: Final = "SKERRY_TOKEN"  # noqa: S105 - its name
_AUTHORIZATION: Final = {"Authorization": "Bearer {token}"}
_COMMAND: Final = {"command": "{command}", "args": "{args}"}


@dataclass(frozen=True)
class Client:
    """One program.

    user: its own file of the person's, by platform; `moved` names a variable that puts it into another directory.
    project: its file in a project, where it has one.
    keys: the object in the file that has the servers by their names.
    stdio, http: an entry; `{command}`, `{args}`, `{url}`, `{token}` and `{variable}` are filled in. http None: it only
    starts programs. `reference`: how its file refers to a variable of the environment, of which {} is the name; None:
    it can't, so a token could only stand there in clear. `clear`: the entry with such a token, where it is another.
    then: what makes it read its file again.
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
        Client(
            "claude-code", "Claude Code", _everywhere("~/.claude.json"), ("mcpServers",),
            stdio={"type": "stdio", **_COMMAND},
            http={"type": "http", "url": "{url}", "headers": _AUTHORIZATION},
            project=".mcp.json", moved=("CLAUDE_CONFIG_DIR", ".claude.json"), reference="${{{}}}",
            then="start a new `claude`; /mcp shows it",
        ),
        Client(
            "claude-desktop", "Claude Desktop", _applications("Claude/claude_desktop_config.json"), ("mcpServers",),
            stdio=_COMMAND, http=None, then="quit Claude Desktop and start it again",
        ),
        Client(
            "cursor", "Cursor", _everywhere("~/.cursor/mcp.json"), ("mcpServers",),
            stdio={"type": "stdio", **_COMMAND}, http={"url": "{url}", "headers": _AUTHORIZATION},
            project=".cursor/mcp.json", reference="${{env:{}}}", then="restart Cursor",
        ),
        Client(
            "vscode", "VS Code", _applications("Code/User/mcp.json"), ("servers",),
            stdio={"type": "stdio", **_COMMAND},
            http={"type": "http", "url": "{url}", "headers": _AUTHORIZATION},
            project=".vscode/mcp.json", reference="${{env:{}}}", then="run `MCP: List Servers` in VS Code and start it",
        ),
        Client(
            "codex", "Codex", _everywhere("~/.codex/config.toml"), ("mcp_servers",), format="toml",
            stdio=_COMMAND, http={"url": "{url}", "bearer_token_env_var": "{variable}"},
            project=".codex/config.toml", moved=("CODEX_HOME", "config.toml"), reference="{}",
            clear={"url": "{url}", "http_headers": _AUTHORIZATION}, then="start a new `codex`; /mcp shows it",
        ),
        Client(
            "windsurf", "Windsurf", _everywhere("~/.codeium/windsurf/mcp_config.json"), ("mcpServers",),
            stdio=_COMMAND, http={"serverUrl": "{url}", "headers": _AUTHORIZATION}, reference="${{env:{}}}",
            then="refresh the list of MCP servers in Cascade",
        ),
        Client(
            "zed", "Zed", _everywhere("~/.config/zed/settings.json"), ("context_servers",),
            stdio=_COMMAND, http={"url": "{url}", "headers": _AUTHORIZATION}, then="it is there at once",
        ),
        Client(
            "gemini-cli", "Gemini CLI", _everywhere("~/.gemini/settings.json"), ("mcpServers",),
            stdio=_COMMAND, http={"httpUrl": "{url}", "headers": _AUTHORIZATION},
            project=".gemini/settings.json", reference="${{{}}}", then="start a new `gemini`; /mcp shows it",
        ),
        Client(
            "cline", "Cline", _everywhere("~/.cline/data/settings/cline_mcp_settings.json"), ("mcpServers",),
            stdio=_COMMAND, http={"type": "streamableHttp", "url": "{url}", "headers": _AUTHORIZATION},
            then="start a new `cline`",
        ),
    )
}  # fmt: skip
