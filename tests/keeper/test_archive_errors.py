"""Keepers that lie about archives and changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from keeper.test_protocol_errors import (
    MEBIBYTE,
    UPGRADED,
    answer,
    keeper_that,
    resident,
    says,
    says_for_ever,
    says_nothing,
)

from skerry.errors import FileError
from skerry.keeper import KeeperProtocolError, KeeperTimeout

COUNTS = {"files": 1, "directories": 0, "links": 0, "bytes": 5, "skipped": [], "more": 0}
BEGUN = UPGRADED + b"\x04\x00\x00\x00\x02{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = {"type": "hello", "watcher": "0123456789abcdef", "seq": 7, "lost": False}
CHANGE = {"seq": 8, "type": "created", "path": "a", "to": None, "directory": False}


def frame(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + len(payload).to_bytes(4) + payload


def end(**more: object) -> bytes:
    return frame(3, json.dumps(COUNTS | {"error": None} | more).encode())


def lines(*values: object) -> bytes:
    text = b"".join((value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n" for value in values)
    return CHUNKED + b"%x\r\n%b\r\n" % (len(text), text)


async def test_valid_archive_is_accepted(tmp_path: Path) -> None:
    wire = BEGUN + frame(1, b"archi") + frame(4, b"{}") + frame(1, b"ve") + end()
    async with keeper_that(tmp_path, says(wire)) as keeper:
        archive = await keeper.files.pack("/x")
        assert b"".join([piece async for piece in archive]) == b"archive"
        assert archive.moved is not None
        assert archive.moved.files == 1


@pytest.mark.parametrize(
    "wire",
    [
        UPGRADED + frame(1, b"x"),
        UPGRADED + frame(3, b"{}"),
        BEGUN + frame(2, b"x"),
        BEGUN + frame(9, b"x"),
        BEGUN + frame(1, b""),
        BEGUN + b"\x01\x7f\xff\xff\xff",
        BEGUN + frame(3, b"{}"),
        BEGUN + frame(3, b"nonsense"),
        BEGUN + end(files=-1),
        BEGUN + end(bytes=1 << 70),
        BEGUN + end(skipped=[{"path": "x", "reason": "y"}] * 1001),
        BEGUN + end(skipped=[{"path": "x" * 9000, "reason": "y"}]),
        BEGUN + end(extra=1),
        BEGUN + frame(1, b"half")[:-1],
        BEGUN,
        answer(b"{}"),
        answer(b"{}", b"302 Found"),
    ],
)
async def test_invalid_archive_is_a_protocol_error(tmp_path: Path, wire: bytes) -> None:
    async with keeper_that(tmp_path, says(wire)) as keeper:
        with pytest.raises(KeeperProtocolError):
            async for _ in await keeper.files.pack("/x"):
                pass


async def test_failed_archive_is_not_a_protocol_error(tmp_path: Path) -> None:
    error = {"code": "errno", "message": "/x/log: it became shorter", "errno": 5, "path": "/x/log"}
    async with keeper_that(tmp_path, says(BEGUN + frame(1, b"x") + end(error=error))) as keeper:
        with pytest.raises(FileError, match="shorter"):
            async for _ in await keeper.files.pack("/x"):
                pass


async def test_keeper_that_stalls_in_an_archive_is_silent(tmp_path: Path) -> None:
    async def stops(writer: asyncio.StreamWriter) -> None:
        writer.write(BEGUN + frame(1, b"x"))
        await says_nothing(writer)

    async with keeper_that(tmp_path, stops, timeout=0.3) as keeper:
        with pytest.raises(KeeperTimeout):
            async for _ in await keeper.files.pack("/x"):
                pass
    (tmp_path / "k").unlink()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield MEBIBYTE

    before = resident()
    async with keeper_that(tmp_path, says_nothing, timeout=0.3) as keeper:
        with pytest.raises(KeeperTimeout):
            await keeper.files.unpack("/x", endless())
    assert resident() - before < 48 << 20


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"files":1}', json.dumps(COUNTS | {"files": "1"}).encode()])
async def test_response_to_an_upload_is_checked(tmp_path: Path, body: bytes) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b"x"

    async with keeper_that(tmp_path, says(answer(body))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.unpack("/x", nothing())


async def test_valid_changes_are_accepted(tmp_path: Path) -> None:
    gone = {"seq": 9, "type": "removed", "path": "", "to": None, "directory": True}
    async with keeper_that(tmp_path, says(lines(HELLO, CHANGE, gone), b"0\r\n\r\n")) as keeper:
        changes = await keeper.files.watch("/x")
        assert changes.token == "0123456789abcdef.7"
        assert [(event.type, event.path) async for event in changes] == [("created", "/x/a"), ("removed", "/x")]


@pytest.mark.parametrize(
    "said",
    [
        [CHANGE],
        [HELLO | {"watcher": "../../etc"}],
        [HELLO | {"seq": -1}],
        [HELLO, HELLO],
        [HELLO, HELLO | {"seq": 9}],
        [HELLO, HELLO | {"seq": 9, "lost": True, "watcher": "f" * 16}],
        [HELLO, CHANGE | {"seq": 9}],
        [HELLO, CHANGE, CHANGE],
        [HELLO, CHANGE | {"path": "../x"}],
        [HELLO, CHANGE | {"path": "/x"}],
        [HELLO, CHANGE | {"path": "a/../b"}],
        [HELLO, CHANGE | {"path": "a\0b"}],
        [HELLO, CHANGE | {"path": ""}],
        [HELLO, CHANGE | {"raw": "Li4="}],
        [HELLO, CHANGE | {"raw": "not base64"}],
        [HELLO, CHANGE | {"type": "moved"}],
        [HELLO, CHANGE | {"to": "b"}],
        [HELLO, CHANGE | {"type": "moved", "to": "../b"}],
        [HELLO, CHANGE | {"type": "exploded"}],
        [HELLO, CHANGE | {"extra": 1}],
        [HELLO, CHANGE | {"path": "x" * (200 << 10)}],
        [HELLO, CHANGE],
        [HELLO],
        [HELLO, b"nonsense"],
        [HELLO, b"[" * 100_000],
    ],
)
async def test_invalid_changes_are_protocol_errors(tmp_path: Path, said: list[object]) -> None:
    async with keeper_that(tmp_path, says(lines(*said), b"0\r\n\r\n")) as keeper:
        with pytest.raises(KeeperProtocolError):
            async for _ in await keeper.files.watch("/x"):
                pass


async def test_truncated_or_endless_changes_are_protocol_errors(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says(lines(HELLO, CHANGE))) as keeper:
        changes = await keeper.files.watch("/x")
        await anext(changes)
        with pytest.raises(KeeperProtocolError):
            await anext(changes)
    (tmp_path / "k").unlink()
    before = resident()
    async with keeper_that(tmp_path, says_for_ever(lines(HELLO), b"100000\r\n" + MEBIBYTE + b"\r\n")) as keeper:
        changes = await keeper.files.watch("/x")
        with pytest.raises(KeeperProtocolError, match="without end"):
            await anext(changes)
    (tmp_path / "k").unlink()
    async with keeper_that(tmp_path, says_nothing, timeout=0.3) as keeper:
        with pytest.raises(KeeperTimeout):
            await keeper.files.watch("/x")
    assert resident() - before < 48 << 20
