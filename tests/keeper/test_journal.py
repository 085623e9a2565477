"""The journal: the output of a process from any byte on, with or without readers."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.keeper import Room, eventually, spec

from skerry.errors import Conflict, FileNotFound, InvalidRequest, NotFound
from skerry.keeper import JournalGap, Keeper, OutputStream, Process, build_id

COUNT = "i=0; while [ $i -lt {n} ]; do echo line $i; i=$((i+1)); done"


async def read(stream: OutputStream) -> tuple[bytes, int]:
    """The bytes of both streams, and how many were missing."""
    data, missing = bytearray(), 0
    async for piece in stream:
        if isinstance(piece, JournalGap):
            missing += piece.missing
        else:
            data += piece[1]
    return bytes(data), missing


async def ended(room: Room, process: str) -> Process:
    async with asyncio.timeout(30):
        await read(await room.keeper.output(process, -1, follow=True))
    return await room.keeper.process(process)


async def wait_for_file(room: Room, path: str) -> None:
    async def there() -> bool:
        try:
            return (await room.keeper.files.stat(path)).size > 0
        except FileNotFound:
            return False

    async with asyncio.timeout(60):
        while not await there():
            await asyncio.sleep(0.01)


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def test_spawn_returns_at_once_and_output_is_journalled(room: Room) -> None:
    command = spec("echo out; echo err >&2; exit 3", session="s1", show="shown")
    process = await room.keeper.spawn(command)
    assert (process.id, process.detach, process.shell, process.session) == (command.id, True, "shown", "s1")
    stream = await room.keeper.output(command.id, follow=True)
    pieces = [piece async for piece in stream]
    assert sorted(pieces, key=str) == [("stderr", b"err\n"), ("stdout", b"out\n")]
    assert (stream.ended, stream.exit.exit_code, stream.offset) == (True, 3, 8)
    process = await room.keeper.process(command.id)
    assert (process.state, process.exit_code, process.offset, process.kept_from) == ("exited", 3, 8, 0)
    assert process.ended_at is not None
    assert process.duration_s > 0
    assert process.max_rss > 0


async def test_output_of_a_run_is_journalled(room: Room) -> None:
    command = spec("echo out; echo err >&2")
    async for _ in await room.keeper.start(command):
        pass
    stream = await room.keeper.output(command.id)
    data, missing = await read(stream)
    assert (sorted(data.splitlines()), missing, stream.exit.exit_code) == ([b"err", b"out"], 0, 0)


async def test_reading_can_start_at_every_offset(room: Room) -> None:
    command = spec(COUNT.format(n=3000))
    await room.keeper.spawn(command)
    whole = "".join(f"line {n}\n" for n in range(3000)).encode()
    assert (await ended(room, command.id)).offset == len(whole)
    for since in (0, 1, 5, 6, 7, 4095, 4096, 4097, len(whole) // 2, len(whole) - 1, len(whole)):
        stream = await room.keeper.output(command.id, since)
        assert await read(stream) == (whole[since:], 0)
        assert stream.offset == len(whole)
    for since in (-1, -7, -4096, -len(whole), -len(whole) - 100, -(1 << 50)):
        assert await read(await room.keeper.output(command.id, since)) == (whole[since:], 0)
    with pytest.raises(InvalidRequest, match="bytes"):
        await room.keeper.output(command.id, len(whole) + 1)
    with pytest.raises(NotFound):
        await room.keeper.output("p-nothing", 0)


async def test_pages_follow_each_other_without_gap_or_overlap(room: Room) -> None:
    command = spec(COUNT.format(n=2000))
    await room.keeper.spawn(command)
    whole = "".join(f"line {n}\n" for n in range(2000)).encode()
    await ended(room, command.id)
    data, offset, more = b"", 0, True
    while more:
        stream = await room.keeper.output(command.id, offset, limit=997)
        page, missing = await read(stream)
        assert (len(page) <= 997, missing, stream.offset) == (True, 0, offset + len(page))
        data, offset, more = data + page, stream.offset, stream.more
    assert data == whole
    assert stream.ended


async def test_reader_without_follow_gets_the_existing_output(room: Room) -> None:
    command = spec("echo ready; sleep 1000")
    await room.keeper.spawn(command)
    follower = await room.keeper.output(command.id, follow=True)
    assert await anext(follower) == ("stdout", b"ready\n")
    for since, rest in ((0, b"ready\n"), (3, b"dy\n"), (6, b"")):
        stream = await room.keeper.output(command.id, since)
        assert await read(stream) == (rest, 0)
        assert (stream.ended, stream.more, stream.offset) == (False, False, 6)
    await follower.signal("KILL")
    assert [piece async for piece in follower] == []
    assert follower.exit.signal == "KILL"


async def test_oldest_output_beyond_the_bound_is_dropped_and_reported(room: Room) -> None:
    command = spec("/bin/sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; printf end", journal=1 << 20)
    await room.keeper.spawn(command)
    process = await ended(room, command.id)
    assert process.offset == 3_000_003
    assert 1 << 19 < process.offset - process.kept_from <= 1 << 20
    stream = await room.keeper.output(command.id, 5)
    data, missing = await read(stream)
    assert missing == process.kept_from - 5
    assert data == b"x" * (len(data) - 3) + b"end"
    assert stream.offset == 3_000_003


async def test_all_readers_get_correct_output_of_a_busy_program(room: Room) -> None:
    """Enough for its journal to be mapped and written over, several times."""
    line = "head -c 1000000 /dev/urandom > /tmp/m; for i in $(seq 120); do cat /tmp/m; done"
    command = spec("/bin/sh", "-c", line, journal=16 << 20)
    run = spec("/bin/sh", "-c", line.replace("/tmp/m", "/tmp/n"), journal=16 << 20)
    await room.keeper.spawn(command)
    followers = [await room.keeper.output(command.id, follow=True) for _ in range(2)]

    async def verify(pieces: AsyncIterator[object], path: str, slow: bool) -> int:
        at, held = 0, b""
        while not held:
            held = (
                await (await room.keeper.files.read(path)).read(2_000_000) if await exists(room, path, 10**6) else b""
            )
        async for piece in pieces:
            if isinstance(piece, JournalGap):
                at += piece.missing
                continue
            assert isinstance(piece, tuple)
            data = piece[1]
            start = at % 1_000_000
            assert (held * (2 + len(data) // 1_000_000))[start : start + len(data)] == data
            at += len(data)
            if slow:
                await room.keeper.hello()
        return at

    stream = await room.keeper.start(run)
    totals = await asyncio.gather(
        verify(followers[0], "/tmp/m", False), verify(followers[1], "/tmp/m", True), verify(stream, "/tmp/n", True)
    )
    assert totals == [120_000_000] * 3
    assert stream.missing == 0


async def exists(room: Room, path: str, size: int) -> bool:
    try:
        return (await room.keeper.files.stat(path)).size >= size
    except FileNotFound:
        return False


async def test_readers_at_different_offsets_get_complete_output(room: Room) -> None:
    command = spec("/bin/sh", "-c", "head -c 6000000 /dev/urandom | tee /tmp/copy")
    await room.keeper.spawn(command)
    streams = [await room.keeper.output(command.id, since, follow=True) for since in (0, 0)]
    results = await asyncio.gather(*(read(stream) for stream in streams))
    late = await read(await room.keeper.output(command.id, 1_234_567))
    whole = await (await room.keeper.files.read("/tmp/copy")).read(10 << 20)
    assert [hashlib.sha256(data).digest() for data, _ in results] == [hashlib.sha256(whole).digest()] * 2
    assert late == (whole[1_234_567:], 0)


async def test_disconnected_reader_continues_at_its_offset(room: Room) -> None:
    """As when a server is killed: its connections drop in the middle of anything, and the next one asks again."""
    command = spec("/bin/sh", "-c", "head -c 8000000 /dev/urandom | tee /tmp/copy")
    await room.keeper.spawn(command)
    data, offset = bytearray(), 0
    for _ in range(5):
        keeper = Keeper(room.connect, build_id())
        stream = await keeper.output(command.id, offset, follow=True)
        while len(data) < 8_000_000 and stream.offset - offset < 1_500_000:
            piece = await anext(stream)
            assert not isinstance(piece, JournalGap)
            data += piece[1]
        offset = stream.offset
        await stream.aclose()
        await keeper.close()
    rest, missing = await read(await room.keeper.output(command.id, offset, follow=True))
    assert missing == 0
    assert bytes(data + rest) == await (await room.keeper.files.read("/tmp/copy")).read(10 << 20)


async def test_disconnected_viewer_does_not_affect_the_process(room: Room) -> None:
    command = spec("/bin/sleep", "1000")
    await room.keeper.spawn(command)
    stream = await room.keeper.output(command.id, follow=True)
    await stream.aclose()
    for _ in range(20):
        assert (await room.keeper.process(command.id)).state == "running"


async def test_stalled_reader_slows_no_others(room: Room) -> None:
    command = spec("/bin/sh", "-c", "head -c 30000000 /dev/zero; echo done > /tmp/done", journal=2 << 20)
    await room.keeper.spawn(command)
    dead = await room.keeper.output(command.id, follow=True)
    await wait_for_file(room, "/tmp/done")
    data, missing = await read(dead)
    assert missing + len(data) == 30_000_000
    assert missing > 0


async def test_run_with_a_stalled_reader_keeps_all_bytes(room: Room) -> None:
    stream = await room.keeper.start(
        spec("/bin/sh", "-c", "head -c 5000000 /dev/urandom | tee /tmp/copy", journal=1 << 18)
    )
    data = bytearray()
    async for _, piece in stream:
        data += piece
        await room.keeper.hello()
    assert bytes(data) == await (await room.keeper.files.read("/tmp/copy")).read(10 << 20)
    assert stream.missing == 0


async def test_exec_failure_is_in_the_journal(room: Room) -> None:
    process = await room.keeper.spawn(spec("/bin/nope"))
    assert (process.state, process.exit_code, process.pid) == ("exited", 127, 0)
    assert (await read(await room.keeper.output(process.id)))[0] == b"/bin/nope: command not found\n"


async def test_stdin_is_streamed_and_closed(room: Room) -> None:
    command = spec("/bin/cat", stdin="pipe", journal=16 << 20)
    await room.keeper.spawn(command)
    data = os.urandom(3 << 20)
    reader = asyncio.create_task(read(await room.keeper.output(command.id, follow=True)))
    await room.keeper.stdin(command.id, chunks(data[: 1 << 20], data[1 << 20 :]))
    await room.keeper.stdin(command.id, chunks(b"end"), close=True)
    assert await reader == (data + b"end", 0)
    with pytest.raises(Conflict, match="ended"):
        await room.keeper.stdin(command.id, chunks(b"more"))


async def test_viewer_can_write_to_stdin(room: Room) -> None:
    command = spec("/bin/cat", stdin="pipe")
    await room.keeper.spawn(command)
    viewers = [await room.keeper.output(command.id, follow=True) for _ in range(2)]
    await viewers[0].send_stdin(b"one\n")
    for viewer in viewers:
        assert await anext(viewer) == ("stdout", b"one\n")
    await viewers[1].close_stdin()
    for viewer in viewers:
        assert [piece async for piece in viewer] == []
        assert viewer.exit.exit_code == 0


async def test_write_to_a_closed_or_missing_stdin_is_rejected(room: Room) -> None:
    without = spec("/bin/sleep", "1000")
    deaf = spec("exec <&-; sleep 1000", stdin="pipe")
    closed = spec("/bin/sleep", "1000", stdin="pipe")
    for command in (without, deaf, closed):
        await room.keeper.spawn(command)
    await room.keeper.stdin(closed.id, chunks(), close=True)
    with pytest.raises(Conflict, match="stdin"):
        await room.keeper.stdin(without.id, chunks(b"x"))
    with pytest.raises(Conflict, match="stdin"):
        await room.keeper.stdin(closed.id, chunks(b"x"))

    async def until_it_is_closed() -> None:
        while True:
            await room.keeper.stdin(deaf.id, chunks(b"x"))

    with pytest.raises(Conflict, match="stdin"):
        await asyncio.wait_for(until_it_is_closed(), 10)


async def test_exit_ends_a_blocked_write_to_stdin(room: Room) -> None:
    command = spec("/bin/sleep", "1000", stdin="pipe")
    await room.keeper.spawn(command)
    writing = asyncio.create_task(room.keeper.stdin(command.id, chunks(b"x" * (8 << 20))))
    await asyncio.sleep(0)
    await room.keeper.signal(command.id, "KILL")
    async with asyncio.timeout(10):
        with pytest.raises(Conflict, match="ended"):
            await writing


async def test_removed_process_has_no_files(room: Room) -> None:
    command = spec("/bin/sh", "-c", "head -c 100000 /dev/zero")
    await room.keeper.spawn(command)
    await ended(room, command.id)

    async def names() -> list[str]:
        return [entry.name for entry in (await room.keeper.files.list("/var/lib/skerry/processes")).entries]

    assert f"{command.id}.{0:016x}" in await names()
    await room.keeper.remove(command.id)
    assert f"{command.id}.{0:016x}" not in await names()


async def test_silent_command_has_no_journal_file(room: Room) -> None:
    for _ in range(20):
        await room.run("/bin/true")
    await wait_for_file(room, "/var/lib/skerry/processes/list")
    names = [entry.name for entry in (await room.keeper.files.list("/var/lib/skerry/processes")).entries]
    assert names == ["list"]


async def test_invalid_output_requests_are_rejected(room: Room) -> None:
    command = spec("/bin/true")
    await room.keeper.spawn(command)
    for since, limit in ((1 << 60, None), (0, 0), (0, -1)):
        with pytest.raises(InvalidRequest):
            await room.keeper.output(command.id, since, limit=limit)
    with pytest.raises(InvalidRequest, match="journal"):
        await room.keeper.spawn(spec("/bin/true", journal=-1))
    with pytest.raises(InvalidRequest, match="detach"):
        await room.keeper.start(spec("/bin/true", detach=True))


def own_memory(pid: int) -> int:
    """Private memory only: a mapped journal belongs to the disk."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) << 10


@pytest.mark.parametrize("bound", [4 << 20, 64 << 20])
async def test_unread_output_uses_no_memory(room: Room, bound: int) -> None:
    """`yes`, until a gigabyte has gone by."""
    command = spec("/usr/bin/yes", journal=bound)
    await room.keeper.spawn(command)
    before = own_memory(room.pid), own_memory(os.getpid())
    process = await room.keeper.process(command.id)
    async with asyncio.timeout(100):
        while process.offset < 1 << 30:
            await asyncio.sleep(0.05)
            process = await room.keeper.process(command.id)
    assert bound // 2 < process.offset - process.kept_from <= bound
    assert own_memory(room.pid) - before[0] < 8 << 20
    assert own_memory(os.getpid()) - before[1] < 8 << 20
    maps = Path(f"/proc/{room.pid}/maps")
    assert (command.id in maps.read_text()) == (bound == 64 << 20)
    await room.keeper.signal(command.id, "KILL")
    await eventually(lambda: command.id not in maps.read_text())
