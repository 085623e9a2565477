"""The monitor of the event loop: it counts stalls, and names the route that held the loop."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.listening_server import Listening
from support.server import wait_until

from skerry.server.loop_monitor import STALL_S
from skerry.types import SandboxInfo


def test_blocked_loop_is_counted_and_its_route_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = Listening(tmp_path).start()
    monitor = listening.control.loop

    def blocking(*_: object) -> list[SandboxInfo]:
        give_up = time.monotonic() + 40
        while monitor.seen_route != "GET /v1/sandboxes" and time.monotonic() < give_up:
            time.sleep(0.01)
        time.sleep(2 * STALL_S)  # the monitor looks before a late beat counts as a stall
        return []

    monkeypatch.setattr(listening.engine.sandboxes, "list", blocking)
    with listening.unix() as http:
        http.timeout = 60
        assert http.get("/v1/sandboxes").status_code == 200
        wait_until(lambda: monitor.stalls >= 1, "the next beat")
    listening.stop()
    assert monitor.longest_s > 0
    stalls = [vars(record) for record in caplog.records if record.message == "event loop was blocked"]
    seen = {(stall["path"], stall["function"]) for stall in stalls}  # a busy machine may cause others
    assert ("GET /v1/sandboxes", "skerry.server.routes.sandboxes.list_") in seen
