"""Globs of paths in a review. Pure; in time that grows with the product of the lengths, whatever the pattern.

`*` and `?` match within a name, `**` any number of directories; all other characters are literal, `[` too, because file
names of some frameworks contain it. A pattern without a slash matches a name at any depth, one with a slash the path
from the workspace. A pattern that matches a directory matches everything below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from skerry.errors import InvalidRequest

MAX_GLOBS: Final = 100
MAX_GLOB: Final = 1024
_ANY: Final = "**"
T = TypeVar("T")


def is_glob(text: str) -> bool:
    return "*" in text or "?" in text


def check_globs(what: str, globs: Sequence[str]) -> None:
    """Raise InvalidRequest for a pattern that matches no path of a workspace."""
    if len(globs) > MAX_GLOBS:
        raise InvalidRequest(f"{what}: more than {MAX_GLOBS} patterns")
    for glob in globs:
        parts = glob.strip("/").split("/")
        if len(glob) > MAX_GLOB or "\0" in glob or not glob.strip("/") or {".", ".."} & set(parts):
            raise InvalidRequest(f"{what}: {glob[:80]!r} is not a pattern", hint="like '*.snap' or 'build/**'")


class Glob:
    def __init__(self, text: str) -> None:
        self.text = text
        plain = text.strip("/")
        anchored = "/" in text.removesuffix("/")
        parts = [part for part in plain.split("/") if part]
        self._parts = [*([] if anchored else [_ANY]), *parts, *(["*"] if text.endswith("/") else []), _ANY]

    def matches(self, path: str) -> bool:
        return _matched(self._parts, path.split("/"), _ANY, lambda part, name: _matched(part, name, "*", _letter))


def matching(globs: Iterable[Glob], path: str) -> Glob | None:
    """Return the first glob that matches."""
    for glob in globs:
        if glob.matches(path):
            return glob
    return None


def _letter(pattern: str, letter: str) -> bool:
    return pattern in ("?", letter)


def _matched(pattern: Sequence[T], given: Sequence[T], star: T, equal: Callable[[T, T], bool]) -> bool:
    """Match with backtracking to the last star only, which suffices."""
    at = place = 0
    back, resume = -1, 0
    while place < len(given):
        if at < len(pattern) and pattern[at] == star:
            back, resume = at, place
            at += 1
        elif at < len(pattern) and equal(pattern[at], given[place]):
            at, place = at + 1, place + 1
        elif back >= 0:
            resume += 1
            at, place = back + 1, resume
        else:
            return False
    return all(one == star for one in pattern[at:])
