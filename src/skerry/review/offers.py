"""What was accepted, ready to land; and what follows when it has landed: the base moves on, decisions move along."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from skerry.errors import Conflict
from skerry.review.carry import Decision, Landed, moved, reverse
from skerry.review.facts import Facts
from skerry.review.hunks import Changed, Wish
from skerry.review.landing import Landing, land
from skerry.review.showing import Showing
from skerry.review.survey import Chosen, Ground, entries, packed, survey
from skerry.types import Hunk

REASON_TEXT_MOST = 500
SHOWN_HUNKS, SHOWN_TEXT, SHOWN_ROOM = 1000, 4 << 10, 256 << 10
Entry = tuple[str, str]  # mode and blob


class OfferedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file from what it is in the base to what it becomes; None: not there. As in `Landing` else."""

    path: bytes
    kind: Literal["added", "modified", "deleted", "renamed"]
    hunks: tuple[str, ...]
    old_path: bytes | None = None
    old: Entry | None = None
    new: Entry | None = None
    old_size: int | None = None
    new_size: int | None = None
    whole: bool = False
    places: tuple[Landed, ...] = ()
    edited: tuple[Landed, ...] = ()
    taken: tuple[Decision, ...] = ()


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` is of the files, and of the base that they come from. `shown`: the hunks, as far as there is room, for
    who asks later what was applied."""

    base: str
    tip: str
    digest: str
    files: tuple[OfferedFile, ...]
    shown: tuple[Hunk, ...] = ()


def offered(ground: Ground, chosen: Chosen | None) -> Offer:
    """Contents that no commit has yet are written to the ledger."""
    files: list[OfferedFile] = []
    shown: list[Hunk] = []
    room = SHOWN_ROOM
    for changed in survey(ground, chosen):
        landing = land(changed)
        if landing.hunks:
            files.append(_file(ground, changed, landing))
            showing = Showing(changed, room)
            accepted = [unit for unit in changed.units if unit.state == "accepted"][: SHOWN_HUNKS - len(shown)]
            shown += [showing.hunk(unit, SHOWN_TEXT) for unit in accepted]
            room = showing.room or 0
    told = [(one.path, one.old_path, one.kind, one.old, one.new, one.hunks) for one in files]
    digest = hashlib.sha256(msgspec.msgpack.encode((ground.base, told))).hexdigest()
    return Offer(base=ground.base, tip=ground.tip, digest=digest, files=tuple(files), shown=tuple(shown))


def _file(ground: Ground, changed: Changed, landing: Landing) -> OfferedFile:
    delta = changed.delta
    oid = landing.oid if landing.data is None else ground.ledger.write(landing.data)
    new = None if landing.gone or landing.mode is None or oid is None else (landing.mode, oid)
    old = (delta.old_mode, delta.old_oid) if delta.old_mode is not None and delta.old_oid is not None else None
    sizes = {delta.old_oid: delta.old_size, delta.new_oid: delta.new_size}
    return OfferedFile(
        old_size=delta.old_size,
        new_size=None if new is None else sizes.get(oid) if landing.data is None else len(landing.data),
        path=delta.path, kind=delta.kind, hunks=landing.hunks, old_path=delta.old_path, old=old, new=new,
        whole=not changed.is_text and any(decision.whole for decision in landing.taken) and old != new,
        places=landing.places, edited=landing.edited, taken=landing.taken,
    )  # fmt: skip


# -- it has landed ----------------------------------------------------------------------------------------------------


def landed(ground: Ground, offer: Offer, said: Facts) -> tuple[Ground, dict[bytes, bytes]]:
    """The ground after it, with the base moved on, and the decisions that differ, packed. What was overtaken (the base
    has neither the old nor the new content: somebody applied something else to it) is left as it is. Done twice, the
    base moves once."""
    now = entries(ground.ledger, ground.base)
    files = [one for one in offer.files if _at(now, one) in ("old", "new")]
    changes: dict[bytes, Entry | None] = {}
    for one in files:
        if _at(now, one) == "old":
            if one.old_path is not None:
                changes[one.old_path] = None
            changes[one.path] = one.new
    base = ground.ledger.move_base(changes, said) if changes else ground.base
    decided: dict[bytes, bytes] = {}
    for one in files:
        if one.old_path is not None:
            decided[one.old_path] = b""
        decided[one.path] = packed(_after(ground.decisions(one.path), one))
    after = _replaced(ground, base, decided)
    decided |= _edits(after, [one for one in files if one.edited])
    return _replaced(after, base, decided), decided


def _replaced(ground: Ground, base: str, decided: dict[bytes, bytes]) -> Ground:
    known = {path: body for path, body in {**ground.decided, **decided}.items() if body}
    return Ground(ground.ledger, base, ground.tip, ground.key, known, ground.large)


def _at(now: dict[bytes, Entry], one: OfferedFile) -> Literal["old", "new", "other"]:
    here = now.get(one.path)
    if one.kind == "renamed":
        there = now.get(one.old_path or b"")
        return "old" if there == one.old and here is None else "new" if there is None and here == one.new else "other"
    return "old" if here == one.old else "new" if here == one.new else "other"


def _after(decisions: Sequence[Decision], one: OfferedFile) -> list[Decision]:
    return moved(_without(decisions, one), one.places)


def _without(decisions: Sequence[Decision], one: OfferedFile) -> list[Decision]:
    """What is not about what lands."""
    done = {(mark.start, mark.old, mark.digest) for taken in one.taken for mark in taken.marks}
    wholes = {taken.whole for taken in one.taken}
    left = []
    for decision in decisions:
        if decision.whole is not None:
            if decision.whole not in wholes:
                left.append(decision)
            continue
        marks = tuple(mark for mark in decision.marks if (mark.start, mark.old, mark.digest) not in done)
        if marks and not one.whole and (decision.edited is None or len(marks) == len(decision.marks)):
            left.append(msgspec.structs.replace(decision, marks=marks))
    return left


def _edits(ground: Ground, files: Sequence[OfferedFile]) -> dict[bytes, bytes]:
    """Where something else landed than was there inside, what is there is thereby rejected."""
    if not files:
        return {}
    spans = {one.path: [(s, e) for s, e in _spans(one)] for one in files}
    decided: dict[bytes, bytes] = {}
    for changed in survey(ground, lambda delta: delta.path in spans):
        parts = changed.again(
            changed.decided({u.id: Wish("split") for u in changed.units if len(u.pieces) > 1 and u.state == "open"}, 0)
        )
        wishes = {}
        for unit in parts.units:
            if unit.pieces and any(
                s <= unit.pieces[0].start and unit.pieces[-1].end <= e for s, e in spans[_of(changed)]
            ):
                wishes[unit.id] = Wish("reject", _instead(changed, unit.pieces[0].start, unit.pieces[-1].end))
        if wishes:
            told = parts.decided(wishes, 0.0)
            decided[_of(changed)] = packed([one for one in told if not (one.split and one.state == "open")])
    return decided


def _of(changed: Changed) -> bytes:
    return changed.delta.path


def _spans(one: OfferedFile) -> list[tuple[int, int]]:
    """Where edits are in the new base."""
    if not one.places:
        return [(place.start, place.start + place.lines) for place in one.edited]
    back = dict(zip(one.places, reverse(one.places), strict=True))
    return [(back[place].start, back[place].end) for place in one.edited]


def _instead(changed: Changed, start: int, end: int) -> str:
    text = b"".join(changed.base[start:end]).decode("utf-8", "replace")
    cut = text if len(text) <= REASON_TEXT_MOST else f"{text[:REASON_TEXT_MOST]}…"
    return (
        f"it was edited before it landed; this landed instead:\n{cut}" if cut else "it was edited out before it landed"
    )


# -- it was taken back ------------------------------------------------------------------------------------------------


def taken_back(ground: Ground, offer: Offer, said: Facts) -> tuple[Ground, dict[bytes, bytes]]:
    """The way back; what was accepted then is accepted again. Conflict where something else has landed since. Done
    twice, the base moves once."""
    now = entries(ground.ledger, ground.base)
    changes: dict[bytes, Entry | None] = {}
    for one in offer.files:
        match _at(now, one):
            case "new" if one.new != one.old or one.old_path is not None:
                changes[one.path] = None if one.old_path is not None else one.old
                if one.old_path is not None:
                    changes[one.old_path] = one.old
            case "other":
                raise Conflict(
                    f"{one.path.decode('utf-8', 'replace')}: something else was applied to it since",
                    hint="take that back first",
                )
    base = ground.ledger.move_base(changes, said) if changes else ground.base
    decided = {}
    for one in offer.files:
        before = moved(ground.decisions(one.path), reverse(one.places)) if not one.whole else []
        decided[one.path] = packed([*_without(before, one), *one.taken])
    return _replaced(ground, base, decided), decided


def decode_offer(body: bytes) -> Offer:
    return msgspec.msgpack.decode(body, type=Offer)
