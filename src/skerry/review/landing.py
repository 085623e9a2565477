"""What is to land of one file: the base with what was accepted, and nothing else, exact to the byte."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.review import lines
from skerry.review.carry import Decision, Landed
from skerry.review.hunks import Changed, Unit


@dataclass(frozen=True)
class Landing:
    """`hunks`: the accepted ones, none: nothing lands. `gone`: the file goes. `data`: its content, or None where that
    is the blob `oid`. `places`: where the base changes, and of them `edited`: what is there then was written by who
    reviewed it. `taken`: the decisions that are done with when it has landed."""

    hunks: tuple[str, ...] = ()
    gone: bool = False
    mode: str | None = None
    oid: str | None = None
    data: bytes | None = None
    places: tuple[Landed, ...] = ()
    edited: tuple[Landed, ...] = ()
    taken: tuple[Decision, ...] = ()


def land(changed: Changed) -> Landing:
    delta = changed.delta
    accepted = [unit for unit in changed.units if unit.state == "accepted"]
    hunks = tuple(unit.id for unit in accepted)
    if not accepted:
        return Landing(mode=delta.old_mode, oid=delta.old_oid)
    taken = tuple(_taken(changed, unit) for unit in accepted)
    kinds = {unit.kind for unit in accepted}
    if not changed.is_text and kinds != {"mode"}:
        edited = accepted[0].edited
        return Landing(
            hunks=hunks, gone="deleted" in kinds, mode=delta.new_mode, taken=taken,
            oid=delta.new_oid if edited is None else None, data=edited,
            edited=(Landed(0, 0, len(lines.split(edited))),) if edited is not None else (),
        )  # fmt: skip
    mode = delta.new_mode if "mode" in kinds else delta.old_mode
    texts = [unit for unit in accepted if unit.pieces]
    if not texts:
        return Landing(hunks=hunks, mode=mode, oid=delta.old_oid, taken=taken)
    places = [(place, content) for unit in texts for place, content in _places(changed, unit)]
    edits = {id(unit) for unit in texts if unit.edited is not None}
    whole = not edits and sum(len(unit.pieces) for unit in texts) == len(changed.pieces)
    return Landing(
        hunks=hunks, mode=mode, oid=delta.new_oid if whole else None, taken=taken,
        data=None if whole else _spliced(changed, places),
        places=tuple(place for place, _ in places),
        edited=tuple(_places(changed, unit)[0][0] for unit in texts if id(unit) in edits),
    )  # fmt: skip


def _taken(changed: Changed, unit: Unit) -> Decision:
    decision = unit.decision or Decision(state="accepted")
    return Decision(
        state="accepted", marks=tuple(map(changed.kept_mark, unit.pieces)), whole=unit.whole, reason=decision.reason,
        edited=decision.edited, split=decision.split, at=decision.at,
    )  # fmt: skip


def _places(changed: Changed, unit: Unit) -> list[tuple[Landed, list[bytes]]]:
    """What stands where then. An edit takes the place of all from the first changed line to the last."""
    if unit.edited is not None:
        content = lines.split(unit.edited)
        return [(Landed(unit.pieces[0].start, unit.pieces[-1].end, len(content)), content)]
    return [
        (Landed(piece.start, piece.end, piece.new_end - piece.new_start), changed.tip[piece.new_start : piece.new_end])
        for piece in unit.pieces
    ]


def _spliced(changed: Changed, places: list[tuple[Landed, list[bytes]]]) -> bytes:
    whole: list[bytes] = []
    at = 0
    for place, content in places:
        whole += changed.base[at : place.start]
        whole += content
        at = place.end
    whole += changed.base[at:]
    return lines.join(whole)
