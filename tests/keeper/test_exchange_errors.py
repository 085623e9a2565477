"""Keepers that send invalid exchanges or lists of changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from keeper.test_output_errors import GOOD_EXIT, frame, gap, pause
from keeper.test_protocol_errors import MEBIBYTE, UPGRADED, Lie, Writer, keeper_that, resident, says, says_for_ever

from skerry.errors import Conflict
from skerry.keeper import Exchange, ExchangeUsage, Keeper, KeeperProtocolError

MIB = 1 << 20
BEGUN = frame(4, b'{"pid":5,"cgroup":7,"offset":10,"clock":1763251200000000000}')
TURNED = frame(8, b'{"cpu_s":0.5,"max_rss":4096,"duration_s":1.5}')
SHUT = frame(9, b"{}")
DATA = frame(7, b"hello")


def says_until_over(*parts: bytes, then: bytes = b"") -> Lie:
    """Serve one exchange; `then` is sent after the host has ended it, or could have."""

    async def lie(writer: Writer) -> None:
        await says(UPGRADED, BEGUN, *parts)(writer)
        await asyncio.sleep(0.1)
        await says(then)(writer)
        await asyncio.sleep(5)

    return lie


async def drain(keeper: Keeper) -> Exchange:
    turn = await keeper.exchange("p-x", b"code")
    while not turn.ended:
        async for _ in turn:
            pass
    return turn


async def test_valid_exchange_is_accepted(tmp_path: Path) -> None:
    said = [DATA, frame(1, b"out"), frame(2, b"err"), gap(7), SHUT, frame(1, b"more")]
    async with keeper_that(tmp_path, says_until_over(*said, then=TURNED)) as keeper:
        turn = await keeper.exchange("p-x", b"code")
        assert (turn.pid, turn.cgroup, turn.offset, turn.clock) == (5, 7, 10, 1763251200000000000)
        assert [piece async for piece in turn] == [("channel", b"hello"), ("stdout", b"out"), ("stderr", b"err")]
        assert (turn.offset, turn.missing, turn.shut, turn.ended) == (28, 7, True, False)
        assert await anext(turn) == ("stdout", b"more")
        assert await turn.finish() == ExchangeUsage(cpu_s=0.5, max_rss=4096, duration_s=1.5)
        assert turn.exit is None


@pytest.mark.parametrize(
    "said",
    [
        b"",
        DATA,
        TURNED,
        SHUT,
        GOOD_EXIT,
        frame(4, b'{"pid":5}'),
        frame(4, b'{"pid":5,"cgroup":7,"offset":10}'),
        frame(4, b'{"pid":5,"cgroup":7,"offset":-1,"clock":1}'),
        frame(4, b'{"pid":5,"cgroup":7,"offset":10,"clock":-1}'),
        frame(4, b'{"pid":5,"cgroup":7,"offset":10,"clock":9223372036854775808}'),
        frame(4, b'{"pid":5,"cgroup":7,"offset":10,"clock":1,"path":"/"}'),
        frame(4, b'{"pid":99999999,"cgroup":7,"offset":10,"clock":1}'),
        frame(4, b"[" * 100_000),
    ],
)
async def test_exchange_with_an_invalid_start_is_rejected(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.exchange("p-x")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        BEGUN,
        TURNED,
        SHUT + SHUT,
        frame(9, b"[]"),
        frame(9, b'{"why":1}'),
        frame(9, b""),
        pause(15),
        gap(0),
        gap(-1),
        gap(1 << 60),
        gap((1 << 53) - 9) + DATA,
        frame(7, b""),
        frame(7, MEBIBYTE + b"x"),
        frame(10, b"x"),
        frame(14, b"x"),
        frame(0, b"x"),
        frame(3, b"{}"),
        DATA[:7],
    ],
)
async def test_malformed_exchange_is_rejected(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, BEGUN, said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await drain(keeper)


@pytest.mark.parametrize(
    "usage",
    [
        b"{}",
        b'{"cpu_s":-1,"max_rss":0,"duration_s":0}',
        b'{"cpu_s":1e300,"max_rss":0,"duration_s":0}',
        b'{"cpu_s":0,"max_rss":-1,"duration_s":0}',
        b'{"cpu_s":0,"max_rss":9007199254740992,"duration_s":0}',
        b'{"cpu_s":0,"max_rss":0,"duration_s":"1"}',
        b'{"cpu_s":0,"max_rss":0,"duration_s":0,"exit_code":0}',
    ],
)
async def test_exchange_with_impossible_usage_is_rejected(tmp_path: Path, usage: bytes) -> None:
    async with keeper_that(tmp_path, says_until_over(DATA, then=frame(8, usage))) as keeper:
        turn = await keeper.exchange("p-x")
        with pytest.raises(KeeperProtocolError):
            await turn.finish()


async def test_connection_with_bytes_after_an_exchange_is_not_reused(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says_until_over(then=TURNED + b"HTTP/1.1 200 OK\r\n\r\n")) as keeper:
        for _ in range(2):
            turn = await keeper.exchange("p-x")
            assert (await turn.finish()).max_rss == 4096


async def test_keeper_that_does_not_end_an_exchange_delays_its_caller_little(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says_until_over(DATA), timeout=0.3) as keeper:
        turn = await keeper.exchange("p-x")
        with pytest.raises(Conflict):
            await turn.finish()
        with pytest.raises(Conflict):
            await turn.finish()
        assert [piece async for piece in turn] == []


async def test_endless_exchange_waits_for_its_reader_and_ends_on_request(tmp_path: Path) -> None:
    before = resident()
    async with keeper_that(tmp_path, says_for_ever(UPGRADED + BEGUN, frame(7, MEBIBYTE))) as keeper:
        keeper._kept = MIB
        turn = await keeper.exchange("p-x")
        while turn.offset < 30 * MIB:
            await anext(turn)
        with pytest.raises(KeeperProtocolError, match="did not end"):
            await turn.finish()
    assert resident() - before < 32 * MIB


async def test_many_tiny_frames_after_the_end_are_rejected(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says_for_ever(UPGRADED + BEGUN, frame(1, b"x") * 10_000)) as keeper:
        keeper._kept = MIB
        turn = await keeper.exchange("p-x")
        with pytest.raises(KeeperProtocolError, match="did not end"):
            await turn.finish()


def entry(**change: object) -> dict[str, object]:
    usual = {"name": "a", "path": "d/a", "type": "file", "size": 1, "mode": 420, "uid": 0, "gid": 0, "mtime": 1.0}
    return {**usual, "target": None, **change}


def answer(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_valid_list_of_changes_is_accepted(tmp_path: Path) -> None:
    said = answer({"entries": [entry(), entry(name="b", path="b")], "more": True, "skipped": 1})
    async with keeper_that(tmp_path, says(said)) as keeper:
        found = await keeper.files.changed("/w", 5, limit=2)
        assert ([one.path for one in found.entries], found.more, found.skipped) == (["/w/d/a", "/w/b"], True, 1)


@pytest.mark.parametrize(
    "value",
    [
        {"entries": [entry()] * 3, "more": False, "skipped": 0},
        {"entries": [entry(type="link", target="/etc/shadow")], "more": False, "skipped": 0},
        {"entries": [entry(type="directory")], "more": False, "skipped": 0},
        {"entries": [entry(path="../a")], "more": False, "skipped": 0},
        {"entries": [entry(path="/a")], "more": False, "skipped": 0},
        {"entries": [entry(path="d//a")], "more": False, "skipped": 0},
        {"entries": [entry(path="d/a\0")], "more": False, "skipped": 0},
        {"entries": [entry(size=-1)], "more": False, "skipped": 0},
        {"entries": [entry(host="x")], "more": False, "skipped": 0},
        {"entries": [], "skipped": 0},
        {"entries": {}, "more": False},
    ],
)
async def test_invalid_list_of_changes_is_rejected(tmp_path: Path, value: object) -> None:
    async with keeper_that(tmp_path, says(answer(value))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.changed("/w", 5, limit=2)
