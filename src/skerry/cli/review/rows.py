"""Hunks and files as rows, at a given width. Lines that are too long are wrapped, and cut with a mark far out: what is
behind the edge of a screen is as much part of a change as what is on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from skerry.cli.review import syntax
from skerry.cli.review.patch import Line, Part
from skerry.cli.review.style import Ground, Row, Span, Style, plain
from skerry.cli.review.visible import is_plain, name_shown, remarks, spans, width_of
from skerry.cli.review.words import marks

MOST_LETTERS = 2000  # of one line
MOST_REMARKS = 8
NARROW = 60
_SIGNS = {"context": " ", "removed": "-", "added": "+", "note": "\\"}
_GROUNDS: dict[str, Ground] = {"context": "", "removed": "removed", "added": "added", "note": "dim"}


@dataclass(frozen=True)
class Look:
    """How things are shown here. `ink`: with the colours of programs, which takes a lexer. `letters`: of one line."""

    cols: int = 80
    ink: bool = True
    letters: int = MOST_LETTERS


def part_rows(path: str, part: Part, look: Look, *, head: bool = True) -> Iterator[Row]:
    """A hunk: its place, in words what can't be seen in its lines, and these."""
    if head:
        yield head_row(part, look)
    yield from remark_rows(part.lines, look)
    yield from line_rows(path, part.lines, look)


def head_row(part: Part, look: Look) -> Row:
    where = f"@@ -{_place(part.old_start, part.old_lines)} +{_place(part.new_start, part.new_lines)} @@"
    heading = f" {name_shown(part.heading.strip())}" if part.heading.strip() else ""
    return cut((plain(where, "hunk"), plain(heading, "dim")), look.cols)


def _place(start: int, lines: int) -> str:
    return str(start) if lines == 1 else f"{start},{lines}"


def line_rows(path: str, lines: Sequence[Line], look: Look) -> Iterator[Row]:
    known = marks(lines)
    inks = _inks(path, lines) if look.ink else {}
    digits = max(3, len(str(max((max(line.old or 0, line.new or 0) for line in lines), default=0))))
    for at, line in enumerate(lines):
        text, missing = line.text[: look.letters], len(line.text) - look.letters
        text = text.lstrip(" ") if line.kind == "note" else text
        style = Style(_GROUNDS[line.kind])
        shown = spans(
            text, style, inks=inks.get(at, ()), marks=known.get(at, ()), ends=line.kind in ("added", "removed")
        )
        if missing > 0:
            shown = (*shown, plain(f"… {missing:,} more letters", "risk"))
        yield from _wrapped(_gutter(line, digits, look), style, shown, look.cols)


def is_too_long(lines: Iterable[str]) -> bool:
    """Is some of them shown without its end?"""
    return any(len(line) > MOST_LETTERS for line in lines)


def _inks(path: str, lines: Sequence[Line]) -> dict[int, syntax.Inks]:
    """Before and after are two texts: a string that only one of them closes must not colour the other."""
    found: dict[int, syntax.Inks] = {}
    for side, left_out in (("removed", "added"), ("added", "removed")):
        places = [at for at, line in enumerate(lines) if line.kind not in (left_out, "note")]
        if any(lines[at].kind == side for at in places) or side == "added":
            for at, ink in zip(places, syntax.inks(path, [lines[at].text for at in places]), strict=True):
                if lines[at].kind in (side, "context"):
                    found[at] = ink
    return found


def _gutter(line: Line, digits: int, look: Look) -> Row:
    sign = _SIGNS[line.kind]
    ground = Style(_GROUNDS[line.kind])
    if look.cols < NARROW:
        return (Span(ground, f"{sign} "),)
    old, new = (str(number or "").rjust(digits) for number in (line.old, line.new))
    return (plain(f"{old} {new} ", "number"), Span(ground, f"{sign} "))


def _wrapped(gutter: Row, style: Style, shown: Row, cols: int) -> Iterator[Row]:
    taken = sum(len(span.text) for span in gutter)
    room = max(10, cols - taken)
    first = True
    for row in wrap(shown, room):
        if first:
            yield (*gutter, *row)
        else:
            yield (plain(" " * (taken - 2), "number"), Span(style, "↪ "), *row)
        first = False


def wrap(row: Row, room: int) -> Iterator[Row]:
    """The same in rows of at most so many cells; one row at least."""
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


def cut(row: Row, room: int) -> Row:
    """What fits, with a mark where more is missing."""
    if sum(width_of(span.text) for span in row) <= room:
        return row
    first = next(wrap(row, max(1, room - 1)))
    return (*first, Span(first[-1].style if first else Style(), "…"))


def remark_rows(lines: Sequence[Line], look: Look) -> list[Row]:
    """What does not show, in words, each with the first of its lines."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.kind == "note":
            continue
        for said in remarks(line.text[: look.letters], added=line.kind == "added"):
            where = f"-{line.old}" if line.kind == "removed" else f"{'+' if line.kind == 'added' else ''}{line.new}"
            found.setdefault(said, []).append(where)
    rows: list[Row] = []
    for said, places in list(found.items())[:MOST_REMARKS]:
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        rows += folded((plain(f"not as it looks: line {places[0]}{more}: {said}", "risk"),), look.cols)
    if len(found) > MOST_REMARKS:
        rows.append((plain(f"not as it looks: {len(found) - MOST_REMARKS} more kinds of that", "risk"),))
    return rows


def folded(row: Row, cols: int) -> list[Row]:
    return list(wrap(row, max(10, cols)))
