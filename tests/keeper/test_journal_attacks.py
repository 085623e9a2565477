"""Journals on a full disk, or ruined by root inside: nothing is harmed but that sandbox's own output."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from keeper.test_journal import chunks, ended, read, wait_for_file
from support.keeper import Room, eventually, spec

from skerry.keeper import build_id

DIR = "/var/lib/skerry/processes"
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
async def small(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Room]:
    """A room with journals on a disk of 2 MiB."""
    kept = tmp_path / "kept"
    kept.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", kept], check=True)
    try:
        async with Room(tmp_path, kept=kept) as room:
            yield room
    finally:
        subprocess.run(["umount", "-l", kept], check=True)


def fill(room: Room, leave: int = 0) -> Path:
    """Takes all of the small disk but `leave` bytes."""
    assert room.kept is not None
    ballast = room.kept / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(max(0, file.tell() - leave))
    return ballast


def numbers(count: int) -> bytes:
    return "".join(f"{n}\n" for n in range(1, count + 1)).encode()


async def test_full_disk_does_not_block_a_program_and_gaps_are_reported(small: Room) -> None:
    fill(small)
    command = spec("/bin/sh", "-c", "seq 300000; printf end")
    await small.keeper.spawn(command)
    process = await ended(small, command.id)
    whole = numbers(300_000) + b"end"
    assert (process.exit_code, process.offset) == (0, len(whole))
    data, missing = await read(await small.keeper.output(command.id))
    assert missing + len(data) == len(whole)
    assert whole.endswith(data)
    assert (await small.run("echo alive"))[1] == b"alive\n"


async def test_run_on_a_full_disk_loses_nothing(small: Room) -> None:
    fill(small)
    status, out, _ = await small.run("/bin/sh", "-c", "seq 300000")
    assert (status.exit_code, out) == (0, numbers(300_000))


async def test_filling_disk_keeps_the_newest_output(small: Room) -> None:
    command = spec("/bin/sh", "-c", "seq 1000000")
    await small.keeper.spawn(command)
    process = await ended(small, command.id)
    whole = numbers(1_000_000)
    assert process.offset == len(whole)
    assert 0 < process.offset - process.kept_from <= 2 * MIB
    data, missing = await read(await small.keeper.output(command.id))
    assert missing + len(data) == len(whole)
    assert whole.endswith(data)


async def test_disk_that_fills_and_empties_leaves_correct_gaps(small: Room) -> None:
    line = "for i in 1 2 3 4 5 6; do read x; seq ${i}000000 ${i}010000; done"
    command = spec(line, journal=256 * KIB, stdin="pipe")
    await small.keeper.spawn(command)
    starts = [i * 10**6 for i in range(1, 7)]
    parts = ["".join(f"{n}\n" for n in range(start, start + 10_001)).encode() for start in starts]
    whole = b"".join(parts)
    for i in range(1, 7):
        ballast = fill(small)
        if i % 2:
            ballast.unlink()
        end = len(b"".join(parts[:i]))
        await small.keeper.stdin(command.id, chunks(b"go\n"))
        async with asyncio.timeout(20):
            while (await small.keeper.process(command.id)).offset < end:
                await asyncio.sleep(0.005)
        ballast.unlink(missing_ok=True)
    await ended(small, command.id)
    for since in (0, len(whole) // 3, len(whole) // 2):
        offset = since
        async for piece in await small.keeper.output(command.id, since):
            if isinstance(piece, tuple):
                assert whole[offset : offset + len(piece[1])] == piece[1]
                offset += len(piece[1])
            else:
                offset += piece.missing
        assert offset == len(whole)


async def test_output_of_finished_processes_is_dropped_first(small: Room) -> None:
    old = spec("/bin/sh", "-c", "seq 200000", journal=2 * MIB)
    await small.keeper.spawn(old)
    assert (await ended(small, old.id)).kept_from == 0
    fill(small)
    new = spec("/bin/sh", "-c", "seq 30000; sleep 1000", journal=2 * MIB)
    await small.keeper.spawn(new)
    whole = numbers(30_000)
    async with asyncio.timeout(20):
        while (await small.keeper.process(new.id)).offset < len(whole):
            await asyncio.sleep(0.005)
    assert await read(await small.keeper.output(new.id)) == (whole, 0)
    assert (await small.keeper.process(old.id)).kept_from > 0


async def test_total_journal_size_of_a_sandbox_is_bounded(room: Room) -> None:
    await room.configure(journal=(1 * MIB, 2 * MIB))
    commands = [spec("/bin/sh", "-c", "head -c 3000000 /dev/zero") for _ in range(5)]
    for command in commands:
        await room.keeper.spawn(command)
    for command in commands:
        await ended(room, command.id)
    assert sum(process.offset - process.kept_from for process in await room.keeper.processes()) <= 2 * MIB
    listed = await room.keeper.files.list(DIR)
    assert sum(entry.size for entry in listed.entries if "." in entry.name) <= 2 * MIB


RUINS = {
    "deleted": f"rm -rf {DIR}",
    "deleted with its parent": "rm -rf /var/lib/skerry",
    "a link": f"rm -rf {DIR}; ln -s /etc {DIR}",
    "a link to the keeper's fds": f"rm -rf {DIR}; ln -s /proc/1/fd {DIR}",
    "moved away": f"mv {DIR} /tmp/away$(date +%N); ln -s /tmp {DIR}",
    "a fifo": f"rm -rf {DIR}; mkfifo {DIR}",
    "its files links": f"for f in {DIR}/*; do ln -sf /etc/passwd $f; done",
    "its files fifos": f"for f in {DIR}/*; do rm -f $f; mkfifo $f; done",
    "its files emptied": f"for f in {DIR}/*; do : > $f; done",
    "its files shortened": f"for f in {DIR}/*; do truncate -s 7777 $f; done",
    "its files overwritten": f"for f in {DIR}/*; do yes | dd of=$f conv=notrunc bs=64k count=4 status=none; done",
    "its files made directories": f"for f in {DIR}/*; do rm -f $f; mkdir $f; done",
}


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
async def test_journals_damaged_by_root_while_written_are_harmless(room: Room, ruin: str) -> None:
    passwd = await (await room.keeper.files.read("/etc/passwd")).read(MIB)
    line = f"touch /tmp/on; while [ -e /tmp/on ]; do {ruin}; done 2>/dev/null"
    vandal = await room.keeper.spawn(spec(line))
    spawned = spec("/bin/sh", "-c", "seq 600000", journal=MIB)
    await room.keeper.spawn(spawned)
    status, out, _ = await room.run("/bin/sh", "-c", "seq 600000", journal=MIB)
    stream = await room.keeper.start(spec("/bin/sh", "-c", "seq 600000", journal=MIB))
    total = 0
    async for _, piece in stream:
        total += len(piece)
        await room.keeper.hello()  # it is slow, so that the files are read by name too
    assert (status.exit_code, stream.exit.exit_code) == (0, 0)
    size = len(numbers(600_000))
    assert total + stream.missing == size
    assert len(out) <= size
    process = await ended(room, spawned.id)
    assert (process.exit_code, process.offset) == (0, size)
    data, missing = await read(await room.keeper.output(spawned.id))
    assert missing + len(data) == size
    await room.keeper.signal(vandal.id, "KILL")
    assert (await room.keeper.hello()).build == build_id()
    assert await (await room.keeper.files.read("/etc/passwd")).read(MIB) == passwd
    entries = (await room.keeper.files.list("/etc")).entries
    assert [entry.name for entry in entries if entry.name.startswith("p-")] == []


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
async def test_hot_journals_damaged_by_root_are_harmless(room: Room, ruin: str) -> None:
    """Those of programs that print much are mapped: a file that is cut short must not be a SIGBUS for PID 1."""
    size = 100_000_000
    line = f"touch /tmp/on; while [ -e /tmp/on ]; do {ruin}; done 2>/dev/null"
    vandal = await room.keeper.spawn(spec(line))
    noisy = f"head -c {size} /dev/zero"
    spawned = spec("/bin/sh", "-c", noisy, journal=16 * MIB)
    await room.keeper.spawn(spawned)
    follower = asyncio.create_task(read(await room.keeper.output(spawned.id, follow=True)))
    stream = await room.keeper.start(spec("/bin/sh", "-c", noisy, journal=16 * MIB))
    total = 0
    async for _, piece in stream:
        total += len(piece)
    assert (stream.exit.exit_code, total + stream.missing) == (0, size)
    process = await ended(room, spawned.id)
    assert (process.exit_code, process.offset) == (0, size)
    data, missing = await follower
    assert missing + len(data) == size
    await room.keeper.signal(vandal.id, "KILL")
    assert (await room.keeper.hello()).build == build_id()


async def test_hot_journal_works_on_a_disk_that_is_too_small(small: Room) -> None:
    size = 50_000_000
    line = f"head -c {size} /dev/zero; printf end"
    spawned = spec("/bin/sh", "-c", line)
    await small.keeper.spawn(spawned)
    stream = await small.keeper.start(spec("/bin/sh", "-c", line))
    data = bytearray()
    async for _, piece in stream:
        data += piece
    assert (stream.exit.exit_code, stream.missing, bytes(data[-5:])) == (0, 0, b"\0\0end")
    assert len(data) == size + 3
    process = await ended(small, spawned.id)
    assert (process.exit_code, process.offset) == (0, size + 3)
    rest, missing = await read(await small.keeper.output(spawned.id))
    assert missing + len(rest) == size + 3
    assert rest == b"" or rest.endswith(b"end")  # one that has ended makes room for the other, if need be all of it


async def test_deleted_journal_does_not_affect_its_reader(room: Room) -> None:
    """A following reader has the file open; and a run keeps the bytes that its reader has not reached."""
    stream = await room.keeper.start(spec("/bin/sh", "-c", "seq 600000; sleep 1000", journal=8 * MIB))
    first = await anext(stream)
    await wait_for_file(room, f"{DIR}/list")
    await room.run(f"rm -rf {DIR}")
    data, whole = bytearray(first[1]), numbers(600_000)
    while len(data) < len(whole):
        data += (await anext(stream))[1]
    assert bytes(data) == whole
    assert stream.missing == 0
    await stream.aclose()


async def test_no_open_file_is_left_behind(room: Room) -> None:
    async def count() -> int:
        return len(list(Path(f"/proc/{room.pid}/fd").iterdir()))

    await room.run("/bin/true")
    before = await count()
    for _ in range(10):
        command = spec("/bin/sh", "-c", "seq 100000", journal=256 * KIB)
        await room.keeper.spawn(command)
        streams = [await room.keeper.output(command.id, follow=True) for _ in range(3)]
        await anext(streams[0])
        await streams[0].aclose()
        await read(streams[1])
        await read(streams[2])
        await room.run("/bin/sh", "-c", "seq 100000", journal=256 * KIB)
        stream = await room.keeper.start(spec("/usr/bin/yes", journal=256 * KIB))
        await anext(stream)
        await stream.aclose()
    await room.keeper.close()
    await eventually(lambda: len(list(Path(f"/proc/{room.pid}/fd").iterdir())) <= before + 2)
