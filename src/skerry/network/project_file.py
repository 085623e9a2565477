"""Adding to `allow` in the [network] table of a skerry.toml as text, so that comments and order survive. Pure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, Final

from skerry.errors import InvalidRequest

_TABLE: Final = re.compile(r"[ \t]*\[[ \t]*(?:network|\"network\"|'network')[ \t]*\][ \t]*(?:#.*)?")
_ANY_TABLE: Final = re.compile(r"[ \t]*\[")
_KEY: Final = r"[ \t]*{}[ \t]*="
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
    if _read(new) != expected:
        raise InvalidRequest("skerry.toml: its network table can't be changed without rewriting it", hint=_BY_HAND)
    return new


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"skerry.toml: {error}") from None


def _edited(old: str, added: list[tuple[str, str | None]]) -> str:
    items = "".join(f"    {json.dumps(rule)},{f'  # {comment}' if comment else ''}\n" for rule, comment in added)
    lines = old.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if _TABLE.fullmatch(line.rstrip("\r\n"))), None)
    if start is not None:
        end = next((i for i in range(start + 1, len(lines)) if _ANY_TABLE.match(lines[i])), len(lines))
        found = _find_key(lines, start + 1, end, "allow")
        if found is None:
            head = "".join(lines[: start + 1])
            return (
                f"{head}{'' if head.endswith(chr(10)) else chr(10)}allow = [\n{items}]\n{''.join(lines[start + 1 :])}"
            )
    else:
        found = _find_key(lines, 0, len(lines), r"network[ \t]*\.[ \t]*allow")
    if found is None:
        gap = "" if not old else "\n" if old.endswith("\n") else "\n\n"
        return f"{old}{gap}[network]\nallow = [\n{items}]\n"
    first, last = found
    return "".join(lines[:first]) + _grown("".join(lines[first:last]), items) + "".join(lines[last:])


def _find_key(lines: list[str], start: int, end: int, key: str) -> tuple[int, int] | None:
    """The lines of a key and its value: from where the key stands to where what was read is whole for the first time.
    A line within a longer text that only looks like the key leads to a wrong edit, which the comparison then finds."""
    for first in range(start, end):
        if re.match(_KEY.format(key), lines[first]):
            for last in range(first + 1, end + 1):
                try:
                    tomllib.loads("".join(lines[first:last]))
                except tomllib.TOMLDecodeError:
                    continue
                return first, last
    return None


def _grown(text: str, items: str) -> str:
    """An array with lines put before its closing bracket."""
    bracket, mark = _ends(text)
    comma = "" if text[mark] in ",[" else ","
    between = text[mark + 1 : bracket].rstrip(" \t")
    if not between.endswith("\n"):
        between += "\n"
    return f"{text[: mark + 1]}{comma}{between}{items}{text[bracket:]}"


def _ends(text: str) -> tuple[int, int]:
    """Where the last closing bracket is, and the last thing before it that is neither blank nor comment."""
    bracket = mark = previous = at = 0
    while at < len(text):
        if text[at] == "#":
            at = (text.find("\n", at) + 1 or len(text) + 1) - 1
        elif text[at] in "\"'":
            at = _end_of_string(text, at)
            previous = at
        elif text[at] == "]":
            bracket, mark = at, previous
            previous = at
        elif not text[at].isspace():
            previous = at
        at += 1
    return bracket, mark


def _end_of_string(text: str, at: int) -> int:
    quote = text[at]
    if text[at : at + 3] == quote * 3:
        return text.index(quote * 3, at + 3) + 2
    at += 1
    while text[at] != quote:
        at += 2 if text[at] == "\\" and quote == '"' else 1
    return at
