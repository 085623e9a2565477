"""What changed in a workspace, command by command: one sandbox that all tests here share, and what they add to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Client, Sandbox
from skerry.errors import Conflict, NotFound

START = """
cd /workspace && git init -q . && mkdir -p src deep/er nested && git init -q nested/own
printf 'one\\ntwo\\nthree\\n' > a.txt; echo 'print(1)' > src/b.py; ln -s a.txt link; mkfifo pipe; echo x > deep/er/x
head -c 3000 /dev/urandom > binary; echo '*.log' > .gitignore; echo old > old.log
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Client(server.address) as client, Sandbox(server=client) as made:
        made.run(START, check=True)
        made.review.begin(ignore={"": ["*.log"]})
        yield made


def test_a_review_begins_with_nothing_changed_and_says_what_it_leaves_out(sandbox: Sandbox) -> None:
    assert sandbox.review.diff() == ""
    (base,) = sandbox.review.history()
    assert (base.kind, base.command) == ("base", "")
    left_out = {one.path: one.new for one in sandbox.review.diff(stat=True).left_out}
    assert left_out == {"pipe": False, "nested/own/.git": False}


def test_a_second_review_is_refused_and_a_sandbox_without_one_says_so(sandbox: Sandbox) -> None:
    with pytest.raises(Conflict, match="review already"):
        sandbox.review.begin()
    with Sandbox(server=sandbox.client) as other, pytest.raises(NotFound, match="has no review") as caught:
        other.review.diff()
    assert "--repo" in str(caught.value.hint)


def test_what_a_command_changed_is_its_entry_with_how_it_ended(sandbox: Sandbox) -> None:
    line = "sed -i s/two/TWO/ a.txt; rm src/b.py; chmod +x deep/er/x; ln -sfn src link; mv binary moved; exit 3"
    result = sandbox.run(f"cd /workspace; {line}")
    (entry,) = sandbox.review.history(patch=True, limit=1)
    assert (entry.kind, entry.command, entry.exit_code) == ("command", f"cd /workspace; {line}", 3)
    assert (entry.processes, entry.running, entry.files) == ((result.id,), False, 5)
    changed = {file.path: (file.kind, file.new_mode) for file in sandbox.review.diff(stat=True)}
    assert changed == {
        "a.txt": ("modified", "100644"), "src/b.py": ("deleted", None), "deep/er/x": ("modified", "100755"),
        "link": ("modified", "120000"), "moved": ("renamed", "100644"),
    }  # fmt: skip
    assert entry.patch is not None
    assert "\n-two\n+TWO\n" in entry.patch
    assert sandbox.review.diff("a.txt") in sandbox.review.diff()
    assert "b.py" not in sandbox.review.diff(["a.txt", "deep"])


def test_commands_one_after_another_have_each_their_own(sandbox: Sandbox) -> None:
    before = sandbox.review.history().entries[-1].commit
    for number in range(5):
        sandbox.run(["touch", f"/workspace/n{number}"])
        sandbox.run("true")
    told = sandbox.review.history(since=before)
    assert [entry.command for entry in told] == [f"touch /workspace/n{number}" for number in range(5)]
    assert all((entry.files, entry.exit_code) == (1, 0) for entry in told)


def test_what_came_by_the_files_api_is_told_as_that(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/api.txt", "from outside\n")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.kind, entry.command, entry.files) == ("api", "", 1)


def test_a_session_s_command_is_told_as_it_was_typed(sandbox: Sandbox) -> None:
    session = sandbox.session("work")
    session.run("cd /workspace")
    session.run("echo s > s.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.kind, entry.command) == ("command", "echo s > s.txt")


def test_a_watcher_has_each_change_with_its_patch_and_its_command(sandbox: Sandbox) -> None:
    with sandbox.review.watch() as watch:
        began = watch.tip
        sandbox.run("echo seen > /workspace/seen.txt")
        event = next(watch)
        assert (event.type, event.sandbox, event.tip) == ("change", sandbox.id, watch.tip)
        assert event.entry is not None
        assert (event.entry.command, event.entry.commit) == ("echo seen > /workspace/seen.txt", event.tip)
        assert event.entry.patch is not None
        assert "+seen\n" in event.entry.patch
        assert [file.path for file in event.files] == ["seen.txt"]
    with sandbox.review.watch(since=began) as again:
        assert next(again) == event


def test_a_quiet_moment_of_a_command_is_told_while_it_runs(sandbox: Sandbox) -> None:
    with sandbox.review.watch() as watch:
        process = sandbox.spawn("cd /workspace; echo first > quiet; read line; echo second > quiet")
        event = next(watch)
        assert event.entry is not None
        assert (event.entry.processes, event.entry.running, event.entry.exit_code) == ((process.id,), True, None)
        process.stdin.write("go\n")
        assert process.wait(timeout=30) is not None
        event = next(watch)
        assert event.entry is not None
        assert (event.entry.processes, event.entry.running, event.entry.exit_code) == ((process.id,), False, 0)


def test_what_is_written_after_a_command_has_ended_is_nobody_s(sandbox: Sandbox) -> None:
    with sandbox.review.watch() as watch:
        sandbox.run("cd /workspace; (sleep 0.5; echo late > late.txt) >/dev/null 2>&1 &")
        event = next(watch)
        assert event.entry is not None
        assert (event.entry.kind, event.entry.processes) == ("background", ())
        assert [file.path for file in event.files] == ["late.txt"]


def test_commands_at_once_are_all_named(sandbox: Sandbox) -> None:
    long = sandbox.spawn("cd /workspace; read line")
    short = sandbox.run("echo both > /workspace/both.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (set(entry.processes), entry.running, entry.exit_code) == ({long.id, short.id}, True, None)
    assert entry.command == "cd /workspace; read line\necho both > /workspace/both.txt"
    long.kill()
    long.wait(timeout=30)
    sandbox.run("echo alone > /workspace/both.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.command, entry.running) == ("echo alone > /workspace/both.txt", False)


def test_a_change_that_hides_behind_an_old_time_is_seen(sandbox: Sandbox) -> None:
    sandbox.run(
        "cd /workspace; stat -c %y a.txt > /tmp/t; printf 'ONE\\ntwo\\n' > a.txt; touch -d \"$(cat /tmp/t)\" a.txt"
    )
    assert "+ONE" in sandbox.review.diff("a.txt")


def test_ignored_and_hostile_names_are_told_and_no_line_of_a_diff_is_theirs(sandbox: Sandbox) -> None:
    sandbox.run(
        "cd /workspace; echo n > new.log; mkdir -p $'bad\\n/.GIT ' $'esc\\e[31m\\nfake';"
        " echo x > $'bad\\n/.GIT /hooks'; echo y > $'esc\\e[31m\\nfake/y'; printf z > $'\\xff\\xfe'"
    )
    text, told = sandbox.review.diff(), sandbox.review.diff(stat=True)
    assert "\x1b" not in text
    assert "\nfake" not in text
    assert {one.path for one in told.left_out if one.new} == {"bad\n/.GIT /hooks"}
    assert b"\xff\xfe" in {file.raw_path for file in told}
    assert "# skerry: not in this: bad\\n/.GIT /hooks: " in text


def test_a_fork_goes_on_with_a_ledger_of_its_own(sandbox: Sandbox) -> None:
    sandbox.run("echo shared > /workspace/shared.txt")
    before = sandbox.review.history()
    (fork,) = sandbox.fork()
    try:
        fork.run("echo fork > /workspace/fork.txt")
        assert [entry.commit for entry in fork.review.history()][:-1] == [entry.commit for entry in before]
        assert fork.review.history().entries[-1].command == "echo fork > /workspace/fork.txt"
        assert [entry.commit for entry in sandbox.review.history()] == [entry.commit for entry in before]
    finally:
        fork.delete()
    assert "+shared" in sandbox.review.diff("shared.txt")


def test_a_rollback_is_an_entry_and_what_it_undid_stays_in_the_history(sandbox: Sandbox) -> None:
    snapshot = sandbox.snapshot()
    sandbox.run("echo gone > /workspace/gone.txt")
    sandbox.rollback(snapshot)
    try:
        *_, done, undone = sandbox.review.history(patch=True)
        assert (done.command, undone.kind) == ("echo gone > /workspace/gone.txt", "rollback")
        assert undone.patch is not None
        assert "\n-gone\n" in undone.patch
        assert sandbox.review.diff("gone.txt") == ""
    finally:
        snapshot.delete()


def test_a_sandbox_that_does_not_run_is_not_woken_by_a_look_at_its_changes(sandbox: Sandbox) -> None:
    sandbox.run("echo last > /workspace/last.txt")
    sandbox.pause()
    assert "+last" in sandbox.review.diff("last.txt")
    assert sandbox.info().state == "paused"
    sandbox.stop()
    assert sandbox.review.history(limit=1).entries[0].command == "echo last > /workspace/last.txt"
    assert sandbox.info().state == "stopped"
    sandbox.run("echo again >> /workspace/last.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.command, entry.added) == ("echo again >> /workspace/last.txt", 1)
