"""Limits are really set, hold, and what was used can be read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runtimes.walls import Box, boxed, eventually, limits

from skerry.errors import SandboxUnavailable
from skerry.runtimes import Init, Wall
from skerry.runtimes.oci import OciRuntime

pytestmark = pytest.mark.vm


def value(box: Box, controller: str, v1: str, v2: str) -> str:
    cgroups = box.runtime.cgroups
    return cgroups._file(box.wall.id, controller, v2 if cgroups.mode == "v2" else v1).read_text().strip()


async def test_memory_pids_and_cpu_are_in_the_cgroup(box: Box) -> None:
    assert value(box, "memory", "memory.limit_in_bytes", "memory.max") == str(256 << 20)
    if box.runtime.cgroups.swap == "limit":
        swap = value(box, "memory", "memory.memsw.limit_in_bytes", "memory.swap.max")
        assert swap == ("0" if box.runtime.cgroups.mode == "v2" else str(256 << 20))
    assert value(box, "pids", "pids.max", "pids.max") == "64"
    assert value(box, "cpu", "cpu.cfs_quota_us", "cpu.max").split()[0] == "50000"


async def test_open_files_are_limited(box: Box) -> None:
    (line,) = [line for line in (await box.read("/proc/1/limits")).splitlines() if line.startswith("Max open files")]
    assert line.split()[3:5] == ["1024", "1024"]


async def test_limits_can_be_changed_while_it_runs_both_ways(box: Box) -> None:
    for memory, cpus, pids in (("512M", 2.0, 128), ("128M", 0.25, 72)):
        box.runtime.set_limits(box.wall.id, box.init, limits(memory=memory, cpus=cpus, pids=pids, open_files=512))
        assert value(box, "memory", "memory.limit_in_bytes", "memory.max") == str(int(memory[:-1]) << 20)
        assert value(box, "cpu", "cpu.cfs_quota_us", "cpu.max").split()[0] == str(int(cpus * 100_000))
        assert value(box, "pids", "pids.max", "pids.max") == str(pids)


async def test_a_process_beyond_the_memory_is_killed_and_counted_and_pid_1_lives(box: Box) -> None:
    assert box.runtime.oom_kills(box.wall.id) == 0
    assert "killed" in await box.run("eat")
    await eventually(lambda: (box.runtime.oom_kills(box.wall.id) or 0) >= 1)
    assert box.runtime.alive(box.init)
    assert (box.runtime.usage(box.wall.id).memory_peak or 0) >= 200 << 20


async def test_forks_stop_at_the_limit_and_the_peak_is_known(box: Box) -> None:
    assert int(await box.run("forks")) < 64
    assert box.runtime.usage(box.wall.id).pids_peak == 64


async def test_cpu_time_is_counted(box: Box) -> None:
    assert box.runtime.usage(box.wall.id).cpu_s > 0


async def test_the_smallest_sandbox_that_may_be_asked_for_starts(runtime: OciRuntime, wall: Wall) -> None:
    small = replace(wall, limits=limits(cpus=0.01, memory="16M", pids=64, open_files=64))
    async with boxed(runtime, small) as box:
        assert "from the layer" in await box.read("/etc/hello")


async def test_a_frozen_sandbox_stands_still_until_it_is_thawed(box: Box) -> None:
    box.runtime.freeze(box.wall.id)
    events = box.runtime.cgroups.v2(box.wall.id) / "cgroup.events"
    assert "frozen 1" in events.read_text()
    box.runtime.thaw(box.wall.id)
    assert "frozen 0" in events.read_text()
    assert "from the layer" in await box.read("/etc/hello")


async def test_a_frozen_sandbox_can_be_killed(box: Box) -> None:
    box.runtime.freeze(box.wall.id)
    await box.runtime.kill(box.wall.id, box.init)
    assert not box.runtime.alive(box.init)


def test_what_does_not_run_is_not_frozen_or_changed(runtime: OciRuntime) -> None:
    nobody = Init(pid=1 << 22, start_time=1, boot_id="none")
    for act in (runtime.freeze, runtime.thaw, lambda sandbox: runtime.set_limits(sandbox, nobody, limits())):
        with pytest.raises(SandboxUnavailable):
            act("sb-notthereaa")


async def test_the_cgroup_fd_allows_groups_below_and_nothing_above(box: Box) -> None:
    assert (await box.run("group")).splitlines() == [
        "mkdir ",
        "open ",
        "join ",
        "up is here true",
        "limit permission denied",
    ]
