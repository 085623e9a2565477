"""`clear` removes everything of a sandbox, at any step of its start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import BASE, Container, eventually, make_config, started_container

from skerry.errors import SandboxUnavailable
from skerry.runtimes import ContainerConfig, Init, pick_runtime
from skerry.runtimes.oci import OciRuntime

pytestmark = pytest.mark.vm

# A start in a separate process that kills itself at a chosen step, as a server may die.
DIE = """
import asyncio, os, pickle, signal, sys
from skerry.runtimes import posture, processes, spec
from skerry.runtimes.cgroups import Cgroups
from skerry.runtimes.oci import OciRuntime
from skerry.runtimes.overlay import Overlays
from skerry.runtimes import overlay

step, wall, name, binary, by_fd = pickle.loads(sys.stdin.buffer.read())

def die(*args, **named):
    os.kill(os.getpid(), signal.SIGKILL)

async def die_soon(*args, **named):
    loop = asyncio.get_running_loop()
    loop.call_later(float(step[6:]), die)
    return await run(*args, **named)

run = processes.run
if step == "group":
    os.chown = die
elif step == "mount":
    overlay.UserNamespaces.fd = die
elif step == "mounted":
    overlay.check_root = die
elif step == "attached":
    overlay.linux.mount = die
elif step == "socket":
    OciRuntime._bundle = die
elif step == "bundle":
    processes.run = die
elif step.startswith("after "):
    processes.run = die_soon
elif step == "started":
    posture.check = die
elif step == "limits":
    Cgroups.set_cpu = die
runtime = OciRuntime(name, binary, "0", wall.run_dir, Cgroups(wall.cgroup_root))
runtime.overlays.by_fd = by_fd
asyncio.run(runtime.start(wall))
die()
"""
SOON = [f"after {n / 1000}" for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25)]
STEPS = ["group", "mount", "mounted", "attached", "socket", "bundle", *SOON, "started", "limits", "whole"]


@pytest.mark.parametrize("step", STEPS)
async def test_clear_removes_an_interrupted_start(runtime: OciRuntime, config: ContainerConfig, step: str) -> None:
    by_fd = runtime.overlays.by_fd and step != "attached"
    order = pickle.dumps((step, config, runtime.name, runtime._binary, by_fd))
    ended = subprocess.run([sys.executable, "-c", DIE], input=order, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert runtime.ids() == {config.id}
    await runtime.clear(config.id)
    assert runtime.ids() == set()
    assert not processes_of(config)
    async with started_container(runtime, config) as container:
        assert "from the layer" in await container.read("/etc/hello")


@pytest.mark.parametrize("after_ms", [1, 3, 6, 10, 15, 25])
async def test_clear_removes_a_cancelled_start(runtime: OciRuntime, config: ContainerConfig, after_ms: int) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_ms / 1000):
            await runtime.start(config)
    await runtime.clear(config.id)
    assert runtime.ids() == set()
    assert not processes_of(config)


async def test_clear_is_idempotent_and_complete(runtime: OciRuntime, config: ContainerConfig) -> None:
    init = await runtime.start(config)
    assert runtime.alive(init)
    await runtime.clear(config.id)
    await runtime.clear(config.id)
    assert not runtime.alive(init)
    assert not processes_of(config)
    assert not any(path.exists() for path in runtime.cgroups.paths(config.id))
    left = [str(path) for path in runtime.run_dir.rglob("*") if config.id in path.name]
    assert left == []


async def test_a_new_server_clears_remains_of_another(runtime: OciRuntime, config: ContainerConfig) -> None:
    init = await runtime.start(config)
    other = OciRuntime(runtime.name, runtime._binary, "0", runtime.run_dir, runtime.cgroups)
    try:
        assert other.ids() == {config.id}
        assert other.alive(init)
        (await other.connect(config.id)).close()
        await other.clear(config.id)
        assert other.ids() == runtime.ids() == set()
    finally:
        other.close()
        await runtime.clear(config.id)


@pytest.mark.parametrize("place", ["k", "m", "b", "oci", "cgroup", "v2"])
async def test_every_single_leftover_is_found(runtime: OciRuntime, place: str) -> None:
    sandbox = "sb-leftoveraa"
    paths = runtime.cgroups.paths(sandbox)
    path = {
        "oci": runtime.run_dir / "oci" / runtime.name / sandbox,
        "cgroup": paths[-1],
        "v2": paths[0],
    }.get(place, runtime.run_dir / place / sandbox)
    if place == "k":
        path.touch()
    else:
        path.mkdir(parents=True)
    assert runtime.ids() == {sandbox}
    await runtime.clear(sandbox)
    assert runtime.ids() == set()


async def test_the_mounted_root_of_an_earlier_version_is_removed(runtime: OciRuntime) -> None:
    root = runtime.run_dir / "m" / "sb-leftoveraa" / "root"
    root.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(root)], check=True)
    (root / "file").touch()
    assert runtime.ids() == {"sb-leftoveraa"}
    await runtime.clear("sb-leftoveraa")
    assert runtime.ids() == set()
    assert str(root) not in Path("/proc/self/mountinfo").read_text()


async def test_kill_ends_every_process_and_pid_1_is_known_to_be_gone(container: Container) -> None:
    await container.run("forks")
    await container.runtime.kill(container.config.id, container.init)
    assert not container.runtime.alive(container.init)
    with pytest.raises(SandboxUnavailable):
        container.runtime.pidfd(container.init)
    with pytest.raises(SandboxUnavailable):
        await container.runtime.connect(container.config.id)
    await eventually(lambda: not container.runtime.cgroups.strays(container.config.id))


async def test_a_reused_pid_is_not_taken_for_init(container: Container) -> None:
    for wrong in (
        Init(container.init.pid, container.init.start_time + 1, container.init.boot_id),
        Init(container.init.pid, container.init.start_time, "another boot"),
        Init(2**22 - 7, container.init.start_time, container.init.boot_id),
    ):
        assert not container.runtime.alive(wrong)
        with pytest.raises(SandboxUnavailable):
            container.runtime.pidfd(wrong)


async def test_two_instances_are_independent(
    runtime: OciRuntime, config: ContainerConfig, run_dir: Path, layer: Path, tmp_path: Path, probe: Path
) -> None:
    other = pick_runtime(run_dir.with_name("other"), runtime.name)
    assert isinstance(other, OciRuntime)
    same_id = make_config(other, layer, tmp_path / "unit2", probe, config.id, BASE + 65536)
    try:
        async with started_container(runtime, config) as one, started_container(other, same_id) as two:
            await one.run("touch", "/tmp/mine")
            assert "no such file" in await two.read("/tmp/mine")
            await other.clear(config.id)
            assert other.ids() == set()
            assert runtime.alive(one.init)
            assert "inside" in await one.read("/tmp/mine")
    finally:
        other.close()


async def test_a_closed_runtime_leaves_no_empty_cgroup_and_another_makes_it_again(
    runtime: OciRuntime, config: ContainerConfig
) -> None:
    other = OciRuntime(runtime.name, runtime._binary, "0", runtime.run_dir, runtime.cgroups)
    other.close()
    assert not any(path.exists() for path in runtime.cgroups.paths("."))
    async with started_container(runtime, config):
        third = OciRuntime(runtime.name, runtime._binary, "0", runtime.run_dir, runtime.cgroups)
        third.close()
        assert runtime.ids() == {config.id}


async def test_a_failed_start_reports_the_reason_and_can_be_cleared(
    runtime: OciRuntime, config: ContainerConfig
) -> None:
    broken = replace(config, keeper=Path("/nowhere/keeper"))
    with pytest.raises(SandboxUnavailable, match="nowhere"):
        await runtime.start(broken)
    await runtime.clear(config.id)
    assert runtime.ids() == set()


async def test_remains_of_an_id_block_its_next_start_until_cleared(
    runtime: OciRuntime, config: ContainerConfig
) -> None:
    init = await runtime.start(config)
    try:
        with pytest.raises(SandboxUnavailable, match="could not be started"):
            await runtime.start(config)
        assert runtime.alive(init)
    finally:
        await runtime.clear(config.id)


async def test_a_config_of_another_instance_is_rejected(runtime: OciRuntime, config: ContainerConfig) -> None:
    for wrong in (
        replace(config, id="../../etc"),
        replace(config, cgroup_root="/"),
        replace(config, run_dir=Path("/run")),
    ):
        with pytest.raises(ValueError, match="another runtime"):
            await runtime.start(wrong)
    with pytest.raises(ValueError, match="not a sandbox ID"):
        await runtime.clear("../../etc")


def processes_of(config: ContainerConfig) -> list[int]:
    """Host processes with the sandbox's uids."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                owner = os.stat(f"/proc/{name}").st_uid
                status = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if config.uid_base <= owner < config.uid_base + 65536 and ") Z " not in status:
                found.append(int(name))
    return found
