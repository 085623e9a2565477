"""How sandboxes end, and what they keep: grace, life, idleness, ends that fail at first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, wait_until

import skerry
from skerry import Lifecycle, Limits, Sandbox
from skerry.errors import InvalidRequest


@pytest.fixture
def box(house: Server) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(name="subject", limits=Limits(memory="128M"), server=house.address)
    yield sandbox
    sandbox.delete()


def first_process(house: Server, sandbox: Sandbox) -> int:
    ((pid,),) = house.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
    return int(pid)


def test_a_stop_gives_processes_the_time_to_end_well(box: Sandbox) -> None:
    box.run("(trap 'sleep 0.3; echo bye > /workspace/bye; exit' TERM; while :; do sleep 0.05; done) >/dev/null 2>&1 &")
    box.stop()
    assert box.run("cat /workspace/bye").stdout == "bye\n"


def test_a_server_with_another_keeper_ends_what_it_can_not_take_up_well_and_says_why(
    house: Server, box: Sandbox, tmp_path: Path
) -> None:
    box.run("(trap 'echo bye > /workspace/bye; exit' TERM; while :; do sleep 0.05; done) >/dev/null 2>&1 &")
    house.end()
    shutil.copytree(Path(skerry.__file__).parent, tmp_path / "skerry")
    (tmp_path / "skerry/keeper/bin/build").write_text("another")
    house.start(PYTHONPATH=str(tmp_path))
    info = box.info()
    assert info.state == "stopped"
    assert "another build" in (info.reason or "")
    house.end()
    house.start()
    assert box.run("cat /workspace/bye").stdout == "bye\n"


def test_a_life_begins_anew_when_a_sandbox_is_started_again(house: Server, box: Sandbox) -> None:
    """The keeper ends a life by itself, 5 s late; it must not go by the end of the life before."""
    box.stop()
    house.end()
    house.sql("UPDATE sandboxes SET ends_at = 1.0")
    house.start()
    assert box.run("sleep 6; echo here").stdout == "here\n"
    assert box.info().state == "running"


def test_a_silent_keeper_is_failed_and_keeps_no_other_sandbox_from_its_end(house: Server) -> None:
    brief = Lifecycle(idle="1s")
    silent = Sandbox.create(name="silent", lifecycle=Lifecycle(idle="3s"), server=house.address)
    os.kill(first_process(house, silent), signal.SIGSTOP)
    other = Sandbox.create(name="other", lifecycle=brief, server=house.address)
    wait_until(lambda: other.info().state == "stopped", "the other one to be stopped")
    assert silent.info().state == "running"
    wait_until(lambda: silent.info().state == "failed", "the silent one to be failed")
    for sandbox in (silent, other):
        sandbox.delete()


def test_a_delete_that_fails_is_finished_later(house: Server) -> None:
    sandbox = Sandbox.create(server=house.address)
    (unit,) = house.state_dir.glob(f"*/u/{sandbox.id}")
    subprocess.run(["chattr", "+i", str(unit.parent)], check=True)
    try:
        with house.http() as http:
            assert http.delete(f"/v1/sandboxes/{sandbox.id}").status_code >= 500
            assert http.get("/v1/sandboxes").json() == {"sandboxes": []}
    finally:
        subprocess.run(["chattr", "-i", str(unit.parent)], check=True)
    wait_until(lambda: not unit.exists(), "its files to be gone")
    wait_until(lambda: house.leftovers() == [], "all of it to be gone")


def test_what_is_changed_while_a_sandbox_is_paused_holds_when_it_wakes(box: Sandbox) -> None:
    box.pause()
    box.update(env={"MODE": "changed"})
    assert box.info().state == "paused"
    assert box.run("echo $MODE").stdout == "changed\n"


def test_a_paused_sandbox_is_still_paused_after_the_death_of_the_server(house: Server, box: Sandbox) -> None:
    box.run("sleep 1000 >/dev/null 2>&1 &")
    box.pause()
    house.end(signal.SIGKILL)
    house.start()
    assert box.info().state == "paused"
    assert box.run("pgrep -c sleep").stdout == "1\n"


def test_an_update_leaves_alone_what_it_does_not_name(house: Server) -> None:
    sandbox = Sandbox.create(lifecycle=Lifecycle(idle="2h", wake=False, on_idle="stop"), server=house.address)
    sandbox.update(lifecycle=Lifecycle(life="1h"))
    assert sandbox.info().lifecycle == Lifecycle(idle="2h", life="1h", wake=False, on_idle="stop")
    sandbox.delete()


def test_updates_can_not_pile_up_variables_without_end(box: Sandbox) -> None:
    box.update(env={"A": "x" * 100_000})
    with pytest.raises(InvalidRequest, match="env"):
        box.update(env={"B": "x" * 100_000})
    assert box.run("echo ${#A} ${#B}").stdout == "100000 0\n"


def test_an_oom_kill_is_nobodys_for_certain_while_something_left_behind_may_live(box: Sandbox) -> None:
    box.run("sleep 1000 >/dev/null 2>&1 &")
    box.run("true")
    result = box.run(["python3", "-c", "b = bytearray(1 << 30)"])
    assert not result.ok
    assert result.oom_killed is None
