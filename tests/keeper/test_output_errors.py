"""Keepers that lie about a process's output."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from keeper.test_protocol_errors import MEBIBYTE, UPGRADED, Writer, exits, keeper_that, resident, says, says_for_ever

from skerry.keeper import JournalGap, Keeper, KeeperProtocolError, KeeperTimeout

GOOD_EXIT = exits(b'{"exit_code":0,"signal":null,"timed_out":false,"duration_s":0.1,"cpu_s":0,"max_rss":0,"left":[]}')


def frame(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(4, "big") + body


def opened(offset: int) -> bytes:
    return frame(4, b'{"pid":5,"offset":%d}' % offset)


def gap(missing: object) -> bytes:
    return frame(5, b'{"missing":%b}' % str(missing).encode())


def pause(offset: object, more: bytes = b"false") -> bytes:
    return frame(6, b'{"offset":%b,"more":%b}' % (str(offset).encode(), more))


DATA = frame(1, b"hello")


async def drain(keeper: Keeper, *, follow: bool, limit: int | None = None) -> None:
    async for _ in await keeper.output("p-x", 10, follow, limit):
        pass


async def test_valid_output_is_accepted(tmp_path: Path) -> None:
    said = [UPGRADED, opened(10), DATA, gap(7), frame(2, b"!"), pause(23)]
    async with keeper_that(tmp_path, says(*said)) as keeper:
        stream = await keeper.output("p-x", 10)
        pieces = [piece async for piece in stream]
        assert pieces == [("stdout", b"hello"), JournalGap(missing=7), ("stderr", b"!")]
        assert (stream.offset, stream.ended, stream.more, stream.pid) == (23, False, False, 5)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        opened(11),
        opened(-1),
        frame(4, b'{"pid":5}'),
        frame(4, b'{"pid":5,"offset":10,"path":"/"}'),
        frame(4, b'{"pid":5,"offset":1e300}'),
        DATA,
        gap(1),
        pause(10),
        GOOD_EXIT,
    ],
)
async def test_output_with_an_invalid_start_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.output("p-x", 10)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        opened(10),
        gap(0),
        gap(-5),
        gap(1.5),
        gap(1 << 60),
        gap((1 << 53) - 5) + gap(6),
        DATA + pause(10),
        DATA + pause(16),
        pause(10, b"true"),
        pause(10, b"1"),
        frame(6, b"{}"),
        frame(1, b""),
        frame(7, b"x"),
        frame(13, b"x"),
        frame(1, MEBIBYTE + b"x"),
        exits(b"{}"),
        DATA[:7],
    ],
)
async def test_malformed_output_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, opened(10), said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await drain(keeper, follow=False)


async def test_pause_while_following_is_a_protocol_error(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, opened(10), DATA, pause(15))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await drain(keeper, follow=True)


@pytest.mark.parametrize("said", [DATA + frame(1, b"x"), frame(1, b"123456"), frame(1, b"1234") + pause(14, b"true")])
async def test_output_of_a_wrong_length_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, opened(10), said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await drain(keeper, follow=True, limit=5)


async def test_silence_is_allowed_only_while_following(tmp_path: Path) -> None:
    async def lie(writer: Writer) -> None:
        await says(UPGRADED, opened(10), DATA)(writer)
        await asyncio.sleep(30)

    async with keeper_that(tmp_path, lie, timeout=0.3) as keeper:
        with pytest.raises(KeeperTimeout):
            await drain(keeper, follow=False)
        stream = await keeper.output("p-x", 10, follow=True)
        assert await anext(stream) == ("stdout", b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.6)


async def test_endless_output_waits_for_its_reader(tmp_path: Path) -> None:
    before = resident()
    async with keeper_that(tmp_path, says_for_ever(UPGRADED + opened(10), frame(1, MEBIBYTE))) as keeper:
        stream = await keeper.output("p-x", 10, follow=True)
        total = 0
        while total < 50 << 20:
            piece = await anext(stream)
            assert isinstance(piece, tuple)
            total += len(piece[1])
            await asyncio.sleep(0.001)
        assert stream.offset == 10 + total
        await stream.aclose()
    assert resident() - before < 48 << 20
