"""Terminals of real processes: late viewers, many viewers, viewers that misbehave, servers that go and come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.server import Server, wait_until
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, unix_connect

from skerry import AsyncClient, AsyncSandbox, Lifecycle, Process, Pty, Sandbox, Terminal
from skerry.config import socket_path
from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError

REPLAY = 256 << 10


@pytest.fixture
def shell(sandbox: Sandbox) -> Iterator[Process]:
    process = sandbox.spawn(["bash", "--norc", "--noprofile"], pty=Pty(cols=100, rows=30), env={"PS1": "$ "})
    yield process
    process.kill()


def view(server: Server, sandbox: Sandbox, process: str, query: str = "", **options: Any) -> ClientConnection:
    url = f"ws://localhost/v1/sandboxes/{sandbox.id}/processes/{process}/terminal{query}"
    return unix_connect(str(socket_path(server.state_dir)), url, compression=None, **options)


def until(terminal: Terminal, pattern: str) -> str:
    """Read until the output matches; return all of it."""
    seen = b""
    while not re.search(pattern.encode(), seen):
        piece = terminal.read(timeout=30)
        assert piece, f"it ended with {seen[-500:]!r}"
        seen += piece
    return seen.decode()


def memory(server: Server) -> int:
    """Resident, in bytes."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def test_terminal_has_a_tty(sandbox: Sandbox, shell: Process) -> None:
    with shell.terminal() as terminal:
        terminal.write("stty size; test -t 0 -a -t 1 -a -t 2 && echo t$((1+1))y; ps -o tty= -p $$\n")
        seen = until(terminal, r"pts/\d")
        assert "30 100\r\n" in seen
        assert "t2y\r\n" in seen
        terminal.resize(132, 50)
        terminal.write("stty size\n")
        until(terminal, "50 132\r\n")
        terminal.write("exit 3\n")
        for _ in terminal:
            pass
        assert terminal.result is not None
        assert terminal.result.exit_code == 3
    assert shell.wait(30).exit_code == 3


def test_size_can_be_set_by_a_separate_call(sandbox: Sandbox, shell: Process) -> None:
    shell.resize(90, 20)
    with shell.terminal() as terminal:
        terminal.write("stty size\n")
        until(terminal, "20 90\r\n")
    for size in ((0, 0), (100_000, 100_000)):
        with pytest.raises(InvalidRequest):
            shell.resize(*size)
    with shell.terminal() as terminal:
        terminal.write("stty size\n")
        until(terminal, "20 90\r\n(?s:.)*20 90\r\n")


def test_keys_reach_the_foreground_job_as_signals(sandbox: Sandbox, shell: Process) -> None:
    with shell.terminal() as terminal:
        terminal.write("sleep 1000\n")
        wait_until(lambda: sandbox.run(["pgrep", "-x", "sleep"]).ok, "sleep to run")
        terminal.write("\x03")
        terminal.write("echo code $?\n")
        until(terminal, "code 130\r\n")


def test_late_viewer_first_gets_the_recent_screen(sandbox: Sandbox) -> None:
    count = 60_000  # lines of 8 bytes: about twice the replayed amount
    process = sandbox.spawn(f"seq -f %07.0f 1 {count}; read line; echo got $line", pty=True)
    with process.terminal() as first:
        until(first, f"{count:07}\r\n")
        with process.terminal() as late:
            seen = until(late, f"{count:07}\r\n")
            assert late.offset - len(seen) > 0
            assert len(seen) == REPLAY
            first.write("hello\r")
            until(first, "got hello")
            until(late, "got hello")
    with process.terminal(since=0) as whole:
        everything = b"".join(whole).decode()
    numbers = [int(line) for line in everything.splitlines() if line.isdigit()]
    assert numbers == list(range(1, count + 1))
    with process.terminal(replay=10) as short:
        assert len(b"".join(short)) == 10
        assert short.result is not None


def test_missing_process_or_terminal_is_reported(sandbox: Sandbox) -> None:
    plain = sandbox.spawn(["sleep", "1000"])
    with pytest.raises(Conflict, match="no terminal"), plain.terminal():
        pass
    with pytest.raises(Conflict):
        plain.resize(80, 24)
    plain.kill()
    with pytest.raises(NotFound), Terminal(sandbox, "p-aaaaaaaaaa"):
        pass


def test_offset_beyond_the_end_is_rejected(sandbox: Sandbox, shell: Process) -> None:
    with pytest.raises(SkerryError), shell.terminal(since=1 << 40):
        pass


async def test_hundred_viewers_see_the_same_output(server: Server, sandbox: Sandbox, shell: Process) -> None:
    before = memory(server)
    async with AsyncClient(server.address) as client:
        twin = await AsyncSandbox.get(sandbox.id, server=client)
        process = await twin.processes.get(shell.id)

        async def look() -> bytes:
            seen = b""
            async with process.terminal(since=0) as terminal:
                async for data in terminal:
                    seen += data
            return seen

        looking = [asyncio.ensure_future(look()) for _ in range(100)]
        async with process.terminal() as terminal:
            await terminal.write("seq 1 20000; exit\n")
            async for _ in terminal:
                pass
        seen = await asyncio.wait_for(asyncio.gather(*looking), 100)
    assert len(set(seen)) == 1
    assert b"20000\r\n" in seen[0]
    assert memory(server) - before < 96 << 20


def test_stalled_viewer_blocks_no_others_and_gets_a_gap(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn("yes 0123456789 | head -c 24M; echo; echo fin; read l; echo got $l", pty=True, journal="4M")
    with view(server, sandbox, process.id, "?since=0", max_queue=1, close_timeout=1) as stuck:
        assert json.loads(stuck.recv(30))["type"] == "started"
        before = memory(server)
        with process.terminal() as other:
            while b"fin" not in other.read(timeout=60):
                pass
            assert memory(server) - before < 32 << 20
            offset = process.info().offset
            read, missing = 0, 0
            while read + missing < offset:
                message = stuck.recv(30)
                if isinstance(message, str):
                    missing += json.loads(message)["missing"]
                else:
                    read += len(message)
            assert missing > 8 << 20
            assert read + missing == offset, "nothing twice, nothing unaccounted for"
            other.write("on\r")
            until(other, "got on")
    process.kill()


def test_input_flood_is_bounded_and_a_signal_passes_it(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn("stty raw -echo; exec sleep 1000", pty=True)
    wait_until(lambda: sandbox.run(["pgrep", "-x", "sleep"]).ok, "sleep to run")
    before = memory(server)
    with view(server, sandbox, process.id) as viewer, view(server, sandbox, process.id) as other:
        raw = viewer.socket
        raw.settimeout(1)
        flood = Frame(Opcode.BINARY, b"x" * 60000).serialize(mask=True)
        taken = 0
        with contextlib.suppress(TimeoutError, ConnectionError):
            while taken < 64 << 20:
                taken += raw.send(flood)
        assert taken < 32 << 20
        assert memory(server) - before < 32 << 20
        other.send('{"type":"resize","cols":77,"rows":11}')
        other.send('{"type":"signal","name":"TERM"}')
        ended = None
        while ended is None:
            message = other.recv(30)
            ended = json.loads(message) if isinstance(message, str) and '"exit"' in message else None
        assert ended["signal"] == "TERM"
    process.kill()


def test_last_input_arrives_although_its_viewer_disconnected(sandbox: Sandbox) -> None:
    process = sandbox.spawn("stty raw -echo; echo ready; exec cat >/workspace/pasted", pty=True)
    text = b"".join(b"%07d\n" % number for number in range(1 << 17))
    with process.terminal() as terminal:
        until(terminal, "ready")
        terminal.write(text)
    wait_until(lambda: sandbox.files.stat("/workspace/pasted").size == len(text), "all of it")
    assert sandbox.files.read_bytes("/workspace/pasted") == text
    process.kill()


def test_sandbox_with_an_open_terminal_is_not_idle(server: Server) -> None:
    brief = Lifecycle(idle_timeout="1s", on_idle="stop")
    with Sandbox(name="idle", server=server.address, lifecycle=brief) as sandbox:
        process = sandbox.spawn(["cat"], pty=True)
        with process.terminal() as terminal, Sandbox(server=server.address, lifecycle=brief) as other:
            wait_until(lambda: other.info().state == "stopped", "the other one to be idle")
            assert sandbox.info().state == "running"
            terminal.write("\x04")
            assert list(terminal) == []
        wait_until(lambda: sandbox.info().state == "stopped", "it to be idle")
        sandbox.delete()


def test_terminal_survives_its_viewers(sandbox: Sandbox, shell: Process) -> None:
    for word in ("one", "two", "three"):
        with shell.terminal() as terminal:
            terminal.write(f"echo $X; X={word}; echo set $X\n")
            until(terminal, f"set {word}\r\n")
    assert shell.info().state == "running"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_server_restart_loses_and_repeats_nothing(own_server: Server, how: signal.Signals) -> None:
    own_server.start()
    with Sandbox(server=own_server.address) as sandbox:
        process = sandbox.spawn(
            "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done; read x; echo end $x", pty=True
        )
        with process.terminal(since=0) as terminal:
            seen = terminal.read(timeout=30)
            own_server.end(how)
            own_server.start()
            while b"3000\r\n" not in seen:
                seen += terminal.read(timeout=30)
            terminal.write("typed\r")
            while b"end typed" not in seen:
                seen += terminal.read(timeout=30)
        numbers = [int(line) for line in seen.decode().splitlines() if line.isdigit()]
        assert numbers == list(range(1, 3001))


def test_stopping_server_closes_terminals_without_waiting(own_server: Server) -> None:
    own_server.start()
    with Sandbox(server=own_server.address) as sandbox:
        process = sandbox.spawn("while :; do echo tick; sleep 0.1; done", pty=True)
        with view(own_server, sandbox, process.id) as viewer:
            assert json.loads(viewer.recv(30))["type"] == "started"
            assert own_server.end() == 0
            with contextlib.suppress(Exception):
                while True:
                    viewer.recv(30)
            assert viewer.close_code == 1001
        own_server.start()
        assert sandbox.processes.get(process.id).state == "running"


def test_deleted_sandbox_notifies_its_viewers(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        process = sandbox.spawn(["bash"], pty=True)
        with process.terminal() as terminal:
            terminal.write("echo here\n")
            until(terminal, "here\r\n")
            sandbox.stop()
            try:
                list(terminal)
            except SkerryError:
                return
            assert terminal.result is not None  # the exit of the shell came before the end of the sandbox


def test_terminal_of_a_paused_sandbox_continues_after_resume(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        process = sandbox.spawn(["bash", "--norc"], pty=True)
        with process.terminal() as terminal:
            terminal.write("echo before\n")
            until(terminal, "before\r\n")
            sandbox.pause()
            terminal.write("echo after $((6*7))\n")
            sandbox.resume()
            until(terminal, "after 42\r\n")


def test_log_has_one_line_per_terminal_without_input(server: Server, sandbox: Sandbox) -> None:
    process = sandbox.spawn(["cat"], pty=True)
    with process.terminal() as terminal:
        terminal.write("hunter2\n")
        until(terminal, "hunter2\r\n")
    process.kill()

    def told() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if process.id in line]
        return [line for line in lines if line.get("status") == 101]

    wait_until(lambda: len(told()) == 1, "the line")
    assert told()[0]["path"] == "/v1/sandboxes/{ref}/processes/{process}/terminal"
    assert "hunter2" not in server.log.read_text()


def test_plain_http_request_gets_a_hint_about_websockets(server: Server, sandbox: Sandbox, shell: Process) -> None:
    with server.http() as http:
        answer: httpx2.Response = http.get(f"/v1/sandboxes/{sandbox.id}/processes/{shell.id}/terminal")
    assert answer.status_code == 426
    assert answer.headers["Upgrade"] == "websocket"
