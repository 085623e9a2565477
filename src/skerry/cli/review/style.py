"""Spans and rows, and what they become on a terminal: with 256 colours, with 16, or with none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Literal, NamedTuple

Ground = Literal[
    "", "added", "removed", "file", "hunk", "command", "number", "risk", "good", "bad", "dim", "bold", "status"
]
Ink = Literal["", "keyword", "string", "comment", "literal", "name", "odd"]
Colours = Literal[0, 16, 256]


class Style(NamedTuple):
    """`ground`: what the text is part of. `ink`: what it is in a program; `odd`: it stands for something that would not
    be seen. `mark`: the part of a line that differs."""

    ground: Ground = ""
    ink: Ink = ""
    mark: bool = False


class Span(NamedTuple):
    style: Style
    text: str


Row = tuple[Span, ...]

_FEW: dict[str, str] = {
    "added": "32", "removed": "31", "file": "1", "hunk": "36", "command": "1;36", "number": "2", "risk": "1;33",
    "good": "32", "bad": "31", "dim": "2", "bold": "1", "status": "7",
}  # fmt: skip
# On a ground of our own the ink is ours too: the terminal's may be dark or light.
_GROUNDS = {"added": ("48;5;22", "48;5;28"), "removed": ("48;5;52", "48;5;88")}
_INKS = {"": "253", "keyword": "183", "string": "158", "comment": "247", "literal": "159", "name": "229", "odd": "231"}
_INKS_ALONE = {"keyword": "35", "string": "36", "comment": "90", "literal": "36", "name": "1"}
_ASCII = str.maketrans({"·": ".", "…": "...", "−": "-", "→": ">", "↪": ">", "–": "-", "█": "#", "×": "x"})


def colours_of(environ: Mapping[str, str] | None = None, *, terminal: bool = True) -> Colours:
    environ = os.environ if environ is None else environ
    term = environ.get("TERM", "")
    if not terminal or environ.get("NO_COLOR") or term in ("", "dumb"):
        return 0
    return 256 if "256" in term or environ.get("COLORTERM") or "kitty" in term or "direct" in term else 16


def plain(text: str, ground: Ground = "") -> Span:
    return Span(Style(ground), text)


def text_of(row: Row) -> str:
    return "".join(span.text for span in row)


def paint(row: Row, colours: Colours) -> str:
    if not colours:
        return text_of(row)
    parts: list[str] = []
    of = _many if colours == 256 else _few
    for code, group in groupby((span for span in row if span.text), lambda span: of(span.style)):
        text = "".join(span.text for span in group)
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts)


def _few(style: Style) -> str:
    codes = [_FEW[style.ground]] if style.ground else []
    return ";".join([*codes, "7"] if (style.mark or style.ink == "odd") and style.ground != "status" else codes)


def _many(style: Style) -> str:
    if style.ground in _GROUNDS:
        ground = _GROUNDS[style.ground][style.mark]
        return f"{ground};38;5;{_INKS[style.ink]}" + (";7" if style.ink == "odd" else "")
    if style.ground or style.ink in ("", "odd"):
        return _few(style)
    return _INKS_ALONE[style.ink]


def encoded(text: str, encoding: str) -> bytes:
    """For a terminal that may have no UTF-8: our own signs become letters that it has."""
    if encoding.lower().replace("-", "") == "utf8":
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode(encoding, "backslashreplace")


def lines_of(rows: Iterable[Row], colours: Colours) -> str:
    return "".join(f"{paint(row, colours)}\n" for row in rows)
