"""Patterns of paths below a directory, as the keeper matches them too (`keeper/internal/pattern`). Pure.

A pattern without a slash matches a name at any depth, one with a slash the path from the root. `*` and `?` stop at
slashes, `**` between slashes is any number of directories, a slash at the end asks for a directory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from skerry.errors import InvalidRequest

MOST = 100
_LONGEST = 1024
_TOKEN = re.compile(r"\*+|\?|\\.|\[(?P<not>[!^])?(?P<set>(?:\\.|[^\]\\])+)\]|[^\\\[*?]", re.DOTALL)


class Patterns:
    """`excludes(path, directory)` for a path whose directories were not excluded."""

    def __init__(self, texts: Sequence[str], what: str = "exclude") -> None:
        if isinstance(texts, str):
            raise InvalidRequest(f"{what}: {texts!r} is one text, not a list of patterns", hint="like ['*.pyc']")
        self.texts = tuple(texts)
        if len(self.texts) > MOST:
            raise InvalidRequest(f"{what}: more than {MOST} patterns")
        self._all = [_compiled(text, what) for text in self.texts]

    def excludes(self, path: str, directory: bool) -> bool:
        return any((directory or not only) and pattern.fullmatch(path) for pattern, only in self._all)


def _compiled(text: str, what: str) -> tuple[re.Pattern[str], bool]:
    trimmed = text.removesuffix("/")
    parts = trimmed.removeprefix("/").split("/")
    if len(text) > _LONGEST or not all(parts):
        raise InvalidRequest(f"{what}: {text[:80]!r} is not a pattern")
    if "/" not in trimmed:
        parts.insert(0, "**")
    last = len(parts) - 1
    regex = ""
    for at, part in enumerate(parts):
        if part == "**":
            regex += ".+" if at == last else "(?:[^/]+/)*"
        else:
            regex += _part(part, text, what) + ("/" if at < last else "")
    try:
        return re.compile(regex, re.DOTALL), trimmed != text
    except re.error as error:
        raise InvalidRequest(f"{what}: {text[:80]!r} is not a pattern: {error}") from error


def _part(part: str, text: str, what: str) -> str:
    regex, at = "", 0
    while at < len(part):
        match = _TOKEN.match(part, at)
        if match is None:
            raise InvalidRequest(f"{what}: {text[:80]!r} is not a pattern", hint="a bracket or backslash alone")
        regex += _token(match)
        at = match.end()
    return regex


def _token(match: re.Match[str]) -> str:
    found = match[0]
    if found[0] == "*":
        return "[^/]*"
    if found == "?":
        return "[^/]"
    if found[0] == "[":
        inner = re.sub(r"\\(.)|(.)", lambda one: one[2] if one[2] == "-" else re.escape(one[1] or one[2]), match["set"])
        return f"[^/{inner}]" if match["not"] else f"[{inner}]"
    return re.escape(found[-1])
