"""Decide about the hunks of a ledger, apply the patch set, and undo it."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import msgspec
import pytest
from support.ledgers import begun, contents, put, said, sound
from support.random_changes import mutated, text

from skerry.errors import Conflict, InvalidRequest
from skerry.review.hunks.apply_decisions import Outcome, decide
from skerry.review.hunks.hunks import FileHunk, ReviewedFile
from skerry.review.hunks.patch_set import LedgerPatchSet, build_patch_set, decode_patch_set, record_apply, record_undo
from skerry.review.hunks.review_state import ReviewState, changed_files, origins, paths_by_hunk
from skerry.review.ledger.ledger import Drop, Ledger, Put
from skerry.types import Decisions

KEY = b"k" * 16


class Desk:
    """A review, as a server keeps one."""

    def __init__(self, ledger: Ledger, large: frozenset[str] = frozenset()) -> None:
        self.ledger = ledger
        self.decided: dict[bytes, bytes] = {}
        self.large = large

    @property
    def ground(self) -> ReviewState:
        return ReviewState(self.ledger, self.ledger.base, self.ledger.tip, KEY, self.decided, self.large)

    def files(self) -> dict[bytes, ReviewedFile]:
        return {changed.delta.path: changed for changed in changed_files(self.ground)}

    def hunks(self) -> list[FileHunk]:
        return [unit for changed in self.files().values() for unit in changed.hunks]

    def states(self) -> list[str]:
        return [unit.state for unit in self.hunks()]

    def decide(self, known: bool = False, by: str | None = None, **request: object) -> Outcome:
        where = paths_by_hunk(changed_files(self.ground)) if known else {}
        outcome = decide(self.ground, Decisions(**request), where, 1.0, by=by)  # type: ignore[arg-type]
        self.keep(outcome.decided)
        return outcome

    def keep(self, decided: dict[bytes, bytes]) -> None:
        self.decided = {path: body for path, body in {**self.decided, **decided}.items() if body}

    def offer(self, *paths: bytes) -> LedgerPatchSet:
        offer = build_patch_set(self.ground, self.ground.select(paths))
        return decode_patch_set(msgspec.msgpack.encode(offer))

    def land(self, offer: LedgerPatchSet) -> None:
        self.keep(record_apply(self.ground, offer, said("", kind="applied"))[1])

    def take_back(self, offer: LedgerPatchSet) -> None:
        self.keep(record_undo(self.ground, offer, said("", kind="unapplied"))[1])

    def base(self) -> dict[bytes, tuple[str, bytes]]:
        return contents(self.ledger, self.ledger.base)

    def tip(self) -> dict[bytes, tuple[str, bytes]]:
        return contents(self.ledger, self.ledger.tip)


def lines(count: int, **others: str) -> bytes:
    changed = {int(name[1:]): line for name, line in others.items()}
    return "".join(f"{changed.get(n, f'line {n}')}\n" for n in range(count)).encode()


def a_desk(place: Path, before: bytes, after: bytes, path: bytes = b"app.py") -> Desk:
    ledger = begun(place, put(path, before))
    ledger.commit(said("edit"), [put(path, after)])
    return Desk(ledger)


def test_only_accepted_hunks_are_applied_and_others_keep_their_decisions(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lines(60), lines(60, n5="five", n30="thirty", n50="fifty"))
    first, second, third = desk.hunks()
    desk.decide(accept=(first.id,), reject=(third.id,), reason="not that", known=True)
    assert desk.states() == ["accepted", "open", "rejected"]
    offer = desk.offer()
    assert [file.hunks for file in offer.files] == [(first.id,)]
    desk.land(offer)
    assert desk.base() == {b"app.py": ("100644", lines(60, n5="five"))}
    assert [(unit.state, unit.decision and unit.decision.reason) for unit in desk.hunks()] == [
        ("open", None), ("rejected", "not that"),
    ]  # fmt: skip
    desk.land(offer)
    assert desk.states() == ["open", "rejected"]
    desk.take_back(offer)
    assert desk.base() == {b"app.py": ("100644", lines(60))}
    assert desk.states() == ["accepted", "open", "rejected"]
    assert [unit.id for unit in desk.hunks()] == [first.id, second.id, third.id]
    desk.take_back(offer)
    assert desk.states() == ["accepted", "open", "rejected"]
    assert sound(desk.ledger)


def test_a_hunk_that_changed_meanwhile_is_a_conflict_and_nothing_is_decided(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lines(60), lines(60, n5="five", n30="thirty"))
    first, second = desk.hunks()
    desk.ledger.commit(said("again"), [put(b"app.py", lines(60, n5="FIVE", n30="thirty"))])
    with pytest.raises(Conflict, match=first.id) as caught:
        desk.decide(accept=(second.id, first.id))
    assert caught.value.details == {"hunks": [first.id]}
    assert desk.states() == ["open", "open"]
    desk.decide(accept=(second.id,))
    assert desk.states() == ["open", "accepted"]


def test_flagged_hunks_are_accepted_only_by_id(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"src/a.py"), put(b"Makefile", b"all:\n"))
    ledger.commit(said(), [put(b"src/a.py", b"1\n"), put(b"Makefile", b"all: evil\n"), put(b"src/run", b"#!", "100755"),
                           put(b"src/link", b"/etc", "120000")])  # fmt: skip
    desk = Desk(ledger)
    outcome = desk.decide(do="accept", all=True)
    assert {hunk.path for hunk in outcome.held_back} == {"Makefile", "src/run", "src/link"}
    assert desk.files()[b"src/a.py"].hunks[0].state == "accepted"
    assert sorted(desk.states()) == ["accepted", "open", "open", "open"]
    [flagged] = desk.files()[b"Makefile"].hunks
    desk.decide(accept=(flagged.id,))
    assert desk.files()[b"Makefile"].hunks[0].state == "accepted"
    desk.decide(do="reject", paths=("src",))
    assert [changed.hunks[0].state for changed in desk.files().values()] == [
        "accepted", "accepted", "rejected", "rejected",
    ]  # fmt: skip
    desk.decide(do="reopen", all=True)
    assert set(desk.states()) == {"open"}


def test_bulk_decision_keeps_few_objects_per_file(tmp_path: Path) -> None:
    """The garbage collector visits them all, again and again, while the event loop waits."""
    ledger, count = begun(tmp_path, put(b"a")), 400
    ledger.commit(said(), [put(b"d/%d" % number, b"%d\n" % number) for number in range(count)])
    desk = Desk(ledger)
    desk.decide(do="accept", paths=["d/0"])
    gc.collect()
    before = len(gc.get_objects())
    outcome = desk.decide(do="accept", all=True)
    gc.collect()
    assert len(outcome.hunks) == count - 1
    assert len(gc.get_objects()) - before < 3 * count


def test_bulk_decisions_skip_changes_that_the_caller_has_not_seen(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a"), put(b"b"))
    seen = ledger.commit(said(), [put(b"a", b"1\n"), put(b"b", b"1\n")])
    ledger.commit(said(), [put(b"b", b"2\n")])
    desk = Desk(ledger)
    with pytest.raises(Conflict, match="b changed"):
        desk.decide(do="accept", all=True, tip=seen)
    desk.decide(do="accept", paths=("a",), tip=seen)
    assert desk.states() == ["accepted", "open"]
    with pytest.raises(InvalidRequest):
        desk.decide(do="accept", all=True, tip="f" * 40)


@pytest.mark.parametrize(
    "wish",
    [
        {"edit": {"ID": "x"}, "accept": ("ID",)},
        {"accept": ("ID",), "reject": ("ID",)},
        {"split": ("ID",)},
    ],
)
def test_impossible_actions_on_a_hunk_are_rejected(tmp_path: Path, wish: dict[str, object]) -> None:
    desk = a_desk(tmp_path, lines(5), lines(5, n2="x"))
    [unit] = desk.hunks()
    named = msgspec.json.decode(msgspec.json.encode(wish).replace(b"ID", unit.id.encode()))
    with pytest.raises(InvalidRequest):
        desk.decide(**{key: tuple(v) if isinstance(v, list) else v for key, v in named.items()})
    assert desk.states() == ["open"]


@pytest.mark.parametrize("mode", ["120000", "binary", "latin"])
def test_binary_content_cannot_be_edited(tmp_path: Path, mode: str) -> None:
    data = {"120000": b"to", "binary": b"\0", "latin": b"\xe4\n"}[mode]
    ledger = begun(tmp_path, put(b"x"))
    ledger.commit(said(), [Put(b"x", mode if mode == "120000" else "100644", data)])
    desk = Desk(ledger)
    with pytest.raises(InvalidRequest, match="can't be edited"):
        desk.decide(edit={desk.hunks()[0].id: "new\n"})


def test_an_edited_hunk_is_applied_as_edited_and_the_original_is_rejected(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lines(60), lines(60, n5="five", n7="seven", n30="thirty"))
    first, second = desk.hunks()
    desk.decide(edit={first.id: "mine\nline 6\nours"}, accept=(second.id,))
    assert [unit.edited for unit in desk.hunks()] == [b"mine\nline 6\nours\n", None]
    offer = desk.offer()
    desk.land(offer)
    expected = lines(60, n5="mine", n7="ours", n30="thirty")
    assert desk.base() == {b"app.py": ("100644", expected)}
    assert set(desk.states()) == {"rejected"}
    [unit, *_] = desk.hunks()
    assert unit.decision is not None
    assert "mine" in (unit.decision.reason or "")
    desk.take_back(offer)
    assert desk.base() == {b"app.py": ("100644", lines(60))}
    assert [unit.edited for unit in desk.hunks()] == [b"mine\nline 6\nours\n", None]


def test_an_edited_out_hunk_is_accepted_again_after_an_undo(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lines(30), lines(30, n5="line 5\nmore", n20="twenty"))
    first, second = desk.hunks()
    desk.decide(edit={first.id: ""}, accept=(second.id,))
    offer = desk.offer()
    desk.land(offer)
    assert desk.base() == {b"app.py": ("100644", lines(30, n20="twenty"))}
    assert [(unit.id, unit.state) for unit in desk.hunks()] == [(first.id, "rejected")]
    desk.take_back(offer)
    assert [(unit.state, unit.edited) for unit in desk.hunks()] == [("accepted", b""), ("accepted", None)]


def test_an_edited_new_file_is_applied_as_edited(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a"))
    ledger.commit(said(), [put(b"new", b"one\ntwo\n")])
    desk = Desk(ledger)
    desk.decide(edit={desk.hunks()[0].id: "one"})
    desk.land(desk.offer())
    assert desk.base()[b"new"] == ("100644", b"one")
    assert desk.states() == ["rejected"]


def test_whole_file_hunks_are_applied_as_a_whole(tmp_path: Path) -> None:
    body = lines(30)
    ledger = begun(
        tmp_path, put(b"gone", b"x\n"), put(b"old name", body), put(b"tool", b"t\n"), put(b"bin", b"\0a"),
        put(b"becomes a link", b"f\n"), put(b"big", b"pointer 1\n"), put(b"dir/file", b"x\n"),
    )  # fmt: skip
    ledger.commit(
        said(),
        [
            Drop(b"gone"), Drop(b"old name"), put(b"new name", lines(30, n3="x")), put(b"tool", b"T\n", "100755"),
            put(b"bin", b"\0b"), put(b"becomes a link", b"tool", "120000"), put(b"big", b"pointer 2\n"),
            put(b"empty", b""), Drop(b"dir"), put(b"dir", b"now a file\n"),
        ],
    )  # fmt: skip
    large = frozenset(delta.new_oid or "" for delta in ledger.deltas(ledger.base, ledger.tip) if delta.path == b"big")
    desk = Desk(ledger, large)
    kinds = {path: [unit.kind for unit in changed.hunks] for path, changed in desk.files().items()}
    assert kinds == {
        b"becomes a link": ["link"], b"big": ["large"], b"bin": ["binary"], b"dir": ["added"], b"dir/file": ["deleted"],
        b"empty": ["added"], b"gone": ["deleted"], b"new name": ["renamed"], b"tool": ["mode", "text"],
    }  # fmt: skip
    desk.decide(accept=tuple(unit.id for unit in desk.hunks()))
    offer = desk.offer()
    desk.land(offer)
    assert desk.base() == desk.tip()
    assert desk.hunks() == []
    desk.take_back(offer)
    assert set(desk.states()) == {"accepted"}
    before = contents(ledger, ledger.history(limit=100)[0].commit)
    assert desk.base() == before
    assert sound(ledger)


def test_undoing_a_pure_rename_restores_the_name(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"old name", lines(30)))
    ledger.commit(said(), [Drop(b"old name"), put(b"new name", lines(30))])
    desk = Desk(ledger)
    desk.decide(accept=tuple(unit.id for unit in desk.hunks()))
    offer = desk.offer()
    desk.land(offer)
    assert desk.base() == desk.tip()
    desk.take_back(offer)
    assert desk.base() == {b"old name": ("100644", lines(30))}
    assert desk.states() == ["accepted"]


def test_files_changed_by_another_apply_are_skipped(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lines(60), lines(60, n5="five", n50="fifty"))
    first, second = desk.hunks()
    desk.decide(accept=(first.id,))
    one = desk.offer()
    desk.decide(reopen=(first.id,), accept=(second.id,))
    other = desk.offer()
    desk.land(one)
    desk.land(other)
    assert desk.base() == {b"app.py": ("100644", lines(60, n5="five"))}
    with pytest.raises(Conflict, match=r"app\.py"):
        desk.take_back(other)


def test_paths_choose_files_and_directories_and_no_neighbours(tmp_path: Path) -> None:
    names = [b"src", b"srcs/x", b"a/src", b"src2"]
    ledger = begun(tmp_path)
    ledger.commit(said(), [put(name) for name in names])
    desk = Desk(ledger)
    found = changed_files(desk.ground, desk.ground.select([b"src", b"srcs"]))
    assert [one.delta.path for one in found] == [b"src", b"srcs/x"]
    assert len(list(changed_files(desk.ground, desk.ground.select()))) == 4


def test_origin_of_a_hunk_is_found_by_line(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"app.py", lines(60)), put(b"other", b"x\n"))
    one = ledger.commit(said("first"), [put(b"app.py", lines(60, n5="five"))])
    ledger.commit(said("elsewhere"), [put(b"other", b"y\n")])
    two = ledger.commit(said("second"), [put(b"app.py", b"top\n" + lines(60, n5="five", n40="forty"))])
    three = ledger.commit(said("third"), [put(b"app.py", b"top\n" + lines(60, n5="five", n40="forty\nmore"))])
    removed = ledger.commit(said("cut"), [put(b"app.py", b"top\n" + lines(58, n5="five", n40="forty\nmore"))])
    desk = Desk(ledger)
    changed = desk.files()[b"app.py"]
    told = [[entry.commit for entry in origins(ledger, changed, unit)] for unit in changed.hunks]
    assert told == [[two], [one], [two, three], [removed]] or told == [[one, two], [two, three], [removed]]
    [whole] = desk.files()[b"other"].hunks
    assert [entry.command for entry in origins(ledger, desk.files()[b"other"], whole)] == ["elsewhere"]


@pytest.mark.parametrize("seed", range(5))
def test_random_reviews_applied_in_steps_end_at_the_tip(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    names = [b"a", b"b/c", b"d"]
    texts = {name: text(chance) for name in names}
    ledger = begun(tmp_path, *(put(name, data) for name, data in texts.items()))
    desk = Desk(ledger)
    first = desk.base()
    done: list[LedgerPatchSet] = []
    for _ in range(4):
        for name in chance.sample(names, 2):
            texts[name] = mutated(chance, texts[name])
        ledger.commit(said(), [put(name, data) for name, data in texts.items()])
        said_of: dict[str, list[str]] = {"accept": [], "reject": [], "reopen": []}
        for unit in desk.hunks():
            said_of[chance.choice(list(said_of))].append(unit.id)
        desk.decide(**said_of)
        offer = desk.offer()
        before = desk.base()
        desk.land(offer)
        for file in offer.files:
            assert desk.base()[file.path][0] == "100644"
        untouched = {name for name in names if name not in {file.path for file in offer.files}}
        assert all(desk.base()[name] == before[name] for name in untouched)
        assert "accepted" not in desk.states()
        if offer.files and chance.random() < 0.3:
            desk.take_back(offer)
            assert desk.base() == before
        elif offer.files:
            done.append(offer)
    desk.decide(do="reopen", all=True)
    desk.decide(accept=tuple(unit.id for unit in desk.hunks()))
    last = desk.offer()
    desk.land(last)
    assert desk.base() == desk.tip()
    assert desk.hunks() == []
    for offer in [last, *reversed(done)]:
        desk.take_back(offer)
    assert desk.base() == first


def test_a_file_of_200_000_lines_is_applied_exactly(tmp_path: Path) -> None:
    before = b"".join(b"line %d\n" % n for n in range(200_000))
    after = b"".join(b"line %d%s\n" % (n, b"" if n % 20 else b" x") for n in range(200_000))
    desk = a_desk(tmp_path, before, after)
    desk.decide(do="accept", all=True)
    desk.land(desk.offer())
    assert desk.base() == desk.tip()


def test_decision_made_by_another_reviewer_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lines(40), lines(40, n5="five", n30="thirty"))
    first, second = desk.hunks()
    desk.decide(by="ann", accept=(first.id,))
    for request in ({"reject": (first.id, second.id)}, {"reopen": (first.id,)}, {"edit": {first.id: "x\n"}}):
        with pytest.raises(Conflict, match=f"{first.id} was accepted meanwhile by ann") as caught:
            desk.decide(by="bob", **request)
        assert caught.value.details == {"decided": [{"hunk": first.id, "state": "accepted"}]}
    assert [hunk.state for hunk in desk.hunks()[:2]] == ["accepted", "open"]  # nothing was decided
    desk.decide(by="bob", accept=(first.id,))  # the same decision
    desk.decide(by="ann", reject=(first.id,), seen={first.id: "accepted"})
    desk.decide(by="bob", accept=(first.id,), seen={first.id: "rejected"})  # a decision that bob has seen
    with pytest.raises(Conflict, match=f"{first.id} was accepted before by bob"):
        desk.decide(by="bob", reject=(first.id,), seen={first.id: "open"})  # bob in another terminal
    desk.decide(by="bob", reopen=(first.id,))
    with pytest.raises(Conflict, match=f"{first.id} was reopened meanwhile"):
        desk.decide(by="ann", reject=(first.id,), seen={first.id: "accepted"})
    desk.decide(by="local", accept=(first.id,))  # stored by a version that did not tell socket users apart
    desk.decide(by="ann", reject=(first.id,))
