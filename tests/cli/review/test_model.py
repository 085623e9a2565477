"""The review model: keys, answers and the resulting screens, without a terminal or a server."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.review_values import HOSTILE, change, entry, hunk, is_harmless, review, texts

from skerry.cli.review.effects import Decide, Edit, Effect, Exit, LoadOrigin, OpenPager, Reload, Suspend
from skerry.cli.review.escape import width_of
from skerry.cli.review.items import ReviewItem
from skerry.cli.review.model import ReviewModel
from skerry.cli.review.rows import Layout
from skerry.cli.review.style import paint, text_of
from skerry.cli.review.view import KEYS, Frame, body_rows, draw, with_new_lines
from skerry.types import DecisionResult, Decisions, Hunk, HunkOrigin

ONE = hunk(" a\n-foo(x)\n+bar(x)\n b\n", splittable=True)
TWO = hunk("-second\n+other\n", old_start=40, new_start=40)
THREE = hunk("-x\n+y\n", path="lib/util.py")
RISKY = hunk("-a\n+b\n", path="setup.py", risk=("runs when the project is installed",))


def model(*more: Hunk) -> ReviewModel:
    files = [change("app.py", ONE, TWO), change("lib/util.py", THREE), change("setup.py", RISKY, *more)]
    return ReviewModel(review(*files), "fix-login")


def screen(machine: ReviewModel, cols: int = 80, rows: int = 24) -> str:
    page = draw(machine, cols, rows)
    assert len(page.rows) == rows
    assert all(sum(width_of(span.text) for span in row) <= cols for row in page.rows)
    return "\n".join(texts(page.rows))


def press(machine: ReviewModel, *keys: str) -> Effect | None:
    effect = None
    for key in keys:
        effect = machine.press(key)
    return effect


def carry_out(machine: ReviewModel, effect: Effect | None) -> Decisions:
    """Decide as a server does."""
    assert isinstance(effect, Decide)
    request = effect.request
    by_id = {item.hunk.id: item.hunk for item in machine.items}
    now = [replace(by_id[one], state="accepted", edited=None, reason=None) for one in request.accept]
    now += [replace(by_id[one], state="accepted", edited=text) for one, text in request.edit.items()]
    now += [replace(by_id[one], state="rejected", reason=request.reason) for one in request.reject]
    now += [replace(by_id[one], state="open", reason=None, edited=None) for one in request.reopen]
    assert machine.decided(DecisionResult(hunks=tuple(now))) is None
    return request


def type_in(machine: ReviewModel, text: str) -> None:
    press(machine, *text)


def test_first_screen_shows_position_command_lines_and_keys() -> None:
    machine = model()
    assert machine.pending_loads() == [LoadOrigin(ONE.id)]
    assert machine.pending_loads() == [], "once"
    machine.origin_loaded(ONE.id, HunkOrigin(hunk=ONE, entries=(entry(hosts=("pypi.org",)),)))
    lines = screen(machine).split("\n")
    assert lines[0].split() == ["1/4", "app.py", "0", "accepted", "·", "0", "rejected", "·", "4", "open"]
    assert lines[1] == "$ sed -i s/foo/bar/ app.py  exit 0 · 0.2 s"
    assert lines[2] == "contacted: pypi.org"
    assert lines[3] == "@@ -1,3 +1,3 @@"
    assert lines[5:7] == ["  2     - foo(x)", "      2 + bar(x)"]
    assert lines[-1] == KEYS
    machine.go(3)
    assert screen(machine).split("\n")[-1] == f"Y{KEYS[1:]}", "flagged"


def test_accepting_moves_to_the_next_hunk_and_the_end_names_apply() -> None:
    machine = model()
    assert carry_out(machine, press(machine, "y")) == Decisions(accept=(ONE.id,), tip="1" * 40, seen={ONE.id: "open"})
    assert screen(machine).startswith(" 2/4 app.py")
    carry_out(machine, press(machine, "y"))
    carry_out(machine, press(machine, "y"))
    assert press(machine, "y") is None
    assert "flagged: press Y" in screen(machine)
    assert "FLAGGED: runs when the project is installed" in screen(machine)
    carry_out(machine, press(machine, "Y"))
    assert "All hunks are decided: 4 accepted, 0 rejected, 0 open." in screen(machine)
    assert "    skerry apply fix-login" in screen(machine).split("\n")
    assert press(machine, "y") is None
    assert press(machine, "q") == Exit(0)


def test_keys_are_ignored_until_the_server_has_answered() -> None:
    machine = model()
    effect = press(machine, "y")
    assert press(machine, "y") is None
    assert press(machine, "n") is None
    assert press(machine, "q") is None
    assert press(machine, "ctrl-c") == Exit(130)
    carry_out(machine, effect)
    assert machine.at == 1


def test_rejecting_asks_for_a_reason() -> None:
    machine = model()
    assert press(machine, "n") is None
    page = draw(machine, 80, 24)
    assert texts(page.rows)[-2] == "reason, for the agent:"
    type_in(machine, "not herx")
    press(machine, "backspace", "e", "paste:: use\nthe helper")
    page = draw(machine, 80, 24)
    assert texts(page.rows)[-2] == "reason, for the agent: not here: use the helper"
    assert page.cursor == (len("reason, for the agent: not here: use the helper"), 22)
    assert carry_out(machine, press(machine, "enter")).reason == "not here: use the helper"
    press(machine, "n", "up")
    assert carry_out(machine, press(machine, "enter")).reason == "not here: use the helper"
    press(machine, "n", "x", "escape")
    assert machine.mode == "hunk"
    press(machine, "n")
    assert carry_out(machine, press(machine, "enter")).reason is None
    press(machine, "K", "K", "K")
    assert "rejected: not here: use the helper" in screen(machine)


def test_undo_restores_each_state_with_its_reason() -> None:
    machine = model()
    assert press(machine, "u") is None
    assert "nothing to undo" in screen(machine)
    carry_out(machine, press(machine, "n", "w", "h", "y", "enter"))
    press(machine, "K")
    carry_out(machine, press(machine, "y"))
    assert carry_out(machine, press(machine, "u")) == Decisions(
        reject=(ONE.id,), reason="why", seen={ONE.id: "accepted"}
    )
    assert machine.item is not None
    assert machine.item.hunk.state == "rejected"
    assert "undone: app.py, accepted" in screen(machine)
    assert carry_out(machine, press(machine, "u")) == Decisions(reopen=(ONE.id,), seen={ONE.id: "rejected"})
    assert machine.item.hunk.state == "open"


def test_the_last_decision_can_be_undone_from_the_end() -> None:
    machine = ReviewModel(review(change("app.py", ONE)), "x")
    carry_out(machine, press(machine, "y"))
    assert machine.mode == "end"
    carry_out(machine, press(machine, "u"))
    assert screen(machine).startswith(" 1/1 app.py")


def test_file_decision_covers_open_hunks_but_accepts_no_flagged_ones() -> None:
    machine = model(hunk("-z\n+zz\n", path="setup.py"))
    press(machine, "f")
    assert "all 2 open hunks in app.py:" in screen(machine)
    assert carry_out(machine, press(machine, "y")).accept == (ONE.id, TWO.id)
    press(machine, "j")
    assert len(carry_out(machine, press(machine, "f", "y")).accept) == 1
    assert "1 accepted; 1 flagged or cut, accept each with Y" in screen(machine)
    machine.go(3)
    assert press(machine, "f", "y") is None
    assert "flagged or cut: accept each with Y" in screen(machine)
    assert carry_out(machine, press(machine, "f", "n")).reject == (RISKY.id,)
    assert carry_out(machine, press(machine, "u")) == Decisions(reopen=(RISKY.id,), seen={RISKY.id: "rejected"})
    assert press(machine, "f", "escape") is None
    assert machine.mode == "hunk"


def test_splitting_replaces_the_hunk_by_its_parts() -> None:
    machine = model()
    effect = press(machine, "s")
    assert isinstance(effect, Decide)
    assert effect.request.split == (ONE.id,)
    parts = (hunk("-foo(x)\n+bar(x)\n"), hunk("+new\n"))
    assert machine.decided(DecisionResult(hunks=parts)) is None
    assert screen(machine).startswith(" 1/5 app.py")
    assert "split into 2" in screen(machine)
    machine.go(2)
    assert press(machine, "s") is None
    assert "cannot be split further" in screen(machine)


def test_edit_is_shown_before_it_is_accepted() -> None:
    machine = model()
    effect = press(machine, "e")
    assert effect == Edit(ONE, "bar(x)\n")
    machine.edited("baz(x)\nqux()\n")
    shown = screen(machine)
    assert "this would be applied instead" in shown
    assert "+ baz(x)" in shown
    assert "+ qux()" in shown
    assert "bar(x)" not in shown
    assert press(machine, "e") == Edit(ONE, "baz(x)\nqux()\n")
    machine.edited("baz(x)\n")
    assert carry_out(machine, press(machine, "y")).edit == {ONE.id: "baz(x)\n"}
    press(machine, "K")
    assert "accepted, edited by you" in screen(machine)
    assert "+ baz(x)" in screen(machine)


def test_edit_without_a_change_decides_nothing() -> None:
    machine = model()
    press(machine, "e")
    machine.edited(None)
    assert "nothing was changed" in screen(machine)
    assert machine.mode == "hunk"
    press(machine, "e")
    machine.edited("other\n")
    press(machine, "escape")
    assert "bar(x)" in screen(machine)
    machine.go(3)
    press(machine, "e")
    machine.edited("other\n")
    assert press(machine, "y") is None
    assert "flagged" in screen(machine)
    assert isinstance(press(machine, "Y"), Decide)


@pytest.mark.parametrize("kind", ["binary", "deleted", "mode", "large"])
def test_only_text_can_be_edited(kind: str) -> None:
    machine = ReviewModel(review(change("x", hunk("", path="x", kind=kind))), "x")
    assert press(machine, "e") is None
    assert "only text can be edited" in screen(machine)


def test_edited_lines_reach_from_the_first_change_to_the_last() -> None:
    both = hunk(" a\n-b\n+B\n c\n+D\n e\n")
    assert both.replacement == "B\nc\nD\n"
    assert with_new_lines(both, "X\n").text == " a\n-b\n-c\n+X\n e\n"


def test_moving_skips_decided_hunks_and_wraps_around() -> None:
    machine = model()
    press(machine, "j")
    assert machine.at == 1
    carry_out(machine, press(machine, "y"))
    assert machine.at == 2
    press(machine, "k")
    assert machine.at == 0
    press(machine, "k")
    assert machine.at == 3
    press(machine, "J", "J")
    assert machine.at == 1
    assert "accepted" in screen(machine)
    assert isinstance(press(machine, "o"), Decide)


def test_search_finds_text_and_names_and_reports_no_match() -> None:
    machine = model()
    press(machine, "/", *"UTIL", "enter")
    assert machine.at == 2
    press(machine, "/", *"second", "enter")
    assert machine.at == 1
    press(machine, "/", *"nowhere", "enter")
    assert "not found: nowhere" in screen(machine)
    assert machine.at == 1


def test_file_list_can_be_filtered_and_opened() -> None:
    machine = model()
    press(machine, "g")
    lines = screen(machine).split("\n")
    assert lines[1:4] == ["> app.py  2 of 2 open", "  lib/util.py  1 of 1 open", "  setup.py  1 of 1 open FLAGGED"]
    press(machine, "down", "enter")
    assert machine.at == 2
    press(machine, "g", *"setup", "enter")
    assert machine.at == 3
    press(machine, "g", *"zzz")
    assert "no matching file" in screen(machine)
    press(machine, "enter")
    assert machine.mode == "hunk"


def test_long_hunk_scrolls_and_shows_its_position() -> None:
    long = hunk("".join(f"+line {number}\n" for number in range(100)))
    machine = ReviewModel(review(change("app.py", long)), "x")
    assert "lines 1–20 of 101" in screen(machine)
    press(machine, " ")
    assert "line 18" in screen(machine)
    press(machine, "end")
    assert "line 99" in screen(machine)
    press(machine, "down")
    assert "lines 82–101 of 101" in screen(machine)
    assert "+ line 80" in screen(machine, cols=40, rows=10), "resized: the same place"
    press(machine, "home")
    assert "lines 1–" in screen(machine)


def test_truncated_hunk_is_marked_and_opens_in_the_pager() -> None:
    cut = replace(hunk("+a\n" * 50), truncated=True, new_lines=200_000)
    machine = ReviewModel(review(change("app.py", cut)), "x")
    press(machine, "end")
    screen(machine)
    press(machine, "end")
    assert "CUT: about 199,950 more lines are not shown here; v shows all of it" in screen(machine)
    assert press(machine, "v") == OpenPager(cut)
    assert press(machine, "e") is None


def test_incompletely_shown_hunk_needs_capital_y() -> None:
    cut = replace(hunk("+a\n" * 50), truncated=True, new_lines=200_000)
    long = hunk("+x = 1" + " " * 3000 + "; import os\n")
    for one in (cut, long):
        machine = ReviewModel(review(change("app.py", one)), "x")
        assert press(machine, "y") is None
        assert "not all of it is shown: v shows it, Y accepts it" in screen(machine)
        assert press(machine, "f", "y") is None
        assert carry_out(machine, press(machine, "Y")).accept == (one.id,)
    rows = texts(body_rows(ReviewItem(change("app.py", long), long), Layout(80, max_line=1 << 20)))
    assert rows[-1].endswith("ort os")


def test_changed_hunk_is_reloaded_and_shown_again() -> None:
    machine = model()
    press(machine, "j")
    press(machine, "y")
    assert machine.failed("conflict", stale=True) == Reload()
    fresh = hunk("-second\n+another\n", old_start=40, new_start=40)
    machine.loaded(review(change("app.py", ONE, fresh)))
    assert "changed since it was shown: check it again" in screen(machine)
    assert machine.item is not None
    assert machine.item.file.path == "app.py"
    assert press(machine, "R") == Reload()
    machine.loaded(review(change("app.py", ONE, fresh)))
    assert "no new changes" in screen(machine)
    press(machine, "R")
    machine.loaded(review(change("app.py", ONE, fresh), change("lib/util.py", THREE)))
    assert "1 new" in screen(machine)
    press(machine, "R")
    machine.loaded(review())
    assert "No changes." in screen(machine)
    for key in ("y", "n", "e", "s", "f", "j", "k", "J", "g", "/", " ", "u", "o", "v"):
        assert press(machine, key) is None


def test_merged_neighbours_cause_a_reload() -> None:
    machine = model()
    press(machine, "y")
    assert machine.decided(DecisionResult(hunks=(hunk("-joined\n"),))) == Reload()


def test_failure_is_shown_and_decides_nothing() -> None:
    machine = model()
    press(machine, "y")
    assert machine.failed("needs a token with scope `review`") is None
    assert "needs a token with scope `review`" in screen(machine)
    assert machine.count("open") == 4
    assert not machine.undo_stack


def test_help_lists_keys_and_any_key_closes_it() -> None:
    machine = model()
    press(machine, "?")
    shown = screen(machine)
    for word in ("accept", "reject", "edit", "split", "hunks of the file", "undo", "next", "search", "pager"):
        assert word in shown
    press(machine, "x")
    assert screen(machine).startswith(" 1/4")
    assert press(machine, "ctrl-z") == Suspend()
    press(machine, "~")
    assert "unknown key ~; ? shows help" in screen(machine)


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (20, 4), (200, 60), (5, 1)])
def test_every_screen_fits_its_window(size: tuple[int, int]) -> None:
    machine = model()
    cols, rows = max(20, size[0]), max(4, size[1])
    for keys in ([], ["n", *"a long reason" * 20], ["escape", "g"], ["escape", "?"], ["x", "f"], ["escape", "/"]):
        press(machine, *keys)
        page: Frame = draw(machine, *size)
        assert len(page.rows) == rows
        assert all(sum(width_of(span.text) for span in row) <= cols for row in page.rows)
        assert page.cursor is None or (page.cursor[0] < cols and page.cursor[1] < rows)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped_on_every_screen(text: str) -> None:
    bad = hunk(f"-{text}\n+{text}\n", path=text, heading=text, reason=text, risk=(text,), state="rejected", edited=text)
    file = change(text, bad, kind="renamed", old_path=text, sha256=text, large=True, risk=(text,))
    machine = ReviewModel(review(file, change("b", ONE)), "x")
    machine.origin_loaded(bad.id, HunkOrigin(hunk=bad, entries=(entry(text, hosts=(text,)), entry(text))))
    machine.go(0)
    machine.message = text
    for keys in ([], ["g", "down"], ["escape", "/", f"paste:{text}"], ["enter"], ["f"], ["escape", "?"], ["x"]):
        press(machine, *keys)
        for row in draw(machine, 60, 40).rows:
            assert is_harmless(text_of(row), allowed=())
            assert is_harmless(paint(row, 256).replace("\x1b[", ""), allowed=())


def test_ten_thousand_hunks_stay_fast() -> None:
    files = [change(f"f{n}", *(hunk(f"-{n} {m}\n+x\n", path=f"f{n}") for m in range(10))) for n in range(1000)]
    machine = ReviewModel(review(*files), "x")
    for key in ("j", "k", "J", "g", "down", "enter", "/", "9", "enter"):
        press(machine, key)
        screen(machine)


def test_long_command_wraps_before_it_is_truncated() -> None:
    machine = model()
    machine.origin_loaded(ONE.id, HunkOrigin(hunk=ONE, entries=(entry("first"), entry(f"echo {'word ' * 40}end"))))
    lines = screen(machine).split("\n")
    assert "".join(line.ljust(80) for line in lines[1:4]).split()[-4:] == ["word", "word", "word", "end"]
    assert lines[4] == "exit 0 · 0.2 s"
    assert lines[5] == f"and 1 earlier: skerry why fix-login {ONE.id}"
    machine.origin_loaded(ONE.id, HunkOrigin(hunk=ONE, entries=(entry("x" * 1000),)))
    lines = screen(machine).split("\n")
    assert lines[3].endswith("x…")
    assert lines[4] == "exit 0 · 0.2 s"


def test_missing_newline_at_end_of_file_is_shown() -> None:
    machine = ReviewModel(review(change("app.py", hunk("-a\n+b\n\\ No newline at end of file\n"))), "x")
    assert "        \\ No newline at end of file" in screen(machine)


def test_hidden_files_stay_open_and_are_shown_again() -> None:
    machine = model()
    press(machine, "x")
    assert "hide files (glob): app.py" in screen(machine)
    press(machine, "ctrl-u", *"lib/*", "enter")
    assert [item.file.path for item in machine.items] == ["app.py", "app.py", "setup.py"]
    assert "1 hidden; X shows them again" in screen(machine)
    machine.loaded(machine.review)
    assert (len(machine.items), machine.hidden) == (3, 1), "a reload hides them too"
    press(machine, "x", "ctrl-u", *"../x", "enter")
    assert "is not a pattern" in screen(machine)
    press(machine, "x", "ctrl-u", "*", "enter")
    assert "All changes are hidden." in screen(machine)
    assert isinstance(press(machine, "X"), Reload)
    machine.loaded(machine.review)
    assert (len(machine.items), machine.hidden, machine.mode) == (4, 0, "hunk")
    press(machine, "x", "escape")
    assert len(machine.items) == 4
