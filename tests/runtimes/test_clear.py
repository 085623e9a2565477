"""Whatever there is of a sandbox goes, at whatever step it was left."""

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
from runtimes.walls import BASE, Box, boxed, eventually, make_wall

from skerry.errors import SandboxUnavailable
from skerry.runtimes import Init, Wall, pick_runtime
from skerry.runtimes.oci import OciRuntime

pytestmark = pytest.mark.vm

# A start in a process of its own that kills itself at a chosen step, the way a server may die.
DIE = """
import asyncio, os, pickle, signal, sys
from skerry.runtimes import posture, spawn, spec
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

run = spawn.run
if step == "group":
    os.chown = die
elif step == "mount":
    overlay.UserNamespaces.fd = die
elif step == "mounted":
    overlay.check_root = die
elif step == "attached":
    overlay.syscalls.mount = die
elif step == "socket":
    OciRuntime._write_bundle = die
elif step == "bundle":
    spawn.run = die
elif step.startswith("after "):
    spawn.run = die_soon
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
async def test_a_start_that_was_cut_off_leaves_nothing_once_cleared(runtime: OciRuntime, wall: Wall, step: str) -> None:
    by_fd = runtime.overlays.by_fd and step != "attached"
    order = pickle.dumps((step, wall, runtime.name, runtime._binary, by_fd))
    ended = subprocess.run([sys.executable, "-c", DIE], input=order, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert runtime.ids() == {wall.id}
    await runtime.clear(wall.id)
    assert runtime.ids() == set()
    assert not processes_of(wall)
    async with boxed(runtime, wall) as box:
        assert "from the layer" in await box.read("/etc/hello")


@pytest.mark.parametrize("after_ms", [1, 3, 6, 10, 15, 25])
async def test_a_start_that_was_called_off_leaves_nothing_once_cleared(
    runtime: OciRuntime, wall: Wall, after_ms: int
) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_ms / 1000):
            await runtime.start(wall)
    await runtime.clear(wall.id)
    assert runtime.ids() == set()
    assert not processes_of(wall)


async def test_clearing_is_idempotent_and_takes_everything(runtime: OciRuntime, wall: Wall) -> None:
    init = await runtime.start(wall)
    assert runtime.alive(init)
    await runtime.clear(wall.id)
    await runtime.clear(wall.id)
    assert not runtime.alive(init)
    assert not processes_of(wall)
    assert not any(path.exists() for path in runtime.cgroups.paths(wall.id))
    left = [str(path) for path in runtime.run_dir.rglob("*") if wall.id in path.name]
    assert left == []


async def test_a_new_server_finds_and_clears_what_another_left(runtime: OciRuntime, wall: Wall) -> None:
    init = await runtime.start(wall)
    other = OciRuntime(runtime.name, runtime._binary, "0", runtime.run_dir, runtime.cgroups)
    try:
        assert other.ids() == {wall.id}
        assert other.alive(init)
        (await other.connect(wall.id)).close()
        await other.clear(wall.id)
        assert other.ids() == runtime.ids() == set()
    finally:
        other.close()
        await runtime.clear(wall.id)


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


async def test_kill_ends_every_process_and_pid_1_is_known_to_be_gone(box: Box) -> None:
    await box.run("forks")
    await box.runtime.kill(box.wall.id, box.init)
    assert not box.runtime.alive(box.init)
    with pytest.raises(SandboxUnavailable):
        box.runtime.pidfd(box.init)
    with pytest.raises(SandboxUnavailable):
        await box.runtime.connect(box.wall.id)
    await eventually(lambda: not box.runtime.cgroups.strays(box.wall.id))


async def test_a_pid_that_is_now_anothers_is_not_taken_for_the_init(box: Box) -> None:
    for wrong in (
        Init(box.init.pid, box.init.start_time + 1, box.init.boot_id),
        Init(box.init.pid, box.init.start_time, "another boot"),
        Init(2**22 - 7, box.init.start_time, box.init.boot_id),
    ):
        assert not box.runtime.alive(wrong)
        with pytest.raises(SandboxUnavailable):
            box.runtime.pidfd(wrong)


async def test_two_instances_do_not_meet(
    runtime: OciRuntime, wall: Wall, run_dir: Path, layer: Path, tmp_path: Path, probe: Path
) -> None:
    other = pick_runtime(run_dir.with_name("other"), runtime.name)
    assert isinstance(other, OciRuntime)
    same_id = make_wall(other, layer, tmp_path / "unit2", probe, wall.id, BASE + 65536)
    try:
        async with boxed(runtime, wall) as one, boxed(other, same_id) as two:
            await one.run("touch", "/tmp/mine")
            assert "no such file" in await two.read("/tmp/mine")
            await other.clear(wall.id)
            assert other.ids() == set()
            assert runtime.alive(one.init)
            assert "inside" in await one.read("/tmp/mine")
    finally:
        other.close()


async def test_a_closed_runtime_leaves_no_empty_cgroup_and_another_makes_it_again(
    runtime: OciRuntime, wall: Wall
) -> None:
    other = OciRuntime(runtime.name, runtime._binary, "0", runtime.run_dir, runtime.cgroups)
    other.close()
    assert not any(path.exists() for path in runtime.cgroups.paths("."))
    async with boxed(runtime, wall):
        third = OciRuntime(runtime.name, runtime._binary, "0", runtime.run_dir, runtime.cgroups)
        third.close()
        assert runtime.ids() == {wall.id}


async def test_a_runtime_that_fails_says_why_and_leaves_what_clear_takes(runtime: OciRuntime, wall: Wall) -> None:
    broken = replace(wall, keeper=Path("/nowhere/keeper"))
    with pytest.raises(SandboxUnavailable, match="nowhere"):
        await runtime.start(broken)
    await runtime.clear(wall.id)
    assert runtime.ids() == set()


async def test_what_was_left_of_an_id_stops_its_next_start_until_it_is_cleared(runtime: OciRuntime, wall: Wall) -> None:
    init = await runtime.start(wall)
    try:
        with pytest.raises(SandboxUnavailable, match="could not be started"):
            await runtime.start(wall)
        assert runtime.alive(init)
    finally:
        await runtime.clear(wall.id)


async def test_a_wall_of_another_instance_is_refused(runtime: OciRuntime, wall: Wall) -> None:
    for wrong in (replace(wall, id="../../etc"), replace(wall, cgroup_root="/"), replace(wall, run_dir=Path("/run"))):
        with pytest.raises(ValueError, match="another runtime"):
            await runtime.start(wrong)
    with pytest.raises(ValueError, match="no sandbox's id"):
        await runtime.clear("../../etc")


def processes_of(wall: Wall) -> list[int]:
    """Host processes with the sandbox's uids."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                owner = os.stat(f"/proc/{name}").st_uid
                status = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if wall.uid_base <= owner < wall.uid_base + 65536 and ") Z " not in status:
                found.append(int(name))
    return found
