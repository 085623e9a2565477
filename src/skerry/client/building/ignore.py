""".dockerignore: which paths of a context stay at home. Pure.

The last pattern that matches decides; `!` brings back. Patterns are matched from the context's root, `*` stops at
slashes, `**` is any number of directories; what lies in an excluded directory is excluded with it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Final

from skerry.errors import InvalidRequest

_MOST: Final = 10_000


class Ignore:
    """Has the face of `Patterns`, for a walk."""

    def __init__(self, lines: Iterable[str]) -> None:
        rules = [rule for line in lines if (rule := _rule(line)) is not None]
        if len(rules) > _MOST:
            raise InvalidRequest(f".dockerignore: more than {_MOST} patterns")
        self.texts = tuple(text for text, _ in rules)
        self._rules = [(_regex(text), back) for text, back in rules]
        self._back = [text for text, back in rules if back]

    def excludes(self, path: str, directory: bool) -> bool:
        """A directory that something may be brought back from is entered."""
        return self.names(path) and not (directory and any(_below(text, path) for text in self._back))

    def names(self, path: str) -> bool:
        excluded = False
        for pattern, back in self._rules:
            if excluded == back and pattern.fullmatch(path):
                excluded = not back
        return excluded


def _rule(line: str) -> tuple[str, bool] | None:
    if line.startswith("#"):
        return None
    text = line.strip()
    back = text.startswith("!")
    text = text.removeprefix("!").strip()
    if not text:
        return None
    text = posixpath.normpath(text).lstrip("/")
    return None if text in ("", ".") else (text, back)


def _below(pattern: str, directory: str) -> bool:
    """Something below the directory may match: its pattern begins as the directory's path does."""
    for one, part in zip(pattern.split("/"), directory.split("/"), strict=False):
        if one == "**":
            return True
        if not re.fullmatch(segment(one), part, re.DOTALL):
            return False
    return True


def _regex(pattern: str) -> re.Pattern[str]:
    """Itself, and all that lies below it."""
    parts = pattern.split("/")
    regex = ""
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            regex += ".*" if last else "(?:[^/]+/)*"
        else:
            regex += segment(part) + ("" if last else "/")
    return re.compile(f"{regex}(?:/.*)?", re.DOTALL)


_SET: Final = re.compile(r"\[(\^?)((?:\\.|[^\]\\])+)\]")
_MEMBER: Final = re.compile(r"(\\?.)(?:-(\\?.))?", re.DOTALL)


def segment(pattern: str) -> str:
    """One name's pattern as a regular expression: `*`, `?`, `[a-z]`, `[^a-z]`, and `\\` before a character."""
    regex = "".join(_pieces(pattern))
    try:
        re.compile(regex)
    except re.error as error:
        raise InvalidRequest(f"{pattern[:80]!r} is not a pattern: {error}") from None
    return regex


def _pieces(pattern: str) -> Iterator[str]:
    at = 0
    while at < len(pattern):
        char = pattern[at]
        match = _SET.match(pattern, at) if char == "[" else None
        if match is not None:
            yield f"[{match[1]}{_members(match[2])}]"
            at = match.end()
            continue
        if char == "\\" and at + 1 < len(pattern):
            at += 1
            yield re.escape(pattern[at])
        elif pattern.startswith("**", at):  # next to other characters it still passes slashes
            at += 1
            yield ".*"
        else:
            yield {"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char)
        at += 1


def _members(inside: str) -> str:
    """Characters and ranges of a set, none of which means more than itself."""
    found = ""
    for low, high in _MEMBER.findall(inside):
        found += re.escape(low[-1]) + (f"-{re.escape(high[-1])}" if high else "")
    return found
