"""One changed file, hunk by hunk: what each is, what was decided about it, and what follows from a decision."""

from __future__ import annotations

import copy
import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from skerry.review import lines, risk
from skerry.review.carry import Decision, Mark, Piece, carry, mark
from skerry.review.deltas import Delta
from skerry.review.patches import Atom, checked
from skerry.types import HunkKind, HunkState

JOINED = 6  # unchanged lines between two changes that git still shows as one: three of context each
LINK = "120000"
ASLEEP_MOST = 1000  # decisions kept of a file that are about nothing that is there now

Do = Literal["accept", "reject", "reopen", "split", "edit"]
_STATES: Mapping[str, HunkState] = {"accept": "accepted", "reject": "rejected", "edit": "accepted"}


class Sides(NamedTuple):
    """The contents before and after, and where they differ; both empty where they are not text."""

    old: bytes = b""
    new: bytes = b""
    atoms: Sequence[Atom] = ()


class Wish(NamedTuple):
    do: Do
    reason: str | None = None
    text: bytes | None = None  # of an edit


@dataclass(frozen=True)
class Unit:
    """A hunk, as far as deciding needs it. `whole`: the hash of what is changed as a whole; None: `pieces` of a
    text."""

    id: str
    kind: HunkKind
    risk: tuple[str, ...]
    pieces: tuple[Piece, ...] = ()
    whole: bytes | None = None
    decision: Decision | None = None

    @property
    def state(self) -> HunkState:
        return self.decision.state if self.decision is not None else "open"

    @property
    def edited(self) -> bytes | None:
        return self.decision.edited if self.decision is not None else None


class Changed:
    """`key` makes ids that nobody inside can foresee: else an agent could look for two hunks of one id, show one and
    have the other accepted. `large`: known by its hash alone."""

    def __init__(
        self, key: bytes, delta: Delta, decisions: Sequence[Decision], sides: Sides, *, large: bool = False
    ) -> None:
        self.delta = delta
        self.base, self.tip = lines.split(sides.old), lines.split(sides.new)
        self.atoms = checked(sides.atoms, self.base, self.tip)
        self._whole_atoms = set(self.atoms)
        self.whole_kinds, self.is_text = _shape(delta, large)
        self._key = key
        self._risk = {*risk.of_path(delta.path), *(risk.of_path(delta.old_path) if delta.old_path else ())}
        self._decide(decisions)

    def again(self, decisions: Sequence[Decision]) -> Changed:
        """The same change, with these decisions."""
        other = copy.copy(self)
        other._decide(decisions)
        return other

    def _decide(self, decisions: Sequence[Decision]) -> None:
        self.decisions = tuple(decisions)
        self.pieces = carry(self.decisions, self.base, self.tip, self.atoms) if self.is_text else []
        self._marks: dict[Piece, Mark] = {}
        self._turns = {piece: number for number, piece in enumerate(self.pieces)}
        self._equal: Counter[bytes] = Counter()
        self.units = (*map(self._whole_unit, self.whole_kinds), *map(self._text_unit, self._groups()))

    # -- what there is ------------------------------------------------------------------------------------------------

    def _groups(self) -> list[list[Piece]]:
        groups: list[list[Piece]] = []
        for piece in self.pieces:
            if groups and self._belongs(groups[-1][-1], piece):
                groups[-1].append(piece)
            else:
                groups.append([piece])
        return groups

    def _belongs(self, before: Piece, piece: Piece) -> bool:
        if before.decision != piece.decision:
            return False
        if piece.decision is not None and self.decisions[piece.decision].edited is not None:
            return True
        return piece.start - before.end <= JOINED

    def _text_unit(self, pieces: Sequence[Piece]) -> Unit:
        number = pieces[0].decision
        content = b"".join(b"%d %s" % (piece.start, self.mark(piece).digest) for piece in pieces)
        self._equal[content] += 1  # the same lines may be added twice at one place
        content += b"%d" % self._equal[content]
        decision = self.decisions[number] if number is not None else None
        return Unit(self._id("text", content), "text", tuple(sorted(self._risk)), tuple(pieces), None, decision)

    def _whole_unit(self, kind: HunkKind) -> Unit:
        whole = _whole(kind, self.delta)
        decision = next((one for one in self.decisions if one.whole == whole), None)
        risks = self._risk | set(risk.of_modes(self.delta.old_mode, self.delta.new_mode))
        return Unit(self._id(kind, whole), kind, tuple(sorted(risks)), (), whole, decision)

    def _id(self, kind: str, content: bytes) -> str:
        hashed = hashlib.blake2b(key=self._key, digest_size=8)
        hashed.update(b"%d %s %s " % (len(self.delta.path), self.delta.path, kind.encode()))
        hashed.update(content)
        return f"h-{hashed.hexdigest()}"

    def mark(self, piece: Piece) -> Mark:
        if piece not in self._marks:
            self._marks[piece] = mark(piece, self.base, self.tip)
        return self._marks[piece]

    # -- deciding -----------------------------------------------------------------------------------------------------

    def decided(self, wishes: Mapping[str, Wish], at: float) -> list[Decision]:
        """All decisions about this file, with these in place of what was said of their hunks before."""
        units = [unit for unit in self.units if unit.id in wishes]
        new = [made for unit in units for made in self._made(unit, wishes[unit.id], at)]
        return [*self._kept(units), *new]

    def _made(self, unit: Unit, wish: Wish, at: float) -> list[Decision]:
        before = unit.decision or Decision(state="open")
        marks = tuple(map(self.kept_mark, unit.pieces))
        if wish.do == "split":
            state = before.state if before.edited is None else "open"
            parts = unit.pieces if len(unit.pieces) > 1 else ()
            kept = [Decision(state=state, marks=(self.kept_mark(piece),), reason=before.reason, split=True, at=at)
                    for piece in parts]  # fmt: skip
            return kept or ([msgspec.structs.replace(unit.decision, marks=marks)] if unit.decision is not None else [])
        if wish.do == "reopen":
            again = before.split and before.state != "open"
            return [Decision(state="open", marks=marks, split=True, at=at)] if again else []
        edited = wish.text if wish.do == "edit" else None
        return [
            Decision(state=_STATES[wish.do], marks=marks, whole=unit.whole, reason=wish.reason, edited=edited,
                     split=before.split, at=at)
        ]  # fmt: skip

    def _kept(self, units: Sequence[Unit]) -> list[Decision]:
        """What else was decided. What is about nothing that is there now sleeps, and counts again if just that comes
        back; but not where something else was decided since."""
        spoken = {(piece.start, self.mark(piece).digest, piece.new_start) for u in units for piece in u.pieces}
        there = {
            (piece.decision, piece.start, self.mark(piece).digest): piece
            for piece in self.pieces
            if piece.decision is not None
        }
        touched = _Spans(self._atoms_of({*there.values(), *(piece for unit in units for piece in unit.pieces)}))
        wholes = {unit.whole for unit in self.units if unit.whole is not None}
        named = {unit.whole for unit in units if unit.whole is not None}
        asleep_go = any(unit.whole is not None and unit.kind != "mode" for unit in units)
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
                piece = there.get((number, one.start, one.digest))
                if piece is not None:
                    if (piece.start, one.digest, piece.new_start) not in spoken:
                        marks.append(msgspec.structs.replace(one, turn=self._turns[piece]))
                        awake = True
                elif not asleep_go and not touched.touch(one.start, one.end):
                    marks.append(one)
                else:
                    torn = decision.is_one
            if marks and not torn and (decision.edited is None or len(marks) == len(decision.marks)):
                (kept if awake else asleep).append(msgspec.structs.replace(decision, marks=tuple(marks)))
        return [*asleep[-ASLEEP_MOST:], *kept]

    def _atoms_of(self, pieces: set[Piece]) -> Iterator[tuple[int, int]]:
        number = 0
        for piece in self.pieces:
            while self.atoms[number].new_end < piece.new_end or self.atoms[number].end < piece.end:
                number += 1
            if piece in pieces:
                yield self.atoms[number].start, self.atoms[number].end

    def kept_mark(self, piece: Piece) -> Mark:
        """Its mark, as it is kept."""
        return msgspec.structs.replace(
            self.mark(piece), turn=self._turns[piece], part=piece[:4] not in self._whole_atoms
        )


class _Spans:
    """Places in a text, to ask whether another one touches them."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._spans = sorted(spans)
        self._starts = [start for start, _ in self._spans]

    def touch(self, start: int, end: int) -> bool:
        before = bisect_right(self._starts, end)
        return before > 0 and self._spans[before - 1][1] >= start


def _shape(delta: Delta, large: bool) -> tuple[list[HunkKind], bool]:
    """The hunks about the file as a whole, and whether there are hunks of lines beside them."""
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
