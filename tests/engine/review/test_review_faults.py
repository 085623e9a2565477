"""Reviews under faults: killed servers, full ledgers, damaged files. Every change is still recorded once,
with its writer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.patch_sets import repository
from support.server import Server, wait_until

from skerry import Client, Limits, Sandbox
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


def serve(home: Server, min_free: str = "64K") -> None:
    if home.process is None or home.process.poll() is not None:
        home.start(
            SKERRY_FAULT=str(home.state_dir / "fault"), SKERRY_REVIEW_MAX_LEDGER_SIZE="2M",
            SKERRY_REVIEW_MAX_FILE_SIZE="256K", SKERRY_STORAGE_MIN_FREE_SPACE=min_free,
            SKERRY_REVIEW_KEEP_DELETED="1ms",
        )  # fmt: skip


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


def test_server_killed_at_any_step_leaves_a_consistent_review(home: Server, sandbox: Sandbox) -> None:
    for point in faults.REVIEW:
        dies(home, point, sandbox.review.start)
        if point != "review.record":
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


def test_changes_made_without_a_server_belong_to_their_command(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.start()
    sandbox.run("echo before > /workspace/before")
    process = sandbox.spawn("cd /workspace; until [ -e /tmp/go ]; do sleep 0.02; done; echo during > during")
    home.end(signal.SIGKILL)
    serve(home)
    sandbox.run("touch /tmp/go")
    process.wait(timeout=30)
    home.end(signal.SIGKILL)
    serve(home)
    *_, before, during = [entry for entry in entries(sandbox) if entry.files]
    assert before.command == "echo before > /workspace/before"
    assert (during.kind, process.id in during.processes) == ("command", True)


def test_interrupted_fork_leaves_no_ledger_and_interrupted_rollback_is_recorded(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.start()
    dies(home, "fork.started", sandbox.fork)
    assert ledgers(home) == {sandbox.id}
    snapshot = sandbox.snapshot()
    try:
        sandbox.run("echo undone > /workspace/undone")
        dies(home, "rollback.record", lambda: sandbox.rollback(snapshot))
        sandbox.resume()
        *_, done, back = entries(sandbox)
        assert (done.command, back.kind) == ("echo undone > /workspace/undone", "rollback")
        assert len(sandbox.review.diff(stat=True)) == 0
    finally:
        snapshot.delete()


def test_full_ledger_is_reported_and_catches_up_when_space_is_free(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.start()
    with sandbox.review.watch() as watch:
        for number in range(8):
            sandbox.run(f"head -c 250K /dev/urandom > /workspace/r{number}; echo ran", check=True)
            sandbox.run(f"head -c 250K /dev/urandom > /workspace/s{number}", check=True)
        assert any(event.type == "trouble" and event.trouble for event in watch)
    assert "the ledger" in str(sandbox.review.history().trouble)
    assert "# skerry: the latest changes are missing: the ledger" in sandbox.review.diff()
    sandbox.run("cd /workspace; rm r* s*; echo small > small")
    history = sandbox.review.history()
    assert history.trouble is None
    assert [file.path for file in sandbox.review.diff(stat=True)] == ["small"]


def test_full_disk_is_reported_and_missed_changes_are_recorded_later(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.start()
    ballast = home.state_dir / "ledgers" / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(5 << 20))
    sandbox.run("echo kept > /workspace/kept; seq 1000 > /workspace/a", check=True)
    assert sandbox.review.history().trouble is not None
    ballast.unlink()
    sandbox.run("true")
    history = sandbox.review.history()
    assert (history.trouble, history.entries[-1].files) == (None, 2)
    assert "echo kept > /workspace/kept" in " ".join(history.entries[-1].also)


def test_ledger_leaves_the_minimum_free_space_and_catches_up_later(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.start()
    sandbox.run("echo first > /workspace/a", check=True)
    home.end()
    serve(home, min_free="3900K")  # the disk of the ledgers has 4 MiB
    before = ledger_bytes(home)
    sandbox.run("head -c 200K /dev/urandom > /workspace/b", check=True)
    history = sandbox.review.history()
    assert "the server's disk is almost full" in str(history.trouble)
    assert [file.path for file in sandbox.review.diff(stat=True)] == ["a"], "recorded changes can be read"
    assert len(sandbox.review.accept(*sandbox.review.changes().hunks)) == 1
    assert ledger_bytes(home) < before + (64 << 10)
    home.end()
    serve(home)
    sandbox.run("true")
    assert sandbox.review.history().trouble is None
    assert [file.path for file in sandbox.review.diff(stat=True)] == ["a", "b"]


def ledger_bytes(home: Server) -> int:
    return sum(path.lstat().st_blocks * 512 for path in (home.state_dir / "ledgers").rglob("*"))


def test_changes_are_bounded_by_the_disk_limit_of_the_sandbox(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(disk="32M")) as sandbox:
        sandbox.review.start()
        for _ in range(5):  # one file of 10 MiB inside, 50 MiB of history
            sandbox.run("rm -f /workspace/r; head -c 10M /dev/urandom > /workspace/r")
        assert "as much as the sandbox's disk limit" in str(sandbox.review.history().trouble)
        ledger = server.state_dir / "ledgers" / sandbox.id
        assert sum(path.stat().st_size for path in ledger.rglob("*") if path.is_file()) < 36 << 20
        sandbox.update(limits=Limits(disk="128M"))
        sandbox.run("echo more > /workspace/more", check=True)
        assert sandbox.review.history().trouble is None
        assert "more" in [file.path for file in sandbox.review.diff(stat=True)]


def test_dead_keeper_fails_its_sandbox_and_the_next_one_reports_changes(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.start()
    with sandbox.review.watch() as watch:
        process = sandbox.spawn("cd /workspace; echo first > f; read line")
        next(watch)
        ((pid,),) = home.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: sandbox.info().state == "failed", "the sandbox to fail")
        assert [file.path for file in sandbox.review.diff(stat=True)] == ["f"]
        sandbox.resume()
        sandbox.run("echo second > /workspace/f")
        event = next(event for event in watch if event.type == "change")
    assert event.entry is not None
    assert (event.entry.command, process.id in event.entry.processes) == ("echo second > /workspace/f", False)


def test_oversized_file_is_identified_by_its_hash(sandbox: Sandbox) -> None:
    sandbox.review.start()
    sandbox.run("head -c 300K /dev/zero > /workspace/large; sha256sum < /workspace/large > /tmp/sum")
    (file,) = sandbox.review.diff(stat=True)
    assert (file.large, file.new_size, file.added) == (True, 300 << 10, None)
    assert file.sha256 == sandbox.run("cut -c1-64 /tmp/sum").stdout.strip()


def test_lost_manifest_causes_a_rescan_and_a_damaged_ledger_affects_no_other(home: Server, sandbox: Sandbox) -> None:
    sandbox.review.start()
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


def test_delete_during_a_review_ends_the_watch_and_leaves_nothing(home: Server) -> None:
    serve(home)
    with Client(home.address) as client:
        sandbox = Sandbox(server=client).start()
        sandbox.review.start()
        sandbox.spawn("cd /workspace; while :; do date +%N > $((RANDOM % 50)); sleep 0.01; done")
        with sandbox.review.watch() as watch:
            assert next(watch).type == "change"
            sandbox.delete()
            for _ in watch:
                pass
    assert ledgers(home) == set()


def test_pull_repeated_after_a_kill_converges(home: Server, tmp_path: Path) -> None:
    serve(home)
    lines = [b"line %d\n" % number for number in range(60)]
    root = repository(tmp_path / "project", {"a": b"".join(lines), "gone": b"1\n", "both": b"1\n"})
    with Client(home.address) as client, Sandbox(repo=str(root), server=client) as sandbox:
        sandbox.run("sed -i 's/^line 1$/line one/' a; echo agent > agent", cwd="/workspace", check=True)
        lines[1] = b"line one\n"
        (hunk,) = sandbox.review.changes("a").hunks
        sandbox.review.accept(hunk)
        for number, point in enumerate(faults.REFRESH):
            place = 10 + 8 * number
            (root / "a").write_bytes((root / "a").read_bytes().replace(b"line %d\n" % place, b"line %d!\n" % place))
            (root / f"new-{number}").write_bytes(b"new\n")
            (root / "gone").unlink(missing_ok=True)
            dies(home, point, lambda: sandbox.repo.pull(root))
            lines[place] = b"line %d!\n" % place
            sandbox.repo.pull(root)
            assert sandbox.files.read_bytes("/workspace/a") == b"".join(lines)
            assert not sandbox.files.exists("/workspace/gone")
            changed = {file.path: [hunk.text for hunk in file.hunks] for file in sandbox.review.changes()}
            assert changed.keys() == {"a", "agent"}, point
            assert ["line one" in text and "!" not in text for text in changed["a"]] == [True], point
            assert sandbox.repo.pull(root).files == ()
        assert not sandbox.repo.status(root).behind
        sandbox.review.apply(root, all=True)
        assert ((root / "a").read_bytes(), (root / "agent").read_bytes()) == (b"".join(lines), b"agent\n")


def test_pull_of_files_too_large_for_the_ledger(home: Server, tmp_path: Path) -> None:
    serve(home)
    small, large, larger = b"1\n", b"2" * (300 << 10), b"3" * (301 << 10)
    root = repository(tmp_path / "project", {"a": small, "b": large, "c": large, "d": large})
    with Client(home.address) as client, Sandbox(repo=str(root), server=client) as sandbox:
        sandbox.run("printf x >> c; cp d e", cwd="/workspace", check=True)
        (root / "a").write_bytes(large)
        (root / "b").write_bytes(larger)
        (root / "d").write_bytes(small)
        (root / "e").write_bytes(large)
        how = {file.path: file.how for file in sandbox.repo.pull(root).files}
        assert how == {"a": "written", "b": "written", "d": "written", "e": "same"}
        assert [sandbox.files.read_bytes(f"/workspace/{name}") for name in "abd"] == [large, larger, small]
        assert [file.path for file in sandbox.review.changes()] == ["c"]
        (root / "c").write_bytes(larger)
        with pytest.raises(Conflict, match="c: changed here and in the sandbox, and it is too large to merge"):
            sandbox.repo.pull(root)
        assert sandbox.repo.status(root).files == 1
