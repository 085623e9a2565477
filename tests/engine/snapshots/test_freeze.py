"""The freeze of a sandbox for a snapshot is bounded."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from support.server import Server, wait_until

ONE = "/v1/sandboxes/subject"


def run(http: httpx2.Client, line: str, **more: object) -> str:
    answer = http.post(f"{ONE}/processes?wait=true", json={"cmd": line, **more})
    answer.raise_for_status()
    return str(answer.json()["stdout"])


def contents(server: Server) -> dict[str, set[str]]:
    pool = server.state_dir / "pool"
    return {folder: {path.name for path in (pool / folder).iterdir()} for folder in "ust"}


def is_frozen(server: Server, sandbox: str) -> bool:
    events = [*Path("/sys/fs/cgroup").glob(f"skerry/*/{sandbox}/cgroup.events")]
    events += Path("/sys/fs/cgroup").glob(f"*/skerry/*/{sandbox}/cgroup.events")
    return any("frozen 1" in path.read_text() for path in events)


@pytest.mark.parametrize("step", ["snapshot.frozen", "snapshot.captured"])
def test_slow_capture_thaws_its_sandbox_and_fails(own_server: Server, tmp_path: Path, step: str) -> None:
    fault = tmp_path / "fault"
    own_server.start(SKERRY_FAULT=str(fault), SKERRY_SNAPSHOTS_MAX_FREEZE="2s")
    with own_server.http() as http, ThreadPoolExecutor() as threads:
        sandbox = http.post("/v1/sandboxes", json={"name": "subject"}).json()["id"]
        run(http, "echo kept > /workspace/note")
        before = contents(own_server)
        fault.write_text(f"{step} wait")
        taking: Future[httpx2.Response] = threads.submit(http.post, f"{ONE}/snapshots", json={"name": "late"})
        try:
            wait_until(lambda: is_frozen(own_server, sandbox), "the freeze")
            wait_until(lambda: not is_frozen(own_server, sandbox), "the thaw, during the capture", 30)
            with own_server.http() as other:
                assert run(other, "cat /workspace/note") == "kept\n"
            assert not taking.done()
        finally:
            fault.write_text("")
        answer = taking.result(60)
        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["details"]["setting"] == "snapshots.max_freeze"
        assert http.get(ONE).json()["state"] == "running"
        wait_until(lambda: contents(own_server) == before, "removal of the capture")
        http.post(f"{ONE}/snapshots", json={"name": "late"}).raise_for_status()
        http.delete("/v1/snapshots/late").raise_for_status()


def test_slow_automatic_snapshot_fails_its_command_only(own_server: Server, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    own_server.start(SKERRY_FAULT=str(fault), SKERRY_SNAPSHOTS_MAX_FREEZE="2s")
    with own_server.http() as http, ThreadPoolExecutor() as threads:
        options = {"auto_snapshot": True}
        sandbox = http.post("/v1/sandboxes", json={"name": "subject", "options": options}).json()["id"]
        fault.write_text("snapshot.captured wait")
        running = threads.submit(run, http, "true")
        try:
            wait_until(lambda: is_frozen(own_server, sandbox), "the freeze")
            wait_until(lambda: not is_frozen(own_server, sandbox), "the thaw, during the capture", 30)
        finally:
            fault.write_text("")
        with pytest.raises(httpx2.HTTPStatusError, match="409"):
            running.result(60)
        assert run(http, "echo on") == "on\n"
        assert http.get(ONE).json()["state"] == "running"
