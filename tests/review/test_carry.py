"""A decision follows its hunk, keeps to what was shown, and falls when that changes."""

from __future__ import annotations

import random

import pytest
from review.changing import KEY, after, all_of, changed, later, modified, mutated, states, text

from skerry.review.carry import Landed, moved, reverse
from skerry.review.hunks import Changed, Sides, Wish
from skerry.review.landing import land
from skerry.review.patches import Atom

BASE = b"".join(b"line %d\n" % n for n in range(40))
ACCEPT, REJECT, REOPEN, SPLIT = Wish("accept"), Wish("reject", "no"), Wish("reopen"), Wish("split")


def at(data: bytes, number: int, new: bytes, count: int = 1) -> bytes:
    some = data.split(b"\n")
    some[number : number + count] = [new] if new else []
    return b"\n".join(some)


def landed(file: Changed) -> bytes:
    result = land(file)
    if result.data is not None:
        return result.data
    return b"".join(file.tip if result.oid == file.delta.new_oid else file.base)


def test_changes_near_each_other_are_one_hunk_and_far_ones_are_two() -> None:
    near, far = at(at(BASE, 10, b"x"), 17, b"y"), at(at(BASE, 10, b"x"), 18, b"y")
    assert (len(changed(BASE, near).units), len(changed(BASE, far).units)) == (1, 2)


def test_a_decision_stays_when_lines_above_come_and_go() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x")), ACCEPT)
    [before] = file.units
    file = later(file, b"new\nnew\n" + at(at(BASE, 20, b"x"), 3, b""))
    assert [unit.state for unit in file.units if unit.id == before.id] == ["accepted"]
    assert landed(file) == at(BASE, 20, b"x")


def test_a_decision_falls_when_its_content_changes_and_counts_again_when_it_comes_back() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x")), ACCEPT)
    other = later(file, at(BASE, 20, b"y"))
    assert (states(other), landed(other)) == (["open"], BASE)
    assert states(later(other, at(BASE, 20, b"x"))) == ["accepted"]


def test_what_was_decided_anew_does_not_come_back_as_it_was_decided_before() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x")), ACCEPT)
    other = all_of(later(file, at(BASE, 20, b"y")), REJECT)
    assert states(later(other, at(BASE, 20, b"x"))) == ["open"]
    assert states(later(other, at(BASE, 20, b"y"))) == ["rejected"]


@pytest.mark.parametrize("extended", [b"x\ny", b"y\nx", b"y\nx\nz", b"y\nx\nx"])
def test_what_is_added_to_decided_lines_is_open_and_they_keep_their_state(extended: bytes) -> None:
    inserted = at(BASE, 20, b"x", 0)
    file = later(all_of(changed(BASE, inserted), ACCEPT), at(BASE, 20, extended, 0))
    assert "accepted" in states(file)
    assert "open" in states(file)
    assert landed(file) == inserted
    assert landed(all_of(file, ACCEPT)) == at(BASE, 20, extended, 0)


def test_a_decided_line_within_a_larger_change_keeps_its_state() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x")), REJECT)
    file = later(file, at(at(at(BASE, 19, b"v"), 20, b"x"), 21, b"w"))
    assert states(file) == ["open", "rejected", "open"]
    assert landed(all_of(file, ACCEPT)) == at(at(at(BASE, 19, b"v"), 20, b"x"), 21, b"w")


def test_the_same_lines_at_another_place_are_not_accepted() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x", 0)), ACCEPT)
    [here] = file.units
    elsewhere = later(file, at(BASE, 30, b"x", 0))
    assert states(elsewhere) == ["open"]
    assert elsewhere.units[0].id != here.id


def test_a_removal_that_becomes_a_replacement_is_open() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"")), ACCEPT)
    assert states(later(file, at(BASE, 20, b"evil"))) == ["open"]


def test_a_removal_that_was_decided_beside_what_comes_instead_stays() -> None:
    file = later(all_of(changed(BASE, at(BASE, 20, b"x", 0)), ACCEPT), at(BASE, 20, b"x"))
    added, removed = file.units
    assert (added.state, removed.state) == ("accepted", "open")
    file = after(file, {added.id: REOPEN, removed.id: ACCEPT})
    assert "accepted" in states(file)
    assert landed(file) == at(BASE, 20, b"")


def test_a_state_does_not_change_an_id_and_undoing_gives_it_back() -> None:
    file = changed(BASE, at(at(at(BASE, 10, b"x"), 12, b"y"), 30, b"z"))
    ids = [unit.id for unit in file.units]
    for wish in (ACCEPT, REJECT, REOPEN):
        file = after(file, {ids[0]: wish})
        assert [unit.id for unit in file.units] == ids
    parts = after(file, {ids[0]: SPLIT})
    assert len(parts.units) == 3
    part_ids = [unit.id for unit in parts.units]
    decided = after(after(parts, {part_ids[0]: ACCEPT}), {part_ids[1]: ACCEPT})
    assert [unit.id for unit in decided.units] == part_ids
    undone = after(decided, dict.fromkeys(part_ids[:2], REOPEN))
    assert [unit.id for unit in undone.units] == part_ids
    assert [unit.id for unit in after(undone, dict.fromkeys(part_ids[:2], REOPEN)).units] == ids


def test_an_edit_stands_whole_or_not_at_all() -> None:
    two = at(at(BASE, 10, b"x"), 13, b"y")
    file = changed(BASE, two)
    file = after(file, {file.units[0].id: Wish("edit", None, b"mine\n")})
    expected = BASE.replace(b"line 10\nline 11\nline 12\nline 13\n", b"mine\n")
    assert landed(file) == expected
    assert landed(later(file, at(two, 30, b"z"))) == expected
    between = later(file, at(two, 11, b"new"))
    assert (set(states(between)), landed(between)) == ({"open"}, BASE)


def test_what_was_accepted_as_one_does_not_land_by_halves() -> None:
    """A check that moves to another line: who takes it away there again has not been allowed to remove it."""
    base = BASE.replace(b"line 10\n", b"check()\n")
    other = base.replace(b"check()\n", b"").replace(b"line 13\n", b"line 13\ncheck()\n")
    file = all_of(changed(base, other), ACCEPT)
    assert (states(file), landed(file)) == (["accepted"], other)
    torn = later(file, other.replace(b"check()", b"chekc()"))
    assert (states(torn), landed(torn)) == (["open"], base)
    assert landed(later(torn, other)) == other, "it came back as it was"
    assert landed(later(torn, other + b"more\n")) == other, "elsewhere there is more"
    parts = after(torn, {torn.units[0].id: SPLIT})
    for part in parts.units:
        assert landed(after(parts, {part.id: REJECT})) == base, "one half says nothing of the other"


def test_what_was_accepted_as_one_is_open_when_something_landed_on_a_half_of_it() -> None:
    file = all_of(changed(BASE, at(at(BASE, 13, b"y"), 10, b"x")), ACCEPT)
    (decision,) = file.decisions
    assert len(decision.marks) == 2
    assert moved([decision], [Landed(9, 11, 1)]) == []
    assert len(moved([decision], [Landed(30, 31, 0)])) == 1


def test_a_mode_is_decided_by_itself() -> None:
    file = changed(BASE, at(BASE, 3, b"x"), delta=modified(new_mode="100755"))
    mode, line = file.units
    assert (mode.kind, line.kind) == ("mode", "text")
    assert (bool(mode.risk), bool(line.risk)) == (True, False)
    only_text = land(after(file, {line.id: ACCEPT}))
    assert (only_text.mode, only_text.oid) == ("100644", "2" * 40)
    only_mode = land(after(file, {mode.id: ACCEPT}))
    assert (only_mode.mode, only_mode.oid, only_mode.data) == ("100755", "1" * 40, None)
    assert land(after(file, {mode.id: ACCEPT, line.id: REJECT})).hunks == (mode.id,)


@pytest.mark.parametrize("seed", range(60))
def test_of_random_histories_only_what_was_accepted_lands_to_the_byte(seed: int) -> None:
    chance = random.Random(seed)
    base = text(chance)
    file = changed(base, mutated(chance, base))
    said: dict[tuple[int, tuple[bytes, ...], tuple[bytes, ...]], str] = {}
    for _ in range(25):
        if chance.random() < 0.35:
            file = later(file, mutated(chance, b"".join(file.tip)))
        elif file.units and not _twins(file):
            unit = chance.choice(file.units)
            wish = chance.choice([ACCEPT, ACCEPT, REJECT, REOPEN, SPLIT, Wish("edit", None, text(chance, 3))])
            for piece in unit.pieces:
                key = (piece.start, tuple(file.base[piece.start : piece.end]),
                       tuple(file.tip[piece.new_start : piece.new_end]))  # fmt: skip
                if wish.do == "edit":
                    said[key] = "accepted"
                elif wish.do == "split" and len(unit.pieces) > 1:
                    said[key] = "open" if unit.edited is not None else unit.state
                elif wish.do != "split":
                    said[key] = {"accept": "accepted", "reject": "rejected", "reopen": "open"}[wish.do]
            others = {u.id: u.state for u in file.units if u.id != unit.id}
            file = after(file, {unit.id: wish})
            if wish.do != "reopen":  # which may join what was divided
                assert others.items() <= {u.id: u.state for u in file.units}.items()
        _check(file, said)
    assert landed(after(file, {unit.id: REOPEN for unit in file.units if unit.state == "accepted"})) == base
    assert landed(all_of(file, ACCEPT)) == b"".join(file.tip)


def _twins(file: Changed) -> bool:
    """The same lines twice at one place, of which nobody can say which is which."""
    marks = [file.mark(piece) for piece in file.pieces]
    return len({(mark.start, mark.digest) for mark in marks}) < len(marks)


def _check(file: Changed, said: dict[tuple[int, tuple[bytes, ...], tuple[bytes, ...]], str]) -> None:
    assert len({unit.id for unit in file.units}) == len(file.units)
    whole: list[bytes] = []
    upto = 0
    for unit in file.units:
        for piece in unit.pieces:
            old, new = file.base[piece.start : piece.end], file.tip[piece.new_start : piece.new_end]
            assert said.get((piece.start, tuple(old), tuple(new)), "open") == unit.state or unit.state == "open"
        if unit.state == "accepted" and unit.edited is None:
            for piece in unit.pieces:
                whole += [*file.base[upto : piece.start], *file.tip[piece.new_start : piece.new_end]]
                upto = piece.end
        elif unit.state == "accepted":
            whole += [*file.base[upto : unit.pieces[0].start], unit.edited or b""]
            upto = unit.pieces[-1].end
    whole += file.base[upto:]
    whole = [part for part in whole if part]
    ended = [part if part.endswith(b"\n") else part + b"\n" for part in whole[:-1]] + whole[-1:]
    assert landed(file) == b"".join(ended)


@pytest.mark.parametrize("seed", range(40))
def test_when_the_base_moves_on_what_was_rejected_stays_rejected_and_the_way_back_leads_back(seed: int) -> None:
    chance = random.Random(seed)
    base = b"".join(b"line %d\n" % n for n in range(60))
    tip = at(at(at(at(base, 50, b"d"), 40, b"c\nc", 0), 20, b"b", 3), 5, b"a\na\na")
    file = changed(base, tip)
    wishes = {unit.id: chance.choice([ACCEPT, REJECT]) for unit in file.units}
    file = after(file, wishes)
    result = land(file)
    kept = [one for one in file.decisions if one.state != "accepted"]
    following = changed(landed(file), tip, moved(kept, result.places))
    assert states(following) == ["rejected"] * len(kept)
    assert moved(following.decisions, reverse(result.places)) == kept


def test_a_mark_that_something_landed_on_is_gone() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x", 2)), REJECT)
    assert moved(file.decisions, [Landed(21, 23, 1)]) == []
    assert moved(file.decisions, [Landed(22, 23, 1)]) == list(file.decisions)


def test_a_change_of_very_many_places_is_gone_through_once() -> None:
    old = b"".join(b"line %d\n" % n for n in range(20_000))
    new = b"".join(b"line %d%s\n" % (n, b" x" if n % 2 else b"") for n in range(20_000))
    every = tuple(Atom(n, n + 1, n, n + 1) for n in range(1, 20_000, 2))
    file = Changed(KEY, modified(), (), Sides(old, new, every))
    [unit] = file.units
    parts = Changed(KEY, modified(), file.decided({unit.id: SPLIT}, 1.0), Sides(old, new, every))
    assert len(parts.units) == 10_000
    some = {unit.id: ACCEPT for unit in parts.units[::2]}
    decided = Changed(KEY, modified(), parts.decided(some, 1.0), Sides(old, new, every))
    assert len(land(decided).hunks) == 5_000
