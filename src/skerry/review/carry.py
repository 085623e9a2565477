"""Decisions, and how they follow what they are about.

A decision is kept as marks: places in the base, each with the hash of the lines that were there and of those that were
to stand there instead. Other lines, or another place, is something else that nobody has decided yet. What a command
adds to lines that were decided is divided from them: the decided part, found again whole, keeps its state, and the rest
is open. What was accepted as one stays so only as one: half of it may do what the whole does not. Places are in the
base and not in the tip, so that nothing that happens elsewhere in a file moves them; when the base moves on, `moved`
goes along.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from skerry.review.patches import Atom
from skerry.types import HunkState

TRIES = 16  # places at which a decided part is looked for within a larger change
ROUNDS = 8  # after which nothing counts of what has to be there as one


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What was decided about one atom. `first`: of its first new line; to find it by. `turn`: which comes first of
    several at one place. `part`: it was a part of an atom already when it was decided."""

    start: int
    old: int
    new: int
    first: bytes
    digest: bytes
    turn: int = 0
    part: bool = False

    @property
    def end(self) -> int:
        return self.start + self.old


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said of one hunk. `whole`: the hash of a change to a file as a whole, in place of marks. `edited`: what
    lands from its first changed line to its last. `split`: it was divided from others; as `open` it says just that."""

    state: HunkState
    marks: tuple[Mark, ...] = ()
    whole: bytes | None = None
    reason: str | None = None
    edited: bytes | None = None
    split: bool = False
    at: float = 0.0

    @property
    def is_one(self) -> bool:
        """Does it count whole or not at all?"""
        return self.edited is not None or self.state == "accepted"


class Piece(NamedTuple):
    """An atom, or a part of one, and the decision that it has, by its number."""

    start: int
    end: int
    new_start: int
    new_end: int
    decision: int | None = None


def digest(old: Sequence[bytes], new: Sequence[bytes]) -> bytes:
    before = b"".join(old)
    sha = hashlib.sha256(b"%d %d %d\n" % (len(old), len(before), len(new)))
    sha.update(before)
    sha.update(b"".join(new))
    return sha.digest()


def first(new: Sequence[bytes]) -> bytes:
    return hashlib.sha256(new[0]).digest()[:8] if new else b""


def mark(piece: Piece, base: Sequence[bytes], tip: Sequence[bytes], turn: int = 0) -> Mark:
    old, new = base[piece.start : piece.end], tip[piece.new_start : piece.new_end]
    return Mark(piece.start, len(old), len(new), first(new), digest(old, new), turn)


def carry(
    decisions: Sequence[Decision], base: Sequence[bytes], tip: Sequence[bytes], atoms: Sequence[Atom]
) -> list[Piece]:
    """All of the atoms, in order, divided where a decision is about a part. What was accepted counts whole or not at
    all; and what an edit stands for has to be there with nothing new in between."""
    void: set[int] = set()
    for _ in range(ROUNDS):
        pieces = _carry(decisions, void, base, tip, atoms)
        broken = {n for n in _broken(pieces, decisions) if n not in void}
        if not broken:
            return pieces
        void |= broken
    void |= {n for n, decision in enumerate(decisions) if decision.is_one}
    return _carry(decisions, void, base, tip, atoms)


def _carry(
    decisions: Sequence[Decision], void: set[int], base: Sequence[bytes], tip: Sequence[bytes], atoms: Sequence[Atom]
) -> list[Piece]:
    marks = sorted(
        ((one, n) for n, decision in enumerate(decisions) if n not in void for one in decision.marks),
        key=lambda pair: (pair[0].start, pair[0].end, pair[0].turn),
    )
    pieces: list[Piece] = []
    upto = 0
    for atom in atoms:
        while upto < len(marks) and marks[upto][0].start < atom.start:
            upto += 1
        inside = []
        while upto < len(marks) and marks[upto][0].start <= atom.end:
            inside.append(marks[upto])
            upto += 1
        pieces += _divided(atom, inside, base, tip) if inside else [Piece(*atom)]
    return pieces


def _divided(atom: Atom, marks: Sequence[tuple[Mark, int]], base: Sequence[bytes], tip: Sequence[bytes]) -> list[Piece]:
    at, new_at = atom.start, atom.new_start
    search = _Search(atom, tip)
    parts: list[Piece] = []
    found: list[Mark] = []
    for one, number in marks:
        if one.start < at or one.end > atom.end:
            continue
        place = search.find(one, at, new_at, base)
        if place is None:
            continue
        if one.start > at or place > new_at:
            parts.append(Piece(at, one.start, new_at, place))
        at, new_at = one.end, place + one.new
        parts.append(Piece(one.start, at, place, new_at, number))
        found.append(one)
    if at < atom.end or new_at < atom.new_end:
        parts.append(Piece(at, atom.end, new_at, atom.new_end))
    return [Piece(*atom)] if len(found) == 1 and _replaced(atom, found[0]) else parts


def _replaced(atom: Atom, only: Mark) -> bool:
    """Lines that were to go are now to be replaced: that is another change."""
    whole = (only.start, only.end) == (atom.start, atom.end)
    return whole and not only.new and not only.part and atom.new_end > atom.new_start


class _Search:
    """For the new lines of a mark within those of an atom."""

    def __init__(self, atom: Atom, tip: Sequence[bytes]) -> None:
        self._atom = atom
        self._tip = tip
        self._firsts: dict[bytes, list[int]] | None = None

    def find(self, one: Mark, at: int, new_at: int, base: Sequence[bytes]) -> int | None:
        """Where they begin, in the tip; `at` and `new_at`: what comes before is taken."""
        old = base[one.start : one.end]
        if not one.new:  # as early as can be: what comes after it may be known by its lines
            return new_at if one.digest == digest(old, ()) else None
        for place in self._candidates(one, at, new_at):
            if one.digest == digest(old, self._tip[place : place + one.new]):
                return place
        return None

    def _candidates(self, one: Mark, at: int, new_at: int) -> Iterator[int]:
        last = self._atom.new_end - one.new
        if new_at > last:
            return
        if one.start == at:
            yield new_at
        if one.end == self._atom.end:
            yield last
        if self._firsts is None:
            self._firsts = {}
            for n in range(self._atom.new_start, self._atom.new_end):
                self._firsts.setdefault(first(self._tip[n : n + 1]), []).append(n)
        known = self._firsts.get(one.first, [])
        begin = bisect_left(known, new_at)
        yield from (place for place in known[begin : begin + TRIES] if place <= last)


def _broken(pieces: Sequence[Piece], decisions: Sequence[Decision]) -> Iterator[int]:
    """What was accepted and has lost a part; edits also if there is something new between two."""
    ones = {n for n, decision in enumerate(decisions) if decision.is_one and decision.marks}
    if not ones:
        return
    runs: dict[int, list[int]] = {}
    before: int | None = None
    for piece in pieces:
        if piece.decision in ones:
            runs.setdefault(piece.decision, [0, 0])
            runs[piece.decision][0] += 1
            runs[piece.decision][1] += piece.decision != before
        before = piece.decision
    for n, (count, parts) in runs.items():
        if count != len(decisions[n].marks) or (parts != 1 and decisions[n].edited is not None):
            yield n


class Landed(NamedTuple):
    """Lines of a base, and how many there are in their place in the next one."""

    start: int
    end: int
    lines: int


def moved(decisions: Iterable[Decision], landed: Sequence[Landed]) -> list[Decision]:
    """The decisions, in a base in which this has landed (in order, not overlapping). A mark that something landed on
    is gone, and with one of its marks what was accepted."""
    ends = [one.end for one in landed]
    shifts = [0, *itertools.accumulate(one.lines - (one.end - one.start) for one in landed)]
    found = []
    for decision in decisions:
        kept = []
        for old in decision.marks:
            before = bisect_right(ends, old.start)
            if before == len(landed) or landed[before].start >= old.end:
                kept.append(msgspec.structs.replace(old, start=old.start + shifts[before]))
        if len(kept) == len(decision.marks) or (kept and not decision.is_one):
            found.append(msgspec.structs.replace(decision, marks=tuple(kept)))
    return found


def reverse(landed: Sequence[Landed]) -> list[Landed]:
    """The way back: in the base that it led to."""
    back, shift = [], 0
    for one in landed:
        back.append(Landed(one.start + shift, one.start + shift + one.lines, one.end - one.start))
        shift += one.lines - (one.end - one.start)
    return back
