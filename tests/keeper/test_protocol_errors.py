"""Keepers that lie. Root inside may replace ours in memory, so everything that can be said wrongly is said here."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.keeper import spec

from skerry.errors import Conflict, InvalidRequest, QuotaExceeded, SandboxUnavailable
from skerry.keeper import Keeper, KeeperProtocolError, KeeperTimeout
from skerry.types import SearchRequest

Writer = asyncio.StreamWriter
Lie = Callable[[Writer], Awaitable[None]]
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: skerry-frames\r\n\r\n"
STARTED = b'\x04\x00\x00\x00\x09{"pid":5}'
MEBIBYTE = b"x" * (1 << 20)


@asynccontextmanager
async def keeper_that(tmp_path: Path, lie: Lie, timeout: float = 5.0) -> AsyncIterator[Keeper]:
    path = str(tmp_path / "k")

    async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await lie(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def connect() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        await asyncio.get_running_loop().sock_connect(sock, path)
        return sock

    server = await asyncio.start_unix_server(serve, path)
    keeper = Keeper(connect, None, timeout=timeout)
    try:
        yield keeper
    finally:
        await keeper.close()
        server.close()


def says(*parts: bytes) -> Lie:
    async def lie(writer: Writer) -> None:
        for part in parts:
            writer.write(part)
        await writer.drain()

    return lie


def says_for_ever(first: bytes, again: bytes) -> Lie:
    async def lie(writer: Writer) -> None:
        writer.write(first)
        while True:
            writer.write(again)
            await writer.drain()

    return lie


def says_slowly(data: bytes) -> Lie:
    async def lie(writer: Writer) -> None:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)

    return lie


async def says_nothing(writer: Writer) -> None:
    await asyncio.sleep(30)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


GOOD = b'{"build":"b","protocol":1,"uptime_s":1.0,"processes":0}'


async def test_valid_responses_are_accepted(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says(answer(GOOD))) as keeper:
        assert (await keeper.hello()).build == "b"


@pytest.mark.parametrize(
    "lie",
    [
        says_for_ever(b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 100 + b"\r\n"),
        says_for_ever(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 4096),
        says_for_ever(b"", MEBIBYTE),
        says_for_ever(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + MEBIBYTE + b"\r\n"),
        says_for_ever(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n", MEBIBYTE),
        says_for_ever(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"ffffffff\r\n" + MEBIBYTE),
    ],
    ids=["headers", "one header", "no http", "chunks", "length", "one chunk"],
)
async def test_endless_response_is_rejected_in_constant_memory(tmp_path: Path, lie: Lie) -> None:
    before = resident()
    async with keeper_that(tmp_path, lie) as keeper:
        for _ in range(5):
            with pytest.raises(KeeperProtocolError):
                await keeper.hello()
    assert resident() - before < 32 << 20


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 999 What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 O",
        b"",
        answer(b"{}"),
        answer(b"[]"),
        answer(b"not json"),
        answer(b"[" * 500_000),
        answer(b'{"build":1,"protocol":1}'),
        answer(b'{"build":"b","protocol":2}'),
        answer(b'{"build":"b","protocol":1,"path":"/etc"}'),
        answer(b'{"build":"b","protocol":1,"processes":-1}'),
        answer(b'{"build":"b","protocol":1,"uptime_s":1e999}'),
        answer(b"\xff\xfe{}"),
        answer(b"{}", b"400 Bad Request"),
        answer(b'{"error":{"code":"../../etc","message":"m"}}', b"400 Bad Request"),
        UPGRADED,
    ],
)
async def test_malformed_response_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.hello()


async def test_unknown_error_kind_fails_the_sandbox(tmp_path: Path) -> None:
    said = answer(b'{"error":{"code":"strange","message":"m"}}', b"500 Internal Server Error")
    async with keeper_that(tmp_path, says(said)) as keeper:
        with pytest.raises(SandboxUnavailable):
            await keeper.hello()


@pytest.mark.parametrize("lie", [says_nothing, says_slowly(answer(GOOD))], ids=["silence", "slow loris"])
async def test_silence_ends_every_call_in_time(tmp_path: Path, lie: Lie) -> None:
    async with keeper_that(tmp_path, lie, timeout=0.3) as keeper:
        for call in (
            keeper.hello,
            lambda: keeper.start(spec("/bin/true")),
            lambda: keeper.files.read("/x"),
            keeper.processes,
        ):
            with pytest.raises(KeeperTimeout):
                await call()


async def test_missing_keeper_is_silent(tmp_path: Path) -> None:
    async def connect() -> socket.socket:
        raise ConnectionRefusedError

    with pytest.raises(KeeperTimeout):
        await Keeper(connect, None).hello()


async def test_descriptor_shortage_of_the_host_does_not_fail_the_sandbox() -> None:
    async def connect() -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(QuotaExceeded):
        await Keeper(connect, None).hello()


def exits(body: bytes) -> bytes:
    return b"\x03" + len(body).to_bytes(4, "big") + body


STATUS = (
    b'{"exit_code":%b,"signal":%b,"timed_out":false,"duration_s":0.1,"cpu_s":0,"max_rss":0,"left":%b}'  # the true shape
)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        STARTED[:7],
        b"\x01\x00\x00\x00\x01x",
        exits(STATUS % (b"0", b"null", b"[]")),
        b"\x04\x00\x00\x00\x02[]",
        b'\x04\x00\x00\x00\x0b{"pid":-15}',
        b"\x63\x00\x00\x00\x01x",
        b"\x04\xff\xff\xff\xff",
    ],
)
async def test_invalid_start_of_a_process_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, said)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.start(spec("/bin/true"))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x01\x00\x00\x00\x05ab",
        b"\x01\x00\x00\x00\x00",
        b"\x01\x00\x10\x00\x01",
        b"\x02\xff\xff\xff\xff",
        b"\x00\x00\x00\x00\x01x",
        b"\x05\x00\x00\x00\x01x",
        b'\x05\x00\x00\x00\x0d{"missing":0}',
        b'\x06\x00\x00\x00\x19{"offset":0,"more":false}',
        b"\x07\x00\x00\x00\x01x",
        b"\x0a\x00\x00\x00\x01x",
        STARTED,
        exits(b"{}"),
        exits(b"null"),
        exits(STATUS % (b"null", b"null", b"[]")),
        exits(STATUS % (b"0", b'"KILL"', b"[]")),
        exits(STATUS % (b"256", b"null", b"[]")),
        exits(STATUS % (b"-1", b"null", b"[]")),
        exits(STATUS % (b"0.5", b"null", b"[]")),
        exits(STATUS % (b"null", b'"rm -rf"', b"[]")),
        exits(STATUS % (b"0", b"null", b"[-1]")),
        exits(STATUS % (b"0", b"null", b"[" + b"1," * 2000 + b"1]")),
        exits(STATUS % (b"0", b"null", b'["../etc"]')),
    ],
)
async def test_malformed_frame_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(UPGRADED, STARTED, said)) as keeper:
        stream = await keeper.start(spec("/bin/true"))
        with pytest.raises(KeeperProtocolError):
            async for _ in stream:
                pass


async def test_endless_output_waits_for_its_reader(tmp_path: Path) -> None:
    frame = b"\x01\x00\x10\x00\x00" + MEBIBYTE
    before = resident()
    async with keeper_that(tmp_path, says_for_ever(UPGRADED + STARTED, frame)) as keeper:
        stream = await keeper.start(spec("/bin/true"))
        total = 0
        while total < 50 << 20:
            total += len((await anext(stream))[1])
            await asyncio.sleep(0.001)
        await stream.aclose()
    assert resident() - before < 48 << 20


async def test_keeper_that_ignores_a_command_timeout_is_silent(tmp_path: Path) -> None:
    async def lie(writer: Writer) -> None:
        await says(UPGRADED, STARTED)(writer)
        await asyncio.sleep(30)

    async with keeper_that(tmp_path, lie, timeout=0.2) as keeper:
        stream = await keeper.start(spec("/bin/true", timeout_s=0.1))
        with pytest.raises(KeeperTimeout):
            async for _ in stream:
                pass


async def test_file_longer_than_requested_is_a_protocol_error(tmp_path: Path) -> None:
    head = b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-9/100\r\n\r\n"
    async with keeper_that(tmp_path, says(head, b"b\r\nhello world\r\n0\r\n\r\n")) as keeper:
        content = await keeper.files.read("/x", 0, 10)
        with pytest.raises(KeeperProtocolError):
            await content.read(1000)


async def test_truncated_file_is_silence_or_a_protocol_error(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nSkerry-Size: 100\r\n\r\n5\r\nhello\r\n"

    async def stops(writer: Writer) -> None:
        await says(head)(writer)
        await asyncio.sleep(30)

    async with keeper_that(tmp_path, stops, timeout=0.3) as keeper:
        with pytest.raises(KeeperTimeout):
            await (await keeper.files.read("/x")).read(1000)
    (tmp_path / "k").unlink()
    async with keeper_that(tmp_path, says(head)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await (await keeper.files.read("/x")).read(1000)
    (tmp_path / "k").unlink()
    async with keeper_that(tmp_path, says(head.replace(b"Skerry-Size: 100\r\n", b""))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.read("/x")


async def test_unread_upload_times_out(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield MEBIBYTE

    before = resident()
    async with keeper_that(tmp_path, says_nothing, timeout=0.3) as keeper:
        with pytest.raises(KeeperTimeout):
            await keeper.files.write("/x", endless())
        with pytest.raises(KeeperTimeout):
            await keeper.files.write("/x", MEBIBYTE * 8)
    assert resident() - before < 48 << 20


async def test_oversized_listing_is_a_protocol_error(tmp_path: Path) -> None:
    entry = b'{"name":"a","type":"file","size":0,"mode":0,"uid":0,"gid":0,"mtime":0,"target":null},'
    piece = entry * 10_000
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    first = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{"entries":[\r\n'
    async with keeper_that(tmp_path, says_for_ever(first, chunk)) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.list("/x")


async def test_names_that_leave_the_directory_are_protocol_errors(tmp_path: Path) -> None:
    for name in (b"../x", b"/etc", b"a/b", b"..", b""):
        body = (
            b'{"entries":[{"name":"%b","type":"file","size":0,"mode":0,"uid":0,"gid":0,"mtime":0,"target":null}],'
            % name
        )
        async with keeper_that(tmp_path, says(answer(body + b'"more":false}'))) as keeper:
            with pytest.raises(KeeperProtocolError):
                await keeper.files.list("/x")
        (tmp_path / "k").unlink()


ENTRY = b'{"name":"a","type":"file","size":0,"mode":0,"uid":0,"gid":0,"mtime":0,"target":null%b}'
MATCH = b'{"path":"%b","line":1,"text":"","cut":false,"before":[],"after":[]%b}'
PATCHED = b'{"files":[{"path":"%b","action":"changed","added":0,"removed":0,"offsets":[]}]}'


@pytest.mark.parametrize(
    "more",
    [b',"path":"../x"', b',"path":"/etc"', b',"path":"a/../../x"', b',"path":"a//b"', b',"raw":"Li4veA=="',
     b',"raw":"YQBi"', b',"raw":"L2V0Yw=="', b',"raw":"not base64"', b',"path":"%b"' % (b"a" * 300_000)],
)  # fmt: skip
async def test_paths_that_leave_a_deep_list_are_protocol_errors(tmp_path: Path, more: bytes) -> None:
    body = b'{"entries":[' + ENTRY % more + b'],"more":false,"skipped":0}'
    async with keeper_that(tmp_path, says(answer(body))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.list("/x", depth=9)


@pytest.mark.parametrize(
    "body",
    [
        b'{"matches":[' + MATCH % (b"../x", b"") + b'],"more":false,"searched":1,"skipped":0}',
        b'{"matches":[' + MATCH % (b"a", b',"raw":"Li4veA=="') + b'],"more":false,"searched":1,"skipped":0}',
        b'{"matches":[' + b",".join([MATCH % (b"a", b"")] * 10_001) + b'],"more":false,"searched":1,"skipped":0}',
        b'{"matches":[],"more":false,"searched":-1,"skipped":0}',
    ],
    ids=["path", "bytes of a path", "too many", "negative"],
)
async def test_impossible_search_result_is_a_protocol_error(tmp_path: Path, body: bytes) -> None:
    async with keeper_that(tmp_path, says(answer(body))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.search(SearchRequest(pattern="x", path="/x"))


@pytest.mark.parametrize(
    "body",
    [
        b'{"text":"a\\nb","start":1,"count":1,"more":false,"cut":false}',
        b'{"text":"a","start":0,"count":1,"more":false,"cut":false}',
        b'{"text":"a","start":1,"count":-1,"more":false,"cut":false}',
        b'{"text":"%b","start":1,"count":1,"more":false,"cut":false}' % (b"a" * (3 << 20)),
    ],
    ids=["count", "start", "negative", "too long"],
)
async def test_inconsistent_lines_are_protocol_errors(tmp_path: Path, body: bytes) -> None:
    async with keeper_that(tmp_path, says(answer(body))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.lines("/x", 1, None)


async def test_patch_of_other_files_is_a_protocol_error(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says(answer(PATCHED % b"../x"))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.files.patch("/x", b"@@ -1 +1 @@\n-a\n+b\n")


async def test_signs_of_life_are_bounded(tmp_path: Path) -> None:
    first = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with keeper_that(tmp_path, says_for_ever(first, b"1000\r\n" + b" " * 4096 + b"\r\n")) as keeper:
        for call in (keeper.files.checksum("/x", "md5"), keeper.files.copy("/x", "/y"), keeper.files.remove("/x")):
            with pytest.raises(KeeperProtocolError, match="more than"):
                await call


async def test_error_after_signs_of_life_is_raised(tmp_path: Path) -> None:
    body = b'{"error":{"code":"errno","message":"m","errno":28,"path":"/p"}}'
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with keeper_that(tmp_path, says(said)) as keeper:
        with pytest.raises(OSError, match="m") as full:
            await keeper.files.copy("/x", "/y")
    assert full.value.errno == 28


async def test_connection_with_unexpected_bytes_is_not_reused(tmp_path: Path) -> None:
    async def lie(writer: Writer) -> None:
        await says(answer(GOOD), answer(GOOD.replace(b'"b"', b'"evil"')))(writer)

    async with keeper_that(tmp_path, lie) as keeper:
        for _ in range(3):
            assert (await keeper.hello()).build == "b"
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("what", ["stdin", "file"])
async def test_rejection_is_read_although_the_keeper_hung_up(tmp_path: Path, what: str) -> None:
    """The keeper hangs up when the rest of the request is long overdue; no sandbox may fail for that."""
    body = b'{"error":{"code":"conflict","message":"no"}}'
    hung_up = asyncio.Event()

    async def lie(writer: Writer) -> None:
        writer.write(b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    async def slow() -> AsyncIterator[bytes]:
        yield b"first"
        await hung_up.wait()
        for _ in range(100):  # rounds of the loop, until we have seen it too
            await asyncio.sleep(0)
        yield b"second"

    async with keeper_that(tmp_path, lie) as keeper:
        with pytest.raises(Conflict):
            await (keeper.stdin("p-aaaaaaaaaa", slow()) if what == "stdin" else keeper.files.write("/x", slow()))


@pytest.mark.parametrize("pieces", [[b"four", b"more"], [b"x" * 9], [b"few"], []])
async def test_content_of_a_wrong_length_is_the_callers_error(tmp_path: Path, pieces: list[bytes]) -> None:
    async def content() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async with keeper_that(tmp_path, says()) as keeper:
        with pytest.raises(InvalidRequest):
            await keeper.files.write("/x", content(), size=5)
