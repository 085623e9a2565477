"""One changed file as hunks: their content, the decisions about them, and the effect of a new decision."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from skerry.review.hunks import risk
from skerry.review.hunks.atoms import Atom, check_atoms, split_lines
from skerry.review.hunks.decisions import Decision, HunkSegment, Mark, carry_over, mark
from skerry.review.ledger.diff import Delta
from skerry.types import HunkKind, HunkState

MAX_JOIN_DISTANCE = 6  # unchanged lines between two changes that git still shows as one: three of context each
LINK = "120000"
MAX_DORMANT = 1000  # decisions of a file that match no current change

Action = Literal["accept", "reject", "reopen", "split", "edit"]
_STATES: Mapping[str, HunkState] = {"accept": "accepted", "reject": "rejected", "edit": "accepted"}


class Sides(NamedTuple):
    """The contents before and after, and the places at which they differ; empty if they are not text."""

    old: bytes = b""
    new: bytes = b""
    atoms: Sequence[Atom] = ()


class HunkAction(NamedTuple):
    do: Action
    reason: str | None = None
    text: bytes | None = None  # for an edit


class FileHunk(msgspec.Struct, frozen=True, gc=False):
    """A hunk with the values that decisions need. `whole`: the hash of a whole-file change; None: `segments` of a
    text."""

    id: str
    kind: HunkKind
    risk: tuple[str, ...]
    segments: tuple[HunkSegment, ...] = ()
    whole: bytes | None = None
    decision: Decision | None = None

    @property
    def state(self) -> HunkState:
        return self.decision.state if self.decision is not None else "open"

    @property
    def edited(self) -> bytes | None:
        return self.decision.edited if self.decision is not None else None


class ReviewedFile:
    """`key` makes hunk IDs unpredictable for the agent, which could otherwise search for two hunks with one ID, show
    one and get the other accepted. `large`: the content is known only by its hash."""

    def __init__(
        self, key: bytes, delta: Delta, decisions: Sequence[Decision], sides: Sides, *, large: bool = False
    ) -> None:
        self.delta = delta
        self._sides = sides
        self.whole_kinds, self.is_text = _shape(delta, large)
        self._key = key
        self._risk = risk.of_names(delta, large=large)
        self._wholes = [self._whole_hunk(kind) for kind in self.whole_kinds]
        self._decide(decisions)

    # Most files of a large change are new: only their names and hashes are needed.

    @cached_property
    def base(self) -> list[bytes]:
        return split_lines(self._sides.old)

    @cached_property
    def tip(self) -> list[bytes]:
        return split_lines(self._sides.new)

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        return check_atoms(self._sides.atoms, self.base, self.tip)

    @cached_property
    def _whole_atoms(self) -> set[Atom]:
        return set(self.atoms)

    def with_decisions(self, decisions: Sequence[Decision]) -> ReviewedFile:
        """Return the same file with other decisions."""
        other = object.__new__(ReviewedFile)
        other.__dict__.update(self.__dict__)
        other._decide(decisions)
        return other

    def _decide(self, decisions: Sequence[Decision]) -> None:
        self.decisions = tuple(decisions)
        self.segments = carry_over(self.decisions, self.base, self.tip, self.atoms) if self.is_text else []
        self.hunks = tuple(map(self._decided_whole, self._wholes)) if self.decisions else tuple(self._wholes)
        if self.is_text:
            self._marks: dict[HunkSegment, Mark] = {}
            self._turns = {segment: number for number, segment in enumerate(self.segments)}
            self._equal: Counter[bytes] = Counter()
            self.hunks += tuple(map(self._text_hunk, self._groups()))

    # -- hunks ---------------------------------------------------------------------------------------------------------

    def _groups(self) -> list[list[HunkSegment]]:
        groups: list[list[HunkSegment]] = []
        for segment in self.segments:
            if groups and self._belongs(groups[-1][-1], segment):
                groups[-1].append(segment)
            else:
                groups.append([segment])
        return groups

    def _belongs(self, before: HunkSegment, segment: HunkSegment) -> bool:
        if before.decision != segment.decision:
            return False
        if segment.decision is not None and self.decisions[segment.decision].edited is not None:
            return True
        return segment.start - before.end <= MAX_JOIN_DISTANCE

    def _text_hunk(self, segments: Sequence[HunkSegment]) -> FileHunk:
        number = segments[0].decision
        content = b"".join(b"%d %s" % (segment.start, self.mark(segment).digest) for segment in segments)
        self._equal[content] += 1  # the same lines may be added twice at one place
        content += b"%d" % self._equal[content]
        decision = self.decisions[number] if number is not None else None
        return FileHunk(self._id("text", content), "text", tuple(sorted(self._risk)), tuple(segments), None, decision)

    def _whole_hunk(self, kind: HunkKind) -> FileHunk:
        whole = _whole(kind, self.delta)
        risks = self._risk.union(risk.of_modes(self.delta.old_mode, self.delta.new_mode))
        return FileHunk(self._id(kind, whole), kind, tuple(sorted(risks)), (), whole)

    def _decided_whole(self, hunk: FileHunk) -> FileHunk:
        for decision in self.decisions:
            if decision.whole == hunk.whole:
                return FileHunk(hunk.id, hunk.kind, hunk.risk, (), hunk.whole, decision)
        return hunk

    def _id(self, kind: str, content: bytes) -> str:
        hashed = hashlib.blake2b(key=self._key, digest_size=8)
        hashed.update(b"%d %s %s " % (len(self.delta.path), self.delta.path, kind.encode()))
        hashed.update(content)
        return f"h-{hashed.hexdigest()}"

    def mark(self, segment: HunkSegment) -> Mark:
        if segment not in self._marks:
            self._marks[segment] = mark(segment, self.base, self.tip)
        return self._marks[segment]

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decided(self, actions: Mapping[str, HunkAction], at: float, by: str | None = None) -> list[Decision]:
        """Return all decisions about this file, with the new ones in place of earlier decisions about the same
        hunks."""
        hunks = [hunk for hunk in self.hunks if hunk.id in actions]
        new = [made for hunk in hunks for made in self._made(hunk, actions[hunk.id], at, by)]
        return [*self._kept(hunks), *new]

    def _made(self, hunk: FileHunk, action: HunkAction, at: float, by: str | None) -> list[Decision]:
        before = hunk.decision or Decision(state="open")
        marks = tuple(map(self.kept_mark, hunk.segments))
        if action.do == "split":
            state = before.state if before.edited is None else "open"
            parts = hunk.segments if len(hunk.segments) > 1 else ()
            kept = [Decision(state=state, marks=(self.kept_mark(segment),), reason=before.reason, split=True, at=at,
                             by=before.by)
                    for segment in parts]  # fmt: skip
            return kept or ([msgspec.structs.replace(hunk.decision, marks=marks)] if hunk.decision is not None else [])
        if action.do == "reopen":
            again = before.split and before.state != "open"
            return [Decision(state="open", marks=marks, split=True, at=at)] if again else []
        edited = action.text if action.do == "edit" else None
        return [
            Decision(state=_STATES[action.do], marks=marks, whole=hunk.whole, reason=action.reason, edited=edited,
                     split=before.split, at=at, by=by)
        ]  # fmt: skip

    def _kept(self, hunks: Sequence[FileHunk]) -> list[Decision]:
        """Return the other decisions. A decision that matches no current change is kept dormant and counts again if
        that change returns, unless another decision about its place was made since."""
        if not self.decisions:
            return []
        spoken = {
            (segment.start, self.mark(segment).digest, segment.new_start) for u in hunks for segment in u.segments
        }
        there = {
            (segment.decision, segment.start, self.mark(segment).digest): segment
            for segment in self.segments
            if segment.decision is not None
        }
        touched = _Spans(self._atoms_of({*there.values(), *(segment for hunk in hunks for segment in hunk.segments)}))
        wholes = {hunk.whole for hunk in self.hunks if hunk.whole is not None}
        named = {hunk.whole for hunk in hunks if hunk.whole is not None}
        asleep_go = any(hunk.whole is not None and hunk.kind != "mode" for hunk in hunks)
        kept: list[Decision] = []
        asleep: list[Decision] = []
        for number, decision in enumerate(self.decisions):
            if decision.whole is not None:
                if decision.whole in wholes:
                    kept += [decision] if decision.whole not in named else []
                elif not named:
                    asleep.append(decision)
                continue
            marks, awake, torn = [], False, False
            for one in decision.marks:
                segment = there.get((number, one.start, one.digest))
                if segment is not None:
                    if (segment.start, one.digest, segment.new_start) not in spoken:
                        marks.append(msgspec.structs.replace(one, turn=self._turns[segment]))
                        awake = True
                elif not asleep_go and not touched.touch(one.start, one.end):
                    marks.append(one)
                else:
                    torn = decision.is_atomic
            if marks and not torn and (decision.edited is None or len(marks) == len(decision.marks)):
                (kept if awake else asleep).append(msgspec.structs.replace(decision, marks=tuple(marks)))
        return [*asleep[-MAX_DORMANT:], *kept]

    def _atoms_of(self, segments: set[HunkSegment]) -> Iterator[tuple[int, int]]:
        number = 0
        for segment in self.segments:
            while self.atoms[number].new_end < segment.new_end or self.atoms[number].end < segment.end:
                number += 1
            if segment in segments:
                yield self.atoms[number].start, self.atoms[number].end

    def kept_mark(self, segment: HunkSegment) -> Mark:
        """Return the stored mark."""
        return msgspec.structs.replace(
            self.mark(segment), turn=self._turns[segment], part=segment[:4] not in self._whole_atoms
        )


class _Spans:
    """Spans of a text, to test whether another span touches one of them."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._spans = sorted(spans)
        self._starts = [start for start, _ in self._spans]

    def touch(self, start: int, end: int) -> bool:
        before = bisect_right(self._starts, end)
        return before > 0 and self._spans[before - 1][1] >= start


def _shape(delta: Delta, large: bool) -> tuple[list[HunkKind], bool]:
    """Return the whole-file hunks, and whether text hunks exist beside them."""
    if delta.kind in ("renamed", "deleted"):
        return ["renamed" if delta.kind == "renamed" else "deleted"], False
    if large:
        return ["large"], False
    if LINK in (delta.old_mode, delta.new_mode):
        return ["link"], False
    if delta.binary:
        return ["binary"] if delta.old_oid != delta.new_oid else ["mode"], False
    if delta.kind == "added":
        return ["added"], False
    return ["mode"] if delta.old_mode != delta.new_mode else [], delta.old_oid != delta.new_oid


def _whole(kind: HunkKind, delta: Delta) -> bytes:
    about: tuple[object, ...] = (kind, delta.old_mode, delta.new_mode)
    if kind != "mode":
        about = (*about, delta.old_path, delta.old_oid, delta.new_oid)
    return hashlib.sha256(msgspec.msgpack.encode(about)).digest()
