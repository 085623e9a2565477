"""The user's own settings of an agent, copied into its sandbox: files that the kit names, and MCP servers without
logins."""

from __future__ import annotations

import json
import os
import posixpath
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from skerry.cli import output
from skerry.cli.context import CliContext
from skerry.client.agents.descriptor import KitMcp
from skerry.client.agents.kits import Kit
from skerry.client.repository.locate import read_plain
from skerry.errors import FileNotFound, InvalidRequest

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

MAX_SERVERS: Final = 50
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PROGRAM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WORD: Final = re.compile(r"[A-Za-z0-9@._:,=+-][A-Za-z0-9@._:,=+/-]{0,99}")
_SECRET_NAME: Final = re.compile(r"(?i)key|token|secret|passw|auth|bearer|credential|cookie|session")
# Long words with digits, and the beginnings of well-known keys: they may be one.
_SECRET_WORD: Final = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,}|(?:sk|pk|gh[a-z]|xox[a-z])[-_])"
)
_COMMAND: Final = frozenset(("command", "args"))
_REMOTE: Final = frozenset(("url", "httpUrl"))
_HARMLESS: Final = frozenset(("type", "enabled", "disabled", "timeout", "description"))
Json = dict[str, Any]


def copy_files(cli: CliContext, sandbox: Sandbox, kit: Kit) -> None:
    """Copy the user's settings that the kit names. Links are left out, so that no other file comes along."""
    copied = []
    for name in kit.extension.user_config:
        source = os.path.join(os.path.expanduser("~"), name)
        if os.path.lexists(source) and os.path.realpath(source) == os.path.abspath(source):
            target = posixpath.join(kit.home, name)
            sandbox.files.mkdir(posixpath.dirname(target))
            sandbox.files.upload(source, target)
            copied.append(f"~/{name}")
    if not cli.quiet:
        output.info(f"copied your settings: {', '.join(copied)}" if copied else "none of your settings was copied")


def copy_servers(cli: CliContext, sandbox: Sandbox, kit: Kit) -> None:
    """Add the user's MCP servers to the agent's settings inside, except those that have logins or paths of this
    machine. Call it after the kit's install commands, which write these settings."""
    mcp = kit.extension.mcp
    found = _read(mcp) if mcp is not None else None
    if mcp is None or not found:
        return
    kept = {name: plain for name, server in found.items() if (plain := plain_server(name, server)) is not None}
    if kept:
        _write(sandbox, kit, mcp, kept)
    if not cli.quiet:
        left_out = [name for name in found if name not in kept]
        if kept:
            output.info(f"copied MCP servers: {', '.join(kept)}. Their hosts are not allowed yet: --allow, --preset")
        if left_out:
            output.info(f"left out MCP servers with logins, or paths of this machine: {', '.join(left_out)}")


def plain_server(name: str, server: object) -> Json | None:
    """Return the entry of a server if it has nothing that may be a secret or a path of this machine, else None. Unknown
    fields may be either."""
    if not _NAME.fullmatch(name) or not isinstance(server, dict):
        return None
    plain = {key: value for key, value in server.items() if value not in ({}, [], None, "")}
    if not plain.keys() <= _COMMAND | _REMOTE | _HARMLESS:
        return None
    command, args = plain.get("command"), plain.get("args", [])
    words = [*(command if isinstance(command, list) else [command] if command is not None else [])]
    words += args if isinstance(args, list) else [None]
    if words and (not _is_word(words[0], _PROGRAM) or not _are_plain(words[1:])):
        return None
    urls = [plain[key] for key in _REMOTE & plain.keys()]
    if len(urls) + bool(words) != 1 or not all(map(_is_plain_url, urls)):
        return None
    if any(
        not isinstance(plain[key], (str, bool, int)) or len(str(plain[key])) > 100 for key in _HARMLESS & plain.keys()
    ):
        return None
    return plain


def _is_word(word: object, pattern: re.Pattern[str] = _WORD) -> bool:
    return isinstance(word, str) and pattern.fullmatch(word) is not None and not _SECRET_WORD.search(word)


def _are_plain(words: list[Any]) -> bool:
    """Return whether no argument is a secret, the value of an option for one, or a path."""
    return all(
        _is_plain_url(word)
        if isinstance(word, str) and "://" in word
        else _is_word(word) and not _SECRET_NAME.search(word)
        for word in words
    )


def _is_plain_url(url: object) -> bool:
    if not isinstance(url, str) or not re.fullmatch(r"https?://[A-Za-z0-9._:/-]{1,200}", url):
        return False
    path = urlsplit(url).path
    return not _SECRET_WORD.search(path) and not _SECRET_NAME.search(path)


def _read(mcp: KitMcp) -> Json:
    """Return the servers in the user's settings. Settings that cannot be read are an error: the user asked for them."""
    path = os.path.join(os.path.expanduser("~"), mcp.file)
    if not os.path.lexists(path) or os.path.realpath(path) != os.path.abspath(path):
        return {}
    data = read_plain(path)
    try:
        text = data.decode() if data is not None else ""
        settings = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"--with-config: ~/{mcp.file} cannot be read: {error}") from None
    found = settings.get(mcp.key) if isinstance(settings, dict) else None
    return dict(list(found.items())[:MAX_SERVERS]) if isinstance(found, dict) else {}


def _write(sandbox: Sandbox, kit: Kit, mcp: KitMcp, servers: Json) -> None:
    path = posixpath.join(kit.home, mcp.file)
    try:
        before = sandbox.files.read_text(path)
    except FileNotFound:
        before = ""
    sandbox.files.mkdir(posixpath.dirname(path))
    if path.endswith(".toml"):
        sandbox.files.write(path, f"{before}\n{_tables(mcp.key, servers)}")
        return
    settings = json.loads(before or "{}")
    sandbox.files.write(path, json.dumps({**settings, mcp.key: servers}, indent=2) + "\n")


def _tables(key: str, servers: Json) -> str:
    """Return the servers as TOML. Their texts are plain, so that those of JSON are those of TOML."""
    tables = ([f"[{key}.{name}]", *(f"{field} = {json.dumps(value)}" for field, value in server.items())]
              for name, server in servers.items())  # fmt: skip
    return "\n".join("\n".join(table) + "\n" for table in tables)
