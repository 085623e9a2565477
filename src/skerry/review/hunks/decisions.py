"""Decisions, and how they follow the hunks that they are about.

A decision is stored as marks: places in the base, each with the hash of the old lines and of the new lines. Different
lines or a different place are a new, undecided change. Lines that a command adds to decided lines are separated from
them: the decided part, if it is found complete, keeps its state, and the rest is open. An accepted hunk stays accepted
only as a whole: half of it may do something that the whole does not. Places refer to the base and not to the tip, so
that changes elsewhere in a file do not move them; when the base moves, `shift_decisions` adjusts them.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from skerry.review.hunks.atoms import Atom
from skerry.types import HunkState

MAX_CANDIDATES = 16  # places at which to search for a decided part within a larger change
MAX_ROUNDS = 8  # after which atomic decisions are dropped


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A decided atom. `first`: hash of its first new line, to find it by. `turn`: order among several marks at one
    place. `part`: it was already a part of an atom when it was decided."""

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


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The decision about one hunk. `whole`: the hash of a whole-file change, in place of marks. `edited`: the text that
    replaces the hunk from its first changed line to its last. `split`: the hunk was divided; an `open` decision records
    only that. `by`: the deciding caller."""

    state: HunkState
    marks: tuple[Mark, ...] = ()
    whole: bytes | None = None
    reason: str | None = None
    edited: bytes | None = None
    split: bool = False
    at: float = 0.0
    by: str | None = None

    @property
    def is_atomic(self) -> bool:
        """Return whether the decision counts as a whole or not at all."""
        return self.edited is not None or self.state == "accepted"


class HunkSegment(NamedTuple):
    """An atom or a part of one, with the index of its decision."""

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


def mark(segment: HunkSegment, base: Sequence[bytes], tip: Sequence[bytes], turn: int = 0) -> Mark:
    old, new = base[segment.start : segment.end], tip[segment.new_start : segment.new_end]
    return Mark(segment.start, len(old), len(new), first(new), digest(old, new), turn)


def carry_over(
    decisions: Sequence[Decision], base: Sequence[bytes], tip: Sequence[bytes], atoms: Sequence[Atom]
) -> list[HunkSegment]:
    """Return all atoms, in order, divided where a decision covers only a part. An accepted hunk counts as a whole or
    not at all, and the segments of an edit must have nothing new between them."""
    void: set[int] = set()
    for _ in range(MAX_ROUNDS):
        segments = _assign(decisions, void, base, tip, atoms)
        broken = {n for n in _broken(segments, decisions) if n not in void}
        if not broken:
            return segments
        void |= broken
    void |= {n for n, decision in enumerate(decisions) if decision.is_atomic}
    return _assign(decisions, void, base, tip, atoms)


def _assign(
    decisions: Sequence[Decision], void: set[int], base: Sequence[bytes], tip: Sequence[bytes], atoms: Sequence[Atom]
) -> list[HunkSegment]:
    marks = sorted(
        ((one, n) for n, decision in enumerate(decisions) if n not in void for one in decision.marks),
        key=lambda pair: (pair[0].start, pair[0].end, pair[0].turn),
    )
    segments: list[HunkSegment] = []
    upto = 0
    for atom in atoms:
        while upto < len(marks) and marks[upto][0].start < atom.start:
            upto += 1
        inside = []
        while upto < len(marks) and marks[upto][0].start <= atom.end:
            inside.append(marks[upto])
            upto += 1
        segments += _divided(atom, inside, base, tip) if inside else [HunkSegment(*atom)]
    return segments


def _divided(
    atom: Atom, marks: Sequence[tuple[Mark, int]], base: Sequence[bytes], tip: Sequence[bytes]
) -> list[HunkSegment]:
    at, new_at = atom.start, atom.new_start
    search = _Search(atom, tip)
    parts: list[HunkSegment] = []
    found: list[Mark] = []
    for one, number in marks:
        if one.start < at or one.end > atom.end:
            continue
        place = search.find(one, at, new_at, base)
        if place is None:
            continue
        if one.start > at or place > new_at:
            parts.append(HunkSegment(at, one.start, new_at, place))
        at, new_at = one.end, place + one.new
        parts.append(HunkSegment(one.start, at, place, new_at, number))
        found.append(one)
    if at < atom.end or new_at < atom.new_end:
        parts.append(HunkSegment(at, atom.end, new_at, atom.new_end))
    return [HunkSegment(*atom)] if len(found) == 1 and _replaced(atom, found[0]) else parts


def _replaced(atom: Atom, only: Mark) -> bool:
    """Lines that were to be deleted are now replaced: that is a different change."""
    whole = (only.start, only.end) == (atom.start, atom.end)
    return whole and not only.new and not only.part and atom.new_end > atom.new_start


class _Search:
    """Search for the new lines of a mark within an atom."""

    def __init__(self, atom: Atom, tip: Sequence[bytes]) -> None:
        self._atom = atom
        self._tip = tip
        self._firsts: dict[bytes, list[int]] | None = None

    def find(self, one: Mark, at: int, new_at: int, base: Sequence[bytes]) -> int | None:
        """Return where they begin in the tip. Everything before `at` and `new_at` is already assigned."""
        old = base[one.start : one.end]
        if not one.new:  # as early as possible: the marks that follow may be found by their lines
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
        yield from (place for place in known[begin : begin + MAX_CANDIDATES] if place <= last)


def _broken(segments: Sequence[HunkSegment], decisions: Sequence[Decision]) -> Iterator[int]:
    """Yield accepted decisions that lost a part, and edits with something new between two segments."""
    ones = {n for n, decision in enumerate(decisions) if decision.is_atomic and decision.marks}
    if not ones:
        return
    runs: dict[int, list[int]] = {}
    before: int | None = None
    for segment in segments:
        if segment.decision in ones:
            runs.setdefault(segment.decision, [0, 0])
            runs[segment.decision][0] += 1
            runs[segment.decision][1] += segment.decision != before
        before = segment.decision
    for n, (count, parts) in runs.items():
        if count != len(decisions[n].marks) or (parts != 1 and decisions[n].edited is not None):
            yield n


class AppliedSpan(NamedTuple):
    """Lines of a base, and the number of lines that replace them in the next one."""

    start: int
    end: int
    lines: int


def shift_decisions(decisions: Iterable[Decision], landed: Sequence[AppliedSpan]) -> list[Decision]:
    """Return the decisions in a base to which `landed` was applied (in order, without overlaps). A mark under an
    applied span is dropped; an accepted decision is dropped with any of its marks."""
    ends = [one.end for one in landed]
    shifts = [0, *itertools.accumulate(one.lines - (one.end - one.start) for one in landed)]
    found = []
    for decision in decisions:
        kept = []
        for old in decision.marks:
            before = bisect_right(ends, old.start)
            if before == len(landed) or landed[before].start >= old.end:
                kept.append(msgspec.structs.replace(old, start=old.start + shifts[before]))
        if len(kept) == len(decision.marks) or (kept and not decision.is_atomic):
            found.append(msgspec.structs.replace(decision, marks=tuple(kept)))
    return found


def reverse_spans(landed: Sequence[AppliedSpan]) -> list[AppliedSpan]:
    """Return the spans of the reverse change, in the base that it starts from."""
    back, shift = [], 0
    for one in landed:
        back.append(AppliedSpan(one.start + shift, one.start + shift + one.lines, one.end - one.start))
        shift += one.lines - (one.end - one.start)
    return back
