"""Text from inside, made fit to be looked at: nothing in it speaks to the terminal, and nothing in it is unseen.

Bytes that are no UTF-8 come as surrogates (`surrogateescape`)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from skerry.cli.review.style import Ink, Row, Span, Style

TAB = 4
MOST_ON_ONE = 2  # combining marks on one letter; more would climb over the lines above
# Printable by their category, and yet nothing is seen of them: fillers, selectors of a variant, joiners. U+FFFD stands
# for bytes that were lost before they came here.
_UNSEEN = {0xFFFD, 0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810),
           *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}  # fmt: skip
_NAMES = {"\r": "CR", "\x1b": "ESC", "\x00": "NUL", "\x7f": "DEL", "\x08": "BS", "\x07": "BEL"}
_WORD = re.compile(r"[^\W\d_]{2,}")
_LATIN_LIKE = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "FULLWIDTH", "COPTIC", "LISU", "MATHEMATICAL")
Range = tuple[int, int]


def is_plain(text: str) -> bool:
    """Nothing in it has to be looked at twice."""
    return text.isascii() and text.isprintable()


def escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def is_odd(char: str) -> bool:
    return not char.isprintable() or ord(char) in _UNSEEN


def width_of(text: str) -> int:
    """In cells of the terminal, for text that was made visible."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def name_shown(name: str | bytes) -> str:
    """A file's name or another short text, on one line. Its spaces at the ends are shown, too."""
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    shown = "".join(span.text for span in spans(text, Style(), tabs=False))
    return shown if text == text.strip() else f"'{shown}'"


def spans(
    text: str, style: Style, *, inks: Sequence[tuple[int, int, Ink]] = (), marks: Sequence[Range] = (),
    ends: bool = False, tabs: bool = True,
) -> Row:  # fmt: skip
    """One line. `inks`, `marks`: which letters are what; `ends`: spaces at its end are shown as well, and tabs."""
    if not inks and not marks and is_plain(text) and not (ends and text[-1:] == " "):
        return (Span(style, text),) if text else ()
    made: list[Span] = []
    trailing = len(text.rstrip(" \t")) if ends else len(text)
    at = column = 0
    for stop, ink, mark in _pieces(len(text), inks, marks, trailing, _strange(text)):
        for shown, odd in _shown(text, at, stop, trailing, column, ends, tabs):
            column += width_of(shown)
            wanted = Style(style.ground, "odd" if odd else ink, mark or style.mark)
            if made and made[-1].style == wanted:
                made[-1] = Span(wanted, made[-1].text + shown)
            else:
                made.append(Span(wanted, shown))
        at = stop
    return tuple(made)


def _pieces(
    length: int, inks: Sequence[tuple[int, int, Ink]], marks: Sequence[Range], trailing: int, strange: Sequence[Range]
) -> Iterator[tuple[int, Ink, bool]]:
    """Where the style changes: up to where, which ink, whether marked."""
    stops = {length, trailing, *(at for start, stop, _ in inks for at in (start, stop))}
    stops |= {at for pair in (*marks, *strange) for at in pair}
    queue, marked, odd = list(inks), list(marks), list(strange)
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


def _shown(
    text: str, start: int, stop: int, trailing: int, column: int, ends: bool, tabs: bool
) -> Iterator[tuple[str, bool]]:
    """In pieces: what stands there, and whether it stands for something else."""
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
        if is_odd(char) or stacked > MOST_ON_ONE:
            if plain:
                yield "".join(plain), False
                plain = []
            column += len(escaped(char))
            yield escaped(char), True
        else:
            column += _cells(char)
            plain.append(char)
    if plain:
        yield "".join(plain), False


def _tab(column: int, seen: bool) -> str:
    cells = TAB - column % TAB
    return ("→" if seen else " ") + " " * (cells - 1)


def _strange(text: str) -> list[Range]:
    """Letters of another script in a word that has Latin ones: they look like what they are not."""
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
    """In words, for who sees no colours: what in this line does not show, or is not what it looks like."""
    if is_plain(text) and text[-1:] != " ":
        return []
    said: dict[str, None] = {}
    for char in text:
        if is_odd(char) and char != "\t":
            said[_called(char)] = None
    for start, stop in _strange(text):
        char = text[start:stop]
        said[f"U+{ord(char):04X} {unicodedata.name(char, '').lower()}, inside a Latin word"] = None
    if not text.isascii() and any(unicodedata.bidirectional(char) in ("R", "AL") for char in text):
        said["letters that are written from right to left: your terminal may show it in another order"] = None
    if added and text.rstrip("\r")[-1:] in (" ", "\t"):
        said["spaces at its end"] = None
    return list(said)


def _called(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return "bytes that are no UTF-8"
    name = _NAMES.get(char) or unicodedata.name(char, "").lower() or "a control character"
    return f"U+{code:04X} {name}"
