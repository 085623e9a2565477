"""Callers who leave, and contexts that go, at the worst moments: no kernel is left behind, and no turn."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Server, wait_until

from skerry import Sandbox
from skerry.config import socket_path
from skerry.errors import NotFound

LOOP = "import time\nwhile True: time.sleep(0.01)"
MOMENTS = [0.0, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.02, 0.04]  # seconds: a kernel starts in some of them


@pytest.fixture(scope="module")
def hall(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as box:
        box.code.run("x = 1")
        yield box


def leave(server: Server, box: Sandbox, after: float, **body: Any) -> None:
    """Ask for a run, and hang up."""
    data = json.dumps({"code": LOOP, **body}).encode()
    head = f"POST /v1/sandboxes/{box.id}/code HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(socket_path(server.state_dir)))
        line.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        threading.Event().wait(after)


def running(box: Sandbox) -> set[str]:
    return {process.id for process in box.processes.list() if process.state == "running"}


def test_callers_who_leave_while_a_kernel_starts_leave_none_behind(server: Server, hall: Sandbox) -> None:
    before = running(hall)
    for moment in MOMENTS:
        leave(server, hall, moment, fresh=True)
    wait_until(lambda: running(hall) == before, "the kernels of those who left to be gone", 20)


def test_callers_who_leave_while_a_context_starts_leave_it_whole(server: Server, hall: Sandbox) -> None:
    before = running(hall)
    for number, moment in enumerate(MOMENTS):
        context = hall.code.context("python", f"left-{number}")
        leave(server, hall, moment, context=context.name)
        assert context.run("6 * 7", timeout=20).text == "42"
        context.delete()
    wait_until(lambda: running(hall) == before, "the kernels of deleted contexts to be gone", 20)


def test_callers_who_leave_while_a_run_begins_leave_what_the_context_remembers(server: Server, hall: Sandbox) -> None:
    for moment in MOMENTS:
        leave(server, hall, moment, context="python")
        assert hall.code.run("x", timeout=20).text == "1"


def test_contexts_deleted_while_their_kernels_start_leave_none_behind(hall: Sandbox) -> None:
    before = running(hall)
    for number, moment in enumerate(MOMENTS):
        context = hall.code.context("python", f"short-{number}")
        outcome: list[str] = []

        def run(name: str = context.name, outcome: list[str] = outcome) -> None:
            with contextlib.suppress(NotFound):
                hall.code.run(LOOP, context=name, timeout=60)
            outcome.append("over")

        thread = threading.Thread(target=run)
        thread.start()
        threading.Event().wait(moment)
        context.delete()
        again = hall.code.context("python", context.name)
        again.delete()  # the run may have been the one that came late, to this one
        thread.join(20)
        assert outcome == ["over"]
    wait_until(lambda: running(hall) == before, "the kernels of deleted contexts to be gone", 20)
