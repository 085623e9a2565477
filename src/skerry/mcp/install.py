"""Setting up a client: which file, which entry, what changes in the file. Nothing else in it is touched, and a file
that can't be changed like that is refused and left as it is. Pure."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skerry.client.address import parse_address
from skerry.errors import Conflict, InvalidRequest
from skerry.mcp import jsonc, toml_text
from skerry.mcp.clients import TOKEN_VARIABLE, Client, Scope

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")


@dataclass(frozen=True)
class Wish:
    """What is to stand in the file. `server` None: this machine's own; `token`: in clear, because somebody asked."""

    client: Client
    scope: Scope = "user"
    name: str = "skerry"
    server: str | None = None
    variable: str = TOKEN_VARIABLE
    token: str | None = None
    program: tuple[str, ...] = ("skerry",)
    options: tuple[str, ...] = ()  # of `skerry mcp`

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(f"name: {self.name[:40]!r} can't be used", hint="letters, digits, '_' and '-'")
        if not _VARIABLE.fullmatch(self.variable):
            raise InvalidRequest(f"{self.variable[:40]!r} is not the name of a variable")
        if self.options and self.server is not None and not parse_address(self.server).local:
            raise InvalidRequest("how sandboxes are made there is that server's to say", hint="leave the options out")
        if self.token is not None and self.scope == "project":
            raise InvalidRequest("a token in clear does not belong into a project's file", hint="use --token-env")


@dataclass(frozen=True)
class Change:
    """A file before and after. `before` None: there is none yet."""

    path: Path
    before: str | None
    after: str

    @property
    def any(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        old, new = ((text or "").splitlines() for text in (self.before, self.after))
        names = ("/dev/null" if self.before is None else str(self.path), str(self.path))
        return "\n".join(difflib.unified_diff(old, new, *names, n=2, lineterm=""))


def file_of(client: Client, scope: Scope, *, home: Path, here: Path, platform: str, env: Mapping[str, str]) -> Path:
    if scope == "project":
        if client.project is None:
            raise InvalidRequest(f"{client.title} has no file for a project", hint="leave --scope out")
        return here / client.project
    if client.moved is not None and (directory := env.get(client.moved[0])):
        return Path(directory) / client.moved[1]
    path = client.user.get("darwin" if platform == "darwin" else "linux", "")
    return home / path.removeprefix("~/")


def entry_of(wish: Wish) -> dict[str, Any]:
    """A program to start, for this machine's own server or one on a unix socket; the server's `/mcp` else."""
    remote = None if wish.server is None else parse_address(wish.server)
    if remote is None or remote.local:
        return _stdio(wish, () if remote is None else ("--server", str(remote)))
    if wish.client.http is None:
        entry = _stdio(wish, ("--server", str(remote)))
        return {**entry, "env": {TOKEN_VARIABLE: _in_clear(wish)}}
    values = {"url": f"{remote}/mcp", "variable": wish.variable}
    if wish.token is None and wish.client.reference is not None:
        return _filled(wish.client.http, {**values, "token": wish.client.reference.format(wish.variable)})
    return _filled(wish.client.clear or wish.client.http, {**values, "token": _in_clear(wish)})


def _stdio(wish: Wish, options: Sequence[str]) -> dict[str, Any]:
    program, *more = wish.program
    return _filled(wish.client.stdio, {"command": program, "args": [*more, *options, "mcp", *wish.options]})


def _in_clear(wish: Wish) -> str:
    if wish.token is None:
        raise InvalidRequest(
            f"{wish.client.title} takes no token from the environment",
            hint=f"--write-token puts what is in {wish.variable} into its file, in clear",
        )
    return wish.token


def _filled(template: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    def fill(one: Any) -> Any:
        if isinstance(one, Mapping):
            return _filled(one, values)
        return values["args"] if one == "{args}" else str(one).format(**values)

    return {key: fill(one) for key, one in template.items()}


def change_of(client: Client, path: Path, before: str | None, name: str, entry: Mapping[str, Any] | None) -> Change:
    """`entry` None: it is to be taken out."""
    where = [*client.keys, name]
    text = before or ""
    try:
        old = _read(client, text)
        after = _edited(client, text, where, entry)
        done = _same(client, _read(client, after), _wanted(old, where, entry))
    except (jsonc.NotJson, tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise Conflict(f"{path} can't be changed: {error}", hint=_BY_HAND) from None
    if not done:
        raise Conflict(f"{path} is written in a way that can't be changed safely", hint=_BY_HAND)
    return Change(path, before, after)


def _same(client: Client, found: Any, wanted: Any) -> bool:
    """In TOML the table of the servers goes with the last of them."""
    key = client.keys[0]
    if client.format == "toml" and wanted.get(key) == {}:
        found = {key: {}, **found}
    return bool(found == wanted)


_BY_HAND: Final = "--print shows what to put in by hand"


def shown(wish: Wish) -> str:
    """The entry as it stands in a file of its own."""
    return _edited(wish.client, "", [*wish.client.keys, wish.name], entry_of(wish))


def _edited(client: Client, text: str, where: Sequence[str], entry: Mapping[str, Any] | None) -> str:
    if client.format == "toml":
        return toml_text.drop(text, where) if entry is None else toml_text.put(text, where, entry)
    return jsonc.drop(text, where) if entry is None else jsonc.put(text, where, entry)


def _read(client: Client, text: str) -> Any:
    if client.format == "toml":
        return tomllib.loads(text)
    return jsonc.read(text) if text.strip("\ufeff \t\r\n") else {}


def _wanted(old: Any, where: Sequence[str], entry: Mapping[str, Any] | None) -> Any:
    if not isinstance(old, dict):
        raise jsonc.NotJson("it is not an object")
    key, *rest = where
    if rest:
        if entry is None and key not in old:
            return old
        return {**old, key: _wanted(old.get(key, {}), rest, entry)}
    others = {one: value for one, value in old.items() if one != key}
    return others if entry is None else {**others, key: dict(entry)}
