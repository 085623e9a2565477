"""The review as a machine: every key, every answer, and the screen after it; no terminal and no server."""

from __future__ import annotations

import pytest
from cli.review.shown import HOSTILE, change, entry, hunk, is_harmless, review, texts
from msgspec.structs import replace

from skerry.cli.review.going import Going
from skerry.cli.review.page import KEYS, Page, body_rows, draw, with_new_lines
from skerry.cli.review.rows import Look
from skerry.cli.review.stops import Stop
from skerry.cli.review.style import paint, text_of
from skerry.cli.review.visible import width_of
from skerry.cli.review.wishes import Ask, Decide, Edit, Leave, Reload, Suspend, View, Wish
from skerry.types import Decided, DecideRequest, Hunk, Why

ONE = hunk(" a\n-foo(x)\n+bar(x)\n b\n", splittable=True)
TWO = hunk("-second\n+other\n", old_start=40, new_start=40)
THREE = hunk("-x\n+y\n", path="lib/util.py")
RISKY = hunk("-a\n+b\n", path="setup.py", risk=("runs when the project is installed",))


def going(*more: Hunk) -> Going:
    files = [change("app.py", ONE, TWO), change("lib/util.py", THREE), change("setup.py", RISKY, *more)]
    return Going(review(*files), "fix-login")


def look(machine: Going, cols: int = 80, rows: int = 24) -> str:
    page = draw(machine, cols, rows)
    assert len(page.rows) == rows
    assert all(sum(width_of(span.text) for span in row) <= cols for row in page.rows)
    return "\n".join(texts(page.rows))


def press(machine: Going, *keys: str) -> Wish | None:
    wish = None
    for key in keys:
        wish = machine.press(key)
    return wish


def carry_out(machine: Going, wish: Wish | None) -> DecideRequest:
    """As a server does it."""
    assert isinstance(wish, Decide)
    request = wish.request
    by_id = {stop.hunk.id: stop.hunk for stop in machine.stops}
    now = [replace(by_id[one], state="accepted", edited=None, reason=None) for one in request.accept]
    now += [replace(by_id[one], state="accepted", edited=text) for one, text in request.edit.items()]
    now += [replace(by_id[one], state="rejected", reason=request.reason) for one in request.reject]
    now += [replace(by_id[one], state="open", reason=None, edited=None) for one in request.reopen]
    assert machine.decided(Decided(hunks=tuple(now))) is None
    return request


def type_in(machine: Going, text: str) -> None:
    press(machine, *text)


def test_the_first_screen_shows_place_command_lines_and_keys() -> None:
    machine = going()
    assert machine.asks() == [Ask(ONE.id)]
    assert machine.asks() == [], "once"
    machine.told(ONE.id, Why(hunk=ONE, entries=(entry(hosts=("pypi.org",)),)))
    lines = look(machine).split("\n")
    assert lines[0].split() == ["1/4", "app.py", "0", "accepted", "·", "0", "rejected", "·", "4", "open"]
    assert lines[1] == "$ sed -i s/foo/bar/ app.py  exit 0 · 0.2 s"
    assert lines[2] == "contacted: pypi.org"
    assert lines[3] == "@@ -1,3 +1,3 @@"
    assert lines[5:7] == ["  2     - foo(x)", "      2 + bar(x)"]
    assert lines[-1] == KEYS
    machine.go(3)
    assert look(machine).split("\n")[-1] == f"Y{KEYS[1:]}", "flagged"


def test_accepting_goes_on_to_the_next_and_the_end_says_what_to_do() -> None:
    machine = going()
    assert carry_out(machine, press(machine, "y")) == DecideRequest(accept=(ONE.id,), tip="1" * 40)
    assert look(machine).startswith(" 2/4 app.py")
    carry_out(machine, press(machine, "y"))
    carry_out(machine, press(machine, "y"))
    assert press(machine, "y") is None
    assert "flagged: Y" in look(machine)
    assert "FLAGGED: runs when the project is installed" in look(machine)
    carry_out(machine, press(machine, "Y"))
    assert "Everything is decided: 4 accepted, 0 rejected, 0 open." in look(machine)
    assert "    skerry apply fix-login" in look(machine).split("\n")
    assert press(machine, "y") is None
    assert press(machine, "q") == Leave(0)


def test_no_key_is_heard_until_the_server_has_answered() -> None:
    machine = going()
    wish = press(machine, "y")
    assert press(machine, "y") is None
    assert press(machine, "n") is None
    assert press(machine, "q") is None
    assert press(machine, "ctrl-c") == Leave(130)
    carry_out(machine, wish)
    assert machine.at == 1


def test_rejecting_asks_for_a_reason_in_line() -> None:
    machine = going()
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
    assert "rejected: not here: use the helper" in look(machine)


def test_undo_brings_back_each_state_with_its_reason() -> None:
    machine = going()
    assert press(machine, "u") is None
    assert "nothing to undo" in look(machine)
    carry_out(machine, press(machine, "n", "w", "h", "y", "enter"))
    press(machine, "K")
    carry_out(machine, press(machine, "y"))
    assert carry_out(machine, press(machine, "u")) == DecideRequest(reject=(ONE.id,), reason="why")
    assert machine.stop is not None
    assert machine.stop.hunk.state == "rejected"
    assert "undone: app.py, accepted" in look(machine)
    assert carry_out(machine, press(machine, "u")) == DecideRequest(reopen=(ONE.id,))
    assert machine.stop.hunk.state == "open"


def test_the_last_decision_can_be_undone_from_the_end() -> None:
    machine = Going(review(change("app.py", ONE)), "x")
    carry_out(machine, press(machine, "y"))
    assert machine.mode == "end"
    carry_out(machine, press(machine, "u"))
    assert look(machine).startswith(" 1/1 app.py")


def test_a_whole_file_is_what_is_open_in_it_and_nothing_flagged() -> None:
    machine = going(hunk("-z\n+zz\n", path="setup.py"))
    press(machine, "f")
    assert "all 2 open in app.py:" in look(machine)
    assert carry_out(machine, press(machine, "y")).accept == (ONE.id, TWO.id)
    press(machine, "j")
    assert len(carry_out(machine, press(machine, "f", "y")).accept) == 1
    assert "1 accepted; 1 flagged or cut, each by itself" in look(machine)
    machine.go(3)
    assert press(machine, "f", "y") is None
    assert "flagged or cut: each by itself" in look(machine)
    assert carry_out(machine, press(machine, "f", "n")).reject == (RISKY.id,)
    assert carry_out(machine, press(machine, "u")) == DecideRequest(reopen=(RISKY.id,))
    assert press(machine, "f", "escape") is None
    assert machine.mode == "hunk"


def test_a_hunk_is_split_in_place() -> None:
    machine = going()
    wish = press(machine, "s")
    assert isinstance(wish, Decide)
    assert wish.request.split == (ONE.id,)
    parts = (hunk("-foo(x)\n+bar(x)\n"), hunk("+new\n"))
    assert machine.decided(Decided(hunks=parts)) is None
    assert look(machine).startswith(" 1/5 app.py")
    assert "split into 2" in look(machine)
    machine.go(2)
    assert press(machine, "s") is None
    assert "can't be split" in look(machine)


def test_an_edit_is_looked_at_before_it_is_accepted() -> None:
    machine = going()
    wish = press(machine, "e")
    assert wish == Edit(ONE, "bar(x)\n")
    machine.edited("baz(x)\nqux()\n")
    shown = look(machine)
    assert "this would land in its place" in shown
    assert "+ baz(x)" in shown
    assert "+ qux()" in shown
    assert "bar(x)" not in shown
    assert press(machine, "e") == Edit(ONE, "baz(x)\nqux()\n")
    machine.edited("baz(x)\n")
    assert carry_out(machine, press(machine, "y")).edit == {ONE.id: "baz(x)\n"}
    press(machine, "K")
    assert "accepted, as edited by you" in look(machine)
    assert "+ baz(x)" in look(machine)


def test_an_edit_that_changed_nothing_decides_nothing() -> None:
    machine = going()
    press(machine, "e")
    machine.edited(None)
    assert "nothing was changed" in look(machine)
    assert machine.mode == "hunk"
    press(machine, "e")
    machine.edited("other\n")
    press(machine, "escape")
    assert "bar(x)" in look(machine)
    machine.go(3)
    press(machine, "e")
    machine.edited("other\n")
    assert press(machine, "y") is None
    assert "flagged" in look(machine)
    assert isinstance(press(machine, "Y"), Decide)


@pytest.mark.parametrize("kind", ["binary", "deleted", "mode", "large"])
def test_only_lines_of_text_are_edited(kind: str) -> None:
    machine = Going(review(change("x", hunk("", path="x", kind=kind))), "x")
    assert press(machine, "e") is None
    assert "only lines of text" in look(machine)


def test_new_lines_are_those_from_the_first_change_to_the_last() -> None:
    both = hunk(" a\n-b\n+B\n c\n+D\n e\n")
    assert both.replacement == "B\nc\nD\n"
    assert with_new_lines(both, "X\n").text == " a\n-b\n-c\n+X\n e\n"


def test_moving_skips_what_is_decided_and_goes_round() -> None:
    machine = going()
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
    assert "accepted" in look(machine)
    assert isinstance(press(machine, "o"), Decide)


def test_search_finds_text_and_names_and_says_when_it_does_not() -> None:
    machine = going()
    press(machine, "/", *"UTIL", "enter")
    assert machine.at == 2
    press(machine, "/", *"second", "enter")
    assert machine.at == 1
    press(machine, "/", *"nowhere", "enter")
    assert "not found: nowhere" in look(machine)
    assert machine.at == 1


def test_a_list_of_files_is_narrowed_and_gone_to() -> None:
    machine = going()
    press(machine, "g")
    lines = look(machine).split("\n")
    assert lines[1:4] == ["> app.py  2 of 2 open", "  lib/util.py  1 of 1 open", "  setup.py  1 of 1 open FLAGGED"]
    press(machine, "down", "enter")
    assert machine.at == 2
    press(machine, "g", *"setup", "enter")
    assert machine.at == 3
    press(machine, "g", *"zzz")
    assert "no file has that" in look(machine)
    press(machine, "enter")
    assert machine.mode == "hunk"


def test_a_long_hunk_is_scrolled_and_says_how_far() -> None:
    long = hunk("".join(f"+line {number}\n" for number in range(100)))
    machine = Going(review(change("app.py", long)), "x")
    assert "lines 1–20 of 101" in look(machine)
    press(machine, " ")
    assert "line 18" in look(machine)
    press(machine, "end")
    assert "line 99" in look(machine)
    press(machine, "down")
    assert "lines 82–101 of 101" in look(machine)
    assert "+ line 80" in look(machine, cols=40, rows=10), "resized: the same place"
    press(machine, "home")
    assert "lines 1–" in look(machine)


def test_what_was_cut_is_said_and_can_be_seen_whole() -> None:
    cut = replace(hunk("+a\n" * 50), truncated=True, new_lines=200_000)
    machine = Going(review(change("app.py", cut)), "x")
    press(machine, "end")
    look(machine)
    press(machine, "end")
    assert "CUT: about 199,950 more lines are not shown here; v shows all of it" in look(machine)
    assert press(machine, "v") == View(cut)
    assert press(machine, "e") is None


def test_what_is_not_shown_whole_is_accepted_only_on_purpose() -> None:
    cut = replace(hunk("+a\n" * 50), truncated=True, new_lines=200_000)
    long = hunk("+x = 1" + " " * 3000 + "; import os\n")
    for one in (cut, long):
        machine = Going(review(change("app.py", one)), "x")
        assert press(machine, "y") is None
        assert "not all of it is shown: v shows it, Y accepts it" in look(machine)
        assert press(machine, "f", "y") is None
        assert carry_out(machine, press(machine, "Y")).accept == (one.id,)
    rows = texts(body_rows(Stop(change("app.py", long), long), Look(80, letters=1 << 20)))
    assert rows[-1].endswith("ort os")


def test_what_changed_meanwhile_is_looked_at_again() -> None:
    machine = going()
    press(machine, "j")
    press(machine, "y")
    assert machine.failed("conflict", stale=True) == Reload()
    fresh = hunk("-second\n+another\n", old_start=40, new_start=40)
    machine.loaded(review(change("app.py", ONE, fresh)))
    assert "it changed meanwhile: look again" in look(machine)
    assert machine.stop is not None
    assert machine.stop.file.path == "app.py"
    assert press(machine, "R") == Reload()
    machine.loaded(review(change("app.py", ONE, fresh)))
    assert "nothing new" in look(machine)
    press(machine, "R")
    machine.loaded(review(change("app.py", ONE, fresh), change("lib/util.py", THREE)))
    assert "1 new" in look(machine)
    press(machine, "R")
    machine.loaded(review())
    assert "Nothing differs from what you have." in look(machine)
    for key in ("y", "n", "e", "s", "f", "j", "k", "J", "g", "/", " ", "u", "o", "v"):
        assert press(machine, key) is None


def test_neighbours_that_become_one_are_loaded_anew() -> None:
    machine = going()
    press(machine, "y")
    assert machine.decided(Decided(hunks=(hunk("-joined\n"),))) == Reload()


def test_a_failure_is_told_and_nothing_is_decided() -> None:
    machine = going()
    press(machine, "y")
    assert machine.failed("needs a token with scope `review`") is None
    assert "needs a token with scope `review`" in look(machine)
    assert machine.count("open") == 4
    assert not machine.undoing


def test_help_names_every_key_and_any_key_leaves_it() -> None:
    machine = going()
    press(machine, "?")
    shown = look(machine)
    for word in ("accept", "reject", "edit", "split", "whole file", "undo", "skip", "search", "pager"):
        assert word in shown
    press(machine, "x")
    assert look(machine).startswith(" 1/4")
    assert press(machine, "ctrl-z") == Suspend()
    press(machine, "~")
    assert "~ is no key here; ? helps" in look(machine)


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (20, 4), (200, 60), (5, 1)])
def test_every_screen_fits_its_window(size: tuple[int, int]) -> None:
    machine = going()
    cols, rows = max(20, size[0]), max(4, size[1])
    for keys in ([], ["n", *"a long reason" * 20], ["escape", "g"], ["escape", "?"], ["x", "f"], ["escape", "/"]):
        press(machine, *keys)
        page: Page = draw(machine, *size)
        assert len(page.rows) == rows
        assert all(sum(width_of(span.text) for span in row) <= cols for row in page.rows)
        assert page.cursor is None or (page.cursor[0] < cols and page.cursor[1] < rows)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_from_inside_reaches_the_screen_raw(text: str) -> None:
    bad = hunk(f"-{text}\n+{text}\n", path=text, heading=text, reason=text, risk=(text,), state="rejected", edited=text)
    file = change(text, bad, kind="renamed", old_path=text, sha256=text, large=True, risk=(text,))
    machine = Going(review(file, change("b", ONE)), "x")
    machine.told(bad.id, Why(hunk=bad, entries=(entry(text, hosts=(text,)), entry(text))))
    machine.go(0)
    machine.message = text
    for keys in ([], ["g", "down"], ["escape", "/", f"paste:{text}"], ["enter"], ["f"], ["escape", "?"], ["x"]):
        press(machine, *keys)
        for row in draw(machine, 60, 40).rows:
            assert is_harmless(text_of(row), allowed=())
            assert is_harmless(paint(row, 256).replace("\x1b[", ""), allowed=())


def test_ten_thousand_hunks_are_gone_through_without_delay() -> None:
    files = [change(f"f{n}", *(hunk(f"-{n} {m}\n+x\n", path=f"f{n}") for m in range(10))) for n in range(1000)]
    machine = Going(review(*files), "x")
    for key in ("j", "k", "J", "g", "down", "enter", "/", "9", "enter"):
        press(machine, key)
        look(machine)


def test_a_long_command_is_shown_on_several_rows_before_it_is_cut() -> None:
    machine = going()
    machine.told(ONE.id, Why(hunk=ONE, entries=(entry("first"), entry(f"echo {'word ' * 40}end"))))
    lines = look(machine).split("\n")
    assert "".join(line.ljust(80) for line in lines[1:4]).split()[-4:] == ["word", "word", "word", "end"]
    assert lines[4] == "exit 0 · 0.2 s"
    assert lines[5] == f"and 1 before it: skerry why fix-login {ONE.id}"
    machine.told(ONE.id, Why(hunk=ONE, entries=(entry("x" * 1000),)))
    lines = look(machine).split("\n")
    assert lines[3].endswith("x…")
    assert lines[4] == "exit 0 · 0.2 s"


def test_a_missing_end_of_a_file_is_said() -> None:
    machine = Going(review(change("app.py", hunk("-a\n+b\n\\ No newline at end of file\n"))), "x")
    assert "        \\ No newline at end of file" in look(machine)
