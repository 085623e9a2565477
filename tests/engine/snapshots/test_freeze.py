"""The freeze of a sandbox for a snapshot is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
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


LATE_THREAD = """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
from skerry.config import load
from skerry.engine import faults
passed, fault_point = [], faults.fault_point
faults.fault_point = lambda name: (fault_point(name), passed.append(name))  # before others import it
from skerry.engine.engine import Engine
from skerry.engine.snapshots.capture import capture
from skerry.errors import Conflict
from skerry.types import Caller, CreateRequest

me = Caller(owner="local", scope="admin")

async def main():
    engine = await Engine.open(load())
    info = await engine.sandboxes.create(me, CreateRequest())
    sandbox, free = engine.registry.get(info.id), threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    try:
        async with sandbox.lock:
            threads.submit(free.wait, 60)
            taking = asyncio.create_task(capture(engine.host, sandbox, "late", None, durable=False))
            async with asyncio.timeout(30):
                await asyncio.sleep(0)
                while not sandbox.thawed.is_set():
                    await asyncio.sleep(0.01)
            free.set()
            try:
                await taking
            except Conflict as error:
                print(error.details["setting"])
    finally:
        free.set()
        await engine.sandboxes.delete(me, info.id)
        await engine.close()
    print([name for name in passed if name.startswith("snapshot.")])

asyncio.run(main())
"""


def test_capture_that_starts_after_the_timeout_does_not_freeze(server: Server) -> None:
    """All threads are busy until then."""
    server.end()
    out = subprocess.run(
        [sys.executable, "-c", LATE_THREAD],
        env={**os.environ, "SKERRY_STATE_DIR": str(server.state_dir), "SKERRY_SNAPSHOTS_MAX_FREEZE": "1s"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    server.start()
    assert out.stdout == "snapshots.max_freeze\n[]\n", out.stderr
