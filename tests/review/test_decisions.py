"""A decision follows its hunk, covers only the shown content, and is dropped when that changes."""

from __future__ import annotations

import random

import pytest
from support.random_changes import KEY, after, all_of, changed, later, modified, mutated, states, text

from skerry.review.hunks.atoms import Atom
from skerry.review.hunks.decisions import AppliedSpan, reverse_spans, shift_decisions
from skerry.review.hunks.hunks import HunkAction, ReviewedFile, Sides
from skerry.review.hunks.patch_set import patched_content

BASE = b"".join(b"line %d\n" % n for n in range(40))
ACCEPT, REJECT, REOPEN, SPLIT = (
    HunkAction("accept"),
    HunkAction("reject", "no"),
    HunkAction("reopen"),
    HunkAction("split"),
)


def at(data: bytes, number: int, new: bytes, count: int = 1) -> bytes:
    some = data.split(b"\n")
    some[number : number + count] = [new] if new else []
    return b"\n".join(some)


def landed(file: ReviewedFile) -> bytes:
    result = patched_content(file)
    if result.data is not None:
        return result.data
    return b"".join(file.tip if result.oid == file.delta.new_oid else file.base)


def test_changes_near_each_other_are_one_hunk_and_far_ones_are_two() -> None:
    near, far = at(at(BASE, 10, b"x"), 17, b"y"), at(at(BASE, 10, b"x"), 18, b"y")
    assert (len(changed(BASE, near).hunks), len(changed(BASE, far).hunks)) == (1, 2)


def test_a_decision_stays_when_lines_above_come_and_go() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x")), ACCEPT)
    [before] = file.hunks
    file = later(file, b"new\nnew\n" + at(at(BASE, 20, b"x"), 3, b""))
    assert [unit.state for unit in file.hunks if unit.id == before.id] == ["accepted"]
    assert landed(file) == at(BASE, 20, b"x")


def test_a_decision_is_dropped_when_its_content_changes_and_returns_with_it() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x")), ACCEPT)
    other = later(file, at(BASE, 20, b"y"))
    assert (states(other), landed(other)) == (["open"], BASE)
    assert states(later(other, at(BASE, 20, b"x"))) == ["accepted"]


def test_an_earlier_decision_does_not_return_after_a_newer_one() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x")), ACCEPT)
    other = all_of(later(file, at(BASE, 20, b"y")), REJECT)
    assert states(later(other, at(BASE, 20, b"x"))) == ["open"]
    assert states(later(other, at(BASE, 20, b"y"))) == ["rejected"]


@pytest.mark.parametrize("extended", [b"x\ny", b"y\nx", b"y\nx\nz", b"y\nx\nx"])
def test_lines_added_to_decided_lines_are_open(extended: bytes) -> None:
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
    [here] = file.hunks
    elsewhere = later(file, at(BASE, 30, b"x", 0))
    assert states(elsewhere) == ["open"]
    assert elsewhere.hunks[0].id != here.id


def test_a_removal_that_becomes_a_replacement_is_open() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"")), ACCEPT)
    assert states(later(file, at(BASE, 20, b"evil"))) == ["open"]


def test_a_removal_decided_beside_its_replacement_stays() -> None:
    file = later(all_of(changed(BASE, at(BASE, 20, b"x", 0)), ACCEPT), at(BASE, 20, b"x"))
    added, removed = file.hunks
    assert (added.state, removed.state) == ("accepted", "open")
    file = after(file, {added.id: REOPEN, removed.id: ACCEPT})
    assert "accepted" in states(file)
    assert landed(file) == at(BASE, 20, b"")


def test_a_state_does_not_change_an_id_and_undoing_gives_it_back() -> None:
    file = changed(BASE, at(at(at(BASE, 10, b"x"), 12, b"y"), 30, b"z"))
    ids = [unit.id for unit in file.hunks]
    for wish in (ACCEPT, REJECT, REOPEN):
        file = after(file, {ids[0]: wish})
        assert [unit.id for unit in file.hunks] == ids
    parts = after(file, {ids[0]: SPLIT})
    assert len(parts.hunks) == 3
    part_ids = [unit.id for unit in parts.hunks]
    decided = after(after(parts, {part_ids[0]: ACCEPT}), {part_ids[1]: ACCEPT})
    assert [unit.id for unit in decided.hunks] == part_ids
    undone = after(decided, dict.fromkeys(part_ids[:2], REOPEN))
    assert [unit.id for unit in undone.hunks] == part_ids
    assert [unit.id for unit in after(undone, dict.fromkeys(part_ids[:2], REOPEN)).hunks] == ids


def test_an_edit_counts_as_a_whole_or_not_at_all() -> None:
    two = at(at(BASE, 10, b"x"), 13, b"y")
    file = changed(BASE, two)
    file = after(file, {file.hunks[0].id: HunkAction("edit", None, b"mine\n")})
    expected = BASE.replace(b"line 10\nline 11\nline 12\nline 13\n", b"mine\n")
    assert landed(file) == expected
    assert landed(later(file, at(two, 30, b"z"))) == expected
    between = later(file, at(two, 11, b"new"))
    assert (set(states(between)), landed(between)) == ({"open"}, BASE)


def test_an_accepted_hunk_is_not_applied_by_halves() -> None:
    """A check moves to another line: removing it again there has not been approved."""
    base = BASE.replace(b"line 10\n", b"check()\n")
    other = base.replace(b"check()\n", b"").replace(b"line 13\n", b"line 13\ncheck()\n")
    file = all_of(changed(base, other), ACCEPT)
    assert (states(file), landed(file)) == (["accepted"], other)
    torn = later(file, other.replace(b"check()", b"chekc()"))
    assert (states(torn), landed(torn)) == (["open"], base)
    assert landed(later(torn, other)) == other, "it came back as it was"
    assert landed(later(torn, other + b"more\n")) == other, "elsewhere there is more"
    parts = after(torn, {torn.hunks[0].id: SPLIT})
    for part in parts.hunks:
        assert landed(after(parts, {part.id: REJECT})) == base, "one half says nothing of the other"


def test_an_accepted_hunk_is_open_after_an_apply_to_half_of_it() -> None:
    file = all_of(changed(BASE, at(at(BASE, 13, b"y"), 10, b"x")), ACCEPT)
    (decision,) = file.decisions
    assert len(decision.marks) == 2
    assert shift_decisions([decision], [AppliedSpan(9, 11, 1)]) == []
    assert len(shift_decisions([decision], [AppliedSpan(30, 31, 0)])) == 1


def test_a_mode_is_decided_by_itself() -> None:
    file = changed(BASE, at(BASE, 3, b"x"), delta=modified(new_mode="100755"))
    mode, line = file.hunks
    assert (mode.kind, line.kind) == ("mode", "text")
    assert (bool(mode.risk), bool(line.risk)) == (True, False)
    only_text = patched_content(after(file, {line.id: ACCEPT}))
    assert (only_text.mode, only_text.oid) == ("100644", "2" * 40)
    only_mode = patched_content(after(file, {mode.id: ACCEPT}))
    assert (only_mode.mode, only_mode.oid, only_mode.data) == ("100755", "1" * 40, None)
    assert patched_content(after(file, {mode.id: ACCEPT, line.id: REJECT})).hunks == (mode.id,)


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_apply_exactly_the_accepted_bytes(seed: int) -> None:
    chance = random.Random(seed)
    base = text(chance)
    file = changed(base, mutated(chance, base))
    said: dict[tuple[int, tuple[bytes, ...], tuple[bytes, ...]], str] = {}
    for _ in range(25):
        if chance.random() < 0.35:
            file = later(file, mutated(chance, b"".join(file.tip)))
        elif file.hunks and not _twins(file):
            unit = chance.choice(file.hunks)
            wish = chance.choice([ACCEPT, ACCEPT, REJECT, REOPEN, SPLIT, HunkAction("edit", None, text(chance, 3))])
            for piece in unit.segments:
                key = (piece.start, tuple(file.base[piece.start : piece.end]),
                       tuple(file.tip[piece.new_start : piece.new_end]))  # fmt: skip
                if wish.do == "edit":
                    said[key] = "accepted"
                elif wish.do == "split" and len(unit.segments) > 1:
                    said[key] = "open" if unit.edited is not None else unit.state
                elif wish.do != "split":
                    said[key] = {"accept": "accepted", "reject": "rejected", "reopen": "open"}[wish.do]
            others = {u.id: u.state for u in file.hunks if u.id != unit.id}
            file = after(file, {unit.id: wish})
            if wish.do != "reopen":  # which may join a divided hunk
                assert others.items() <= {u.id: u.state for u in file.hunks}.items()
        _check(file, said)
    assert landed(after(file, {unit.id: REOPEN for unit in file.hunks if unit.state == "accepted"})) == base
    assert landed(all_of(file, ACCEPT)) == b"".join(file.tip)


def _twins(file: ReviewedFile) -> bool:
    """The same lines twice at one place cannot be distinguished."""
    marks = [file.mark(piece) for piece in file.segments]
    return len({(mark.start, mark.digest) for mark in marks}) < len(marks)


def _check(file: ReviewedFile, said: dict[tuple[int, tuple[bytes, ...], tuple[bytes, ...]], str]) -> None:
    assert len({unit.id for unit in file.hunks}) == len(file.hunks)
    whole: list[bytes] = []
    upto = 0
    for unit in file.hunks:
        for piece in unit.segments:
            old, new = file.base[piece.start : piece.end], file.tip[piece.new_start : piece.new_end]
            assert said.get((piece.start, tuple(old), tuple(new)), "open") == unit.state or unit.state == "open"
        if unit.state == "accepted" and unit.edited is None:
            for piece in unit.segments:
                whole += [*file.base[upto : piece.start], *file.tip[piece.new_start : piece.new_end]]
                upto = piece.end
        elif unit.state == "accepted":
            whole += [*file.base[upto : unit.segments[0].start], unit.edited or b""]
            upto = unit.segments[-1].end
    whole += file.base[upto:]
    whole = [part for part in whole if part]
    ended = [part if part.endswith(b"\n") else part + b"\n" for part in whole[:-1]] + whole[-1:]
    assert landed(file) == b"".join(ended)


@pytest.mark.parametrize("seed", range(40))
def test_rejections_survive_a_base_move_and_its_undo(seed: int) -> None:
    chance = random.Random(seed)
    base = b"".join(b"line %d\n" % n for n in range(60))
    tip = at(at(at(at(base, 50, b"d"), 40, b"c\nc", 0), 20, b"b", 3), 5, b"a\na\na")
    file = changed(base, tip)
    wishes = {unit.id: chance.choice([ACCEPT, REJECT]) for unit in file.hunks}
    file = after(file, wishes)
    result = patched_content(file)
    kept = [one for one in file.decisions if one.state != "accepted"]
    following = changed(landed(file), tip, shift_decisions(kept, result.places))
    assert states(following) == ["rejected"] * len(kept)
    assert shift_decisions(following.decisions, reverse_spans(result.places)) == kept


def test_a_mark_under_an_applied_span_is_dropped() -> None:
    file = all_of(changed(BASE, at(BASE, 20, b"x", 2)), REJECT)
    assert shift_decisions(file.decisions, [AppliedSpan(21, 23, 1)]) == []
    assert shift_decisions(file.decisions, [AppliedSpan(22, 23, 1)]) == list(file.decisions)


def test_a_change_of_very_many_places_is_processed_once() -> None:
    old = b"".join(b"line %d\n" % n for n in range(20_000))
    new = b"".join(b"line %d%s\n" % (n, b" x" if n % 2 else b"") for n in range(20_000))
    every = tuple(Atom(n, n + 1, n, n + 1) for n in range(1, 20_000, 2))
    file = ReviewedFile(KEY, modified(), (), Sides(old, new, every))
    [unit] = file.hunks
    parts = ReviewedFile(KEY, modified(), file.decided({unit.id: SPLIT}, 1.0), Sides(old, new, every))
    assert len(parts.hunks) == 10_000
    some = {unit.id: ACCEPT for unit in parts.hunks[::2]}
    decided = ReviewedFile(KEY, modified(), parts.decided(some, 1.0), Sides(old, new, every))
    assert len(patched_content(decided).hunks) == 5_000
