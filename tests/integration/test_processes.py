"""Processes that go on by themselves: started, watched, waited for, talked to, ended; through breaks and restarts."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server, wait_until

from skerry import AsyncSandbox, Client, Limits, Output, Process, Pty, Result, Sandbox
from skerry.errors import (
    CommandFailed,
    CommandTimeout,
    Conflict,
    InvalidRequest,
    NotFound,
    SandboxUnavailable,
    ServerUnreachable,
)

MIB = 1 << 20
COUNT = "import sys,time\nfor n in range({}):\n print(n, flush=True, file=(sys.stdout, sys.stderr)[n % 2])"


@pytest.fixture(scope="module")
def shaky(make_server: Callable[[], Server]) -> Iterator[Server]:
    """A server that tests may kill, if they start it again."""
    made = make_server().start()
    yield made
    made.retire()


@pytest.fixture
def shaken(shaky: Server) -> Iterator[Sandbox]:
    with Sandbox(server=shaky.address) as sandbox:
        yield sandbox


def alive(sandbox: Sandbox, marker: str) -> bool:
    return sandbox.run(["pgrep", "-f", marker], user="root").ok


def restart(server: Server) -> None:
    server.end(signal.SIGKILL)
    server.start()


def memory(server: Server) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


# -- start and end ----------------------------------------------------------------------------------------------------


def test_spawned_process_continues_without_its_client(server: Server, sandbox: Sandbox) -> None:
    with Client(server.address) as client:
        process = Sandbox.get(sandbox.id, server=client).spawn("sleep 0.3; echo done; exit 7")
        assert (process.state, process.pid > 1) == ("running", True)
    result = sandbox.processes.get(process.id).wait(30)
    assert (result.id, result.stdout, result.exit_code, result.ok) == (process.id, "done\n", 7, False)
    assert sandbox.processes.get(process.id).cached_info.ended_at is not None


async def test_async_client_does_the_same(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        process = await sandbox.spawn(["cat"])
        await process.stdin.write("hello\n")
        assert (await process.wait_for_output("hel+o"))[0] == "hello"
        await process.stdin.close()
        assert [piece.data async for piece in process.follow()] == [b"hello\n"]
        assert (await process.wait()).ok
        assert (await process.output()).data == b"hello\n"
        (listed,) = await sandbox.processes.list()
        assert (listed.id, listed.state, (await listed.info()).exit_code) == (process.id, "exited", 0)


def test_env_cwd_and_user_are_set_per_process(sandbox: Sandbox) -> None:
    process = sandbox.spawn("id -un; pwd; echo $A", user="root", cwd="/tmp", env={"A": "1"})
    assert process.wait(30).stdout == "root\n/tmp\n1\n"


def test_finished_processes_stay_listed_until_removed(sandbox: Sandbox) -> None:
    ended = sandbox.spawn("exit 3")
    ended.wait(30)
    running = sandbox.spawn("sleep 600")
    listed = {process.id: process.cached_info for process in sandbox.processes.list()}
    assert (listed[ended.id].state, listed[ended.id].exit_code) == ("exited", 3)
    assert listed[running.id].state == "running"
    with pytest.raises(Conflict, match="running"):
        sandbox.processes.remove(running.id)
    running.kill()
    running.wait(30)
    for process in (ended, running):
        sandbox.processes.remove(process.id)
        with pytest.raises(NotFound):
            process.info()
        with pytest.raises(NotFound):
            process.output()


def test_chosen_id_is_used_and_a_taken_one_is_a_conflict(server: Server, sandbox: Sandbox) -> None:
    web = sandbox.spawn("exec sleep 600", id="web")
    assert (web.id, web.status) == ("web", "running")
    with pytest.raises(Conflict):
        sandbox.spawn("true", id="web")
    assert sandbox.processes.get("web").pid == web.pid
    web.kill()
    assert web.wait(timeout=60).signal == "KILL"
    assert web.info().status == "killed"
    sandbox.processes.remove("web")
    again = sandbox.spawn("true", id="web")
    result = again.wait(timeout=60)
    assert (again.info().status, result.command, result.started_at) == (
        "completed",
        "true",
        again.cached_info.started_at,
    )
    detached = skerry("exec", "-d", "--id", "by-cli", sandbox.id, "false", server=server.address)
    assert detached.stdout == b"by-cli\n"
    assert sandbox.processes.get("by-cli").wait(timeout=60).exit_code == 1
    assert sandbox.processes.get("by-cli").status == "failed"


@pytest.mark.parametrize("name", ["", "ab", "Web", "a/b", "..", "-ab", "ab-", "x" * 64, "p-abcdefghij", "a b", "a\n b"])
def test_invalid_chosen_id_is_rejected(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.spawn("true", id=name)


def test_callbacks_of_a_spawned_process_get_all_output_and_its_end(sandbox: Sandbox) -> None:
    pieces: list[bytes] = []
    ended = queue.Queue[Result]()
    sandbox.spawn("echo one; sleep 0.2; echo two; exit 3", on_output=lambda o: pieces.append(o.data), on_exit=ended.put)
    result = ended.get(timeout=60)
    assert (b"".join(pieces), result.exit_code, result.stdout) == (b"one\ntwo\n", 3, "one\ntwo\n")


def test_exit_callback_is_called_when_the_sandbox_is_deleted(
    server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def leave_async() -> Result:
        ended = asyncio.get_running_loop().create_future()
        async with AsyncSandbox(server=server.address) as sandbox:
            await sandbox.spawn("echo one; sleep 600", on_output=lambda _: None, on_exit=ended.set_result)
        return await asyncio.wait_for(ended, 60)

    ended = queue.Queue[Result]()
    with Sandbox(server=server.address) as sandbox:
        process = sandbox.spawn("echo one; sleep 600", on_output=lambda _: None, on_exit=ended.put)
    for result in (ended.get(timeout=60), asyncio.run(leave_async())):
        assert (result.ok, result.exit_code, result.command) == (False, None, "echo one; sleep 600")
        assert result.signal == "KILL" or "the end of the process is unknown" in (result.hint or "")
    assert process.id
    assert ("Traceback" in capfd.readouterr().err, caplog.records) == (False, [])


def test_all_processes_are_killed_and_pruned(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        left = [sandbox.spawn("sleep 600") for _ in range(3)]
        assert sandbox.run("true").ok
        assert sandbox.processes.kill_all() == 3
        assert {process.wait(timeout=60).signal for process in left} == {"KILL"}
        assert sandbox.processes.prune() >= 3
        assert sandbox.processes.list() == []
        assert (sandbox.processes.kill_all(), sandbox.processes.prune()) == (0, 0)


def test_result_has_its_command_and_start(sandbox: Sandbox) -> None:
    before = time.time()
    result = sandbox.run(["echo", "x"])
    assert result.command == ["echo", "x"]
    assert result.started_at is not None
    assert before <= result.started_at <= time.time()


def test_timeout_kills_the_whole_tree(sandbox: Sandbox) -> None:
    process = sandbox.spawn("setsid sleep 5711 & (setsid nohup sleep 5711 &) ; sleep 5711", timeout=0.5)
    result = process.wait(30)
    assert (result.timed_out, result.signal) == (True, "KILL")
    wait_until(lambda: not alive(sandbox, "sleep 5711"), "the whole tree to be gone")


def test_kill_ends_the_whole_tree_including_daemons(sandbox: Sandbox) -> None:
    process = sandbox.spawn("setsid sleep 5712 & (setsid nohup sleep 5712 &) ; echo on; sleep 5712")
    process.wait_for_output("on")
    process.kill()
    assert process.wait(30).signal == "KILL"
    wait_until(lambda: not alive(sandbox, "sleep 5712"), "the whole tree to be gone")
    process.kill()


def test_signalling_a_finished_process_is_a_conflict(sandbox: Sandbox) -> None:
    process = sandbox.spawn("true")
    process.wait(30)
    with pytest.raises(Conflict, match="has ended"):
        process.signal("TERM")


def test_signal_reaches_the_process(sandbox: Sandbox) -> None:
    process = sandbox.spawn("trap 'echo caught; exit 5' USR1; echo on; while :; do sleep 0.05; done")
    process.wait_for_output("on")
    process.signal("USR1")
    result = process.wait(30)
    assert (result.exit_code, result.stdout) == (5, "on\ncaught\n")
    with pytest.raises(InvalidRequest, match="NONSENSE"):
        process.signal("NONSENSE")


def test_wait_for_an_endless_process_times_out(sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 600")
    with pytest.raises(CommandTimeout, match="is still running"):
        process.wait(0.2)
    assert process.info().state == "running"
    process.kill()


def test_process_that_ends_with_its_sandbox_raises_a_sandbox_error(server: Server) -> None:
    sandbox = Sandbox.create(server=server.address)
    process = sandbox.spawn("echo on; sleep 600")
    process.wait_for_output("on")
    failed: list[BaseException] = []

    def wait(what: object) -> None:
        try:
            list(process.follow()) if what == "follow" else process.wait()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=wait, args=(what,)) for what in ("follow", "wait")]
    for thread in threads:
        thread.start()
    sandbox.delete()
    for thread in threads:
        thread.join(30)
    assert len(failed) == 2
    assert all(isinstance(error, (SandboxUnavailable, NotFound)) for error in failed), failed


EAT = ["python3", "-c", "b = bytearray(1 << 30)"]


def test_single_process_out_of_memory_is_reported(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(memory="128M")) as sandbox:
        result = sandbox.spawn(EAT).wait(60)
        assert (result.ok, result.oom_killed) == (False, True)
        assert "--memory" in (result.hint or "")
        assert sandbox.spawn("true").wait(30).oom_killed is False
        sandbox.spawn("sleep 600")
        for result in (sandbox.spawn(EAT).wait(60), sandbox.run(EAT)):
            assert (result.ok, result.oom_killed) == (False, None), "something else was at work"


# -- output -----------------------------------------------------------------------------------------------------------


def test_output_is_kept_from_the_first_byte(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo out; sleep 0.2; echo err >&2; sleep 0.2; printf '\\377'")
    process.wait(30)
    output = process.output()
    assert output.data == b"out\nerr\n\xff"
    assert (output.stream, output.offset, output.missing) == ("both", 9, 0)
    assert process.output(since=output.offset).data == b""
    assert process.output(-1).data == b"\xff"
    assert process.output(2, limit=3).offset == 5
    with pytest.raises(InvalidRequest, match="9 bytes"):
        process.output(10)


def test_output_beyond_the_bound_of_a_result_is_readable(sandbox: Sandbox) -> None:
    result = sandbox.run("seq 1000000")
    assert result.truncated
    whole = sandbox.processes.get(result.id).output()
    assert whole.data == b"".join(b"%d\n" % n for n in range(1, 1000001))


def test_wait_returns_head_and_tail_and_marks_the_gap(sandbox: Sandbox) -> None:
    process = sandbox.spawn("seq 1000000; echo err >&2")
    result = process.wait(60)
    assert result.truncated
    assert result.stdout.startswith("1\n2\n")
    assert result.stdout.endswith("1000000\n")
    assert "bytes left out here" in result.stdout
    assert result.stderr == "err\n"
    assert len(result.stdout_bytes) < MIB + 100


def test_oldest_output_beyond_the_journal_bound_is_dropped_and_reported(sandbox: Sandbox) -> None:
    process = sandbox.spawn("seq 1000000", journal="1M")
    result = process.wait(60)
    assert result.truncated
    info = process.info()
    assert info.offset == 6888896
    assert 0 < info.offset - info.kept_from <= 2 * MIB
    output = process.output()
    assert (output.missing, output.offset) == (info.kept_from, info.offset)
    assert output.missing + len(output.data) == info.offset
    assert output.data.endswith(b"999999\n1000000\n")
    missing = sum(piece.missing for piece in process.follow())
    assert missing == info.kept_from


def test_follow_continues_to_the_end_with_separate_streams(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["python3", "-c", COUNT.format(200)])
    pieces = list(process.follow())
    assert b"".join(p.data for p in pieces if p.stream == "stdout") == b"".join(b"%d\n" % n for n in range(0, 200, 2))
    assert b"".join(p.data for p in pieces if p.stream == "stderr") == b"".join(b"%d\n" % n for n in range(1, 200, 2))
    assert pieces[-1].offset == process.info().offset


def test_concurrent_followers_get_complete_output(sandbox: Sandbox) -> None:
    process = sandbox.spawn("seq 20000; sleep 0.2; seq 20000")
    wanted = hashlib.sha256(b"".join(b"%d\n" % n for n in range(1, 20001)) * 2).hexdigest()
    seen: list[str] = []

    def follow() -> None:
        seen.append(hashlib.sha256(b"".join(p.data for p in process.follow())).hexdigest())

    threads = [threading.Thread(target=follow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [wanted] * 8


def test_streamed_output_of_a_run_has_offsets(sandbox: Sandbox) -> None:
    seen: list[Output] = []
    result = sandbox.run("echo one; echo two >&2; sleep 0.1; echo three", on_output=seen.append)
    assert [output.missing for output in seen] == [0] * len(seen)
    assert seen[-1].offset == len(result.stdout) + len(result.stderr)


# -- waiting for output -----------------------------------------------------------------------------------------------


def test_wait_for_a_pattern_returns_the_match(sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 0.2; echo listening on port 8042; sleep 600")
    assert process.wait_for_output(r"port (\d+)")[1] == "8042"
    assert process.wait_for_output(rb"port (\d+)")[1] == b"8042"
    process.kill()


def test_missing_pattern_times_out_with_the_last_output(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo compiling; sleep 600")
    with pytest.raises(CommandTimeout, match=r"(?s)'ready' was not printed.*compiling"):
        process.wait_for_output("ready", timeout=0.5)
    assert process.info().state == "running"
    process.kill()


def test_wait_for_a_pattern_times_out_in_a_flood(sandbox: Sandbox) -> None:
    process = sandbox.spawn("yes")
    with pytest.raises(CommandTimeout, match="was not printed"):
        process.wait_for_output("ready", timeout=0.5)
    process.kill()


def test_exit_before_the_pattern_raises_with_the_result(sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo no such file >&2; exit 3")
    with pytest.raises(CommandFailed, match=r"(?s)exit code 3 before 'ready' came.*no such file") as failed:
        process.wait_for_output("ready")
    assert failed.value.result is not None
    assert (failed.value.result.exit_code, failed.value.result.stderr) == (3, "no such file\n")


# -- stdin ------------------------------------------------------------------------------------------------------------


def test_stdin_is_written_in_pieces_and_closed(sandbox: Sandbox) -> None:
    process = sandbox.spawn(["cat"])
    process.stdin.write("one\n")
    process.wait_for_output("one")
    process.stdin.write(b"\xff")
    process.stdin.write(iter([b"a", "b"]))
    process.stdin.close()
    assert process.wait(30).stdout_bytes == b"one\n\xffab"


def test_writing_to_a_closed_stdin_is_a_conflict(sandbox: Sandbox) -> None:
    process = sandbox.spawn("cat; sleep 600")
    process.stdin.close()
    with pytest.raises(Conflict, match="stdin"):
        process.stdin.write("x")
    process.kill()
    process.wait(30)
    with pytest.raises(Conflict, match="ended"):
        process.stdin.write("x")


def test_large_write_to_a_closing_stdin_is_rejected(sandbox: Sandbox) -> None:
    process = sandbox.spawn("head -c 3; exec <&-; echo; echo closed; sleep 600")
    with pytest.raises(Conflict, match="stdin"):
        process.stdin.write(b"x" * (64 * MIB))
    process.kill()


def test_program_that_exits_after_reading_everything_does_not_fail_its_writer(sandbox: Sandbox) -> None:
    for _ in range(20):
        process = sandbox.spawn("read line; exit 5")
        process.stdin.write("go\n")
        assert process.wait(30).exit_code == 5


def test_process_spawned_without_stdin_has_none(sandbox: Sandbox) -> None:
    process = sandbox.spawn("cat; echo end", stdin=False)
    assert process.wait(30).stdout == "end\n"
    sleeping = sandbox.spawn("sleep 600", stdin=False)
    with pytest.raises(Conflict, match="stdin"):
        sleeping.stdin.write("x")
    sleeping.kill()


def test_spawn_accepts_input(sandbox: Sandbox) -> None:
    assert sandbox.spawn(["cat"], stdin="hello").wait(30).stdout == "hello"
    assert sandbox.spawn(["cat"], stdin=b"\xff" * 3 * MIB).wait(30).stdout_bytes[:2] == b"\xff\xff"
    with pytest.raises(InvalidRequest, match="stdin"):
        sandbox.spawn(["cat"], stdin=object())  # type: ignore[arg-type]


# -- a terminal -------------------------------------------------------------------------------------------------------


def test_terminal_has_the_given_size_and_can_be_resized(sandbox: Sandbox) -> None:
    process = sandbox.spawn("stty size; read line; stty size", pty=Pty(cols=100, rows=30))
    assert process.cached_info.pty
    process.wait_for_output("30 100")
    process.resize(132, 43)
    process.stdin.write("\n")
    process.wait_for_output("43 132")
    assert process.wait(30).ok
    usual = sandbox.spawn("stty size; tty", pty=True)
    assert usual.wait(30).stdout.startswith("24 80\r\n/dev/pts/")


@pytest.mark.parametrize(("cols", "rows"), [(0, 0), (0, 24), (80, 0), (100_000, 100_000), (-1, 24)])
def test_invalid_terminal_size_is_rejected(server: Server, sandbox: Sandbox, cols: int, rows: int) -> None:
    process = sandbox.spawn("sleep 600", pty=True)
    with pytest.raises(InvalidRequest, match="out of range"):
        process.resize(cols, rows)
    with server.http() as http:
        path = f"/v1/sandboxes/{sandbox.id}/processes"
        assert http.post(f"{path}/{process.id}/resize", json={"cols": cols, "rows": rows}).status_code == 400
        assert http.post(path, json={"cmd": "true", "pty": {"cols": cols, "rows": rows}}).status_code == 400
    process.kill()


def test_process_without_a_terminal_cannot_be_resized(sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 600")
    with pytest.raises(Conflict, match="terminal"):
        process.resize(80, 24)
    process.kill()
    process.wait(30)
    with pytest.raises(Conflict):
        process.resize(80, 24)


# -- the server goes away ---------------------------------------------------------------------------------------------


def test_follower_continues_after_a_server_crash(shaky: Server, shaken: Sandbox) -> None:
    """Nothing is lost or repeated, at whichever moment the server dies."""
    process = shaken.spawn("for i in $(seq 300); do seq $((i*100)) $((i*100+99)); sleep 0.01; done")
    seen = bytearray()
    done = threading.Event()

    def follow() -> None:
        for piece in process.follow():
            assert piece.missing == 0
            seen.extend(piece.data)
            assert piece.offset == len(seen)
        done.set()

    threading.Thread(target=follow, daemon=True).start()
    for part in range(1, 4):
        size = part * 20_000
        wait_until(lambda: len(seen) > size, "more output")  # noqa: B023
        restart(shaky)
    assert done.wait(60)
    assert bytes(seen) == b"".join(b"%d\n" % n for n in range(100, 30100))


def test_wait_survives_a_server_crash(shaky: Server, shaken: Sandbox) -> None:
    process = shaken.spawn("echo before; cat; echo after; exit 4")
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(process.wait()))
    thread.start()
    restart(shaky)
    process.stdin.close()
    thread.join(60)
    (result,) = results
    assert (result.exit_code, result.stdout) == (4, "before\nafter\n")  # type: ignore[attr-defined]


def test_wait_for_a_pattern_survives_a_server_crash(shaky: Server, shaken: Sandbox) -> None:
    process = shaken.spawn("echo rea; cat >/dev/null; echo dy")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(process.wait_for_output("(?s)rea.*dy", timeout=60)))
    thread.start()
    restart(shaky)
    process.stdin.close()
    thread.join(60)
    assert len(found) == 1


def test_stopping_server_ends_waits(shaky: Server, shaken: Sandbox) -> None:
    process = shaken.spawn("echo on; cat; echo off")
    process.wait_for_output("on")
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(process.wait().stdout)),
        threading.Thread(target=lambda: results.append(b"".join(p.data for p in process.follow()).decode())),
    ]
    for thread in threads:
        thread.start()
    assert shaky.end() == 0
    shaky.start()
    process.stdin.close()
    for thread in threads:
        thread.join(60)
    assert results == ["on\noff\n"] * 2


def test_server_crash_during_a_write_is_reported(shaky: Server, shaken: Sandbox) -> None:
    process = shaken.spawn("sleep 600")
    broken: list[Exception] = []

    def write() -> None:
        try:
            process.stdin.write(b"x" * (32 * MIB))
        except Exception as error:
            broken.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: thread.is_alive(), "the write to begin")
    restart(shaky)
    thread.join(30)
    assert isinstance(broken[0], ServerUnreachable)
    process.kill()


def test_client_restarts_the_local_server_and_continues(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    own_server.start()
    monkeypatch.delenv("SKERRY_SERVER", raising=False)
    monkeypatch.setenv("SKERRY_STATE_DIR", str(own_server.state_dir))
    with Client() as client:
        process = Sandbox.create(server=client).spawn("echo one; sleep 0.5; echo two")
        pieces = process.follow()
        assert next(pieces).data == b"one\n"
        own_server.end(signal.SIGKILL)
        assert b"".join(piece.data for piece in pieces) == b"two\n"
        assert process.wait().stdout == "one\ntwo\n"
        pid = client.info()["pid"]
        client.stop()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server that it started to leave")


def test_processes_and_their_output_survive_a_stop(shaken: Sandbox) -> None:
    process = shaken.spawn("echo kept; exit 2")
    process.wait(30)
    shaken.stop()
    (listed,) = shaken.processes.list()
    assert (listed.id, listed.cached_info.exit_code, listed.output().data) == (process.id, 2, b"kept\n")


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_unread_output_uses_no_server_memory_and_slows_nothing(server: Server, sandbox: Sandbox) -> None:
    before = memory(server)
    process = sandbox.spawn(["head", "-c", "512M", "/dev/zero"])
    result = process.wait(60)
    assert (result.exit_code, result.truncated) == (0, True)
    assert process.info().offset == 512 * MIB, "it was not held up"
    assert memory(server) - before < 32 * MIB


def test_stalled_reader_uses_no_memory_and_slows_nothing(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn("yes")
    before = memory(server)
    with server.http() as http, http.stream(
        "GET", f"/v1/sandboxes/{sandbox.id}/processes/{process.id}/output?follow=true",
        headers={"Accept": "application/vnd.skerry.frames"},
    ) as answer:  # fmt: skip
        raw = answer.iter_raw()
        next(raw)
        offset = process.info().offset
        wait_until(lambda: process.info().offset > offset + 256 * MIB, "the program to go on")
        assert memory(server) - before < 32 * MIB
    process.kill()


def test_hundreds_of_short_processes_have_correct_exits(sandbox: Sandbox) -> None:
    processes: list[Process] = [sandbox.spawn(["sh", "-c", f"exit {n % 256}"]) for n in range(100)]
    assert [process.wait(60).exit_code for process in processes] == [n % 256 for n in range(100)]
    for process in processes:
        sandbox.processes.remove(process.id)


def gone(sandbox: Sandbox, process: str) -> bool:
    return all(one.id != process for one in sandbox.processes.list())


def test_ended_process_is_removed_automatically(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn("echo done; exit 3", auto_remove=True)
    kept = sandbox.spawn("true")
    result = process.wait(60)
    assert (result.stdout, result.exit_code, result.status) == ("done\n", 3, "failed")
    wait_until(lambda: gone(sandbox, process.id), "the removal", 60)
    assert kept.info().status == "completed"
    with server.http() as http:
        refused = http.post(
            f"/v1/sandboxes/{sandbox.id}/processes?wait=true", json={"cmd": "true", "auto_remove": True}
        )
    assert "auto_remove" in refused.json()["error"]["message"]


def test_automatic_removal_survives_stops_and_a_server_crash(shaky: Server, shaken: Sandbox) -> None:
    process, stopped = shaken.spawn("sleep 1", auto_remove=True), shaken.spawn("sleep 600", auto_remove=True)
    restart(shaky)
    wait_until(lambda: gone(shaken, process.id), "the removal", 60)
    shaken.stop()
    assert gone(shaken, stopped.id)


def test_status_words_are_the_same_on_the_wire_and_in_the_client(server: Server, sandbox: Sandbox) -> None:
    ends = {"true": "completed", "exit 2": "failed", "kill -9 $$": "killed"}
    for command, word in ends.items():
        process = sandbox.spawn(command)
        assert (process.wait().status, process.info().status) == (word, word)
        with server.http() as http:
            assert http.get(f"/v1/sandboxes/{sandbox.id}/processes/{process.id}").json()["status"] == word
    running = sandbox.spawn("sleep 600")
    assert running.status == "running"
    running.kill()
    assert sandbox.run("sleep 600", timeout=0.3).status == "killed"
