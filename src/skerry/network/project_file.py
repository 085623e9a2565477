"""Adding to `allow` in the [network] table of a skerry.toml as text, so that comments and order survive. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, Final

from skerry.errors import InvalidRequest

_TABLE: Final = re.compile(r"^[ \t]*\[[ \t]*(?:network|\"network\"|'network')[ \t]*\][ \t\r]*(?:#.*)?$", re.MULTILINE)
_ANY_TABLE: Final = re.compile(r"^[ \t]*\[", re.MULTILINE)
_KEY: Final = re.compile(r"^[ \t]*allow[ \t]*=", re.MULTILINE)
_DOTTED: Final = re.compile(r"^[ \t]*network[ \t]*\.[ \t]*allow[ \t]*=", re.MULTILINE)
_BY_HAND: Final = "put the rules into its [network] table by hand: skerry network learn shows them"


def with_allowed(old: str, missing: Callable[[tuple[str, ...]], list[tuple[str, str | None]]]) -> str:
    """`old` with the rules added that `missing` makes of those which it has, each with a comment if it has one."""
    before = _read(old)
    allowed = before.get("network", {}).get("allow", []) if isinstance(before.get("network", {}), dict) else None
    if not isinstance(allowed, list) or not all(isinstance(rule, str) for rule in allowed):
        raise InvalidRequest(
            "skerry.toml: network.allow is not a list of rules", hint='like allow = ["api.example.com"]'
        )
    added = missing(tuple(allowed))
    if not added:
        return old
    new = _edited(old, added)
    expected = {**before, "network": {**before.get("network", {}), "allow": [*allowed, *(rule for rule, _ in added)]}}
    if not _says(new, expected):
        raise InvalidRequest("skerry.toml: its network table can't be changed without rewriting it", hint=_BY_HAND)
    return new


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"skerry.toml: {error}") from None


def _says(text: str, expected: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        return False


def _edited(old: str, added: list[tuple[str, str | None]]) -> str:
    items = "".join(f"    {json.dumps(rule)},{f'  # {comment}' if comment else ''}\n" for rule, comment in added)
    table = _TABLE.search(old)
    if table is not None:
        following = _ANY_TABLE.search(old, table.end())
        key = _KEY.search(old, table.end(), following.start() if following else len(old))
        if key is None:
            return f"{old[: table.end()]}\nallow = [\n{items}]{old[table.end() :] or chr(10)}"
    else:
        key = _DOTTED.search(old)
    if key is not None:
        return _grown(old, key.end(), items)
    gap = "" if not old else "\n" if old.endswith("\n") else "\n\n"
    return f"{old}{gap}[network]\nallow = [\n{items}]\n"


def _grown(text: str, at: int, items: str) -> str:
    """The array that begins there with lines put before its closing bracket."""
    bracket, mark = _ends(text, at)
    comma = "" if text[mark] in ",[" else ","
    between = text[mark + 1 : bracket].rstrip(" \t")
    if not between.endswith("\n"):
        between += "\n"
    return f"{text[: mark + 1]}{comma}{between}{items}{text[bracket:]}"


def _ends(text: str, at: int) -> tuple[int, int]:
    """Where the bracket is that closes the array, and the last thing before it that is neither blank nor comment. What
    only looks like the key, within a longer text, may lead anywhere: the comparison afterwards finds that."""
    depth, mark = 0, at
    while at < len(text):
        if text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text[at] in "\"'":
            mark = at = _end_of_string(text, at)
        elif not text[at].isspace():
            depth += {"[": 1, "]": -1}.get(text[at], 0)
            if depth == 0:
                break
            mark = at
        at += 1
    return min(at, len(text) - 1), mark


def _end_of_string(text: str, at: int) -> int:
    quote = text[at]
    if text[at : at + 3] == quote * 3:
        return max(text.find(quote * 3, at + 3), at) + 2
    at += 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" and quote == '"' else 1
    return at
