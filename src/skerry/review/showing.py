"""Hunks as they are told: their lines as in a patch, with what stands around them, and never more than a bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from skerry.review.carry import Piece
from skerry.review.hunks import Changed, Unit
from skerry.review.patches import Atom
from skerry.types import SHOWN_MOST, Hunk
from skerry.types.values import told_path

CONTEXT = 3
HEADING_MOST = 80
_NO_END = b"\n\\ No newline at end of file\n"


def told(path: bytes) -> tuple[str, bytes | None]:
    return told_path(path.decode("utf-8", "surrogateescape"))


class Showing:
    """The hunks of one file. `room`: bytes of text that all of them may have together, so that a list of many stays
    one that can be sent; what had none left is `truncated`."""

    def __init__(self, changed: Changed, room: int | None = None) -> None:
        self._changed = changed
        self.room = room
        self._heading_upto, self._heading = 0, b""
        spans = [(piece.start, piece.end) for piece in changed.pieces]
        self._free: dict[Piece, tuple[int, int]] = {}
        ends = [0, *(end for _, end in spans)]
        starts = [*(start for start, _ in spans), len(changed.base)]
        for number, piece in enumerate(changed.pieces):
            self._free[piece] = (ends[number], starts[number + 1])

    def hunk(self, unit: Unit, most: int | None = SHOWN_MOST) -> Hunk:
        """In the order of the file: headings are looked for as it goes on."""
        path, raw_path = told(self._changed.delta.path)
        numbers, text = self._lines(unit)
        bounds = [bound for bound in (most, self.room) if bound is not None]
        shown, truncated = _cut(text, min(bounds) if bounds else None)
        if self.room is not None:
            self.room = max(0, self.room - len(shown))
        try:
            readable, raw = shown.decode(), None
        except UnicodeDecodeError:
            readable, raw = shown.decode("utf-8", "replace"), shown
        old_start, old_lines, new_start, new_lines = numbers
        return Hunk(
            id=unit.id, path=path, kind=unit.kind, state=unit.state,
            reason=unit.decision.reason if unit.decision is not None else None, risk=unit.risk,
            old_start=old_start, old_lines=old_lines, new_start=new_start, new_lines=new_lines,
            heading=self._headed(unit), text=readable, raw=raw, truncated=truncated, splittable=len(unit.pieces) > 1,
            edited=unit.edited.decode() if unit.edited is not None else None, raw_path=raw_path,
        )  # fmt: skip

    def _lines(self, unit: Unit) -> tuple[tuple[int, int, int, int], Iterator[bytes]]:
        changed = self._changed
        if unit.pieces:
            first, last = unit.pieces[0], unit.pieces[-1]
            before = min(CONTEXT, first.start - self._free[first][0])
            after = min(CONTEXT, self._free[last][1] - last.end)
            return _numbers(first, last, before, after), _patch(changed, unit.pieces, before, after)
        if unit.kind == "renamed":
            return (0, 0, 0, 0), _chunks(changed)
        if unit.kind in ("added", "deleted", "link"):
            everything = Piece(0, len(changed.base), 0, len(changed.tip))
            return _numbers(everything, everything, 0, 0), _patch(changed, (everything,), 0, 0)
        return (0, 0, 0, 0), iter(())

    def _headed(self, unit: Unit) -> str:
        """Of the lines before it the last that begins like a definition, as git has it; or what its modes become."""
        if unit.kind == "mode":
            return f"mode {self._changed.delta.old_mode} to {self._changed.delta.new_mode}"
        if not unit.pieces:
            return ""
        start = max(unit.pieces[0].start - CONTEXT, 0)
        for number in range(start - 1, self._heading_upto - 1, -1):
            line = self._changed.base[number]
            if line[:1].isalpha() or line[:1] in (b"_", b"$"):
                self._heading = line[:HEADING_MOST].rstrip()
                break
        self._heading_upto = max(start, self._heading_upto)
        return self._heading.decode("utf-8", "replace")


def _numbers(first: Piece, last: Piece, before: int, after: int) -> tuple[int, int, int, int]:
    """As in a patch: from one; a side without lines names the line before."""
    old, new = first.start - before, first.new_start - before
    old_lines, new_lines = last.end + after - old, last.new_end + after - new
    return old + (old_lines > 0), old_lines, new + (new_lines > 0), new_lines


def _patch(changed: Changed, pieces: Sequence[Piece], before: int, after: int) -> Iterator[bytes]:
    base, tip = changed.base, changed.tip
    last = pieces[-1]
    yield from _marked(b" ", base[pieces[0].start - before : pieces[0].start])
    for piece, following in (*pairwise(pieces), (last, None)):
        yield from _marked(b"-", base[piece.start : piece.end])
        yield from _marked(b"+", tip[piece.new_start : piece.new_end])
        yield from _marked(b" ", base[piece.end : following.start if following else last.end + after])


def _marked(sign: bytes, some: Sequence[bytes]) -> Iterator[bytes]:
    for line in some:
        yield sign + line if line.endswith(b"\n") else sign + line + _NO_END


def _chunks(changed: Changed) -> Iterator[bytes]:
    """A renamed file's lines, each place with its own `@@` line."""
    groups: list[list[Atom]] = []
    for atom in changed.atoms:
        if groups and atom.start - groups[-1][-1].end <= 2 * CONTEXT:
            groups[-1].append(atom)
        else:
            groups.append([atom])
    for group in groups:
        pieces = [Piece(*atom) for atom in group]
        before, after = min(CONTEXT, pieces[0].start), min(CONTEXT, len(changed.base) - pieces[-1].end)
        yield b"@@ -%d,%d +%d,%d @@\n" % _numbers(pieces[0], pieces[-1], before, after)
        yield from _patch(changed, pieces, before, after)


def _cut(text: Iterator[bytes], most: int | None) -> tuple[bytes, bool]:
    """Whole lines, as many as fit; a first one that does not is cut."""
    taken: list[bytes] = []
    size = 0
    for line in text:
        if most is not None and size + len(line) > most:
            if not taken:
                taken.append(line[:most])
            return b"".join(taken), True
        taken.append(line)
        size += len(line)
    return b"".join(taken), False
