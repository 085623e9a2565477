"""Attacks on the CPU time of the keeper: programs inside use all of the processor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import Server

from skerry import Limits, Sandbox
from skerry.runtimes.processes import TIMER_SLACK_NS

BUSY = "i=0; while [ $((i += 1)) -le 100 ]; do (while :; do :; done) & done; echo there; wait"


@pytest.fixture(scope="module")
def busy(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=256, cpus=0.5)) as sandbox:
        yield sandbox


def keeper_threads(sandbox_id: str) -> list[Path]:
    """Return their directories in /proc of the host."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            is_keeper = (process / "cmdline").read_bytes().endswith(b"skerry-keeper\0init\0")
            if is_keeper and sandbox_id in (process / "cgroup").read_text():
                return [Path("/proc", task.name) for task in (process / "task").iterdir()]
    return []


def test_commands_do_not_inherit_the_keepers_priority(busy: Sandbox) -> None:
    assert busy.run("nice; sudo nice; cut -d' ' -f19 /proc/1/stat", check=True).stdout == "0\n0\n-10\n"
    assert busy.spawn("nice").wait().stdout == "0\n"


def test_commands_do_not_inherit_the_keepers_late_timers(busy: Sandbox) -> None:
    """The Go runtime of the keeper would wake up ten thousand times a second; a command's timers are in time."""
    slack = "cat /proc/self/timerslack_ns"
    assert busy.run(f"{slack}; sudo {slack}", check=True).stdout == "50000\n50000\n"
    assert busy.spawn(slack).wait().stdout == "50000\n"
    assert {int((task / "timerslack_ns").read_text()) for task in keeper_threads(busy.id)} == {TIMER_SLACK_NS}


def test_busy_programs_do_not_starve_the_keeper(busy: Sandbox) -> None:
    process = busy.spawn(BUSY)
    process.wait_for_output("there", timeout=60)
    for _ in range(20):
        assert busy.files.read_text("/etc/hostname")
    assert busy.run(["echo", "alive"], timeout=60).stdout == "alive\n"
    process.signal("KILL")
    process.wait(60)
    assert busy.info().state == "running"
