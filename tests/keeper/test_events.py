"""Starts and exits of processes as events of the keeper."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from keeper.test_protocol_errors import keeper_that, says, says_for_ever
from support.keeper import Room, spec

from skerry.errors import SandboxUnavailable
from skerry.keeper import EventStream, KeeperProtocolError, ProcessEvent

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def take(stream: EventStream, count: int) -> list[ProcessEvent]:
    async with asyncio.timeout(20):
        events = [await anext(stream) for _ in range(count)]
    return [event for event in events if isinstance(event, ProcessEvent)]


async def test_starts_and_exits_are_sent_as_they_happen(room: Room) -> None:
    stream = await room.keeper.events()
    assert (stream.hello.running, stream.hello.lost) == (0, False)
    command = spec("/bin/sh", "-c", "printf hello; exit 4")
    await room.keeper.spawn(command)
    began, ended = await take(stream, 2)
    assert (began.type, began.process.id, began.process.state) == ("process_started", command.id, "running")
    assert (ended.type, ended.process.id, ended.process.exit_code) == ("process_ended", command.id, 4)
    assert (ended.process.offset, ended.process.ended_at is not None) == (5, True)
    assert ended.seq == began.seq + 1
    await room.run("/bin/true")
    assert [event.type for event in await take(stream, 2)] == ["process_started", "process_ended"]
    await stream.aclose()


async def test_returning_subscriber_gets_missed_events(room: Room) -> None:
    first = await room.keeper.events()
    await first.aclose()
    sleeper = spec("/bin/sleep", "1000")
    await room.keeper.spawn(sleeper)
    for _ in range(3):
        await room.run("/bin/true")
    again = await room.keeper.events(first.seq)
    assert (again.hello.running, again.hello.seq, again.hello.lost) == (1, first.seq + 7, False)
    events = await take(again, 7)
    assert [event.seq for event in events] == list(range(first.seq + 1, first.seq + 8))
    assert [event.type for event in events].count("process_ended") == 3
    await again.aclose()


async def test_dropped_or_unknown_events_are_reported_as_lost(room: Room) -> None:
    stream = await room.keeper.events(1000)
    assert stream.hello.lost
    await room.run("/bin/true")
    assert [event.seq for event in await take(stream, 2)] == [stream.hello.seq + 1, stream.hello.seq + 2]
    await stream.aclose()
    for _ in range(11):
        await asyncio.gather(*(room.keeper.spawn(spec("/bin/nope")) for _ in range(50)))
    stream = await room.keeper.events(0)
    assert stream.hello.lost
    await stream.aclose()


async def test_slow_subscriber_is_notified_of_lost_events(room: Room) -> None:
    stream = await room.keeper.events()
    for _ in range(80):
        await asyncio.gather(*(room.keeper.spawn(spec("/bin/nope", "x" * 1000)) for _ in range(50)))
        for process in await room.keeper.processes():
            await room.keeper.remove(process.id)
    seq = stream.seq
    async with asyncio.timeout(20):
        while isinstance(event := await anext(stream), ProcessEvent):
            assert event.seq == (seq := seq + 1)
    assert event.lost
    assert event.seq == 8000
    await stream.aclose()


async def test_events_wait_for_the_configuration(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.open()
    try:
        with pytest.raises(SandboxUnavailable, match="config"):
            await room.keeper.events()
    finally:
        await room.keeper.close()
        room.close()


def lines(*texts: bytes) -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(text), text) for text in texts)


HELLO = b'{"seq":5,"type":"hello","running":0,"lost":false}\n'
PROCESS = (
    b'{"id":"p-x","argv":["true"],"shell":null,"pid":5,"user":"root","session":null,"detach":false,"pty":false,'
    b'"state":"running","started_at":1,"ended_at":null,"duration_s":0,"cpu_s":0,"max_rss":0,"exit_code":null,'
    b'"signal":null,"timed_out":false,"children":[],"kept_from":0,"offset":0}'
)
EVENT = b'{"seq":6,"at":1.5,"type":"process_started","process":' + PROCESS + b"}\n"


async def test_valid_events_are_accepted(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says(lines(HELLO, EVENT[:20], EVENT[20:]))) as keeper:
        stream = await keeper.events(5)
        assert [event.process.id for event in await take(stream, 1)] == ["p-x"]
        with pytest.raises(KeeperProtocolError):
            await anext(stream)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(HELLO), HELLO),
        lines(EVENT),
        lines(b"{}\n"),
        lines(HELLO.replace(b"5", b"-5")),
        lines(HELLO.replace(b"5", b"3")),
        lines(HELLO.replace(b'"running":0', b'"running":1000000')),
        lines(HELLO[:-1]) + b"0\r\n\r\n",
    ],
)
async def test_events_with_an_invalid_start_are_protocol_errors(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.events(5)


@pytest.mark.parametrize(
    "said",
    [
        HELLO,
        b"not json\n",
        EVENT.replace(b'"seq":6', b'"seq":5'),
        EVENT.replace(b'"seq":6', b'"seq":7'),
        EVENT.replace(b"process_started", b"process_ended"),
        EVENT.replace(b'"kept_from":0', b'"kept_from":1'),
        EVENT.replace(b'"exit_code":null', b'"exit_code":0'),
        EVENT.replace(b'"state":"running"', b'"state":"exited"'),
        EVENT.replace(b"process_started", b"sandbox_deleted"),
        b"x" * 100_000,
    ],
)
async def test_malformed_event_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(lines(HELLO, said))) as keeper:
        stream = await keeper.events(5)
        with pytest.raises(KeeperProtocolError):
            await anext(stream)


async def test_endless_line_is_a_protocol_error(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says_for_ever(lines(HELLO), b"1000\r\n" + b"x" * 4096 + b"\r\n")) as keeper:
        stream = await keeper.events(5)
        with pytest.raises(KeeperProtocolError):
            await anext(stream)
