"""Patterns of paths below a directory, with the semantics of the keeper (`keeper/internal/match/filter`). Pure.

A pattern without a slash matches a name at any depth, one with a slash the path from the root. `*` and `?` stop at
slashes, `[a-z]` and `[!a-z]` are sets, `{a,b}` alternatives, `**` between slashes matches any number of directories; a
slash at the end matches only directories.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from skerry.errors import InvalidRequest

MAX_PATTERNS: Final = 100
_MAX_LENGTH: Final = 1024
_MAX_SEGMENTS: Final = 63
_MAX_ALTERNATIVES: Final = 64
_SET: Final = re.compile(r"\[([!^]?)([^/][^\]/]*)\]", re.DOTALL)


class Patterns:
    """`excludes(path, directory)` for a path whose parent directories are not excluded."""

    def __init__(self, texts: Sequence[str], what: str = "exclude") -> None:
        if isinstance(texts, str):
            raise InvalidRequest(f"{what}: {texts!r} is a string, not a list of patterns", hint="like ['*.pyc']")
        self.texts = tuple(texts)
        if len(self.texts) > MAX_PATTERNS:
            raise InvalidRequest(f"{what}: more than {MAX_PATTERNS} patterns")
        try:
            self._all = [_compiled(text) for text in self.texts]
        except _Bad as bad:
            raise InvalidRequest(
                f"{what}: {bad.args[0][:80]!r} is not a pattern", hint="like '*.pyc' or 'build/*.o'"
            ) from None

    def excludes(self, path: str, directory: bool) -> bool:
        return any((directory or not only) and pattern.fullmatch(path) for pattern, only in self._all)


class _Bad(Exception):
    pass


def _compiled(text: str) -> tuple[re.Pattern[str], bool]:
    trimmed = text.removesuffix("/")
    if not trimmed or len(text.encode("utf-8", "surrogateescape")) > _MAX_LENGTH or "\0" in text:
        raise _Bad(text)
    if "/" not in trimmed:
        trimmed = f"**/{trimmed}"
    try:
        regex = "|".join(_path(one) for one in _alternatives(trimmed))
    except _Bad:
        raise _Bad(text) from None
    return re.compile(regex, re.DOTALL), trimmed != text and text.endswith("/")


def _alternatives(pattern: str) -> list[str]:
    """Return the pattern with its braces expanded."""
    found, pending = [], [pattern]
    while pending:
        one = pending.pop(0)
        braces = _braces(one)
        if braces is None:
            found.append(one)
        else:
            start, parts, rest = braces
            pending[:0] = [one[:start] + part + rest for part in parts]
        if len(found) + len(pending) > _MAX_ALTERNATIVES:
            raise _Bad(pattern)
    return found


def _braces(pattern: str) -> tuple[int, list[str], str] | None:
    """Return the position of the first pair of braces, its content, and the rest."""
    depth, start, begun, at = 0, 0, 0, 0
    parts: list[str] = []
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[" and (match := _SET.match(pattern, at)):
            at = match.end() - 1
        elif char == "{":
            depth += 1
            if depth == 1:
                start, begun = at, at + 1
        elif char == "," and depth == 1:
            parts.append(pattern[begun:at])
            begun = at + 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                return start, [*parts, pattern[begun:at]], pattern[at + 1 :]
        at += 1
    if depth:
        raise _Bad(pattern)
    return None


def _path(pattern: str) -> str:
    segments = [part for part in pattern.split("/") if part not in ("", ".")]
    if not segments or len(segments) > _MAX_SEGMENTS or ".." in segments:
        raise _Bad(pattern)
    regex, last = "", len(segments) - 1
    for at, segment in enumerate(segments):
        if segment == "**":
            regex += ".+" if at == last else "(?:[^/]+/)*"
        else:
            regex += "".join(_segment(segment)) + ("/" if at < last else "")
    return regex


def _segment(segment: str) -> Iterator[str]:
    at = 0
    while at < len(segment):
        char = segment[at]
        match = _SET.match(segment, at) if char == "[" else None
        if match is not None:
            yield _set(match)
            at = match.end()
            continue
        if char == "\\":
            at += 1
            if at == len(segment):
                raise _Bad(segment)
            yield re.escape(segment[at])
        else:
            yield {"*": "[^/]*", "?": "[^/]"}.get(char) or re.escape(char)
        at += 1


def _set(match: re.Match[str]) -> str:
    chars, ranges, at = match[2], "", 0
    while at < len(chars):
        low = high = chars[at]
        if at + 2 < len(chars) and chars[at + 1] == "-":
            high = chars[at + 2]
            at += 2
        if low <= high:
            ranges += f"{re.escape(low)}-{re.escape(high)}"
        at += 1
    if match[1]:
        return f"[^/{ranges}]"
    return f"[{ranges}]" if ranges else "(?!)"
