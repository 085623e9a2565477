"""Which words of a changed line differ from the line that it takes the place of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from skerry.cli.review.patch import Line

MOST_LINES = 60  # of one change; a longer one is new text rather than a changed one
MOST_LENGTH = 2000
MOST_WORDS = 80  # beyond, what lies between the equal ends is marked whole: no step grows with the square of a line
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)
Range = tuple[int, int]


def marks(lines: Sequence[Line]) -> dict[int, list[Range]]:
    """By the lines' places: the ranges that differ. Only where a line has one that it can be compared with."""
    found: dict[int, list[Range]] = {}
    at = 0
    while at < len(lines):
        removed = _run(lines, at, "removed")
        added = _run(lines, removed, "added")
        if 0 < removed - at == added - removed <= MOST_LINES:
            for place in range(at, removed):
                pair = _compared(lines[place].text, lines[place + removed - at].text)
                if pair:
                    found[place], found[place + removed - at] = pair
        at = max(added, at + 1)
    return found


def _run(lines: Sequence[Line], at: int, kind: str) -> int:
    while at < len(lines) and lines[at].kind in (kind, "note") and not (lines[at].kind == "note" and kind != "added"):
        at += 1
    return at


def _compared(old: str, new: str) -> tuple[list[Range], list[Range]] | None:
    if max(len(old), len(new)) > MOST_LENGTH:
        return None
    a, b = _WORD.findall(old), _WORD.findall(new)
    start = _equal(a, b)
    end = _equal(a[start:][::-1], b[start:][::-1])
    middle = a[start : len(a) - end], b[start : len(b) - end]
    offset = sum(map(len, a[:start]))
    if max(map(len, middle)) > MOST_WORDS:
        left: list[Range] = [(offset, offset + sum(map(len, middle[0])))]
        right: list[Range] = [(offset, offset + sum(map(len, middle[1])))]
    else:
        left, right = _middle(*middle, offset)
    kept = len(old.strip()) - sum(stop - start for start, stop in left)
    if 2 * kept < len(old.strip()) and 2 * kept < len(new.strip()):  # another line, not a changed one
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
