"""Compute the change to a client's file: the file, the entry and the new text. Pure.

Everything else in the file is kept. A file that cannot be changed this way is rejected."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skerry.client.transport.address import parse_address
from skerry.errors import Conflict, InvalidRequest
from skerry.mcp.install import jsonc
from skerry.mcp.install.clients import TOKEN_VARIABLE, McpClient, Scope

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")


@dataclass(frozen=True)
class InstallRequest:
    """The requested entry. `server` None means the server of this machine; `token` is written in clear text."""

    client: McpClient
    scope: Scope = "user"
    name: str = "skerry"
    server: str | None = None
    variable: str = TOKEN_VARIABLE
    token: str | None = None
    program: tuple[str, ...] = ("skerry",)
    options: tuple[str, ...] = ()  # of `skerry mcp`

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(f"name: {self.name[:40]!r} is invalid", hint="use letters, digits, '_' and '-'")
        if not _VARIABLE.fullmatch(self.variable):
            raise InvalidRequest(f"{self.variable[:40]!r} is not the name of a variable")
        if self.options and self.server is not None and not parse_address(self.server).local:
            raise InvalidRequest("a remote server does not accept sandbox options", hint="leave the options out")
        if self.token is not None and self.scope == "project":
            raise InvalidRequest("a token in clear text is not allowed in a project's file", hint="use --token-env")


@dataclass(frozen=True)
class ConfigChange:
    """A file before and after; a new file has no `before`."""

    path: Path
    before: str | None
    after: str

    @property
    def differs(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        old, new = ((text or "").splitlines() for text in (self.before, self.after))
        names = ("/dev/null" if self.before is None else str(self.path), str(self.path))
        return "\n".join(difflib.unified_diff(old, new, *names, n=2, lineterm=""))


def file_of(client: McpClient, scope: Scope, *, home: Path, here: Path, platform: str, env: Mapping[str, str]) -> Path:
    if scope == "project":
        if client.project is None:
            raise InvalidRequest(f"{client.title} has no project file", hint="leave --scope out")
        return here / client.project
    if client.moved is not None and (directory := env.get(client.moved[0])):
        return Path(directory) / client.moved[1]
    path = client.user.get("darwin" if platform == "darwin" else "linux", "")
    settings = env.get("XDG_CONFIG_HOME", "")
    if platform != "darwin" and path.startswith("~/.config/") and os.path.isabs(settings):
        return Path(settings) / path.removeprefix("~/.config/")
    return home / path.removeprefix("~/")


def entry_of(request: InstallRequest) -> dict[str, Any]:
    """Return the entry: a program to start for a local server, else the server's `/mcp` URL."""
    remote = None if request.server is None else parse_address(request.server)
    if remote is None or remote.local:
        return _stdio(request, () if remote is None else ("--server", str(remote)))
    if request.client.http is None:
        entry = _stdio(request, ("--server", str(remote)))
        return {**entry, "env": {TOKEN_VARIABLE: _clear_token(request)}}
    values = {"url": f"{remote}/mcp", "variable": request.variable}
    if request.token is None and request.client.reference is not None:
        return _filled(request.client.http, {**values, "token": request.client.reference.format(request.variable)})
    return _filled(request.client.clear or request.client.http, {**values, "token": _clear_token(request)})


def _stdio(request: InstallRequest, options: Sequence[str]) -> dict[str, Any]:
    program, *more = request.program
    return _filled(request.client.stdio, {"command": program, "args": [*more, *options, "mcp", *request.options]})


def _clear_token(request: InstallRequest) -> str:
    if request.token is None:
        raise InvalidRequest(
            f"{request.client.title} cannot read a token from the environment",
            hint=f"--write-token writes the value of {request.variable} into its file in clear text",
        )
    return request.token


def _filled(template: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    def fill(one: Any) -> Any:
        if isinstance(one, Mapping):
            return _filled(one, values)
        return values["args"] if one == "{args}" else str(one).format(**values)

    return {key: fill(one) for key, one in template.items()}


def change_of(
    client: McpClient, path: Path, before: str | None, name: str, entry: Mapping[str, Any] | None
) -> ConfigChange:
    """Return the change that sets the entry, or removes it without an `entry`."""
    where = [*client.keys, name]
    text = before or ""
    try:
        old = _read(client, text)
        after = _edited(client, text, where, entry)
        done = _same(client, _read(client, after), _expected(old, where, entry))
    except (jsonc.InvalidJson, tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise Conflict(f"{path} cannot be changed: {error}", hint=_BY_HAND) from None
    if not done:
        raise Conflict(f"{path} has a format that cannot be changed safely", hint=_BY_HAND)
    return ConfigChange(path, before, after)


def _same(client: McpClient, found: Any, expected: Any) -> bool:
    """Compare the result with the expected value. In TOML, removing the last server also removes the servers' table."""
    key = client.keys[0]
    if client.format == "toml" and expected.get(key) == {}:
        found = {key: {}, **found}
    return bool(found == expected)


_BY_HAND: Final = "--print shows the entry to add by hand"


def entry_text(request: InstallRequest) -> str:
    """Return the text of a file with only this entry."""
    return _edited(request.client, "", [*request.client.keys, request.name], entry_of(request))


def _edited(client: McpClient, text: str, where: Sequence[str], entry: Mapping[str, Any] | None) -> str:
    if client.format == "toml":
        return drop_toml_table(text, where) if entry is None else put_toml_table(text, where, entry)
    return jsonc.drop(text, where) if entry is None else jsonc.put(text, where, entry)


def _read(client: McpClient, text: str) -> Any:
    if client.format == "toml":
        return tomllib.loads(text)
    return jsonc.read(text) if text.strip("\ufeff \t\r\n") else {}


def _expected(old: Any, where: Sequence[str], entry: Mapping[str, Any] | None) -> Any:
    if not isinstance(old, dict):
        raise jsonc.InvalidJson("the file is not an object")
    key, *rest = where
    if rest:
        if entry is None and key not in old:
            return old
        return {**old, key: _expected(old.get(key, {}), rest, entry)}
    others = {one: value for one, value in old.items() if one != key}
    return others if entry is None else {**others, key: dict(entry)}


# Replace the lines of one table in a TOML text and keep all others.
#
# Lines are recognised without a parser; `change_of` parses the result and compares it with the expected value.

_HEADER = re.compile(r"\s*\[")
_COMMENT = re.compile(r"\s*(#.*)?$")


def put_toml_table(text: str, path: Sequence[str], value: Mapping[str, Any]) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    table = _toml_table(path, value).replace("\n", newline)
    lines = text.splitlines(keepends=True)
    start, end = _table_lines(lines, path)
    if start == end:
        between = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
        return f"{text}{between}{table}"
    return "".join([*lines[:start], table, *lines[end:]])


def drop_toml_table(text: str, path: Sequence[str]) -> str:
    lines = text.splitlines(keepends=True)
    start, end = _table_lines(lines, path)
    if start == end:
        return text
    while start > 0 and end == len(lines) and not lines[start - 1].strip():
        start -= 1
    while end < len(lines) and start > 0 and not lines[start - 1].strip() and not lines[end].strip():
        end += 1
    return "".join(lines[:start] + lines[end:])


def _toml_table(path: Sequence[str], value: Mapping[str, Any]) -> str:
    rows = [f"[{'.'.join(path)}]", *(f"{key} = {_toml_value(one)}" for key, one in value.items())]
    return "\n".join(rows) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _table_lines(lines: list[str], path: Sequence[str]) -> tuple[int, int]:
    """Return the lines of the table and its adjacent sub-tables. Comments before the next table belong to that
    table."""
    names = r"\s*\.\s*".join(rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')" for name in path)
    header = re.compile(rf"\s*\[\s*{names}\s*(?:\.[^\]]*)?\]\s*(?:#.*)?$")
    start = next((number for number, line in enumerate(lines) if header.match(line)), len(lines))
    end = start
    while end < len(lines) and (end == start or header.match(lines[end]) or not _HEADER.match(lines[end])):
        end += 1
    while end > start + 1 and _COMMENT.match(lines[end - 1]):
        end -= 1
    return start, end
