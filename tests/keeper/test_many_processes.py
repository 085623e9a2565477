"""Many commands at once: launchers move to new groups, and their commands are as well off without them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from keeper.test_processes import STRAYS, pids_with
from keeper.test_sudo import add_users
from support.keeper import Room, eventually, spec

from skerry.errors import Conflict
from skerry.keeper import Keeper, ProcessStream, build_id
from skerry.keeper.values import ExitStatus

LAUNCHERS = 8  # at one time, as in the pool


def parent(host_pid: int) -> int:
    """0: it has just ended."""
    try:
        return int(Path(f"/proc/{host_pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def launchers(room: Room) -> set[int]:
    return {pid for pid in pids_with("skerry-keeper\0launcher") if parent(pid) == room.pid}


def has_launcher(room: Room, host_pid: int) -> bool:
    """Return whether a launcher is in the group of a command."""
    assert room.group is not None
    try:
        group = Path(f"/proc/{host_pid}/cgroup").read_text().strip().rpartition("/")[2]
        found = (room.group / group / "cgroup.procs").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return not launchers(room).isdisjoint(map(int, found))


async def left(room: Room, mark: str) -> None:
    """Wait until the launcher of a command, known by its mark, has left the command's group."""
    await eventually(lambda: any(not has_launcher(room, pid) for pid in pids_with(mark)))


@asynccontextmanager
async def crowd(room: Room) -> AsyncIterator[list[ProcessStream]]:
    """So many commands that the launchers of those before them move."""
    streams = await asyncio.gather(*(room.keeper.start(spec("/bin/sleep", "3000")) for _ in range(LAUNCHERS + 2)))
    yield streams
    for stream in streams:
        await stream.aclose()


async def drain(stream: ProcessStream) -> tuple[bytes, ExitStatus]:
    output = b"".join([data async for _, data in stream])
    return output, stream.exit


async def finish_all(streams: list[ProcessStream]) -> list[tuple[bytes, ExitStatus]]:
    await asyncio.gather(*(stream.close_stdin() for stream in streams))
    return await asyncio.gather(*(drain(stream) for stream in streams))


async def groups_gone(room: Room) -> None:
    group = room.group
    assert group is not None
    await eventually(lambda: len(list(group.glob("c*/"))) <= LAUNCHERS, 20)


async def test_two_hundred_concurrent_commands_have_correct_exits(room: Room) -> None:
    await room.configure(pids=512)
    script = 'echo "$0"; read x; exit "$1"'
    specs = [spec("/bin/sh", "-c", script, f"n{n}", str(n), stdin="pipe") for n in range(200)]
    streams = await asyncio.gather(*(room.keeper.start(one) for one in specs))
    firsts = [await anext(stream) for stream in streams]
    assert firsts == [("stdout", b"n%d\n" % n) for n in range(200)]
    assert (await room.keeper.hello()).processes == 200
    assert 0 < sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in launchers(room)) <= 8 * LAUNCHERS
    ends = await finish_all(streams)
    assert [(end.exit_code, end.signal, end.left) for _, end in ends] == [(n, None, ()) for n in range(200)]
    await groups_gone(room)
    assert len({stream.pid for stream in streams}) == 200


async def test_a_command_without_launcher_is_signalled_and_named(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    for name in ("TERM", "INT", "KILL"):
        stream = await room.keeper.start(spec("/bin/sleep", mark))
        async with crowd(room):
            await left(room, mark)
            await stream.signal(name)
            _, end = await drain(stream)
            assert (end.signal, end.exit_code, end.left) == (name, None, ())
            assert end.max_rss > 0


async def test_a_signal_reaches_the_whole_process_group_without_launcher(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    stream = await room.keeper.start(spec(f"sleep {mark} | sleep {mark}; echo both"))
    async with crowd(room):
        await left(room, mark)
        await stream.signal("TERM")
        _, end = await drain(stream)
        assert end.signal == "TERM"
        await eventually(lambda: not pids_with(mark))


async def test_timeout_kills_only_the_tree_of_a_command_without_launcher(room: Room) -> None:
    mark, other = (str(secrets.randbelow(10**9)) for _ in range(2))
    kept = await room.keeper.start(spec(STRAYS.format(m=other)))
    stream = await room.keeper.start(spec(STRAYS.format(m=mark), timeout_s=5.0))
    await eventually(lambda: len(pids_with(f"1000.{mark}")) >= 5 and len(pids_with(f"1000.{other}")) >= 5)
    async with crowd(room) as others:
        await left(room, f"1000.{mark}")
        _, end = await drain(stream)
        assert (end.timed_out, end.signal, end.left) == (True, "KILL", ())
        assert pids_with(f"1000.{mark}") == []
        assert len(pids_with(f"1000.{other}")) >= 5
        assert (await room.keeper.hello()).processes == len(others) + 1
    await kept.aclose()
    await eventually(lambda: not pids_with(f"1000.{other}"))
    await groups_gone(room)


async def test_leftovers_of_a_command_without_launcher_are_listed_and_killed(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    command = spec(f"setsid sleep {mark} >/dev/null 2>&1 & echo $!; read x; exit 5", stdin="pipe")
    stream = await room.keeper.start(command)
    child = int((await anext(stream))[1])
    async with crowd(room):
        await left(room, "read x; exit 5")
        await stream.close_stdin()
        _, end = await drain(stream)
        assert (end.exit_code, end.left) == (5, (child,))
        assert (await room.keeper.process(command.id)).children == (child,)
        await room.keeper.signal(command.id, "KILL")
        await eventually(lambda: not pids_with(mark))
    assert (await room.keeper.process(command.id)).children == ()
    await groups_gone(room)


async def test_leftover_process_keeps_its_group_until_it_ends(room: Room) -> None:
    group = room.group
    assert group is not None
    line = "setsid sh -c 'read x < /tmp/gate' >/dev/null 2>&1 & grep ^0:: /proc/self/cgroup; read x"
    await room.run("mkfifo /tmp/gate")
    stream = await room.keeper.start(spec(line, stdin="pipe"))
    name = (await anext(stream))[1].decode().strip().rpartition("/")[2]
    async with crowd(room):
        await left(room, "/tmp/gate")
        await stream.close_stdin()
        _, end = await drain(stream)
        assert len(end.left) >= 1
        assert (group / name).is_dir()
        await room.run("echo > /tmp/gate")
        await eventually(lambda: not (group / name).exists())


async def test_host_hangup_ends_a_command_without_launcher(room: Room) -> None:
    mark = str(secrets.randbelow(10**9))
    stream = await room.keeper.start(spec(STRAYS.format(m=mark)))
    async with crowd(room):
        await left(room, f"1000.{mark}")
        await stream.aclose()
        await eventually(lambda: not pids_with(f"1000.{mark}"))


async def test_shutdown_waits_for_commands_without_launchers(room: Room) -> None:
    trap = "trap 'sleep 0.3; echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    stream = await room.keeper.start(spec(trap))
    assert await anext(stream) == ("stdout", b"ready\n")
    async with crowd(room):
        await left(room, "sleep 0.3; echo bye")
        await room.keeper.shutdown(30.0)
        while await anext(stream) != ("stdout", b"bye\n"):
            pass  # the shell reports the killed sleep
        assert (await drain(stream))[1].exit_code == 7
        assert await asyncio.to_thread(room.unshare.wait, 15) == 0


async def test_killed_launchers_do_not_affect_their_commands(room: Room) -> None:
    """Neither those whose launcher has moved nor the last one, whose group the launcher is still in."""
    mark = f"1000.{secrets.randbelow(10**9)}"
    specs = [spec("/bin/sh", "-c", f"read x; : {mark}; exit {n}", stdin="pipe") for n in range(LAUNCHERS + 2)]
    streams = [await room.keeper.start(one) for one in specs]
    killed = launchers(room)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: killed.isdisjoint(launchers(room)))
    assert [end.exit_code for _, end in await finish_all(streams)] == list(range(LAUNCHERS + 2))
    with suppress(Conflict):  # the end of the idle one may not have been noticed yet
        await room.run("/bin/echo", "again")
    assert (await room.run("/bin/echo", "again"))[1] == b"again\n"
    await groups_gone(room)


async def test_long_commands_share_launchers(room: Room) -> None:
    """A launcher per command would be several milliseconds of processor time for each."""
    seen: set[int] = set()
    streams = []
    for n in range(3 * LAUNCHERS):
        streams.append(await room.keeper.start(spec("/bin/sh", "-c", f"read x; exit {n}", stdin="pipe")))
        seen |= launchers(room)
    assert len(seen) <= LAUNCHERS
    assert [end.exit_code for _, end in await finish_all(streams)] == list(range(3 * LAUNCHERS))
    await groups_gone(room)


async def test_fork_bomb_in_a_command_without_launcher_leaves_the_keeper_alive(room: Room) -> None:
    await room.configure(pids=300)
    mark = str(secrets.randbelow(10**9))
    bomb = (
        f"import os, sys, time; mark = 'bomb {mark}'; sys.stdin.read()\n"
        "while True:\n"
        "    try: os.fork()\n"
        "    except OSError: time.sleep(0.01)\n"
    )
    command = spec("/usr/bin/env", "python3", "-c", bomb, user="54321", stdin="pipe")
    stream = await room.keeper.start(command)
    async with crowd(room) as others:
        await left(room, f"bomb {mark}")
        await stream.close_stdin()
        await eventually(lambda: len(pids_with(f"bomb {mark}")) >= 200, 30)
        assert (await room.run("/bin/echo", "alive"))[1] == b"alive\n"
        await room.keeper.signal(command.id, "KILL")
        _, end = await drain(stream)
        assert end.signal == "KILL"
        await eventually(lambda: not pids_with(f"bomb {mark}"))
        assert (await room.keeper.hello()).processes == len(others)


@pytest.fixture
async def ann(tmp_path: Path) -> AsyncIterator[Room]:
    async with Room(tmp_path) as room:
        await add_users(room)
        yield room


async def test_sudo_works_in_a_command_without_launcher(ann: Room) -> None:
    line = (
        "read x; sudo -u bob id -un; echo in | sudo sh -c 'cat; exit 42'; echo $?; grep ^0:: /proc/self/cgroup;"
        " sudo grep ^0:: /proc/self/cgroup; for i in 1 2 3 4 5 6; do sudo echo $i & done; wait"
    )
    stream = await ann.keeper.start(spec(line, stdin="pipe"))
    async with crowd(ann):
        await left(ann, "sudo -u bob id -un")
        await stream.close_stdin()
        output, end = await drain(stream)
    lines = output.decode().splitlines()
    assert lines[:3] == ["bob", "in", "42"]
    assert lines[3] == lines[4]
    assert sorted(lines[5:]) == list("123456")
    assert (end.exit_code, end.left) == (0, ())
    await groups_gone(ann)


async def test_timeout_kills_sudo_processes_of_a_command_without_launcher(ann: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    command = spec(f"read x; sudo setsid -f sleep {mark}; sudo sleep {mark}", stdin="pipe", timeout_s=5.0)
    stream = await ann.keeper.start(command)
    async with crowd(ann):
        await left(ann, mark)
        await stream.close_stdin()
        await eventually(lambda: len(pids_with(f"sleep\0{mark}")) >= 2)
        _, end = await drain(stream)
        assert (end.timed_out, end.left) == (True, ())
        await eventually(lambda: not pids_with(mark))
    await groups_gone(ann)


async def test_launchers_stay_without_cgroups(tmp_path: Path) -> None:
    async with Room(tmp_path, group=False) as room:
        specs = [spec("/bin/sh", "-c", f"read x; exit {n}", stdin="pipe") for n in range(40)]
        streams = await asyncio.gather(*(room.keeper.start(one) for one in specs))
        assert all(parent(pid) != room.pid for pid in pids_with("read x; exit"))
        assert [end.exit_code for _, end in await finish_all(list(streams))] == list(range(40))


async def test_failed_starts_return_their_launchers(room: Room) -> None:
    for _ in range(2 * LAUNCHERS):
        assert (await room.run("/bin/nope"))[0].exit_code == 127
    assert (await room.run("/bin/echo", "again"))[1] == b"again\n"


async def test_killed_command_does_not_return_its_launcher(room: Room) -> None:
    """It was killed too, and would fail the next start."""
    for _ in range(30):
        stream = await room.keeper.start(spec("/bin/sleep", "1000"))
        await stream.signal("KILL")
        await drain(stream)
        assert (await room.run("/bin/echo", "next"))[1] == b"next\n"


async def test_connections_of_a_burst_are_used_again(room: Room) -> None:
    opened = 0

    async def connect() -> socket.socket:
        nonlocal opened
        opened += 1
        return await room.connect()

    keeper, at_once = Keeper(connect, build_id()), 12
    try:
        for _ in range(3):
            runs = [
                await keeper.start(spec("/bin/true")) for _ in range(at_once)
            ]  # each holds a connection until its end
            for run in runs:
                assert [piece async for piece in run] == []
        assert opened == at_once
    finally:
        await keeper.close()
