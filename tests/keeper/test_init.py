"""The keeper as PID 1: protection, reaping, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.errors import InvalidRequest, SandboxUnavailable
from skerry.keeper import Keeper, KeeperProtocolError, KeeperTimeout, binary, build_id


async def test_nothing_but_hello_is_answered_before_the_configuration(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.open()
    try:
        assert (await room.keeper.hello()).build == build_id()
        with pytest.raises(SandboxUnavailable, match="config"):
            await room.keeper.start(spec("/bin/true"))
        with pytest.raises(SandboxUnavailable, match="config"):
            await room.keeper.files.stat("/")
        with pytest.raises(InvalidRequest, match="not found in the sandbox"):
            await room.configure(user="nosuchuser")
        await room.configure(user="nobody")
        assert (await room.run("/usr/bin/id", "-un"))[1] == b"nobody\n"
    finally:
        await room.keeper.close()
        room.close()


async def test_configuration_sets_user_and_environment(room: Room) -> None:
    hello = await room.keeper.configure(user="nobody", cwd="/", env={}, sudo=False, life_s=None, open_files=100)
    assert hello.user is not None
    assert (hello.user.name, hello.user.uid, hello.user.home) == ("nobody", 65534, "/nonexistent")
    assert hello.shell in ("/bin/bash", "/usr/bin/bash")


async def test_keeper_of_another_build_is_rejected(room: Room) -> None:
    other = Keeper(room.connect, "0" * 32)
    with pytest.raises(KeeperProtocolError, match="another build"):
        await other.hello()
    await other.close()


async def test_root_inside_cannot_read_memory_of_pid_1_and_launchers(room: Room) -> None:
    """Without CAP_SYS_PTRACE, as in every wall, a process that is not dumpable can't be looked into."""
    look = (
        "import os, subprocess\n"
        "pids = subprocess.run(['pgrep', '-P', '1', '-x', 'exe'], capture_output=True).stdout.split()\n"
        "def readable(path):\n"
        "    try: os.close(os.open(path, os.O_RDONLY)); return True\n"
        "    except PermissionError: return False\n"
        "for pid in [1, *map(int, pids)]:\n"
        "    for name in ('mem', 'environ', 'maps', 'fd/3', 'root', 'cwd', 'exe', 'task/%d/mem' % pid):\n"
        "        if readable(f'/proc/{pid}/{name}'): print('open', pid, name)\n"
        "print('looked at', len(pids))\n"
    )
    capsh = ["/sbin/capsh", "--drop=cap_sys_ptrace,cap_sys_admin,cap_perfmon", "--", "-c", 'exec python3 -c "$0"', look]
    _, out, err = await room.run(*capsh)
    assert (out.startswith(b"looked at "), err) == (True, b""), out


async def test_stdio_of_the_keeper_is_null(room: Room) -> None:
    for fd in range(3):
        assert os.readlink(f"/proc/{room.pid}/fd/{fd}").endswith("/dev/null")


async def test_keeper_reaps_orphans(room: Room) -> None:
    await room.run("for i in $(seq 20); do (setsid -f true); done")
    assert (await room.run("ps -eo stat= | grep -c ^Z"))[1] == b"0\n"


async def test_keeper_ends_the_sandbox_at_its_maximum_lifetime(room: Room) -> None:
    await room.configure(life_s=0.3)
    assert await asyncio.to_thread(room.unshare.wait, 15) == 0


async def test_new_configuration_changes_the_maximum_lifetime(room: Room) -> None:
    await room.configure(life_s=0.2)
    await room.configure(life_s=None)
    now = (await room.keeper.hello()).uptime_s
    async with asyncio.timeout(10):
        while (await room.keeper.hello()).uptime_s < now + 0.5:
            await asyncio.sleep(0.01)
    assert (await room.run("echo alive"))[1] == b"alive\n"


async def test_shutdown_sends_sigterm_before_sigkill(room: Room) -> None:
    stream = await room.keeper.start(spec("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"))
    assert await anext(stream) == ("stdout", b"ready\n")
    await room.keeper.shutdown(5.0)
    rest = []
    with suppress(KeeperProtocolError):  # it may be gone before the last frame
        rest = [frame async for frame in stream]
    assert rest == [] or ("stdout", b"bye\n") in rest
    assert await asyncio.to_thread(room.unshare.wait, 15) == 0


async def test_shutdown_does_not_wait_for_processes_that_ignore_sigterm(room: Room) -> None:
    stream = await room.keeper.start(spec("trap '' TERM; echo ready; while :; do sleep 0.1; done"))
    assert await anext(stream) == ("stdout", b"ready\n")
    await room.keeper.shutdown(0.2)
    assert await asyncio.to_thread(room.unshare.wait, 15) == 0


async def test_sigterm_from_the_host_shuts_down(room: Room) -> None:
    os.kill(room.pid, signal.SIGTERM)
    assert await asyncio.to_thread(room.unshare.wait, 15) == 0
    with pytest.raises(SandboxUnavailable):
        await room.keeper.hello()


async def test_signals_from_inside_do_not_end_pid_1(room: Room) -> None:
    every = "for s in $(seq 1 64); do case $s in 2|15) ;; *) kill -$s 1 2>/dev/null ;; esac; done"
    await room.run(every)
    await room.run(every, user="nobody")
    assert (await room.keeper.hello()).build == build_id()


async def test_keeper_runs_only_as_pid_1() -> None:
    done = subprocess.run([binary(), "init"], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 1
    assert "not permitted" in done.stderr


async def test_dead_keeper_is_silent(room: Room) -> None:
    room.unshare.kill()
    room.unshare.wait(30)
    with pytest.raises((KeeperTimeout, KeeperProtocolError)):
        await room.keeper.hello()


def private_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


async def test_idle_keeper_uses_little_memory(room: Room) -> None:
    for _ in range(50):
        await room.run("/bin/true")
    await eventually(lambda: private_kib(room.pid) < 4 << 10, 15)
    tasks = Path(f"/proc/{room.pid}/task").glob("*/children")
    launchers = [int(pid) for children in tasks for pid in children.read_text().split()]
    sizes = [private_kib(pid) for pid in (room.pid, *launchers)]
    assert len(launchers) >= 1
    assert sum(sizes) < 6 << 10, sizes
