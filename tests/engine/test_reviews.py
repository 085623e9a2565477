"""Reviews when things go wrong: killed servers, full ledgers, damaged files. What was changed is found all the same,
once, and is whose it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving import Server, wait_until

from skerry import Client, Sandbox
from skerry.engine import faults
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.types import LedgerEntry


@pytest.fixture(scope="module")
def home(make_server: Callable[[], Server]) -> Iterator[Server]:
    """With a fault that a file names, small ledgers on a small disk, and smaller files."""
    made = make_server()
    disk = made.state_dir / "ledgers"
    disk.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M,mode=700", "tmpfs", str(disk)], check=True)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.remove_all()
        made.end()
    subprocess.run(["umount", str(disk)], check=True)
    made.retire()


def serve(home: Server) -> None:
    if home.process is None or home.process.poll() is not None:
        fault = str(home.state_dir / "fault")
        home.start(SKERRY_FAULT=fault, SKERRY_REVIEW_LEDGER="2M", SKERRY_REVIEW_FILE="256K")


def ledgers(home: Server) -> set[str]:
    return {path.name for path in (home.state_dir / "ledgers").iterdir()}


def dies(home: Server, at: str, work: Callable[[], object]) -> None:
    fault = home.state_dir / "fault"
    fault.write_text(at)
    with contextlib.suppress(SkerryError):
        work()
    assert home.process is not None
    assert home.process.wait(20) == -9
    fault.unlink()
    serve(home)


@pytest.fixture
def sandbox(home: Server) -> Iterator[Sandbox]:
    serve(home)
    with Client(home.address) as client, Sandbox(server=client) as made:
        made.run("echo one > /workspace/a", check=True)
        yield made
    assert ledgers(home) == set()


def entries(sandbox: Sandbox) -> list[LedgerEntry]:
    return list(sandbox.review.history())


def test_a_server_killed_at_any_step_leaves_a_review_complete_or_absent_and_each_change_told_once(
    home: Server, sandbox: Sandbox
) -> None:
    for point in faults.REVIEW:
        dies(home, point, sandbox.review.begin)
        if point != "review.row":
            with pytest.raises(NotFound, match="has no review"):
                sandbox.review.diff()
            assert ledgers(home) == set()
    assert [entry.kind for entry in entries(sandbox)] == ["base"]
    for number, point in enumerate(faults.COLLECT, 2):
        line = f"echo {point} > /workspace/{point}; rm -f /workspace/a"
        dies(home, point, lambda line=line: sandbox.run(line))  # type: ignore[misc]
        told = entries(sandbox)
        assert [entry.kind for entry in told] == ["base"] + ["command"] * (number - 1)
        assert (told[-1].command, told[-1].exit_code, told[-1].running) == (line, 0, False)
    assert len(sandbox.review.diff(stat=True)) == 1 + len(faults.COLLECT)


def test_what_a_command_did_while_no_server_was_there_is_its_own(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.begin()
    sandbox.run("echo before > /workspace/before")
    process = sandbox.spawn("cd /workspace; until [ -e /tmp/go ]; do sleep 0.02; done; echo during > during")
    home.end(signal.SIGKILL)
    serve(home)
    sandbox.run("touch /tmp/go")
    process.wait(timeout=30)
    home.end(signal.SIGKILL)
    serve(home)
    *_, before, during = entries(sandbox)
    assert before.command == "echo before > /workspace/before"
    assert (during.kind, process.id in during.processes) == ("command", True)


def test_a_fork_cut_off_leaves_no_ledger_and_a_rollback_cut_off_is_told_as_one(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.begin()
    dies(home, "fork.started", sandbox.fork)
    assert ledgers(home) == {sandbox.id}
    snapshot = sandbox.snapshot()
    try:
        sandbox.run("echo undone > /workspace/undone")
        dies(home, "rollback.row", lambda: sandbox.rollback(snapshot))
        sandbox.resume()
        *_, done, back = entries(sandbox)
        assert (done.command, back.kind) == ("echo undone > /workspace/undone", "rollback")
        assert len(sandbox.review.diff(stat=True)) == 0
    finally:
        snapshot.delete()


def test_a_full_ledger_says_so_and_catches_up_once_there_is_room(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.begin()
    with sandbox.review.watch() as watch:
        for number in range(8):
            sandbox.run(f"head -c 250K /dev/urandom > /workspace/r{number}; echo ran", check=True)
            sandbox.run(f"head -c 250K /dev/urandom > /workspace/s{number}", check=True)
        assert any(event.type == "trouble" and event.trouble for event in watch)
    assert "the ledger" in str(sandbox.review.history().trouble)
    assert "# skerry: what came last is not in this: the ledger" in sandbox.review.diff()
    sandbox.run("cd /workspace; rm r* s*; echo small > small")
    history = sandbox.review.history()
    assert history.trouble is None
    assert [file.path for file in sandbox.review.diff(stat=True)] == ["small"]


def test_a_full_disk_says_so_and_what_was_not_kept_is_kept_later(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.begin()
    ballast = home.state_dir / "ledgers" / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(5 << 20))
    sandbox.run("echo kept > /workspace/kept; seq 1000 > /workspace/a", check=True)
    assert sandbox.review.history().trouble is not None
    ballast.unlink()
    sandbox.run("true")
    history = sandbox.review.history()
    assert (history.trouble, history.entries[-1].files) == (None, 2)
    assert "echo kept > /workspace/kept" in history.entries[-1].command


def test_a_keeper_that_is_gone_fails_its_sandbox_and_the_next_one_tells_what_is_there(
    home: Server, sandbox: Sandbox
) -> None:
    sandbox.review.begin()
    with sandbox.review.watch() as watch:
        process = sandbox.spawn("cd /workspace; echo first > f; read line")
        next(watch)
        ((pid,),) = home.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: sandbox.info().state == "failed", "the sandbox to fail")
        assert [file.path for file in sandbox.review.diff(stat=True)] == ["f"]
        sandbox.resume()
        sandbox.run("echo second > /workspace/f")
        event = next(watch)
    assert event.entry is not None
    assert (event.entry.command, process.id in event.entry.processes) == ("echo second > /workspace/f", False)


def test_a_file_over_the_limit_is_known_by_its_hash(sandbox: Sandbox) -> None:
    sandbox.review.begin()
    sandbox.run("head -c 300K /dev/zero > /workspace/large; sha256sum < /workspace/large > /tmp/sum")
    (file,) = sandbox.review.diff(stat=True)
    assert (file.large, file.new_size, file.added) == (True, 300 << 10, None)
    assert file.sha256 == sandbox.run("cut -c1-64 /tmp/sum").stdout.strip()


def test_a_lost_manifest_costs_a_second_look_and_a_damaged_ledger_harms_no_other(
    home: Server, sandbox: Sandbox
) -> None:
    sandbox.review.begin()
    sandbox.run("echo two > /workspace/a; echo b > /workspace/b")
    place = home.state_dir / "ledgers" / sandbox.id
    (other,) = sandbox.fork()
    try:
        home.end()
        (place / "manifest").write_bytes(b"nonsense")
        damage(home.state_dir / "ledgers" / other.id / "ledger.git")
        serve(home)
        sandbox.run("rm /workspace/b")
        assert [entry.command for entry in entries(sandbox)][-1] == "rm /workspace/b"
        assert [file.path for file in sandbox.review.diff(stat=True)] == ["a"]
        assert other.run("echo alive > /workspace/c; cat /workspace/c").stdout == "alive\n"
        with pytest.raises(Conflict, match="damaged"):
            other.review.diff()
    finally:
        other.delete()


def damage(ledger: Path) -> None:
    (ledger / "refs" / "heads" / "main").unlink()  # a file that its source has too
    (ledger / "refs" / "heads" / "main").write_text("0" * 40 + "\n")


def test_a_sandbox_deleted_in_the_middle_of_it_all_ends_its_watch_and_leaves_nothing(home: Server) -> None:
    serve(home)
    with Client(home.address) as client:
        sandbox = Sandbox(server=client).create()
        sandbox.review.begin()
        sandbox.spawn("cd /workspace; while :; do date +%N > $((RANDOM % 50)); sleep 0.01; done")
        with sandbox.review.watch() as watch:
            assert next(watch).type == "change"
            sandbox.delete()
            for _ in watch:
                pass
    assert ledgers(home) == set()
