"""Disconnecting callers and deleted contexts at the worst moments: no kernel and no exchange is left behind."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.server import Server, wait_until

from skerry import Sandbox
from skerry.config import socket_path
from skerry.errors import NotFound

LOOP = "import time\nwhile True: time.sleep(0.01)"
MOMENTS = [0.0, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.02, 0.04]  # seconds: a kernel starts in some of them


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        sandbox.code.run("x = 1")
        yield sandbox


@pytest.fixture(scope="module")
def before(sandbox: Sandbox) -> set[str]:
    """The processes before the first test: the server may handle a request long after its caller has left."""
    return running(sandbox)


def leave(server: Server, sandbox: Sandbox, after: float, **body: Any) -> None:
    """Ask for a run, and hang up."""
    data = json.dumps({"code": LOOP, **body}).encode()
    head = f"POST /v1/sandboxes/{sandbox.id}/code HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(socket_path(server.state_dir)))
        line.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        threading.Event().wait(after)


def running(sandbox: Sandbox) -> set[str]:
    return {process.id for process in sandbox.processes.list() if process.state == "running"}


def wait_for_the_same(sandbox: Sandbox, before: set[str]) -> None:
    """Wait until the kernels of callers that left and of deleted contexts are gone."""
    with contextlib.suppress(pytest.fail.Exception):
        wait_until(lambda: running(sandbox) == before, "kernels to be gone")
    assert running(sandbox) == before, sandbox.processes.list()


def test_disconnect_while_a_kernel_starts_leaves_none_behind(
    server: Server, sandbox: Sandbox, before: set[str]
) -> None:
    for moment in MOMENTS:
        leave(server, sandbox, moment, fresh=True)
    wait_for_the_same(sandbox, before)


def test_disconnect_while_a_context_starts_leaves_it_usable(server: Server, sandbox: Sandbox, before: set[str]) -> None:
    for number, moment in enumerate(MOMENTS):
        context = sandbox.code.context("python", f"left-{number}")
        leave(server, sandbox, moment, context=context.name)
        assert context.run("6 * 7", timeout=20).text == "42"
        context.delete()
    wait_for_the_same(sandbox, before)


def test_disconnect_while_a_run_starts_keeps_the_state(server: Server, sandbox: Sandbox) -> None:
    for moment in MOMENTS:
        leave(server, sandbox, moment, context="python")
        assert sandbox.code.run("x", timeout=20).text == "1"


def test_context_deleted_while_its_kernel_starts_leaves_none_behind(sandbox: Sandbox, before: set[str]) -> None:
    for number, moment in enumerate(MOMENTS):
        context = sandbox.code.context("python", f"short-{number}")
        outcome: list[str] = []

        def run(name: str = context.name, outcome: list[str] = outcome) -> None:
            with contextlib.suppress(NotFound):
                sandbox.code.run(LOOP, context=name, timeout=60)
            outcome.append("over")

        thread = threading.Thread(target=run)
        thread.start()
        threading.Event().wait(moment)
        context.delete()
        again = sandbox.code.context("python", context.name)
        again.delete()  # this run may have met the late one
        thread.join(20)
        assert outcome == ["over"]
    wait_for_the_same(sandbox, before)
