"""The server is killed with -9 after every step of a sandbox's life; the next one repairs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx2
import pytest
from support.server import Server, wait_until

from skerry.engine import faults

LIMITS = {"cpus": 1.0, "memory": "256M", "disk": "48M", "pids": 100, "open_files": 1024}
OTHER = {"cpus": 0.5, "memory": "128M", "disk": "96M", "pids": 200, "open_files": 512}  # some less, some more


def key(point: str) -> dict[str, str]:
    return {"Idempotency-Key": point}


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """Create a server that each test starts."""
    made = make_server()
    yield made
    made.retire()


class Armed:
    """A server that goes on from test to test, and dies at the step that a file names, while it does."""

    def __init__(self, server: Server) -> None:
        self.server, self._fault, self._env = server, server.state_dir / "fault", dict[str, str]()

    def serve(self, **env: str) -> None:
        runs = self.server.process is not None and self.server.process.poll() is None
        if runs and env != self._env:
            self.server.end()
        if not runs or env != self._env:
            self.server.start(SKERRY_FAULT=str(self._fault), **env)
        self._env = env

    def dies(self, at: str, work: Callable[[httpx2.Client], None]) -> None:
        self._fault.write_text(at)
        with self.server.http() as http, pytest.raises(httpx2.TransportError):
            work(http)
        assert self.server.process is not None
        assert self.server.process.wait(60) == -9
        self._fault.unlink()


@pytest.fixture(scope="module")
def armed(make_server: Callable[[], Server]) -> Iterator[Armed]:
    made = make_server()
    yield Armed(made)
    made.retire()


def drive(http: httpx2.Client, point: str) -> None:
    """Make the call that passes the point; the connection breaks there."""
    verb = point.partition(".")[0]
    if verb in ("create", "start", "claim"):
        http.post("/v1/sandboxes", json={"name": "subject"}, headers=key(point)).raise_for_status()
    elif verb == "limits":
        http.patch("/v1/sandboxes/subject", json={"limits": OTHER}).raise_for_status()
    elif verb == "stop":
        http.post("/v1/sandboxes/subject/stop").raise_for_status()
    else:
        http.delete("/v1/sandboxes/subject").raise_for_status()


def state_of(http: httpx2.Client) -> str | None:
    answer = http.get("/v1/sandboxes/subject")
    return answer.json()["state"] if answer.status_code == 200 else None


def is_ready(http: httpx2.Client) -> bool:
    return any(image["ready"] for image in http.get("/v1/pool").json()["images"])


def run(http: httpx2.Client, line: str) -> str:
    answer = http.post("/v1/sandboxes/subject/processes?wait=true", json={"cmd": line})
    answer.raise_for_status()
    return answer.json()["stdout"]


def held(http: httpx2.Client) -> dict[str, object]:
    """The limits that really hold, as the inside meets them."""
    groups = "/sys/fs/cgroup"
    told = run(
        http,
        f"cat {groups}/cpu/cpu.cfs_quota_us {groups}/cpu.max 2>/dev/null | cut -d' ' -f1 | head -1;"
        f"cat {groups}/memory/memory.limit_in_bytes {groups}/memory.max 2>/dev/null | head -1;"
        f"cat {groups}/pids/pids.max {groups}/pids.max 2>/dev/null | head -1; ulimit -n;"
        "dd if=/dev/zero of=/workspace/fill bs=1M count=64 conv=fsync 2>/dev/null && echo 96M || echo 48M",
    ).split()
    cpu, memory, pids, files = map(int, told[:4])
    return {"cpus": cpu / 1e5, "memory": f"{memory >> 20}M", "disk": told[4], "pids": pids, "open_files": files}


@pytest.mark.parametrize("point", faults.LIFE)
def test_server_killed_at_any_step_leaves_a_sandbox_complete_or_gone(armed: Armed, point: str) -> None:
    server = armed.server
    made_before = point.partition(".")[0] in ("stop", "delete", "limits")
    pool = {"SKERRY_POOL_PER_IMAGE": "1", "SKERRY_POOL_IMAGES": "base"} if point.startswith("claim") else {}
    armed.serve(**pool)
    with server.http() as http:
        if pool:
            wait_until(lambda: is_ready(http), "a ready sandbox")
        if made_before:
            made = http.post("/v1/sandboxes", json={"name": "subject", "limits": LIMITS})
            assert made.status_code == 201, made.text
            run(http, "echo kept > /workspace/note; sync")
    armed.dies(point, lambda http: drive(http, point))
    armed.serve()
    with server.http() as http:
        state = state_of(http)
        if made_before:
            if state is not None:  # complete: files are there, and it runs again
                assert run(http, "cat /workspace/note") == "kept\n"
            if point.startswith("limits"):
                told = http.get("/v1/sandboxes/subject").json()["limits"]
                assert told == (LIMITS if point == "limits.shrink" else OTHER)
                assert held(http) == told
        else:
            first = http.get("/v1/sandboxes/subject").json().get("id")
            again = http.post("/v1/sandboxes", json={"name": "subject"}, headers=key(point))
            assert again.status_code == 201, again.text
            assert first in (None, again.json()["id"])
            assert run(http, "echo alive") == "alive\n"
        if point.startswith("delete"):
            assert state is None
        server.remove_all()
    assert server.leftovers() == []


def test_idempotency_key_gives_the_same_id_across_a_crash(server: Server) -> None:
    server.start(SKERRY_FAULT="start.container")
    with server.http() as http, pytest.raises(httpx2.TransportError):
        http.post("/v1/sandboxes", json={"labels": {"a": "1"}}, headers={"Idempotency-Key": "across"})
    assert server.process is not None
    server.process.wait(60)
    ((promised,),) = server.sql("SELECT sandbox FROM creates WHERE key = 'across'")
    server.start()
    with server.http() as http:
        body = {"labels": {"a": "1"}}
        ids = {http.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": "across"}).json()["id"] for _ in "ab"}
        assert ids == {promised}
        other = http.post("/v1/sandboxes", json={"labels": {"a": "2"}}, headers={"Idempotency-Key": "across"})
        assert other.status_code == 400
        server.remove_all()
    server.end()


def test_every_step_of_a_sandbox_lifetime_is_a_fault_point(server: Server) -> None:
    """Steps report themselves to `faults.fault_point`, which refuses names that are not in its list; and a whole life
    passes every name in its list, so none is there for show."""
    script = (
        "import asyncio, sys\n"
        "from skerry.config import load\n"
        "from skerry.engine import faults\n"
        "seen = []\n"
        "fault_point = faults.fault_point\n"
        "faults.fault_point = lambda name: (fault_point(name), seen.append(name))  # before others import it\n"
        "from skerry.engine.engine import Engine\n"
        "from skerry.types import Caller, CreateRequest, Limits, UpdateRequest\n"
        "async def main():\n"
        "    engine = await Engine.open(load())\n"
        "    me = Caller(owner='local', scope='admin')\n"
        "    await engine.pool.set('base', 1)\n"
        "    while not engine.pool.info().images[0].ready: await asyncio.sleep(0.01)\n"
        "    info = await engine.sandboxes.create(me, CreateRequest())\n"
        "    await engine.sandboxes.update(me, info.id, UpdateRequest(limits=Limits(cpus=0.5)))\n"
        "    await engine.sandboxes.pause(me, info.id); await engine.sandboxes.resume(me, info.id)\n"
        "    await engine.sandboxes.stop(me, info.id); await engine.sandboxes.delete(me, info.id)\n"
        "    await engine.close()\n"
        "asyncio.run(main())\n"
        "print(*sorted(set(seen)))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "SKERRY_STATE_DIR": str(server.state_dir)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(out.stdout.split()) == set(faults.LIFE + faults.SLEEP + faults.EVENTS + faults.RECORD)


def test_sandbox_keeps_running_while_its_server_is_dead(server: Server) -> None:
    server.start()
    with server.http() as http:
        made = http.post("/v1/sandboxes", json={"name": "subject"})
        assert made.status_code == 201, made.text
        run(http, "(while true; do date +%s%N > /tmp/beat; sleep 0.02; done) >/dev/null 2>&1 &")
    server.end(signal.SIGKILL)
    server.start()
    with server.http() as http:
        assert state_of(http) == "running"
        beat = run(http, "cat /tmp/beat")
        wait_until(lambda: run(http, "cat /tmp/beat") != beat, "the loop inside to go on")
        server.remove_all()
    assert server.leftovers() == []
    server.end()
