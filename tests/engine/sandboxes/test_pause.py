"""Sandboxes that sleep: paused, stopped, through the death of the server and a reboot of the host, and woken again."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from support.server import Server, wait_until, words_of

from skerry import Client, Lifecycle, Sandbox
from skerry.config import run_dir
from skerry.engine import faults
from skerry.errors import SandboxUnavailable, ServerUnreachable
from skerry.runtimes.cgroups import Cgroups


@pytest.fixture(scope="module")
def inn(make_server: Callable[[], Server]) -> Iterator[Server]:
    """A server that these tests may kill, and start again."""
    made = make_server().start()
    yield made
    made.retire()


def test_idle_sandbox_is_paused_and_later_stopped(server: Server) -> None:
    brief = Lifecycle(idle_timeout="200ms", on_idle="pause")
    held = Sandbox.create(server=server.address)
    held.pause()
    held.update(lifecycle=brief)
    idler = Sandbox.create(lifecycle=brief, server=server.address)
    with Client(server.address) as client:

        def told() -> list[tuple[str, str | None]]:
            return [(event.type, event.reason) for event in client.events(sandbox=idler.id)][-2:]

        wait_until(lambda: told() == [("sandbox.paused", "idle"), ("sandbox.stopped", "idle")], "it to be stopped")
    assert held.info().state == "paused", "what somebody paused waits for somebody"
    assert idler.run("echo awake").stdout == "awake\n"
    for sandbox in (held, idler):
        sandbox.delete()


def test_paused_sandbox_uses_no_cpu(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        process = sandbox.spawn("while :; do :; done")
        sandbox.pause()
        before = settled(lambda: sandbox.usage().cpu_s)
        with Sandbox(server=server.address) as other:  # something else has its turns meanwhile
            other.run("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done")
        used = sandbox.usage().cpu_s
        assert used is not None
        assert used - (before or 0) < 0.002, "no more than the kernel counts late"
        sandbox.resume()
        wait_until(lambda: sandbox.usage().cpu_s > before, "the loop inside to go on")
        assert process.state == "running"


def settled(read: Callable[[], float | None]) -> float | None:
    """The kernel accounts the usage before a freeze with a delay."""
    seen = [read()]

    def stays() -> bool:
        seen.append(read())
        return seen[-1] == seen[-2]

    wait_until(stays, "a paused sandbox to use no more")
    return seen[-1]


@pytest.mark.parametrize("how", ["pause", "stop"])
def test_calls_without_auto_resume_report_a_sleeping_sandbox(server: Server, how: str) -> None:
    with Sandbox(lifecycle=Lifecycle(auto_resume=False), server=server.address) as sandbox:
        getattr(sandbox, how)()
        state = sandbox.info().state
        calls: list[Callable[[], object]] = [
            lambda: sandbox.run("true"),
            lambda: sandbox.spawn("true"),
            lambda: sandbox.files.read_text("/etc/hostname"),
            lambda: sandbox.session("s").run("true"),
            lambda: sandbox.processes.list(),
            lambda: sandbox.wait_for_port(80, timeout=1),
        ]
        for call in calls:
            with pytest.raises(SandboxUnavailable, match=state) as refusal:
                call()
            assert refusal.value.details["state"] == state
            assert "skerry resume" in (refusal.value.hint or "")
        assert sandbox.info().state == state
        sandbox.resume()
        assert sandbox.run("true").ok


# A kill right after a step leaves the sandbox in its previous or its next state.
AFTER = {
    **dict.fromkeys(faults.START, "stopped"), "start.record": "running",
    **dict.fromkeys(faults.PAUSE, "paused"),
    "resume.thaw": "paused", "resume.record": "running",
}  # fmt: skip
BEFORE = {"start": "stop", "pause": "resume", "resume": "pause"}  # calls that lead to the start of the step


def test_server_killed_at_any_step_of_a_pause_or_a_resume_loses_nothing(inn: Server) -> None:
    with inn.http() as http:
        made = http.post("/v1/sandboxes", json={"name": "sleeper"})
        assert made.status_code == 201, made.text
        http.put("/v1/sandboxes/sleeper/files", params={"path": "/workspace/note"}, content=b"kept").raise_for_status()
    inn.end()
    before = None
    for point in (*faults.START, *faults.PAUSE, *faults.RESUME):
        inn.start(SKERRY_FAULT=point)
        verb = point.partition(".")[0]
        with inn.http() as http:
            check(inn, http, before)
            http.post(f"/v1/sandboxes/sleeper/{BEFORE[verb]}").raise_for_status()
            with pytest.raises(httpx2.TransportError):
                http.post(f"/v1/sandboxes/sleeper/{'resume' if verb == 'start' else verb}")
        assert inn.process is not None
        assert inn.process.wait(60) == -9
        before = point
    inn.start()
    with inn.http() as http:
        check(inn, http, before)
        note = http.get("/v1/sandboxes/sleeper/files", params={"path": "/workspace/note"})
        assert note.content == b"kept"
    inn.remove_all()
    assert inn.leftovers() == []


def check(inn: Server, http: httpx2.Client, killed_after: str | None) -> None:
    if killed_after is not None:
        assert http.get("/v1/sandboxes/sleeper").json()["state"] == AFTER[killed_after], killed_after
        if AFTER[killed_after] == "stopped":
            assert inn.leftovers() == []


@pytest.mark.parametrize("point", faults.PAUSE)
def test_sandbox_recorded_as_paused_is_frozen_after_a_restart(inn: Server, point: str) -> None:
    inn.end()
    inn.start(SKERRY_FAULT=point)
    sandbox = Sandbox.create(server=inn.address)
    sandbox.review.start()
    sandbox.spawn("while :; do :; done")
    with pytest.raises(ServerUnreachable):
        sandbox.pause()
    assert inn.process is not None
    assert inn.process.wait(60) == -9
    inn.start()
    assert sandbox.info().state == "paused"
    assert is_frozen(inn, sandbox.id)
    before = settled(lambda: sandbox.usage().cpu_s)
    with Sandbox(server=inn.address) as other:
        other.run("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done")
    assert is_frozen(inn, sandbox.id)
    assert sandbox.info().state == "paused"
    assert sandbox.usage().cpu_s == before
    sandbox.resume()
    assert sandbox.run("echo awake").stdout == "awake\n"
    sandbox.delete()


def is_frozen(server: Server, sandbox: str) -> bool:
    group = Cgroups(f"/skerry/{run_dir(server.state_dir).name}").v2(sandbox)
    return "frozen 1" in (group / "cgroup.events").read_text()


def reboot(server: Server) -> None:
    """Leave only the state directory of a server, like a reboot: remove every process, every mount, and all of /run."""
    assert server.process is not None
    if server.process.poll() is None:
        server.end(signal.SIGKILL)
    here = run_dir(server.state_dir)
    groups = Cgroups(f"/skerry/{here.name}")
    for sandbox in groups.ids():
        groups.kill(sandbox)
        wait_until(lambda: not groups.strays(sandbox), "its processes to be gone")  # noqa: B023
        groups.destroy(sandbox)
    mounts = [line.split()[1] for line in server.mounts.read_text().splitlines()]
    for point in reversed([point for point in mounts if point.startswith((f"{here}/", f"{server.state_dir}/"))]):
        subprocess.run(["umount", point], check=True)
    shutil.rmtree(here)
    for held in Path("/run/skerry/ranges").glob("*"):
        if here.name in words_of(held):
            held.unlink()
    server.sql("UPDATE sandboxes SET boot_id = 'the-boot-before' WHERE boot_id IS NOT NULL")


def test_named_sandboxes_are_stopped_with_their_files_after_a_reboot(inn: Server) -> None:
    names = ("ran", "paused", "stopped")
    for name in names:
        sandbox = Sandbox.create(name=name, server=inn.address)
        sandbox.run(f"echo {name} > /workspace/note")
    Sandbox.get("paused", server=inn.address).pause()
    Sandbox.get("stopped", server=inn.address).stop()
    reboot(inn)
    assert inn.leftovers() == []
    inn.start()
    known = {sandbox.name: sandbox for sandbox in Sandbox.list(server=inn.address)}
    assert {name: known[name].state for name in names} == dict.fromkeys(names, "stopped")
    assert "restarted" in (known["ran"].reason or "")
    assert known["stopped"].reason == "requested"
    for name in names:
        again = Sandbox.get_or_create(name, server=inn.address)
        assert again.id == known[name].id
        assert again.run("cat /workspace/note").stdout == f"{name}\n"
    inn.remove_all()


def test_stopped_named_sandbox_survives_a_power_cut(inn: Server) -> None:
    """Copy the pool from the disk right after the stop: data only in memory is missing in the copy."""
    pool = inn.state_dir / "pool.img"
    if not pool.exists():
        pytest.skip("the storage driver here is not btrfs: there is no pool to copy")
    sandbox = Sandbox.create(name="cut", server=inn.address)
    sandbox.run("head -c 3M /dev/urandom > /workspace/data; sha256sum /workspace/data > /workspace/sum")
    sandbox.stop()
    subprocess.run(["cp", "--sparse=always", str(pool), str(pool.with_suffix(".cut"))], check=True)
    reboot(inn)
    pool.with_suffix(".cut").rename(pool)
    inn.start()
    assert Sandbox.get_or_create("cut", server=inn.address).run("sha256sum -c /workspace/sum").ok
    inn.remove_all()
