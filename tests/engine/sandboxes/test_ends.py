"""Ends of sandboxes: grace period, maximum lifetime, idle timeout, ends that fail at first."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server, wait_until

import skerry
from skerry import Lifecycle, Limits, Sandbox
from skerry.errors import InvalidRequest


@pytest.fixture
def sandbox(server: Server) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(name="subject", limits=Limits(memory="128M"), server=server.address)
    yield sandbox
    sandbox.delete()


def first_process(server: Server, sandbox: Sandbox) -> int:
    ((pid,),) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
    return int(pid)


def test_stop_gives_processes_a_grace_period(sandbox: Sandbox) -> None:
    sandbox.run(
        "(trap 'sleep 0.3; echo bye > /workspace/bye; exit' TERM; while :; do sleep 0.05; done) >/dev/null 2>&1 &"
    )
    sandbox.stop()
    assert sandbox.run("cat /workspace/bye").stdout == "bye\n"


def test_server_that_does_not_know_a_keepers_protocol_stops_its_sandbox_with_a_reason(
    server: Server, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.run("(trap 'echo bye > /workspace/bye; exit' TERM; while :; do sleep 0.05; done) >/dev/null 2>&1 &")
    server.end()
    shutil.copytree(Path(skerry.__file__).parent, tmp_path / "skerry")
    values = tmp_path / "skerry/keeper/values.py"
    values.write_text(re.sub(r"PROTOCOL = \d+", "PROTOCOL = 999", values.read_text()))
    server.start(PYTHONPATH=str(tmp_path))
    info = sandbox.info()
    assert info.state == "stopped"
    assert "protocol" in (info.reason or "")
    assert "knows 999 to 999" in (info.reason or "")
    server.end()
    server.start()
    assert sandbox.run("cat /workspace/bye").stdout == "bye\n"


def test_lifetime_restarts_when_a_sandbox_is_started_again(server: Server, sandbox: Sandbox) -> None:
    """The keeper ends a life by itself, 5 s late; it must not go by the end of the life before."""
    sandbox.stop()
    server.end()
    server.sql("UPDATE sandboxes SET ends_at = 1.0")
    server.start()
    assert sandbox.run("sleep 6; echo here").stdout == "here\n"
    assert sandbox.info().state == "running"


def test_silent_keeper_fails_and_does_not_delay_the_end_of_others(server: Server) -> None:
    brief = Lifecycle(idle_timeout="1s")
    silent = Sandbox.create(name="silent", lifecycle=Lifecycle(idle_timeout="3s"), server=server.address)
    os.kill(first_process(server, silent), signal.SIGSTOP)
    other = Sandbox.create(name="other", lifecycle=brief, server=server.address)
    wait_until(lambda: other.info().state == "stopped", "the other one to be stopped")
    assert silent.info().state == "running"
    wait_until(lambda: silent.info().state == "failed", "the silent one to be failed")
    for sandbox in (silent, other):
        sandbox.delete()


def test_failed_delete_is_finished_later(server: Server) -> None:
    sandbox = Sandbox.create(server=server.address)
    (unit,) = server.state_dir.glob(f"*/u/{sandbox.id}")
    subprocess.run(["chattr", "+i", str(unit.parent)], check=True)
    try:
        with server.http() as http:
            assert http.delete(f"/v1/sandboxes/{sandbox.id}").status_code >= 500
            assert http.get("/v1/sandboxes").json() == {"sandboxes": []}
    finally:
        subprocess.run(["chattr", "-i", str(unit.parent)], check=True)
    wait_until(lambda: not unit.exists(), "its files to be gone")
    wait_until(lambda: server.leftovers() == [], "all of it to be gone")


def test_changes_made_while_paused_apply_after_resume(sandbox: Sandbox) -> None:
    sandbox.pause()
    sandbox.update(env={"MODE": "changed"})
    assert sandbox.info().state == "paused"
    assert sandbox.run("echo $MODE").stdout == "changed\n"


def test_paused_sandbox_stays_paused_after_a_server_crash(server: Server, sandbox: Sandbox) -> None:
    sandbox.run("sleep 1000 >/dev/null 2>&1 &")
    sandbox.pause()
    server.end(signal.SIGKILL)
    server.start()
    assert sandbox.info().state == "paused"
    assert sandbox.run("pgrep -c sleep").stdout == "1\n"


def test_update_changes_only_the_named_fields(server: Server) -> None:
    sandbox = Sandbox.create(
        lifecycle=Lifecycle(idle_timeout="2h", auto_resume=False, on_idle="stop"), server=server.address
    )
    sandbox.update(lifecycle=Lifecycle(max_lifetime="1h"))
    assert sandbox.info().lifecycle == Lifecycle(
        idle_timeout="2h", max_lifetime="1h", auto_resume=False, on_idle="stop"
    )
    assert sandbox.info().ends_at is not None
    sandbox.update(lifecycle=Lifecycle(max_lifetime="never", idle_timeout="never"))
    assert sandbox.info().lifecycle.idle_timeout == "never"
    assert sandbox.info().ends_at is None
    sandbox.delete()


def test_total_size_of_variables_is_bounded_across_updates(sandbox: Sandbox) -> None:
    sandbox.update(env={"A": "x" * 100_000})
    with pytest.raises(InvalidRequest, match="env"):
        sandbox.update(env={"B": "x" * 100_000})
    assert sandbox.run("echo ${#A} ${#B}").stdout == "100000 0\n"


def test_oom_kill_is_uncertain_while_a_leftover_process_may_live(sandbox: Sandbox) -> None:
    sandbox.run("sleep 1000 >/dev/null 2>&1 &")
    sandbox.run("true")
    result = sandbox.run(["python3", "-c", "b = bytearray(1 << 30)"])
    assert not result.ok
    assert result.oom_killed is None
