"""Attacks on shared resources of a host: one sandbox takes all it can get, and the others must have enough left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest
from support.attack import INSIDE, PLACE, carry_in
from support.server import Server

from skerry import Limits, Sandbox

SCRIPT = "exhaustion.py"
OWNERS = ("inotify", "message_queues", "pending_signals")  # counted for the owner of the user namespace
KINDS = [*OWNERS, "terminals", "asynchronous_io"]


@pytest.fixture(scope="module")
def neighbours(server: Server) -> Iterator[tuple[Sandbox, Sandbox]]:
    limits = Limits(memory="512M", pids=64)
    with Sandbox(server=server.address, limits=limits) as greedy, Sandbox(server=server.address) as modest:
        carry_in(greedy)
        carry_in(modest)
        yield greedy, modest


@contextmanager
def held(sandbox: Sandbox, kind: str) -> Iterator[int]:
    """While all of a kind that the sandbox can get is held by it."""
    told: SimpleQueue[bytes] = SimpleQueue()
    more = threading.Event()

    def stdin() -> Iterator[bytes]:
        more.wait(60)
        yield b"\n"

    def run() -> None:
        argv = ["python3", f"{PLACE}/{SCRIPT}", kind]
        sandbox.run(argv, user="root", stdin=stdin(), timeout=60, on_output=lambda output: told.put(output.data))

    holder = threading.Thread(target=run)
    holder.start()
    try:
        yield int(told.get(timeout=30))
    finally:
        more.set()
        holder.join(30)


def gets(sandbox: Sandbox, kind: str) -> int:
    return int(sandbox.run(["python3", f"{PLACE}/{SCRIPT}", kind], user="root", check=True).stdout)


def host_gets(kind: str) -> int:
    argv = [sys.executable, str(INSIDE / SCRIPT), kind]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_one_sandbox_cannot_exhaust_the_host(neighbours: tuple[Sandbox, Sandbox], kind: str) -> None:
    greedy, modest = neighbours
    assert greedy.isolation is not None
    if greedy.isolation.runtime == "runc" and kind in OWNERS:
        pytest.skip("runc makes the user namespace itself, so what it uses counts as root's")
    alone, alone_on_the_host = gets(modest, kind), host_gets(kind)
    with held(greedy, kind):
        assert host_gets(kind) >= alone_on_the_host * 0.75
        assert gets(modest, kind) >= alone * 0.75


def test_host_does_not_read_an_endless_command_line(own_server: Server) -> None:
    """The host lists processes when it cleans up after an interrupted start, and a process chooses its command line."""
    server = own_server.start()
    with Sandbox(server=server.address, name="long", limits=Limits(memory="256M")) as sandbox:
        carry_in(sandbox)
        sandbox.run(f"setsid -f sh -c 'tail -f /dev/null | python3 {PLACE}/long_name.py 64 > /tmp/said'", check=True)
        sandbox.run("until grep -q long /tmp/said; do sleep 0.01; done", timeout=20, check=True)
        other = Sandbox.create(name="other", server=server.address)
        server.end()
        server.start()  # it knows of no start that it saw to the end itself
        before = peak_memory(server)
        Sandbox.get(other.id, server=server.address).delete()
        assert peak_memory(server) - before < 64 << 20
        assert sandbox.run(["echo", "alive"]).stdout == "alive\n"
        sandbox.delete()


def peak_memory(server: Server) -> int:
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
