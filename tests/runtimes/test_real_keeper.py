"""The real keeper behind the wall: what it keeps to itself, in little room."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from runtimes.walls import limits

from skerry.keeper import Keeper, ProcessSpec, Size, binary, build_id
from skerry.runtimes import Init, Wall
from skerry.runtimes.oci import OciRuntime

pytestmark = pytest.mark.vm


@pytest.fixture
async def kept(runtime: OciRuntime, wall: Wall, probe: Path) -> AsyncIterator[tuple[Init, Keeper]]:
    """In a small sandbox, around an image that holds the probe alone."""
    (wall.layers[0] / "bin" / "probe").write_bytes(probe.read_bytes())
    (wall.layers[0] / "bin" / "probe").chmod(0o755)
    small = replace(wall, keeper=binary(), limits=limits(cpus=0.5, memory="32M", pids=96, open_files=64))
    keeper = Keeper(lambda: runtime.connect(wall.id), build_id())
    try:
        init = await runtime.start(small)
        await keeper.configure(user=None, cwd="/", env={}, sudo=False, life_s=600.0, open_files=64)
        yield init, keeper
    finally:
        await keeper.close()
        await runtime.clear(wall.id)


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


async def test_pid_1_runs_the_file_that_the_host_gave_and_cannot_be_read_or_replaced(kept: tuple[Init, Keeper]) -> None:
    init, keeper = kept
    assert os.path.samestat(os.stat(f"/proc/{init.pid}/exe"), os.stat(binary()))
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


async def test_a_port_is_waited_for_from_inside(kept: tuple[Init, Keeper]) -> None:
    _, keeper = kept
    closed = await keeper.wait_for_port(80, 0.0)
    assert (closed.open, closed.last) == (False, "nothing listens on port 80")
    await keeper.spawn(ProcessSpec(id="p-server", argv=["/bin/probe", "listen", "80"], timeout_s=30.0))
    assert (await keeper.wait_for_port(80, 20.0)).open


async def test_a_terminal_is_of_the_sandboxs_own(kept: tuple[Init, Keeper]) -> None:
    _, keeper = kept
    spec = ProcessSpec(id="p-terminal", argv=["/bin/probe", "terminal"], user="1000:1000", pty=Size(cols=99, rows=33))
    stream = await keeper.start(spec)
    shown = b"".join([data async for _, data in stream]).decode().splitlines()
    assert shown == ["/dev/pts/0 1000:5 620 33x99", "controlling", "ioctl TIOCSTI function not implemented"]
