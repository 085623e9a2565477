"""Colours of a program's text. pygments is loaded when the first file is shown, and only where there are colours."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

from skerry.cli.review.style import Ink

MOST_TEXT = 64 << 10
MOST_LINE = 1000
SECONDS = 0.25
Inks = list[tuple[int, int, Ink]]


class Lexer(Protocol):
    """pygments has no types of its own."""

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, object, str]]: ...


class _TooLong(Exception):
    pass


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """A lexer is made of regular expressions, and some texts take them for ever: whoever wrote the text may mean it.
    Python's matcher looks out for signals, so an alarm ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_: int, __: FrameType | None) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def inks(path: str, lines: Sequence[str]) -> list[Inks]:
    """For each line: which letters are what. Nothing for a text of no known language, or for too much of it."""
    nothing: list[Inks] = [[] for _ in lines]
    if sum(map(len, lines)) > MOST_TEXT or any(len(line) > MOST_LINE for line in lines):
        return nothing
    lexer = _lexer(path.rsplit("/", 1)[-1])
    if lexer is None:
        return nothing
    try:
        with within(SECONDS):
            return _inked(lexer, lines)
    except Exception:  # of _TooLong, or of somebody else's code on somebody's text: then it has no colours
        return nothing


_lexers: dict[str, Lexer | None] = {}


def _lexer(name: str) -> Lexer | None:
    if name not in _lexers:
        if len(_lexers) > 500:
            _lexers.clear()
        _lexers[name] = _found(name)
    return _lexers[name]


def _found(name: str) -> Lexer | None:
    from pygments.lexers import find_lexer_class_for_filename  # type: ignore[import-untyped]

    if not (name.isascii() and name.isprintable()) or len(name) > 255:
        return None
    kind: Any = find_lexer_class_for_filename(name)
    if kind is None or kind.name == "Text only":
        return None
    made: Lexer = kind(stripnl=False, ensurenl=False)
    return made


def _inked(lexer: Lexer, lines: Sequence[str]) -> list[Inks]:
    found: list[Inks] = [[] for _ in lines]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    # Other ends of a line would be lines of their own to the lexer, at the same places all the same.
    text = "\n".join(line.replace("\r", " ") for line in lines)
    row = 0
    for at, token, value in lexer.get_tokens_unprocessed(text):
        ink = _ink(str(token))
        if not ink:
            continue
        stop = at + len(value)
        while row + 1 < len(lines) and at >= starts[row + 1]:
            row += 1
        for place in range(row, len(lines)):
            if starts[place] >= stop:
                break
            first, last = max(at, starts[place]), min(stop, starts[place + 1] - 1)
            if first < last:
                found[place].append((first - starts[place], last - starts[place], ink))
    return found


def _ink(token: str) -> Ink:
    kind = token.removeprefix("Token.")
    if kind.startswith("Keyword"):
        return "keyword"
    if kind.startswith("Comment"):
        return "comment"
    if kind.startswith(("Literal.String", "Text.String")):
        return "string"
    if kind.startswith("Literal"):
        return "literal"
    if kind.startswith(("Name.Function", "Name.Class", "Name.Decorator", "Name.Tag", "Name.Namespace")):
        return "name"
    return ""
