"""`skerry mcp` after its client disconnects: no sandboxes or processes are left unless requested."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.mcp_clients import MODES, on_stdio, skerry
from support.server import WAIT_S, Server, wait_until

from skerry import AsyncClient, AsyncSandbox

HELLO = {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"},
}  # fmt: skip


def sandboxes(server: Server) -> list[str]:
    with server.http() as http:
        return [one["id"] for one in http.get("/v1/sandboxes").json()["sandboxes"]]


def running(server: Server, sandbox: str) -> list[str]:
    with server.http() as http:
        listed = http.get(f"/v1/sandboxes/{sandbox}/processes").json()["processes"]
    return [one["id"] for one in listed if one["state"] == "running"]


@contextmanager
def bare(server: Server, *options: str) -> Iterator[Bare]:
    """A client that can be killed."""
    words = [skerry(), "--server", server.address, "mcp", *options]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Bare(process)
        finally:
            if process.poll() is None:
                process.kill()


class Bare:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.send(id=0, method="initialize", params=HELLO)
        assert self.answer()["id"] == 0
        self.send(method="notifications/initialized")

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def call(self, tool: str, **arguments: Any) -> None:
        self.send(id=1, method="tools/call", params={"name": tool, "arguments": arguments})

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def vanish(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.stdin.close()
        return self.process.wait(WAIT_S)


def begun(server: Server, known: list[str]) -> str:
    """Return the new sandbox in which a command is running."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [one for one in sandboxes(server) if one not in known and running(server, one)]
        return bool(found)

    wait_until(look, "a command to run")
    return found[0]


@pytest.mark.parametrize("mode", MODES)
async def test_default_sandbox_is_deleted_on_disconnect_and_a_named_one_kept(server: Server, mode: str) -> None:
    async with on_stdio(server, mode) as talk:
        own = (await talk.call("run", command="true"))["sandbox"]
        more = (await talk.call("create_sandbox"))["sandbox"]
        (fork,) = (await talk.call("fork_sandbox"))["sandboxes"]
        named = (await talk.call("create_sandbox", name=f"stays-{mode}"))["sandbox"]
        assert set(sandboxes(server)) >= {own, more, fork["sandbox"], named}
    assert set(sandboxes(server)) & {own, more, fork["sandbox"], named} == {named}


async def test_sandbox_with_accepted_changes_is_stopped_on_disconnect(server: Server) -> None:
    async with on_stdio(server, MODES[0]) as talk, AsyncClient(server.address) as person:
        own = (await talk.call("write_file", path="/workspace/a.txt", content="one\n"))["sandbox"]
        theirs = await AsyncSandbox.get(own, server=person)
        await theirs.review.start()
        await talk.call("run", command="echo two >> /workspace/a.txt")
        await theirs.review.accept(*(await theirs.review.changes()).hunks)
    async with AsyncClient(server.address) as person:
        theirs = await AsyncSandbox.get(own, server=person)
        assert (await theirs.info()).state == "stopped"
        await theirs.delete(force=True, purge=True)


async def test_named_default_sandbox_is_reused(server: Server) -> None:
    async with on_stdio(server, MODES[0], "--name", "mine") as talk:
        first = (await talk.call("write_file", path="mark", content="x"))["sandbox"]
    async with on_stdio(server, MODES[0], "--name", "mine") as talk:
        assert (await talk.call("read_file", path="mark"))["sandbox"] == first


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled_call_ends_only_its_command(server: Server, mode: str) -> None:
    async with on_stdio(server, mode) as talk:
        own = (await talk.call("run", command="true"))["sandbox"]
        other = (await talk.call("spawn", command="sleep 600"))["process"]
        call = asyncio.ensure_future(talk.call("run", command="sleep 600"))
        await asyncio.to_thread(wait_until, lambda: len(running(server, own)) == 2, "the command to run")
        call.cancel()
        await asyncio.to_thread(wait_until, lambda: running(server, own) == [other], "the command to end")
        assert (await talk.call("run", command="echo on"))["stdout"] == "on\n"


async def test_cancelled_code_is_interrupted_and_keeps_variables(server: Server) -> None:
    async with on_stdio(server, MODES[0]) as talk:
        own = (await talk.call("run_code", code="x = 5; open('no', 'w').close()"))["sandbox"]
        endless = "import time; open('begun', 'w').close()\nwhile True: time.sleep(0.01)"
        call = asyncio.ensure_future(talk.call("run_code", code=endless))
        while not (await talk.call("glob_files", pattern="begun"))["entries"]:
            await asyncio.sleep(0.01)
        call.cancel()
        ran = await talk.call("run_code", code="x", sandbox=own)
        assert (ran["text"], ran.get("lost")) == ("5", None)


def test_client_killed_during_a_call_leaves_no_command_and_no_sandbox(server: Server) -> None:
    before = sandboxes(server)
    with bare(server) as client:
        client.call("run", command="sleep 600")
        sandbox = begun(server, before)
        assert client.vanish() == 0
    assert sandbox not in sandboxes(server)


def test_only_kept_command_outlives_its_client(server: Server) -> None:
    before = sandboxes(server)
    with bare(server, "--name", "kept") as client:
        client.call("run", command="sleep 600", keep=True)
        sandbox = begun(server, before)
        (process,) = running(server, sandbox)
        client.vanish()
    assert running(server, sandbox) == [process]
    with bare(server, "--name", "kept") as client:
        client.call("run", command="sleep 600")
        wait_until(lambda: len(running(server, sandbox)) == 2, "the second command to run")
        client.vanish()
    wait_until(lambda: running(server, sandbox) == [process], "the second command to end")


def test_client_killed_during_creation_leaves_no_sandbox(server: Server) -> None:
    before = sandboxes(server)
    with bare(server) as client:
        client.call("run", command="sleep 600")
        client.vanish()
    assert sandboxes(server) == before


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_cleanly(server: Server, how: signal.Signals) -> None:
    before = sandboxes(server)
    with bare(server) as client:
        client.call("run", command="sleep 600")
        sandbox = begun(server, before)
        client.process.send_signal(how)
        assert client.process.wait(WAIT_S) in (130, 143)
    assert sandbox not in sandboxes(server)


def test_messages_from_a_file_are_answered(server: Server, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
    asked.write_text(json.dumps(hello) + "\n")
    words = [skerry(), "--server", server.address, "mcp"]
    with asked.open("rb") as file:
        done = subprocess.run(words, stdin=file, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout)["id"] == 0
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True)


def test_one_socket_as_stdin_and_stdout_works(server: Server) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(WAIT_S)
    words = [skerry(), "--server", server.address, "mcp"]
    with theirs, subprocess.Popen(words, stdin=theirs, stdout=theirs) as process, ours, ours.makefile("rwb") as talk:
        theirs.close()
        for number, method in enumerate(("initialize", "ping", "ping")):
            asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": HELLO if number == 0 else {}}
            talk.write(json.dumps(asked).encode() + b"\n")
            talk.flush()
            assert json.loads(talk.readline())["id"] == number
        ours.shutdown(socket.SHUT_RDWR)
        assert process.wait(WAIT_S) == 0


def test_lone_surrogate_is_answered_with_an_error(server: Server) -> None:
    with bare(server) as client:
        client.call("write_file", path="x", content="\ud83d")
        answer = client.answer()
        assert (answer["id"], answer["error"]["code"]) == (1, -32700)


def test_invalid_input_does_not_end_the_server(server: Server) -> None:
    with bare(server) as client:
        assert client.process.stdin is not None
        client.process.stdin.write(b"nonsense\n{}\n[1]\n\xff\xfe\n" + b"[" * 100_000 + b"\n")
        client.send(id=7, method="tools/list")
        answer = client.answer()
        while answer.get("id") != 7:
            answer = client.answer()
        assert answer["result"]["tools"]
