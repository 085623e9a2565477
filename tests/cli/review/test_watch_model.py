"""The watch model and rows of patches: the output for events, and the decisions of keys."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.review_values import HOSTILE, change, entry, hunk, is_harmless, review, texts

from skerry.cli.commands.review import origin_rows
from skerry.cli.review.escape import width_of
from skerry.cli.review.file_rows import patch_rows, stat_rows
from skerry.cli.review.patch import split_lines
from skerry.cli.review.rows import Layout
from skerry.cli.review.style import text_of
from skerry.cli.review.watch_model import DecideShown, Quit, Undo, WatchModel, joined_hunks, shown_hunks
from skerry.types import Decisions, FileChange, HunkOrigin, ReviewEvent

LAYOUT = Layout(80, ink=False)
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


def watching(**names: str) -> WatchModel:
    return WatchModel(names or {ID: "fix-login"})


def decided(machine: WatchModel, key: str = "a", now: float = 10.0) -> DecideShown:
    effect, _ = machine.press(key, now)
    assert isinstance(effect, DecideShown)
    return effect


def test_change_is_printed_as_a_patch_below_its_command() -> None:
    assert texts(watching().take(event(), LAYOUT)) == [
        "",
        "$ sed -i s/foo/bar/ app.py  exit 0 · 0.2 s · app.py +1 −1",
        "app.py  +1 −1",
        "@@ -1,2 +1,2 @@ class App:",
        "  1   1   a",
        "  2     - foo(x)",
        "      2 + bar(x)",
    ]


def test_flagged_file_is_marked_with_its_reasons() -> None:
    rows = texts(watching().take(event(PATCH, change("app.py", risk=("it runs", "it is a link"))), LAYOUT))
    assert rows[2:4] == ["app.py  +1 −1", "FLAGGED: it runs; it is a link"]


def test_lines_of_several_sandboxes_start_with_the_name() -> None:
    machine = WatchModel({ID: "one", "sb-bbbbbbbbbb": "two"})
    rows = texts(machine.take(event(sandbox="sb-bbbbbbbbbb"), LAYOUT))
    assert rows[1].startswith("two  $ sed")
    assert rows[2] == "two  app.py  +1 −1"


def test_long_command_is_shortened_before_its_result() -> None:
    rows = texts(watching().take(event(exit_code=1), Layout(60)))
    assert rows[1].endswith("exit 1 · 0.2 s · app.py +1 −1")
    long = ReviewEvent(type="change", sandbox=ID, tip="1", entry=entry("x" * 500 + "\nmore"), files=(change("app.py"),))
    shown = texts(watching().take(long, LAYOUT))[1]
    assert width_of(shown) <= 80
    assert "…" in shown
    assert shown.endswith("app.py +1 −1")


def test_running_command_and_background_change_are_named() -> None:
    assert "still running" in texts(watching().take(event(running=True), LAYOUT))[1]
    assert texts(watching().take(event(kind="background"), LAYOUT))[1].startswith("written while no command ran")


def test_other_events_are_one_line() -> None:
    machine = watching()
    lost = ReviewEvent(type="lost", sandbox=ID, tip="1")
    assert texts(machine.take(lost, LAYOUT)) == ["too many changes at once, some were not shown: skerry diff fix-login"]
    done = ReviewEvent(type="decision", sandbox=ID, tip="1", hunks=(hunk("-a\n", state="rejected", reason="no"),))
    assert texts(machine.take(done, LAYOUT)) == ["app.py:1 rejected: no"]


def test_keys_decide_about_the_last_shown_change() -> None:
    machine = watching()
    assert machine.press("a", 0.0) == (None, [])
    assert machine.message == "no change was shown yet"
    machine.take(event(), LAYOUT, 0.0)
    assert text_of(machine.status(80)) == "app.py: a accept  r reject  ? help  q quit"
    effect = decided(machine)
    assert shown_hunks(effect.shown, review(change("app.py", HUNK)), "accept") == ([HUNK], [])
    machine.decided(effect.shown, [HUNK], [], "accept")
    assert "1 accepted in app.py" in text_of(machine.status(80))
    assert machine.press("u", 11.0)[0] == Undo(ID, Decisions(reopen=(HUNK.id,), seen={HUNK.id: "accepted"}))
    machine.failed("undone")
    assert machine.press("q", 12.0)[0] == Quit()


def test_reason_applies_to_the_change_it_was_started_for() -> None:
    machine = watching()
    machine.take(event(), LAYOUT, 0.0)
    assert machine.press("r", 10.0) == (None, [])
    meant = machine.last
    for key in "not so":
        machine.press(key, 10.0)
    assert text_of(machine.status(80)) == "reason, for the agent: not so"
    machine.take(event(PATCH.replace("bar", "baz")), LAYOUT, 11.0)
    assert machine.press("enter", 12.0)[0] == DecideShown(meant, "reject", "not so")
    machine.decided(meant, [], [], "reject")
    machine.press("r", 20.0)
    assert machine.press("escape", 20.0) == (None, [])
    assert machine.mode == "watch"


def test_key_right_after_a_new_change_is_ignored() -> None:
    machine = watching()
    machine.take(event(), LAYOUT, 0.0)
    machine.take(event(PATCH.replace("bar", "evil")), LAYOUT, 10.0)
    assert machine.press("a", 10.1) == (None, [])
    assert "a new change just arrived" in machine.message
    assert isinstance(machine.press("a", 11.0)[0], DecideShown)


def test_incompletely_shown_change_is_not_accepted() -> None:
    machine = watching()
    lines = "".join(f"+line {number}\n" for number in range(500))
    rows = texts(machine.take(event(f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,500 @@\n{lines}"), LAYOUT, 0.0))
    assert "CUT: 440 more lines" in rows
    assert rows[-1] == "CUT: see all: skerry diff fix-login"
    assert len(rows) < 80
    assert machine.press("a", 10.0) == (None, [])
    assert "not all of it was shown: skerry review fix-login" in machine.message
    assert machine.press("r", 10.0) == (None, [])
    assert machine.mode == "watch"
    machine.take(event(truncated=True), LAYOUT, 20.0)
    assert machine.press("a", 30.0) == (None, [])


def test_hunk_with_unshown_lines_is_not_accepted() -> None:
    machine = watching()
    machine.take(event(), LAYOUT, 0.0)
    shown = decided(machine).shown
    more = hunk(" a\n-foo(x)\n+bar(x)\n b\n+import os; os.system('x')\n")
    twice = hunk(" a\n-old(x)\n+bar(x)\n")
    elsewhere = hunk(" a\n-foo(x)\n+bar(x)\n", path="b.py")
    cut = hunk(" a\n-foo(x)\n+bar(x)\n", truncated=True)
    flagged = hunk(" a\n-foo(x)\n+bar(x)\n", risk=("CI",))
    found = review(change("app.py", more, twice, cut, flagged), change("b.py", elsewhere))
    meant, left = shown_hunks(shown, found, "accept")
    assert meant == []
    assert left == ["1 flagged: accept each in skerry review", "3 not shown completely: skerry review"]
    assert shown_hunks(shown, found, "reject")[0] == [flagged]
    assert shown_hunks(shown, review(change("app.py", hunk("", kind="mode"))), "accept")[0] == []


def test_change_next_to_an_open_hunk_is_separated_from_it() -> None:
    machine = watching()
    machine.take(event(), LAYOUT, 0.0)
    shown = decided(machine).shown
    joined = hunk(" a\n-foo(x)\n+bar(x)\n b\n-c\n+C\n", splittable=True)
    whole = hunk(" a\n-foo(x)\n-y\n+bar(x)\n+Y\n")  # neighbouring lines are one change
    assert joined_hunks(shown, review(change("app.py", joined, whole))) == [joined]
    older = hunk(" b\n-c\n+C\n", old_start=3, new_start=3)
    parts = review(change("app.py", HUNK, older))
    assert shown_hunks(shown, parts, "accept") == ([HUNK], [])
    assert joined_hunks(shown, parts) == []
    assert shown_hunks(shown, review(change("app.py", whole)), "accept") == (
        [], ["1 not shown completely: skerry review"],
    )  # fmt: skip
    assert joined_hunks(shown, replace(review(change("app.py", joined)), tip="2" * 40)) == []


def test_accepted_and_applied_change_is_undone_with_its_apply() -> None:
    machine = watching()
    machine.take(event(), LAYOUT, 0.0)
    machine.decided(decided(machine).shown, [HUNK], [], "accept", applied=True)
    assert "1 applied in app.py" in text_of(machine.status(80))
    effect, _ = machine.press("u", 11.0)
    assert isinstance(effect, Undo)
    assert effect.applied


def test_same_lines_at_another_position_are_not_accepted() -> None:
    machine = watching()
    machine.take(event(), LAYOUT, 0.0)
    shown = decided(machine).shown
    elsewhere = hunk(" def is_allowed(x):\n-foo(x)\n+bar(x)\n", old_start=40, new_start=40)
    meant, left = shown_hunks(shown, review(change("app.py", HUNK, elsewhere)), "accept")
    assert (meant, left) == ([HUNK], [])  # the other is an older open change
    later = replace(review(change("app.py", HUNK)), tip="2" * 40)
    assert shown_hunks(shown, later, "accept") == (
        [],
        ["changed since it was shown: check it, then press the key again"],
    )
    assert shown_hunks(shown, later, "reject") == ([HUNK], [])


def test_positions_of_a_patch_and_a_hunk_agree() -> None:
    heads = "diff --git a/app.py b/app.py\n--- a/app.py\n+++ b/app.py\n"
    for head, numbers, lines in (
        ("@@ -3 +2,0 @@", (3, 1, 2, 0), "-c\n"),
        ("@@ -2,0 +3 @@", (2, 0, 3, 1), "+c\n"),
        ("@@ -1,3 +1,3 @@", (1, 3, 1, 3), "-a\n+A\n b\n-c\n+C\n"),
    ):
        machine = watching()
        machine.take(event(f"{heads}{head}\n{lines}"), LAYOUT, 0.0)
        same = hunk(lines, **dict(zip(("old_start", "old_lines", "new_start", "new_lines"), numbers, strict=True)))
        wide = hunk(f" b\n{lines}", new_start=2) if head != "@@ -1,3 +1,3 @@" else same
        found = review(change("app.py", same, wide))
        assert shown_hunks(decided(machine).shown, found, "accept")[0] == [same, wide]


def test_line_with_a_hidden_end_is_not_accepted() -> None:
    machine = watching()
    long = "x = 1" + " " * 3000 + "; import os"
    rows = texts(machine.take(event(PATCH.replace("bar(x)", long)), LAYOUT, 0.0))
    assert "more characters" in "\n".join(rows)
    assert machine.press("a", 10.0) == (None, [])
    assert "not all of it was shown" in machine.message


def test_missing_newline_at_end_of_file_is_a_different_change() -> None:
    end = "\\ No newline at end of file\n"
    machine = watching()
    machine.take(event(PATCH + end), LAYOUT, 0.0)
    shown = decided(machine).shown
    assert shown_hunks(shown, review(change("app.py", HUNK)), "accept")[0] == []
    with_end = hunk(" a\n-foo(x)\n+bar(x)\n" + end)
    assert shown_hunks(shown, review(change("app.py", with_end)), "accept")[0] == [with_end]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped_in_all_output(text: str) -> None:
    whole = "".join(char for char in text if not "\ud800" <= char <= "\udfff")
    patch = PATCH.replace("bar(x)", whole).replace("class App:", whole).replace("index 1..2", f"new mode {whole}")
    machine = WatchModel({ID: text, "sb-bbbbbbbbbb": "two"})
    file = change(text, kind="renamed", old_path=text, old_mode=text, new_mode=text, risk=(text,))
    rows = machine.take(event(patch, file, command=text, hosts=(text,)), LAYOUT)
    rows += machine.take(ReviewEvent(type="lost", sandbox=ID, tip="1"), LAYOUT)
    bad = hunk(f"-{text}\n", path=text, reason=text, state="rejected", risk=(text,), heading=text)
    rows += machine.take(ReviewEvent(type="decision", sandbox=ID, tip="1", hunks=(bad,)), LAYOUT)
    rows += stat_rows([file], LAYOUT)
    origin = HunkOrigin(
        hunk=bad, entries=(entry(text, processes=(text,), hosts=(text,)),), output={text: f"{text}\n{text}"}
    )
    rows += origin_rows(origin, LAYOUT)
    rows += patch_rows(
        [b"# skerry: not in this: " + text.encode("utf-8", "surrogatepass"), *patch.encode().split(b"\n")], LAYOUT
    )
    machine.message = text
    rows.append(machine.status(200))
    assert is_harmless("\n".join(map(text_of, rows)), allowed=("\n",))


def test_statistics_look_like_git_diff_stat() -> None:
    files = [
        change("app.py", added=2, removed=1),
        change("a.bin", added=None, removed=None, binary=True, old_size=1, new_size=2000),
        change("new", kind="added", added=100, removed=0, risk=("x",)),
    ]
    assert texts(stat_rows(files, LAYOUT)) == [
        " app.py |    3 +-",
        " a.bin  | binary 1 → 2,000 bytes",
        " new    |  100 ++++++++++++++++++++++++++++++++++++++++ (new)  FLAGGED",
        " 3 files changed, +102 −1",
    ]


def test_patch_of_200000_lines_is_truncated() -> None:
    head = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -0,0 +1,200000 @@\n"
    rows = sum(1 for _ in patch_rows(split_lines([head, b"+x\n" * 200_000]), LAYOUT))
    assert rows < 20_010


def test_server_notes_come_first_and_cannot_be_forged() -> None:
    patch = PATCH.replace("+bar(x)", "+# skerry: all is well").encode().split(b"\n")
    rows = texts(patch_rows([b"# skerry: not in this: a: a socket", *patch], LAYOUT))
    assert rows[0] == "skerry: not in this: a: a socket"
    assert rows[-1] == "      2 + # skerry: all is well"


def test_origin_shows_commands_and_their_output() -> None:
    origin = HunkOrigin(
        hunk=HUNK, entries=(entry(processes=("p-aaaaaaaaaa",)),), output={"p-aaaaaaaaaa": "12 passed\n"}
    )
    rows = texts(origin_rows(origin, LAYOUT))
    assert rows[0] == f"app.py  {HUNK.id}  open"
    assert rows[-3:] == [
        "made by  $ sed -i s/foo/bar/ app.py  exit 0 · 0.2 s",
        "1970-01-01 00:00:00 UTC  222222222222  p-aaaaaaaaaa",
        "  12 passed",
    ]
