"""Limits are set and enforced, and usage can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import Container, eventually, limits, started_container

from skerry.errors import SandboxUnavailable
from skerry.runtimes import ContainerConfig, Init
from skerry.runtimes.oci import OciRuntime

pytestmark = pytest.mark.vm


def value(container: Container, controller: str, v1: str, v2: str) -> str:
    cgroups = container.runtime.cgroups
    return Path(cgroups._file(container.config.id, controller, v2 if cgroups.mode == "v2" else v1)).read_text().strip()


async def test_memory_pids_and_cpu_are_in_the_cgroup(container: Container) -> None:
    assert value(container, "memory", "memory.limit_in_bytes", "memory.max") == str(256 << 20)
    if container.runtime.cgroups.swap == "limit":
        swap = value(container, "memory", "memory.memsw.limit_in_bytes", "memory.swap.max")
        assert swap == ("0" if container.runtime.cgroups.mode == "v2" else str(256 << 20))
    assert value(container, "pids", "pids.max", "pids.max") == "64"
    assert value(container, "cpu", "cpu.cfs_quota_us", "cpu.max").split()[0] == "50000"


async def test_open_files_are_limited(container: Container) -> None:
    (line,) = [
        line for line in (await container.read("/proc/1/limits")).splitlines() if line.startswith("Max open files")
    ]
    assert line.split()[3:5] == ["1024", "1024"]


async def test_limits_can_be_changed_while_it_runs_both_ways(container: Container) -> None:
    for memory, cpus, pids in (("512M", 2.0, 128), ("128M", 0.25, 72)):
        container.runtime.set_limits(
            container.config.id, container.init, limits(memory=memory, cpus=cpus, pids=pids, open_files=512)
        )
        assert value(container, "memory", "memory.limit_in_bytes", "memory.max") == str(int(memory[:-1]) << 20)
        assert value(container, "cpu", "cpu.cfs_quota_us", "cpu.max").split()[0] == str(int(cpus * 100_000))
        assert value(container, "pids", "pids.max", "pids.max") == str(pids)


async def test_a_process_above_the_memory_limit_is_killed_and_counted(container: Container) -> None:
    assert container.runtime.oom_kills(container.config.id) == 0
    assert "killed" in await container.run("eat")
    await eventually(lambda: (container.runtime.oom_kills(container.config.id) or 0) >= 1)
    assert container.runtime.alive(container.init)
    assert (container.runtime.usage(container.config.id).memory_peak or 0) >= 200 << 20


async def test_forks_stop_at_the_limit_and_the_peak_is_reported(container: Container) -> None:
    assert int(await container.run("forks")) < 64
    assert container.runtime.usage(container.config.id).pids_peak == 64


async def test_cpu_time_is_counted(container: Container) -> None:
    assert container.runtime.usage(container.config.id).cpu_s > 0


async def test_the_smallest_allowed_sandbox_starts(runtime: OciRuntime, config: ContainerConfig) -> None:
    small = replace(config, limits=limits(cpus=0.01, memory="16M", pids=64, open_files=64))
    async with started_container(runtime, small) as container:
        assert "from the layer" in await container.read("/etc/hello")


async def test_a_frozen_sandbox_runs_again_after_thaw(container: Container) -> None:
    container.runtime.freeze(container.config.id)
    events = container.runtime.cgroups.v2(container.config.id) / "cgroup.events"
    assert "frozen 1" in events.read_text()
    container.runtime.thaw(container.config.id)
    assert "frozen 0" in events.read_text()
    assert "from the layer" in await container.read("/etc/hello")


async def test_a_frozen_sandbox_can_be_killed(container: Container) -> None:
    container.runtime.freeze(container.config.id)
    await container.runtime.kill(container.config.id, container.init)
    assert not container.runtime.alive(container.init)


def test_a_stopped_sandbox_cannot_be_frozen_or_changed(runtime: OciRuntime) -> None:
    nobody = Init(pid=1 << 22, start_time=1, boot_id="none")
    for act in (runtime.freeze, runtime.thaw, lambda sandbox: runtime.set_limits(sandbox, nobody, limits())):
        with pytest.raises(SandboxUnavailable):
            act("sb-notthereaa")


async def test_the_cgroup_fd_allows_only_subgroups(container: Container) -> None:
    assert (await container.run("group")).splitlines() == [
        "mkdir ",
        "open ",
        "join ",
        "up is here true",
        "limit permission denied",
    ]
