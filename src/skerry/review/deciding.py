"""What is asked of a review, carried out: all of it, or nothing. Pure, but for reading the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skerry.errors import Conflict, InvalidRequest, SkerryError
from skerry.review.hunks import Changed, Unit, Wish
from skerry.review.survey import Chosen, Ground, below, packed, spelled, survey
from skerry.types import DecideRequest

Known = Mapping[str, bytes]
"""Which path a hunk is of, as far as that is known already."""


@dataclass
class Outcome:
    """`decided`: of each path that something was said about, all that is now decided, packed. `files`: the same as they
    are now, with the ids of the hunks that changed. `held_back`: flagged, and so not accepted by the way."""

    decided: dict[bytes, bytes] = field(default_factory=dict)
    files: list[tuple[Changed, set[str]]] = field(default_factory=list)
    held_back: list[tuple[Changed, set[str]]] = field(default_factory=list)


def decide(ground: Ground, request: DecideRequest, known: Known, at: float) -> Outcome:
    named = wishes_of(request)
    by_the_way = below(spelled(request.paths)) if request.do else None
    outcome, found = Outcome(), set()
    with_others = _moved(ground, request) if by_the_way is not None else set()
    for changed in survey(ground, _where(named, known, by_the_way)):
        wishes: dict[str, Wish] = {}
        held: set[str] = set()
        swept = by_the_way is not None and by_the_way(changed.delta)
        for unit in changed.units:
            if unit.id in named:
                found.add(unit.id)
                wishes[unit.id] = checked(changed, unit, named[unit.id])
            elif swept and request.do == "accept" and unit.state == "open" and unit.risk:
                held.add(unit.id)
            elif swept and _meant(unit, request.do):
                wishes[unit.id] = Wish(request.do or "reopen", request.reason)
        if swept and wishes and changed.delta.path in with_others:
            raise _changed(f"{_spelled(changed)} changed since you looked at it")
        if held:
            outcome.held_back.append((changed, held))
        if wishes:
            _take(outcome, changed, wishes, at)
    if missing := [hunk for hunk in named if hunk not in found]:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _changed(f"{missing[0]} is not there as it was{more}", missing)
    return outcome


def _take(outcome: Outcome, changed: Changed, wishes: dict[str, Wish], at: float) -> None:
    before = {unit.id: unit for unit in changed.units}
    decisions = changed.decided(wishes, at)
    after = changed.again(decisions)
    differ = {
        unit.id
        for unit in after.units
        if unit.id in wishes or unit.id not in before or unit.decision != before[unit.id].decision
    }
    outcome.decided[changed.delta.path] = packed(decisions)
    outcome.files.append((after, differ))


def wishes_of(request: DecideRequest) -> dict[str, Wish]:
    said = [
        *((hunk, Wish("accept", request.reason)) for hunk in request.accept),
        *((hunk, Wish("reject", request.reason)) for hunk in request.reject),
        *((hunk, Wish("reopen")) for hunk in request.reopen),
        *((hunk, Wish("split")) for hunk in request.split),
        *((hunk, Wish("edit", request.reason, text.encode())) for hunk, text in request.edit.items()),
    ]
    named = dict(said)
    if len({(hunk, wish.do) for hunk, wish in said}) > len(named):
        raise InvalidRequest("a hunk is named twice, with two things to do")
    return named


def checked(changed: Changed, unit: Unit, wish: Wish) -> Wish:
    """The wish, if it can be done to this hunk."""
    if wish.do == "split" and len(unit.pieces) < 2:
        raise InvalidRequest(f"{unit.id} can't be split: it is one change", hint="edit it")
    if wish.text is None:
        return wish
    if unit.kind not in ("text", "added"):
        raise InvalidRequest(f"{unit.id} can't be edited: it is about a file as a whole")
    first, last = (unit.pieces[0], unit.pieces[-1]) if unit.pieces else (None, None)
    span = changed.tip[first.new_start : last.new_end] if first and last else changed.tip
    try:
        b"".join(span).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{unit.id} can't be edited: it is not UTF-8") from None
    ends_the_file = last is None or last.end == len(changed.base)
    if wish.text and not wish.text.endswith(b"\n") and not ends_the_file:
        return wish._replace(text=wish.text + b"\n")
    return wish


def _where(named: Mapping[str, Wish], known: Known, by_the_way: Chosen | None) -> Chosen | None:
    """The files that have to be looked at; None: all."""
    if any(hunk not in known for hunk in named):
        return None
    paths = {known[hunk] for hunk in named}
    return lambda delta: delta.path in paths or (by_the_way is not None and by_the_way(delta))


def _meant(unit: Unit, do: str | None) -> bool:
    return unit.state != "open" if do == "reopen" else unit.state == "open"


def _moved(ground: Ground, request: DecideRequest) -> set[bytes]:
    """What changed since the caller looked."""
    if request.tip is None or request.tip == ground.tip:
        return set()
    try:
        return {delta.path for delta in ground.ledger.deltas(request.tip, ground.tip)}
    except SkerryError as error:
        raise InvalidRequest(f"tip: {request.tip[:80]!r} is no commit of this ledger") from error


def _spelled(changed: Changed) -> str:
    return changed.delta.path.decode("utf-8", "replace")


def _changed(message: str, hunks: list[str] | None = None) -> Conflict:
    return Conflict(
        message,
        hint="its content changed meanwhile, or it was applied: look again, and decide about what is there now",
        details={"hunks": hunks[:100]} if hunks else {},
    )
