"""Many commands at once: launchers retire, and their commands are as well off without them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from keeper.room import Room, eventually, spec
from keeper.test_processes import STRAYS, pids_with
from keeper.test_sudo import add_users

from skerry.keeper import ProcessStream
from skerry.keeper.values import ExitStatus

LAUNCHERS = 8  # at one time, as in the pool


def parent(host_pid: int) -> int:
    """0: it has just ended."""
    try:
        return int(Path(f"/proc/{host_pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


async def retired(room: Room, mark: str) -> None:
    """Waits until a command, known by its mark, has become the keeper's own child."""
    await eventually(lambda: any(parent(pid) == room.pid for pid in pids_with(mark)))


@asynccontextmanager
async def crowd(room: Room) -> AsyncIterator[list[ProcessStream]]:
    """So many commands that those before them lose their launchers."""
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


async def test_two_hundred_run_at_once_and_every_exit_is_right(room: Room) -> None:
    await room.configure(pids=512)
    script = 'echo "$0"; read x; exit "$1"'
    specs = [spec("/bin/sh", "-c", script, f"n{n}", str(n), stdin="pipe") for n in range(200)]
    streams = await asyncio.gather(*(room.keeper.start(one) for one in specs))
    firsts = [await anext(stream) for stream in streams]
    assert firsts == [("stdout", b"n%d\n" % n) for n in range(200)]
    assert (await room.keeper.hello()).processes == 200
    launchers = [pid for pid in pids_with("skerry-keeper\0launcher") if parent(pid) == room.pid]
    assert 0 < sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in launchers) <= 8 * LAUNCHERS
    ends = await finish_all(streams)
    assert [(end.exit_code, end.signal, end.left) for _, end in ends] == [(n, None, ()) for n in range(200)]
    await groups_gone(room)
    assert len({stream.pid for stream in streams}) == 200


async def test_a_retired_command_is_signalled_and_named(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    for name in ("TERM", "INT", "KILL"):
        stream = await room.keeper.start(spec("/bin/sleep", mark))
        async with crowd(room):
            await retired(room, mark)
            await stream.signal(name)
            _, end = await drain(stream)
            assert (end.signal, end.exit_code, end.left) == (name, None, ())
            assert end.max_rss > 0


async def test_a_signal_reaches_the_whole_process_group_of_a_retired_command(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    stream = await room.keeper.start(spec(f"sleep {mark} | sleep {mark}; echo both"))
    async with crowd(room):
        await retired(room, mark)
        await stream.signal("TERM")
        _, end = await drain(stream)
        assert end.signal == "TERM"
        await eventually(lambda: not pids_with(mark))


async def test_a_time_out_takes_the_tree_of_a_retired_command_and_nothing_else(room: Room) -> None:
    mark, other = (str(secrets.randbelow(10**9)) for _ in range(2))
    kept = await room.keeper.start(spec(STRAYS.format(m=other)))
    stream = await room.keeper.start(spec(STRAYS.format(m=mark), timeout_s=3.0))
    await eventually(lambda: len(pids_with(f"1000.{mark}")) >= 5 and len(pids_with(f"1000.{other}")) >= 5)
    async with crowd(room) as others:
        await retired(room, f"1000.{mark}")
        _, end = await drain(stream)
        assert (end.timed_out, end.signal, end.left) == (True, "KILL", ())
        assert pids_with(f"1000.{mark}") == []
        assert len(pids_with(f"1000.{other}")) >= 5
        assert (await room.keeper.hello()).processes == len(others) + 1
    await kept.aclose()
    await eventually(lambda: not pids_with(f"1000.{other}"))
    await groups_gone(room)


async def test_what_a_retired_command_leaves_behind_is_listed_and_killed(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    command = spec(f"setsid sleep {mark} >/dev/null 2>&1 & echo $!; read x; exit 5", stdin="pipe")
    stream = await room.keeper.start(command)
    child = int((await anext(stream))[1])
    async with crowd(room):
        await retired(room, "read x; exit 5")
        await stream.close_stdin()
        _, end = await drain(stream)
        assert (end.exit_code, end.left) == (5, (child,))
        assert (await room.keeper.process(command.id)).children == (child,)
        await room.keeper.signal(command.id, "KILL")
        await eventually(lambda: not pids_with(mark))
    assert (await room.keeper.process(command.id)).children == ()
    await groups_gone(room)


async def test_what_is_left_behind_keeps_its_group_until_it_ends(room: Room) -> None:
    group = room.group
    assert group is not None
    line = "setsid sh -c 'read x < /tmp/gate' >/dev/null 2>&1 & grep ^0:: /proc/self/cgroup; read x"
    await room.run("mkfifo /tmp/gate")
    stream = await room.keeper.start(spec(line, stdin="pipe"))
    name = (await anext(stream))[1].decode().strip().rpartition("/")[2]
    async with crowd(room):
        await retired(room, "/tmp/gate")
        await stream.close_stdin()
        _, end = await drain(stream)
        assert len(end.left) >= 1
        assert (group / name).is_dir()
        await room.run("echo > /tmp/gate")
        await eventually(lambda: not (group / name).exists())


async def test_a_host_that_hangs_up_ends_a_retired_command_too(room: Room) -> None:
    mark = str(secrets.randbelow(10**9))
    stream = await room.keeper.start(spec(STRAYS.format(m=mark)))
    async with crowd(room):
        await retired(room, f"1000.{mark}")
        await stream.aclose()
        await eventually(lambda: not pids_with(f"1000.{mark}"))


async def test_shutdown_waits_for_retired_commands(room: Room) -> None:
    trap = "trap 'sleep 0.3; echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    stream = await room.keeper.start(spec(trap))
    assert await anext(stream) == ("stdout", b"ready\n")
    async with crowd(room):
        await retired(room, "sleep 0.3; echo bye")
        await room.keeper.shutdown(30.0)
        while await anext(stream) != ("stdout", b"bye\n"):
            pass  # the shell tells of the sleep that was ended
        assert (await drain(stream))[1].exit_code == 7
        assert await asyncio.to_thread(room.unshare.wait, 15) == 0


async def test_a_killed_launcher_does_no_harm_to_the_retired(room: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    stream = await room.keeper.start(spec("/bin/sh", "-c", f"read x; : {mark}; exit 9", stdin="pipe"))
    async with crowd(room):
        await retired(room, mark)
        status, _, _ = await room.run("pkill -KILL -f 'skerry-keeper launcher'; sleep 5")
        assert status.signal == "KILL"
        assert len(pids_with(mark)) == 1
        await stream.close_stdin()
        assert (await drain(stream))[1].exit_code == 9


async def test_a_fork_bomb_among_the_retired_leaves_the_keeper_alive(room: Room) -> None:
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
        await retired(room, f"bomb {mark}")
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


async def test_sudo_works_in_a_retired_command(ann: Room) -> None:
    line = (
        "read x; sudo -u bob id -un; echo in | sudo sh -c 'cat; exit 42'; echo $?; grep ^0:: /proc/self/cgroup;"
        " sudo grep ^0:: /proc/self/cgroup; for i in 1 2 3 4 5 6; do sudo echo $i & done; wait"
    )
    stream = await ann.keeper.start(spec(line, stdin="pipe"))
    async with crowd(ann):
        await retired(ann, "sudo -u bob id -un")
        await stream.close_stdin()
        output, end = await drain(stream)
    lines = output.decode().splitlines()
    assert lines[:3] == ["bob", "in", "42"]
    assert lines[3] == lines[4]
    assert sorted(lines[5:]) == list("123456")
    assert (end.exit_code, end.left) == (0, ())
    await groups_gone(ann)


async def test_a_time_out_takes_what_sudo_started_in_a_retired_command(ann: Room) -> None:
    mark = f"1000.{secrets.randbelow(10**9)}"
    command = spec(f"read x; sudo setsid -f sleep {mark}; sudo sleep {mark}", stdin="pipe", timeout_s=3.0)
    stream = await ann.keeper.start(command)
    async with crowd(ann):
        await retired(ann, mark)
        await stream.close_stdin()
        await eventually(lambda: len(pids_with(f"sleep\0{mark}")) >= 2)
        _, end = await drain(stream)
        assert (end.timed_out, end.left) == (True, ())
        await eventually(lambda: not pids_with(mark))
    await groups_gone(ann)


async def test_without_cgroups_launchers_stay(tmp_path: Path) -> None:
    async with Room(tmp_path, group=False) as room:
        specs = [spec("/bin/sh", "-c", f"read x; exit {n}", stdin="pipe") for n in range(40)]
        streams = await asyncio.gather(*(room.keeper.start(one) for one in specs))
        assert all(parent(pid) != room.pid for pid in pids_with("read x; exit"))
        assert [end.exit_code for _, end in await finish_all(list(streams))] == list(range(40))
