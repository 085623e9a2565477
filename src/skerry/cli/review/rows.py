"""Render hunks as rows of a given width. Long lines are wrapped, and truncated with a mark only after many characters:
the part beyond the edge of the screen belongs to the change too."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import FrameType
from typing import Any, Protocol

from skerry.cli.review.escape import escape_name, is_plain, remarks, spans, width_of
from skerry.cli.review.patch import PatchHunk, PatchLine
from skerry.cli.review.style import Ground, Ink, Row, Span, Style, styled

MAX_LINE_LENGTH = 2000  # characters of one line
MAX_REMARKS = 8
NARROW = 60
_SIGNS = {"context": " ", "removed": "-", "added": "+", "note": "\\"}
_GROUNDS: dict[str, Ground] = {"context": "", "removed": "removed", "added": "added", "note": "dim"}


@dataclass(frozen=True)
class Layout:
    """The width, whether to use syntax colours (which needs a lexer), and the maximum characters of one line."""

    cols: int = 80
    ink: bool = True
    max_line: int = MAX_LINE_LENGTH


def hunk_rows(path: str, part: PatchHunk, layout: Layout, *, head: bool = True) -> Iterator[Row]:
    """Render a hunk: its position, remarks about invisible characters, and its lines."""
    if head:
        yield head_row(part, layout)
    yield from remark_rows(part.lines, layout)
    yield from line_rows(path, part.lines, layout)


def head_row(part: PatchHunk, layout: Layout) -> Row:
    where = f"@@ -{_place(part.old_start, part.old_lines)} +{_place(part.new_start, part.new_lines)} @@"
    heading = f" {escape_name(part.heading.strip())}" if part.heading.strip() else ""
    return truncate((styled(where, "hunk"), styled(heading, "dim")), layout.cols)


def _place(start: int, lines: int) -> str:
    return str(start) if lines == 1 else f"{start},{lines}"


def line_rows(path: str, lines: Sequence[PatchLine], layout: Layout) -> Iterator[Row]:
    known = changed_words(lines)
    inks = _inks(path, lines) if layout.ink else {}
    digits = max(3, len(str(max((max(line.old or 0, line.new or 0) for line in lines), default=0))))
    for at, line in enumerate(lines):
        text, missing = line.text[: layout.max_line], len(line.text) - layout.max_line
        text = text.lstrip(" ") if line.kind == "note" else text
        style = Style(_GROUNDS[line.kind])
        shown = spans(
            text, style, inks=inks.get(at, ()), marks=known.get(at, ()), ends=line.kind in ("added", "removed")
        )
        if missing > 0:
            shown = (*shown, styled(f"… {missing:,} more characters", "risk"))
        yield from _wrapped(_gutter(line, digits, layout), style, shown, layout.cols)


def is_too_long(lines: Iterable[str]) -> bool:
    """Return whether a line is shown without its end."""
    return any(len(line) > MAX_LINE_LENGTH for line in lines)


def _inks(path: str, lines: Sequence[PatchLine]) -> dict[int, Inks]:
    """Highlight the old and the new side separately: a string that only one side closes must not colour the other."""
    found: dict[int, Inks] = {}
    for side, left_out in (("removed", "added"), ("added", "removed")):
        places = [at for at, line in enumerate(lines) if line.kind not in (left_out, "note")]
        if any(lines[at].kind == side for at in places) or side == "added":
            for at, ink in zip(places, syntax_inks(path, [lines[at].text for at in places]), strict=True):
                if lines[at].kind in (side, "context"):
                    found[at] = ink
    return found


def _gutter(line: PatchLine, digits: int, layout: Layout) -> Row:
    sign = _SIGNS[line.kind]
    ground = Style(_GROUNDS[line.kind])
    if layout.cols < NARROW:
        return (Span(ground, f"{sign} "),)
    old, new = (str(number or "").rjust(digits) for number in (line.old, line.new))
    return (styled(f"{old} {new} ", "number"), Span(ground, f"{sign} "))


def _wrapped(gutter: Row, style: Style, shown: Row, cols: int) -> Iterator[Row]:
    taken = sum(len(span.text) for span in gutter)
    room = max(10, cols - taken)
    first = True
    for row in wrap(shown, room):
        if first:
            yield (*gutter, *row)
        else:
            yield (styled(" " * (taken - 2), "number"), Span(style, "↪ "), *row)
        first = False


def wrap(row: Row, room: int) -> Iterator[Row]:
    """Split a row into rows of at most `room` cells; yield at least one row."""
    current: list[Span] = []
    used = 0
    for style, text in row:
        if is_plain(text):
            while text:
                if used == room:
                    yield tuple(current)
                    current, used = [], 0
                piece, text = text[: room - used], text[room - used :]
                current.append(Span(style, piece))
                used += len(piece)
            continue
        held: list[str] = []
        for char in text:
            cells = width_of(char)
            if used + cells > room:
                current.append(Span(style, "".join(held)))
                yield tuple(span for span in current if span.text)
                current, used, held = [], 0, []
            held.append(char)
            used += cells
        current.append(Span(style, "".join(held)))
    yield tuple(span for span in current if span.text)


def truncate(row: Row, room: int) -> Row:
    """Shorten a row to `room` cells, with a mark at the end."""
    if sum(width_of(span.text) for span in row) <= room:
        return row
    first = next(wrap(row, max(1, room - 1)))
    return (*first, Span(first[-1].style if first else Style(), "…"))


def remark_rows(lines: Sequence[PatchLine], layout: Layout) -> list[Row]:
    """Describe invisible and misleading characters, each with the first line that has it."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.kind == "note":
            continue
        for remark in remarks(line.text[: layout.max_line], added=line.kind == "added"):
            where = f"-{line.old}" if line.kind == "removed" else f"{'+' if line.kind == 'added' else ''}{line.new}"
            found.setdefault(remark, []).append(where)
    rows: list[Row] = []
    for remark, places in list(found.items())[:MAX_REMARKS]:
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        rows += fold((styled(f"misleading text: line {places[0]}{more}: {remark}", "risk"),), layout.cols)
    if len(found) > MAX_REMARKS:
        rows.append((styled(f"misleading text: {len(found) - MAX_REMARKS} more kinds", "risk"),))
    return rows


def fold(row: Row, cols: int) -> list[Row]:
    return list(wrap(row, max(10, cols)))


# -- syntax colours; pygments is loaded for the first coloured file only --

MAX_TEXT = 64 << 10
MAX_SYNTAX_LINE = 1000
TIMEOUT_S = 0.25
Inks = list[tuple[int, int, Ink]]


class Lexer(Protocol):
    """The part of a pygments lexer in use: pygments has no type information."""

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, object, str]]: ...


class _TooLong(Exception):
    pass


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise _TooLong after a time. A hostile text can make a lexer's regular expressions run almost forever; Python's
    matcher checks for signals, so an alarm ends it."""
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


def syntax_inks(path: str, lines: Sequence[str]) -> list[Inks]:
    """Return the coloured ranges of each line; none for an unknown language or a text that is too long."""
    nothing: list[Inks] = [[] for _ in lines]
    if sum(map(len, lines)) > MAX_TEXT or any(len(line) > MAX_SYNTAX_LINE for line in lines):
        return nothing
    lexer = _lexer(path.rsplit("/", 1)[-1])
    if lexer is None:
        return nothing
    try:
        with time_limit(TIMEOUT_S):
            return _inked(lexer, lines)
    except Exception:  # _TooLong, or a bug of the lexer on hostile text: show it without colours
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
    # The lexer would take a carriage return for a line end; the replacement keeps all positions.
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


# -- changed words --

MAX_RUN_LINES = 60  # of one change; a longer change is new text
MAX_WORD_LINE = 2000
MAX_WORDS = 80  # above this, the whole text between the equal ends is marked: comparing takes quadratic time
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)
Range = tuple[int, int]


def changed_words(lines: Sequence[PatchLine]) -> dict[int, list[Range]]:
    """Return the changed ranges by line index, for removed lines that have an added counterpart."""
    found: dict[int, list[Range]] = {}
    at = 0
    while at < len(lines):
        removed = _run(lines, at, "removed")
        added = _run(lines, removed, "added")
        if 0 < removed - at == added - removed <= MAX_RUN_LINES:
            for place in range(at, removed):
                pair = _compare(lines[place].text, lines[place + removed - at].text)
                if pair:
                    found[place], found[place + removed - at] = pair
        at = max(added, at + 1)
    return found


def _run(lines: Sequence[PatchLine], at: int, kind: str) -> int:
    while at < len(lines) and lines[at].kind in (kind, "note") and not (lines[at].kind == "note" and kind != "added"):
        at += 1
    return at


def _compare(old: str, new: str) -> tuple[list[Range], list[Range]] | None:
    if max(len(old), len(new)) > MAX_WORD_LINE:
        return None
    a, b = _WORD.findall(old), _WORD.findall(new)
    start = _equal(a, b)
    end = _equal(a[start:][::-1], b[start:][::-1])
    middle = a[start : len(a) - end], b[start : len(b) - end]
    offset = sum(map(len, a[:start]))
    if max(map(len, middle)) > MAX_WORDS:
        left: list[Range] = [(offset, offset + sum(map(len, middle[0])))]
        right: list[Range] = [(offset, offset + sum(map(len, middle[1])))]
    else:
        left, right = _middle(*middle, offset)
    kept = len(old.strip()) - sum(stop - start for start, stop in left)
    if 2 * kept < len(old.strip()) and 2 * kept < len(new.strip()):  # a different line, not a changed one
        return None
    return left, right


def _equal(a: Sequence[str], b: Sequence[str]) -> int:
    for at, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return at
    return min(len(a), len(b))


def _middle(a: list[str], b: list[str], offset: int) -> tuple[list[Range], list[Range]]:
    left: list[Range] = []
    right: list[Range] = []
    for kind, a1, a2, b1, b2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        _add(left, offset + sum(map(len, a[:a1])), sum(map(len, a[a1:a2])))
        _add(right, offset + sum(map(len, b[:b1])), sum(map(len, b[b1:b2])))
    return left, right


def _add(ranges: list[Range], start: int, length: int) -> None:
    if not length:
        return
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], start + length)
    else:
        ranges.append((start, start + length))
