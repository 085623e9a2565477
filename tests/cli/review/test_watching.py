"""Watching as a machine, and patches as rows: what is printed for an event, and what a key may decide."""

from __future__ import annotations

import pytest
from cli.review.shown import HOSTILE, change, entry, hunk, is_harmless, review, texts
from msgspec.structs import replace

from skerry.cli.review.origin import why_rows
from skerry.cli.review.patch import lines_of
from skerry.cli.review.pieces import patch_rows, stat_rows
from skerry.cli.review.rows import Look
from skerry.cli.review.style import text_of
from skerry.cli.review.visible import width_of
from skerry.cli.review.watching import Judge, Quit, Undo, Watching, sorted_out
from skerry.types import DecideRequest, FileChange, ReviewEvent, Why

LOOK = Look(80, ink=False)
ID = "sb-aaaaaaaaaa"
PATCH = """\
diff --git a/app.py b/app.py
index 1..2 100644
--- a/app.py
+++ b/app.py
@@ -1,2 +1,2 @@ class App:
 a
-foo(x)
+bar(x)
"""
HUNK = hunk(" a\n-foo(x)\n+bar(x)\n")


def event(patch: str = PATCH, *files: FileChange, sandbox: str = ID, **more: object) -> ReviewEvent:
    known = entry(patch=patch, files=1, added=1, removed=1, **more)
    return ReviewEvent(type="change", sandbox=sandbox, tip="1" * 40, entry=known, files=files or (change("app.py"),))


def watching(**names: str) -> Watching:
    return Watching(names or {ID: "fix-login"})


def judged(machine: Watching, key: str = "a", now: float = 10.0) -> Judge:
    wish, _ = machine.press(key, now)
    assert isinstance(wish, Judge)
    return wish


def test_a_change_is_a_patch_under_its_command() -> None:
    assert texts(watching().take(event(), LOOK)) == [
        "",
        "$ sed -i s/foo/bar/ app.py  exit 0 · 0.2 s · app.py +1 −1",
        "app.py  +1 −1",
        "@@ -1,2 +1,2 @@ class App:",
        "  1   1   a",
        "  2     - foo(x)",
        "      2 + bar(x)",
    ]


def test_what_is_flagged_is_marked_with_its_reason() -> None:
    rows = texts(watching().take(event(PATCH, change("app.py", risk=("it runs", "it is a link"))), LOOK))
    assert rows[2:4] == ["app.py  +1 −1", "FLAGGED: it runs; it is a link"]


def test_of_several_sandboxes_each_line_says_whose_it_is() -> None:
    machine = Watching({ID: "one", "sb-bbbbbbbbbb": "two"})
    rows = texts(machine.take(event(sandbox="sb-bbbbbbbbbb"), LOOK))
    assert rows[1].startswith("two  $ sed")
    assert rows[2] == "two  app.py  +1 −1"


def test_a_long_command_gives_way_to_what_came_of_it() -> None:
    rows = texts(watching().take(event(exit_code=1), Look(60)))
    assert rows[1].endswith("exit 1 · 0.2 s · app.py +1 −1")
    long = ReviewEvent(type="change", sandbox=ID, tip="1", entry=entry("x" * 500 + "\nmore"), files=(change("app.py"),))
    shown = texts(watching().take(long, LOOK))[1]
    assert width_of(shown) <= 80
    assert "…" in shown
    assert shown.endswith("app.py +1 −1")


def test_what_ran_on_or_was_nobodys_is_said() -> None:
    assert "while it ran" in texts(watching().take(event(running=True), LOOK))[1]
    assert texts(watching().take(event(kind="background"), LOOK))[1].startswith("written while no command ran")


def test_other_events_are_told_in_a_line() -> None:
    machine = watching()
    lost = ReviewEvent(type="lost", sandbox=ID, tip="1")
    assert texts(machine.take(lost, LOOK)) == ["too much at once, some was not shown: skerry diff fix-login"]
    done = ReviewEvent(type="decision", sandbox=ID, tip="1", hunks=(hunk("-a\n", state="rejected", reason="no"),))
    assert texts(machine.take(done, LOOK)) == ["app.py:1 rejected: no"]


def test_a_and_r_are_about_what_was_shown_last() -> None:
    machine = watching()
    assert machine.press("a", 0.0) == (None, [])
    assert machine.message == "nothing was shown yet"
    machine.take(event(), LOOK, 0.0)
    assert text_of(machine.status(80)) == "app.py: a accept  r reject  ? help  q quit"
    wish = judged(machine)
    assert sorted_out(wish.shown, review(change("app.py", HUNK)), "accept") == ([HUNK], [])
    machine.judged(wish.shown, [HUNK], [], "accept")
    assert "1 accepted in app.py" in text_of(machine.status(80))
    assert machine.press("u", 11.0)[0] == Undo(ID, DecideRequest(reopen=(HUNK.id,)))
    machine.failed("undone")
    assert machine.press("q", 12.0)[0] == Quit()


def test_a_reason_is_typed_in_line_for_what_was_meant() -> None:
    machine = watching()
    machine.take(event(), LOOK, 0.0)
    assert machine.press("r", 10.0) == (None, [])
    meant = machine.last
    for key in "not so":
        machine.press(key, 10.0)
    assert text_of(machine.status(80)) == "reason, for the agent: not so"
    machine.take(event(PATCH.replace("bar", "baz")), LOOK, 11.0)
    assert machine.press("enter", 12.0)[0] == Judge(meant, "reject", "not so")
    machine.judged(meant, [], [], "reject")
    machine.press("r", 20.0)
    assert machine.press("escape", 20.0) == (None, [])
    assert machine.mode == "watch"


def test_a_key_that_comes_right_after_something_new_is_not_taken_for_it() -> None:
    machine = watching()
    machine.take(event(), LOOK, 0.0)
    machine.take(event(PATCH.replace("bar", "evil")), LOOK, 10.0)
    assert machine.press("a", 10.1) == (None, [])
    assert "something new came" in machine.message
    assert isinstance(machine.press("a", 11.0)[0], Judge)


def test_what_was_not_shown_whole_is_not_accepted() -> None:
    machine = watching()
    lines = "".join(f"+line {number}\n" for number in range(500))
    rows = texts(machine.take(event(f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,500 @@\n{lines}"), LOOK, 0.0))
    assert "CUT: 440 more lines" in rows
    assert rows[-1] == "CUT: all of it: skerry diff fix-login"
    assert len(rows) < 80
    assert machine.press("a", 10.0) == (None, [])
    assert "not all of it was shown: skerry review fix-login" in machine.message
    assert machine.press("r", 10.0) == (None, [])
    assert machine.mode == "watch"
    machine.take(event(truncated=True), LOOK, 20.0)
    assert machine.press("a", 30.0) == (None, [])


def test_a_hunk_with_more_in_it_than_was_shown_is_not_accepted() -> None:
    machine = watching()
    machine.take(event(), LOOK, 0.0)
    shown = judged(machine).shown
    more = hunk(" a\n-foo(x)\n+bar(x)\n b\n+import os; os.system('x')\n")
    twice = hunk(" a\n-old(x)\n+bar(x)\n")
    elsewhere = hunk(" a\n-foo(x)\n+bar(x)\n", path="b.py")
    cut = hunk(" a\n-foo(x)\n+bar(x)\n", truncated=True)
    flagged = hunk(" a\n-foo(x)\n+bar(x)\n", risk=("CI",))
    found = review(change("app.py", more, twice, cut, flagged), change("b.py", elsewhere))
    meant, left = sorted_out(shown, found, "accept")
    assert meant == []
    assert left == ["1 flagged, each by itself in skerry review", "3 changed in more than was shown: skerry review"]
    assert sorted_out(shown, found, "reject")[0] == [flagged]
    assert sorted_out(shown, review(change("app.py", hunk("", kind="mode"))), "accept")[0] == []


def test_the_same_lines_at_another_place_are_not_what_was_shown() -> None:
    machine = watching()
    machine.take(event(), LOOK, 0.0)
    shown = judged(machine).shown
    elsewhere = hunk(" def is_allowed(x):\n-foo(x)\n+bar(x)\n", old_start=40, new_start=40)
    meant, left = sorted_out(shown, review(change("app.py", HUNK, elsewhere)), "accept")
    assert meant == [HUNK]
    assert left == ["1 changed in more than was shown: skerry review"]
    later = replace(review(change("app.py", HUNK)), tip="2" * 40)
    assert sorted_out(shown, later, "accept") == ([], ["something changed since: look, then press it again"])
    assert sorted_out(shown, later, "reject") == ([HUNK], [])


def test_the_place_of_lines_that_only_go_or_come_is_told_alike_by_a_patch_and_a_hunk() -> None:
    heads = "diff --git a/app.py b/app.py\n--- a/app.py\n+++ b/app.py\n"
    for head, numbers, lines in (
        ("@@ -3 +2,0 @@", (3, 1, 2, 0), "-c\n"),
        ("@@ -2,0 +3 @@", (2, 0, 3, 1), "+c\n"),
        ("@@ -1,3 +1,3 @@", (1, 3, 1, 3), "-a\n+A\n b\n-c\n+C\n"),
    ):
        machine = watching()
        machine.take(event(f"{heads}{head}\n{lines}"), LOOK, 0.0)
        same = hunk(lines, **dict(zip(("old_start", "old_lines", "new_start", "new_lines"), numbers, strict=True)))
        wide = hunk(f" b\n{lines}", new_start=2) if head != "@@ -1,3 +1,3 @@" else same
        found = review(change("app.py", same, wide))
        assert sorted_out(judged(machine).shown, found, "accept")[0] == [same, wide]


def test_a_line_whose_end_was_not_shown_is_not_accepted() -> None:
    machine = watching()
    long = "x = 1" + " " * 3000 + "; import os"
    rows = texts(machine.take(event(PATCH.replace("bar(x)", long)), LOOK, 0.0))
    assert "more letters" in "\n".join(rows)
    assert machine.press("a", 10.0) == (None, [])
    assert "not all of it was shown" in machine.message


def test_a_lost_end_of_a_file_is_another_change() -> None:
    end = "\\ No newline at end of file\n"
    machine = watching()
    machine.take(event(PATCH + end), LOOK, 0.0)
    shown = judged(machine).shown
    assert sorted_out(shown, review(change("app.py", HUNK)), "accept")[0] == []
    with_end = hunk(" a\n-foo(x)\n+bar(x)\n" + end)
    assert sorted_out(shown, review(change("app.py", with_end)), "accept")[0] == [with_end]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_from_inside_is_printed_raw(text: str) -> None:
    whole = "".join(char for char in text if not "\ud800" <= char <= "\udfff")
    patch = PATCH.replace("bar(x)", whole).replace("class App:", whole).replace("index 1..2", f"new mode {whole}")
    machine = Watching({ID: text, "sb-bbbbbbbbbb": "two"})
    file = change(text, kind="renamed", old_path=text, old_mode=text, new_mode=text, risk=(text,))
    rows = machine.take(event(patch, file, command=text, hosts=(text,)), LOOK)
    rows += machine.take(ReviewEvent(type="lost", sandbox=ID, tip="1"), LOOK)
    bad = hunk(f"-{text}\n", path=text, reason=text, state="rejected", risk=(text,), heading=text)
    rows += machine.take(ReviewEvent(type="decision", sandbox=ID, tip="1", hunks=(bad,)), LOOK)
    rows += stat_rows([file], LOOK)
    why = Why(hunk=bad, entries=(entry(text, processes=(text,), hosts=(text,)),), output={text: f"{text}\n{text}"})
    rows += why_rows(why, LOOK)
    rows += patch_rows(
        [b"# skerry: not in this: " + text.encode("utf-8", "surrogatepass"), *patch.encode().split(b"\n")], LOOK
    )
    machine.message = text
    rows.append(machine.status(200))
    assert is_harmless("\n".join(map(text_of, rows)), allowed=("\n",))


def test_statistics_look_like_gits() -> None:
    files = [
        change("app.py", added=2, removed=1),
        change("a.bin", added=None, removed=None, binary=True, old_size=1, new_size=2000),
        change("new", kind="added", added=100, removed=0, risk=("x",)),
    ]
    assert texts(stat_rows(files, LOOK)) == [
        " app.py |    3 +-",
        " a.bin  | binary 1 → 2,000 bytes",
        " new    |  100 ++++++++++++++++++++++++++++++++++++++++ (new)  FLAGGED",
        " 3 files changed, +102 −1",
    ]


def test_a_patch_of_two_hundred_thousand_lines_is_cut_and_says_so() -> None:
    head = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,200000 @@\n"
    rows = sum(1 for _ in patch_rows(lines_of([head, b"+x\n" * 200_000]), LOOK))
    assert rows < 20_010


def test_notes_of_the_server_stand_in_front_and_can_not_be_forged_by_a_file() -> None:
    patch = PATCH.replace("+bar(x)", "+# skerry: all is well").encode().split(b"\n")
    rows = texts(patch_rows([b"# skerry: not in this: a: a socket", *patch], LOOK))
    assert rows[0] == "skerry: not in this: a: a socket"
    assert rows[-1] == "      2 + # skerry: all is well"


def test_the_origin_of_a_hunk_has_its_commands_and_their_output() -> None:
    why = Why(hunk=HUNK, entries=(entry(processes=("p-aaaaaaaaaa",)),), output={"p-aaaaaaaaaa": "12 passed\n"})
    rows = texts(why_rows(why, LOOK))
    assert rows[0] == f"app.py  {HUNK.id}  open"
    assert rows[-3:] == [
        "made by  $ sed -i s/foo/bar/ app.py  exit 0 · 0.2 s",
        "1970-01-01 00:00:00 UTC  222222222222  p-aaaaaaaaaa",
        "  12 passed",
    ]
