"""Spans and rows, and their terminal output with 256, 16 or no colours."""

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
    """`ground` is the role of the text, `ink` its syntax class, or `odd` for an escaped character; `mark` is set for
    the changed part of a line."""

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
# On a coloured ground the ink has a fixed colour too: the terminal's default may be dark or light.
_GROUNDS = {"added": ("48;5;22", "48;5;28"), "removed": ("48;5;52", "48;5;88")}
_INKS = {"": "253", "keyword": "183", "string": "158", "comment": "247", "literal": "159", "name": "229", "odd": "231"}
_INKS_ALONE = {"keyword": "35", "string": "36", "comment": "90", "literal": "36", "name": "1"}
_ASCII = str.maketrans({"·": ".", "…": "...", "−": "-", "→": ">", "↪": ">", "–": "-", "█": "#", "×": "x"})


def detect_colours(environ: Mapping[str, str] | None = None, *, terminal: bool = True) -> Colours:
    environ = os.environ if environ is None else environ
    term = environ.get("TERM", "")
    if not terminal or environ.get("NO_COLOR") or term in ("", "dumb"):
        return 0
    return 256 if "256" in term or environ.get("COLORTERM") or "kitty" in term or "direct" in term else 16


def styled(text: str, ground: Ground = "") -> Span:
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


def encode(text: str, encoding: str) -> bytes:
    """Encode text for a terminal; without UTF-8, replace our symbols by ASCII characters."""
    if encoding.lower().replace("-", "") == "utf8":
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode(encoding, "backslashreplace")


def paint_lines(rows: Iterable[Row], colours: Colours) -> str:
    return "".join(f"{paint(row, colours)}\n" for row in rows)
