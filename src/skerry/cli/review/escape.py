"""Escape text from a sandbox for the screen: no character reaches the terminal as a control code or stays invisible.

Bytes that are not UTF-8 arrive as surrogates (`surrogateescape`)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from skerry.cli.review.style import Ink, Row, Span, Style
from skerry.codecs import text as codec

TAB = 4
MAX_MARKS = 2  # combining marks on one letter; more of them would cover the lines above
# Printable by category, but invisible: fillers, variation selectors, joiners. U+FFFD stands for bytes that were lost
# earlier.
_UNSEEN = {0xFFFD, 0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810),
           *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}  # fmt: skip
_NAMES = {"\r": "CR", "\x1b": "ESC", "\x00": "NUL", "\x7f": "DEL", "\x08": "BS", "\x07": "BEL"}
_WORD = re.compile(r"[^\W\d_]{2,}")
_LATIN_LIKE = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "FULLWIDTH", "COPTIC", "LISU", "MATHEMATICAL")
Range = tuple[int, int]


def is_plain(text: str) -> bool:
    """Return whether text needs no escaping and no width computation."""
    return text.isascii() and text.isprintable()


def escape_char(char: str) -> str:
    """Return a character in backslash notation, and a byte that is not UTF-8 as `\\xNN`."""
    code = ord(char)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else codec.escape_char(char)


def needs_escape(char: str) -> bool:
    return not char.isprintable() or ord(char) in _UNSEEN


def width_of(text: str) -> int:
    """Return the width of escaped text in terminal cells."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def escape_name(name: str | bytes) -> str:
    """Escape a file name or another short text, on one line. Quote it if it begins or ends with spaces."""
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    escaped = "".join(span.text for span in spans(text, Style(), tabs=False))
    return escaped if text == text.strip() else f"'{escaped}'"


def spans(
    text: str, style: Style, *, inks: Sequence[tuple[int, int, Ink]] = (), marks: Sequence[Range] = (),
    ends: bool = False, tabs: bool = True,
) -> Row:  # fmt: skip
    """Escape one line. `inks` are the syntax colours and `marks` the changed ranges; `ends` makes trailing spaces and
    tabs visible."""
    if not inks and not marks and is_plain(text) and not (ends and text[-1:] == " "):
        return (Span(style, text),) if text else ()
    made: list[Span] = []
    trailing = len(text.rstrip(" \t")) if ends else len(text)
    at = column = 0
    for stop, ink, mark in _pieces(len(text), inks, marks, trailing, _lookalikes(text)):
        for shown, odd in _escaped(text, at, stop, trailing, column, ends, tabs):
            column += width_of(shown)
            wanted = Style(style.ground, "odd" if odd else ink, mark or style.mark)
            if made and made[-1].style == wanted:
                made[-1] = Span(wanted, made[-1].text + shown)
            else:
                made.append(Span(wanted, shown))
        at = stop
    return tuple(made)


def _pieces(
    length: int,
    inks: Sequence[tuple[int, int, Ink]],
    marks: Sequence[Range],
    trailing: int,
    lookalikes: Sequence[Range],
) -> Iterator[tuple[int, Ink, bool]]:
    """Yield the ranges of one style: the end, the ink, and whether the range is marked."""
    stops = {length, trailing, *(at for start, stop, _ in inks for at in (start, stop))}
    stops |= {at for pair in (*marks, *lookalikes) for at in pair}
    queue, marked, odd = list(inks), list(marks), list(lookalikes)
    at = 0
    for stop in sorted(stop for stop in stops if 0 < stop <= length):
        while queue and queue[0][1] <= at:
            queue.pop(0)
        while marked and marked[0][1] <= at:
            marked.pop(0)
        while odd and odd[0][1] <= at:
            odd.pop(0)
        ink: Ink = queue[0][2] if queue and queue[0][0] <= at else ""
        if odd and odd[0][0] <= at:
            ink = "odd"
        yield stop, ink, bool(marked and marked[0][0] <= at)
        at = stop


def _escaped(
    text: str, start: int, stop: int, trailing: int, column: int, ends: bool, tabs: bool
) -> Iterator[tuple[str, bool]]:
    """Yield escaped pieces, and whether each piece replaces another character."""
    if start >= trailing and tabs:
        for char in text[start:stop]:
            shown = "·" if char == " " else _tab(column, True)
            column += len(shown)
            yield shown, True
        return
    plain: list[str] = []
    stacked = 0
    for char in text[start:stop]:
        if char == "\t" and tabs:
            if plain:
                yield "".join(plain), False
                plain = []
            shown = _tab(column, ends)
            column += len(shown)
            yield shown, False
            continue
        stacked = stacked + 1 if not char.isascii() and unicodedata.category(char) in ("Mn", "Me") else 0
        if needs_escape(char) or stacked > MAX_MARKS:
            if plain:
                yield "".join(plain), False
                plain = []
            column += len(escape_char(char))
            yield escape_char(char), True
        else:
            column += _cells(char)
            plain.append(char)
    if plain:
        yield "".join(plain), False


def _tab(column: int, seen: bool) -> str:
    cells = TAB - column % TAB
    return ("→" if seen else " ") + " " * (cells - 1)


def _lookalikes(text: str) -> list[Range]:
    """Find letters of another script in a word with Latin letters: they look like Latin letters."""
    if text.isascii():
        return []
    found: list[Range] = []
    for word in _WORD.finditer(text):
        if word[0].isascii() or not any(char.isascii() for char in word[0]):
            continue
        for at, char in enumerate(word[0], word.start()):
            if not char.isascii() and unicodedata.name(char, "").startswith(_LATIN_LIKE):
                found.append((at, at + 1))
    return found


def remarks(text: str, *, added: bool) -> list[str]:
    """Describe invisible and misleading characters of a line in words, for readers without colours."""
    if is_plain(text) and text[-1:] != " ":
        return []
    found: dict[str, None] = {}
    for char in text:
        if needs_escape(char) and char != "\t":
            found[_char_name(char)] = None
    for start, stop in _lookalikes(text):
        char = text[start:stop]
        found[f"U+{ord(char):04X} {unicodedata.name(char, '').lower()}, inside a Latin word"] = None
    if not text.isascii() and any(unicodedata.bidirectional(char) in ("R", "AL") for char in text):
        found["right-to-left letters: your terminal may reorder them"] = None
    if added and text.rstrip("\r")[-1:] in (" ", "\t"):
        found["trailing spaces"] = None
    return list(found)


def _char_name(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return "bytes that are not UTF-8"
    name = _NAMES.get(char) or unicodedata.name(char, "").lower() or "a control character"
    return f"U+{code:04X} {name}"
