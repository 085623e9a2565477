"""A sandbox that was stopped and started knows its processes again, and believes nothing that it finds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from keeper.test_journal import ended, read
from msgspec.structs import replace
from support.keeper import Room, eventually, spec

from skerry.errors import Conflict, NotFound
from skerry.keeper import Process

Life = Callable[[Room], Awaitable[None]]
FIRST = f"{0:016x}"


@asynccontextmanager
async def life(directory: Path, kept: Path) -> AsyncIterator[Room]:
    """One life of the sandbox that `kept` belongs to; it ends orderly."""
    directory.mkdir()
    kept.mkdir(exist_ok=True)
    async with Room(directory, kept=kept) as room:
        yield room
        await room.keeper.shutdown(0.2)
        await eventually(lambda: room.unshare.poll() is not None)


async def listed(room: Room) -> dict[str, Process]:
    """Without their cgroups, which go with a sandbox's life."""
    return {process.id: replace(process, cgroup=0) for process in await room.keeper.processes()}


async def test_finished_processes_and_their_output_survive_a_restart(tmp_path: Path) -> None:
    commands = [
        spec("echo short; exit 3", session="s1"),
        spec("/bin/sh", "-c", "head -c 300000 /dev/zero"),
        spec("/bin/nope"),
        spec("kill -9 $$"),
        spec("/bin/true"),
    ]
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        for command in commands:
            await room.keeper.spawn(command)
            await ended(room, command.id)
        run = spec("echo run")
        async for _ in await room.keeper.start(run):
            pass
        before = await listed(room)
    for number in (2, 3):
        async with life(tmp_path / str(number), tmp_path / "kept") as room:
            assert await listed(room) == before
            assert await read(await room.keeper.output(commands[0].id)) == (b"short\n", 0)
            assert await read(await room.keeper.output(commands[1].id, 100_000)) == (bytes(200_000), 0)
            assert await read(await room.keeper.output(run.id, -2, follow=True)) == (b"n\n", 0)
            stream = await room.keeper.output(commands[3].id, follow=True)
            assert await read(stream) == (b"", 0)
            assert stream.exit.signal == "KILL"
            with pytest.raises(Conflict):
                await room.keeper.signal(commands[0].id, "TERM")
            with pytest.raises(Conflict):
                await room.keeper.spawn(commands[0])


async def test_process_running_at_the_stop_is_listed_as_killed(tmp_path: Path) -> None:
    deaf = spec("trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    obedient = spec("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done")
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        for command in (deaf, obedient):
            await room.keeper.spawn(command)
            await anext(await room.keeper.output(command.id, follow=True))
    async with life(tmp_path / "2", tmp_path / "kept") as room:
        processes = await listed(room)
        assert (processes[deaf.id].state, processes[deaf.id].signal) == ("exited", "KILL")
        assert processes[deaf.id].ended_at == pytest.approx(time.time(), abs=60)
        assert await read(await room.keeper.output(deaf.id)) == (b"deaf\n", 0)
        data, _ = await read(await room.keeper.output(obedient.id))
        assert data.startswith(b"ready\n")


async def test_output_size_is_recovered_after_a_hard_end(tmp_path: Path) -> None:
    command = spec("/bin/sh", "-c", "seq 200000; sleep 1000", journal=1 << 20)
    whole = "".join(f"{n}\n" for n in range(1, 200_001)).encode()
    (tmp_path / "1").mkdir()
    (tmp_path / "kept").mkdir()
    names = tmp_path / "kept" / "processes"
    async with Room(tmp_path / "1", kept=tmp_path / "kept") as room:
        await room.keeper.spawn(command)
        stream = await room.keeper.output(command.id, follow=True)
        while stream.offset < len(whole):
            await anext(stream)
        await eventually(lambda: (names / "list").exists())
        kept_from = (await room.keeper.process(command.id)).kept_from
    async with life(tmp_path / "2", tmp_path / "kept") as room:
        process = (await listed(room))[command.id]
        assert (process.signal, process.offset, process.kept_from) == ("KILL", len(whole), kept_from)
        assert await read(await room.keeper.output(command.id, kept_from)) == (whole[kept_from:], 0)


async def test_removed_processes_stay_removed_without_files(tmp_path: Path) -> None:
    command, other = spec("/bin/sh", "-c", "head -c 10000 /dev/zero"), spec("/bin/echo", "hi")
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        for each in (command, other):
            await room.keeper.spawn(each)
            await ended(room, each.id)
    async with life(tmp_path / "2", tmp_path / "kept") as room:
        await room.keeper.remove(command.id)
        with pytest.raises(NotFound):
            await room.keeper.process(command.id)
    async with life(tmp_path / "3", tmp_path / "kept") as room:
        assert list(await listed(room)) == [other.id]
    names = sorted(path.name for path in (tmp_path / "kept" / "processes").iterdir())
    assert names == ["list", f"{other.id}.{FIRST}"]


def record(name: str, **changes: object) -> bytes:
    status = {
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "duration_s": 0.5,
        "cpu_s": 0.1,
        "max_rss": 1,
        "left": [],
    }
    values: dict[str, object] = {"id": name, "argv": ["x"], "user": "root", "began": 10**18, "ended": 2 * 10**18}
    return json.dumps(values | {"status": status} | changes).encode() + b"\n"


STATUS = {"exit_code": 0, "signal": None, "timed_out": False, "duration_s": 0, "cpu_s": 0, "max_rss": 0, "left": []}
BAD = [
    b"\x00" * 1000 + b"\n",
    b"[1,2]\n",
    b"{}\n",
    record("../../etc"),
    record("p-x/../y"),
    record("p-1", path="/etc"),
    record("p-2", pid=-1),
    record("p-3", began=-1),
    record("p-4", began=1 << 63),
    record("p-5", offset=-5),
    record("p-6", offset=1 << 60),
    record("p-7", argv=["x" * 10_000]),
    record("p-8", argv=None),
    record("p-9", user="u" * 5000),
    record("p-10", session="s" * 5000),
    record("p-11", status=STATUS | {"exit_code": 256}),
    record("p-12", status=STATUS | {"exit_code": None}),
    record("p-13", status=STATUS | {"exit_code": None, "signal": "rm -rf"}),
    record("p-14", status=STATUS | {"exit_code": None, "signal": "+9"}),
    record("p-15", status=STATUS | {"duration_s": -1}),
    record("p-16", status=STATUS | {"max_rss": 1 << 60}),
    record("p-17", status=STATUS | {"left": [1] * 2000}),
    b'{"id":"p-18","argv":["x"]\n',
]


async def test_process_list_written_by_root_is_validated(tmp_path: Path) -> None:
    processes = tmp_path / "kept" / "processes"
    processes.mkdir(parents=True)
    (processes / "list").write_bytes(b"".join(BAD) + record("p-good") + b'{"id":"p-half"')
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        assert list(await listed(room)) == ["p-good"]


async def test_oversized_process_list_is_truncated(tmp_path: Path) -> None:
    processes = tmp_path / "kept" / "processes"
    processes.mkdir(parents=True)
    with (processes / "list").open("wb") as file:
        for n in range(3000):
            file.write(record(f"p-run-{n}"))
        for n in range(9000):
            file.write(record(f"p-spawned-{n}", detach=True, argv=["x" * 1000]))
        file.write(b"x" * (1 << 20))
        file.truncate(1 << 40)
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        assert len(await listed(room)) <= 4096
        assert (await room.run("echo alive"))[1] == b"alive\n"
    assert (processes / "list").stat().st_size < 16 << 20


@pytest.mark.parametrize("what", ["link", "fifo", "directory", "socket"])
async def test_process_list_that_is_not_a_file_is_not_opened(tmp_path: Path, what: str) -> None:
    processes = tmp_path / "kept" / "processes"
    processes.mkdir(parents=True)
    secret = tmp_path / "kept" / "secret"
    secret.write_bytes(record("p-secret"))
    if what == "link":
        (processes / "list").symlink_to("/var/lib/skerry/secret")
    elif what == "fifo":
        os.mkfifo(processes / "list")
    elif what == "directory":
        (processes / "list" / "full").mkdir(parents=True)
    else:
        os.mknod(processes / "list", 0o140600)
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        assert await listed(room) == {}
        assert (await room.run("echo alive"))[1] == b"alive\n"
    assert secret.read_bytes() == record("p-secret")
    if what != "directory":
        assert (processes / "list").is_file()
        assert not (processes / "list").is_symlink()


async def test_directory_replaced_by_a_link_is_recreated(tmp_path: Path) -> None:
    kept, elsewhere = tmp_path / "kept", tmp_path / "kept" / "elsewhere"
    elsewhere.mkdir(parents=True)
    (elsewhere / "list").write_bytes(record("p-elsewhere"))
    (kept / "processes").symlink_to("elsewhere")
    async with life(tmp_path / "1", kept) as room:
        assert await listed(room) == {}
        assert (await room.run("echo alive"))[1] == b"alive\n"
    assert (kept / "processes").is_dir()
    assert not (kept / "processes").is_symlink()
    assert [path.name for path in elsewhere.iterdir()] == ["list"]


def frame(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(4, "big") + body


async def test_segments_written_by_root_are_harmless(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    processes = kept / "processes"
    processes.mkdir(parents=True)
    (kept / "secret").write_bytes(frame(1, b"secret"))
    big = 1 << 52
    files = {
        "p-good": frame(1, b"hello") + frame(2, b"!"),
        "p-half": frame(1, b"hello") + frame(1, b"lost")[:-1],
        "p-exit": frame(1, b"hello") + frame(3, b'{"exit_code":0}'),
        "p-none": b"nonsense" * 100,
        "p-zero": bytes(10_000),
        "p-spans": frame(1, b"hello") + frame(1, b"world"),
        "p-more": frame(1, b"hello"),
        "p-huge": frame(1, b"hello"),
        "p-link": b"",
        "p-fifo": b"",
        "p-dir": b"",
    }
    spans = {
        "p-spans": [[0, 1000, 20]],  # it says more than there is
        "p-more": [[0, 1 << 60, 10]],
        "p-exit": [[0, 20, 10 + 5 + 15]],
        "p-huge": [[0, 5, 10], [big, 1, 1], [-5, -1, 7]],
    }
    lines = b""
    for name, content in files.items():
        path = processes / f"{name}.{FIRST}"
        if name == "p-link":
            path.symlink_to("/var/lib/skerry/secret")
        elif name == "p-fifo":
            os.mkfifo(path)
        elif name == "p-dir":
            path.mkdir()
        else:
            path.write_bytes(content)
        lines += record(name, spans=spans.get(name), offset=big if name == "p-huge" else 0)
    (processes / "list").write_bytes(lines)
    (processes / f"p-nobody.{FIRST}").write_bytes(frame(1, b"x"))
    async with life(tmp_path / "1", kept) as room:
        assert len(await listed(room)) == len(files)
        got = {name: await read(await room.keeper.output(name)) for name in files}
        assert got["p-good"] == (b"hello!", 0)
        assert got["p-half"] == (b"hello", 0)
        assert got["p-exit"] == (b"hello", 15)
        assert got["p-spans"] == (b"helloworld", 990)
        assert got["p-huge"] == (b"hello", big - 5)
        for name in ("p-none", "p-zero", "p-link", "p-fifo", "p-dir"):
            assert got[name] == (b"", 0)
        assert got["p-more"][0] in (b"", b"hello")
    assert (kept / "secret").read_bytes() == frame(1, b"secret")
    assert not (processes / f"p-nobody.{FIRST}").exists()


async def test_number_of_remembered_runs_is_bounded(tmp_path: Path) -> None:
    processes = tmp_path / "kept" / "processes"
    processes.mkdir(parents=True)
    lines = b"".join(record(f"p-run-{n}", spans=[[0, 1, 6]], offset=1) for n in range(1023))
    lines += b"".join(record(f"p-spawned-{n}", detach=True) for n in range(200))
    for n in range(1023):
        (processes / f"p-run-{n}.{FIRST}").write_bytes(frame(1, b"x"))
    (processes / "list").write_bytes(lines)
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        for _ in range(5):
            await room.run("/bin/true")
        names = set(await listed(room))
        assert len(names) == 1024 + 200
        assert {f"p-run-{n}" for n in range(4)} & names == set()
        assert {"p-run-4", "p-spawned-0"} <= names
        await eventually(lambda: not (processes / f"p-run-0.{FIRST}").exists())
        assert (processes / f"p-run-4.{FIRST}").exists()


async def test_full_process_list_rejects_with_a_hint(tmp_path: Path) -> None:
    processes = tmp_path / "kept" / "processes"
    processes.mkdir(parents=True)
    (processes / "list").write_bytes(b"".join(record(f"p-{n:04}", detach=True) for n in range(4096)))
    async with life(tmp_path / "1", tmp_path / "kept") as room:
        with pytest.raises(Exception, match="remove finished ones"):
            await room.run("/bin/true")
        await room.keeper.remove("p-0000")
        assert (await room.run("echo alive"))[1] == b"alive\n"
