"""The real keeper in a container: it protects its memory and descriptors."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import eventually, limits

from skerry.keeper import Keeper, ProcessSpec, Size, binary, build_id
from skerry.runtimes import ContainerConfig, Init
from skerry.runtimes.oci import OciRuntime

pytestmark = pytest.mark.vm


@pytest.fixture
async def kept(runtime: OciRuntime, config: ContainerConfig, probe: Path) -> AsyncIterator[tuple[Init, Keeper]]:
    """In a small sandbox, around an image that holds the probe alone."""
    small = replace(config, limits=limits(cpus=0.5, memory="32M", pids=96, open_files=64))
    async with keeping(runtime, small, probe) as both:
        yield both


@asynccontextmanager
async def keeping(runtime: OciRuntime, config: ContainerConfig, probe: Path) -> AsyncIterator[tuple[Init, Keeper]]:
    (config.layers[0] / "bin" / "probe").write_bytes(probe.read_bytes())
    (config.layers[0] / "bin" / "probe").chmod(0o755)
    keeper = Keeper(lambda: runtime.connect(config.id), build_id())
    files, pids = config.limits.open_files or 64, config.limits.pids
    try:
        init = await runtime.start(replace(config, keeper=binary()))
        await keeper.configure(user=None, cwd="/", env={}, sudo=False, life_s=600.0, open_files=files, pids=pids)
        yield init, keeper
    finally:
        await keeper.close()
        await runtime.clear(config.id)


async def run(keeper: Keeper, *argv: str) -> str:
    name = "".join(random.choices("abcdefghijklmnopqrstuvwxyz234567", k=10))
    stream = await keeper.start(ProcessSpec(id=f"p-{name}", argv=list(argv), timeout_s=30.0))
    output = b"".join([data async for _, data in stream])
    return output.decode()


async def test_a_command_gets_no_fd_of_pid_1_and_sees_none_of_its_memory(kept: tuple[Init, Keeper]) -> None:
    _, keeper = kept
    answer = await run(keeper, "/bin/probe", "secrets")
    assert answer.splitlines() == [
        "fds [0 1 2]",
        "/proc/1/mem permission denied",
        "/proc/1/environ permission denied",
        "/proc/1/fd/3 permission denied",
        "ptrace operation not permitted",
    ]


async def test_pid_1_runs_the_hosts_keeper_which_cannot_be_read_or_replaced(kept: tuple[Init, Keeper]) -> None:
    init, keeper = kept
    runs, wanted = os.stat(f"/proc/{init.pid}/exe"), os.stat(binary())
    assert (runs.st_ino, runs.st_size) == (wanted.st_ino, wanted.st_size)
    assert runs.st_dev != wanted.st_dev  # a separate inode
    for words in (
        ("write", "/run/skerry/bin/skerry-keeper"),
        ("rename", "/run/skerry/bin/skerry-keeper", "/run/skerry/bin/x"),
    ):
        answer = await run(keeper, "/bin/probe", *words)
        assert answer.strip() in (
            "read-only file system",
            "permission denied",
            "device or resource busy",
            "text file busy",
        )


async def test_wait_for_port_works_from_inside(kept: tuple[Init, Keeper]) -> None:
    _, keeper = kept
    closed = await keeper.wait_for_port(80, 0.0)
    assert (closed.open, closed.last) == (False, "nothing listens on port 80")
    await keeper.spawn(ProcessSpec(id="p-server", argv=["/bin/probe", "listen", "80"], timeout_s=30.0))
    assert (await keeper.wait_for_port(80, 20.0)).open


async def test_a_terminal_belongs_to_the_sandbox(kept: tuple[Init, Keeper]) -> None:
    _, keeper = kept
    spec = ProcessSpec(id="p-terminal", argv=["/bin/probe", "terminal"], user="1000:1000", pty=Size(cols=99, rows=33))
    stream = await keeper.start(spec)
    shown = b"".join([data async for _, data in stream]).decode().splitlines()
    assert shown == ["/dev/pts/0 1000:5 620 33x99", "controlling", "ioctl TIOCSTI function not implemented"]


async def test_commands_that_lost_their_launchers_are_killed_one_by_one(
    runtime: OciRuntime, config: ContainerConfig, probe: Path
) -> None:
    roomy = replace(config, limits=limits(cpus=2, memory="512M", pids=512, open_files=1024))
    async with keeping(runtime, roomy, probe) as (_, keeper):
        specs = [ProcessSpec(id=f"p-{port}", argv=["/bin/probe", "listen", str(port)]) for port in range(1001, 1021)]
        await asyncio.gather(*(keeper.spawn(spec) for spec in specs))
        for number, spec in enumerate(specs):
            assert (await keeper.wait_for_port(1001 + number, 20.0)).open
            await keeper.signal(spec.id, "KILL")
            await ended(keeper, spec.id)
            assert (await keeper.process(spec.id)).signal == "KILL"
            assert (await keeper.hello()).processes == len(specs) - number - 1
        groups = runtime.cgroups.v2(config.id)
        await eventually(lambda: len(list(groups.glob("c*/"))) <= 8)


async def ended(keeper: Keeper, process: str) -> None:
    async for _ in await keeper.output(process, follow=True):
        pass
