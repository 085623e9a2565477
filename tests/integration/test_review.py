"""Changes of a workspace, command by command; the tests share one sandbox and add to its history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.server import Server, wait_until

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
        made.review.start(ignore={"": ["*.log"]})
        yield made


def test_review_starts_without_changes_and_lists_omitted_files(sandbox: Sandbox) -> None:
    assert sandbox.review.diff() == ""
    (base,) = sandbox.review.history()
    assert (base.kind, base.command) == ("base", "")
    left_out = {one.path: one.new for one in sandbox.review.diff(stat=True).left_out}
    assert left_out == {"pipe": False, "nested/own/.git": False}


def test_second_review_is_a_conflict_and_a_missing_one_is_reported(sandbox: Sandbox) -> None:
    with pytest.raises(Conflict, match="already has a review"):
        sandbox.review.start()
    with Sandbox(server=sandbox.client) as other, pytest.raises(NotFound, match="has no review") as caught:
        other.review.diff()
    assert "--repo" in str(caught.value.hint)


def test_changes_of_a_command_are_its_entry_with_the_exit(sandbox: Sandbox) -> None:
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


def test_consecutive_commands_have_separate_entries(sandbox: Sandbox) -> None:
    before = sandbox.review.history().entries[-1].commit
    for number in range(5):
        sandbox.run(["touch", f"/workspace/n{number}"])
        sandbox.run("true")
    told = sandbox.review.history(since=before)
    changed = [entry for entry in told if entry.files]
    assert [entry.command for entry in changed] == [f"touch /workspace/n{number}" for number in range(5)]
    assert all((entry.files, entry.exit_code) == (1, 0) for entry in changed)
    assert [(entry.command, entry.commit) for entry in told if not entry.files] == [("true", "")] * 5


def test_files_api_changes_are_marked(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/api.txt", "from outside\n")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.kind, entry.command, entry.files) == ("api", "", 1)


def test_session_command_is_shown_as_typed(sandbox: Sandbox) -> None:
    session = sandbox.session("work")
    session.run("cd /workspace")
    session.run("echo s > s.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.kind, entry.command) == ("command", "echo s > s.txt")


def test_watcher_receives_each_change_with_patch_and_command(sandbox: Sandbox) -> None:
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


def test_changes_are_reported_in_quiet_moments_of_a_running_command(sandbox: Sandbox) -> None:
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


def test_changes_after_the_end_of_a_command_have_no_writer(sandbox: Sandbox) -> None:
    with sandbox.review.watch() as watch:
        sandbox.run("cd /workspace; (sleep 0.5; echo late > late.txt) >/dev/null 2>&1 &")
        event = next(event for event in watch if event.type == "change")
        assert event.entry is not None
        assert (event.entry.kind, event.entry.processes) == ("background", ())
        assert [file.path for file in event.files] == ["late.txt"]


def test_concurrent_commands_are_all_named(sandbox: Sandbox) -> None:
    long = sandbox.spawn("cd /workspace; read line")
    short = sandbox.run("echo both > /workspace/both.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.processes, entry.running, entry.exit_code) == ((long.id, short.id), False, 0)
    assert (entry.command, entry.also) == ("echo both > /workspace/both.txt", ("cd /workspace; read line",))
    long.kill()
    long.wait(timeout=30)
    sandbox.run("echo alone > /workspace/both.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.command, entry.running) == ("echo alone > /workspace/both.txt", False)


def test_change_with_an_old_mtime_is_seen(sandbox: Sandbox) -> None:
    sandbox.run(
        "cd /workspace; stat -c %y a.txt > /tmp/t; printf 'ONE\\ntwo\\n' > a.txt; touch -d \"$(cat /tmp/t)\" a.txt"
    )
    assert "+ONE" in sandbox.review.diff("a.txt")


def test_ignored_and_hostile_names_are_reported_and_cannot_forge_diff_lines(sandbox: Sandbox) -> None:
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


def test_fork_continues_with_a_separate_ledger(sandbox: Sandbox) -> None:
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


def test_rollback_is_an_entry_and_keeps_the_history(sandbox: Sandbox) -> None:
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


def test_reading_changes_does_not_resume_a_sandbox(sandbox: Sandbox) -> None:
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


def test_command_has_one_entry_with_its_outcome_however_long_it_runs(sandbox: Sandbox) -> None:
    before = sandbox.review.changes().tip
    totals = sandbox.review.history().totals
    put = "echo {} > /tmp/slow.txt; mv /tmp/slow.txt /workspace"  # at once: a collection may come at any time
    process = sandbox.spawn(f"{put.format(1)}; read; {put.format(2)}; read; exit 3", stdin=True)

    def steps() -> int:
        found = [entry for entry in sandbox.review.history(since=before) if entry.processes == (process.id,)]
        assert len(found) <= 1
        return max(len(found[0].steps), 1) if found else 0

    wait_until(lambda: steps() == 1, "the first step")
    (entry,) = sandbox.review.history(since=before)
    assert (entry.running, entry.exit_code, entry.steps) == (True, None, ())
    process.stdin.write("\n")
    wait_until(lambda: steps() == 2, "the second step")
    process.stdin.write("\n")
    assert process.wait().exit_code == 3
    (entry,) = sandbox.review.history(since=before, patch=True)
    assert (entry.running, entry.exit_code, entry.files, len(entry.steps)) == (False, 3, 1, 2)
    assert entry.duration_s is not None
    assert entry.cpu_s is not None
    assert entry.memory_peak
    assert (entry.patch or "").count("diff --git") == 2
    now = sandbox.review.history().totals
    assert (now.commands, now.failed) == (totals.commands + 1, totals.failed + 1)
    (hunk,) = sandbox.review.changes("slow.txt").hunks
    (origin,) = sandbox.review.origin(hunk).entries
    assert (origin.exit_code, len(origin.steps)) == (3, 2)
    assert [one.exit_code for one in sandbox.review.changes().failed][-1] == 3


def test_command_without_changes_is_in_the_history_and_its_failure_is_watched(sandbox: Sandbox) -> None:
    before = sandbox.review.changes().tip
    with sandbox.review.watch() as watch:
        sandbox.run("true")
        sandbox.run("exit 9")
        seen = [next(watch) for _ in range(2)]
    assert [(event.type, event.entry and event.entry.exit_code) for event in seen] == [("command", 0), ("command", 9)]
    entries = [(entry.command, entry.commit, entry.exit_code) for entry in sandbox.review.history(since=before)]
    assert entries[-2:] == [("true", "", 0), ("exit 9", "", 9)]
    assert sandbox.review.changes().failed[-1].command == "exit 9"
