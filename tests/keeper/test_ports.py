"""Waiting for a port: the keeper tries it from inside, and reports the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from keeper.test_protocol_errors import answer, keeper_that, says
from support.keeper import Room, spec

from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.keeper import KeeperProtocolError, ProcessStream
from skerry.types import PortState

# Binds port 0 and says which it got; listens once a line comes.
LISTENER = """
import socket, sys
family, address, answer = sys.argv[1], sys.argv[2], sys.argv[3].encode().decode("unicode_escape").encode()
s = socket.socket(socket.AF_INET6 if family == "6" else socket.AF_INET)
s.bind((address, 0))
print(s.getsockname()[1], flush=True)
sys.stdin.readline()
s.listen(16)
print("listening", flush=True)
keep = []
while True:
    c, _ = s.accept()
    if answer == b"silence":
        keep.append(c)
        continue
    try:
        if answer:
            c.recv(65536)
            c.sendall(answer)
    except OSError:
        pass  # the keeper gave this attempt up
    c.close()
"""


@asynccontextmanager
async def listener(
    room: Room, address: str = "127.0.0.1", says: str = "", *, begin: bool = True
) -> AsyncIterator[tuple[int, ProcessStream]]:
    family = "6" if ":" in address else "4"
    stream = await room.keeper.start(
        spec("/usr/bin/env", "python3", "-c", LISTENER, family, address, says, stdin="pipe")
    )
    port = int((await anext(stream))[1])
    if begin:
        await stream.send_stdin(b"\n")
        await anext(stream)
    yield port, stream
    await stream.aclose()


async def free_port(room: Room) -> int:
    async with listener(room, begin=False) as (port, _):
        return port


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::", "127.0.0.2", "::ffff:127.0.0.3"])
async def test_open_port_is_found_on_any_address(room: Room, address: str) -> None:
    async with listener(room, address) as (port, _):
        state = await room.keeper.wait_for_port(port, 10.0)
        assert state == PortState(open=True, status=None, last="")


async def test_wait_ends_when_the_port_opens(room: Room) -> None:
    async with listener(room, begin=False) as (port, stream):
        assert not (await room.keeper.wait_for_port(port, 0.0)).open
        waiting = asyncio.create_task(room.keeper.wait_for_port(port, 20.0))
        await stream.send_stdin(b"\n")
        assert (await waiting).open


async def test_closed_port_is_reported(room: Room) -> None:
    state = await room.keeper.wait_for_port(await free_port(room), 0.3)
    assert (state.open, state.status) == (False, None)
    assert state.last.startswith("nothing listens on port ")


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found", "302 Found", "401 No"])
async def test_response_below_500_counts_as_open(room: Room, status: str) -> None:
    async with listener(room, says=f"HTTP/1.1 {status}\\r\\nContent-Length: 0\\r\\n\\r\\n") as (port, _):
        state = await room.keeper.wait_for_port(port, 10.0, "/health?x=1")
        assert state == PortState(open=True, status=int(status[:3]), last="")


@pytest.mark.parametrize(
    ("said", "last"),
    [
        ("HTTP/1.1 503 Later\\r\\n\\r\\n", "HTTP 503"),
        ("SSH-2.0-OpenSSH_9.2\\r\\n", "is not HTTP"),
        ("x" * 4000, "is not HTTP"),
        ("", "closed"),
        ("silence", "no response"),
    ],
)
async def test_invalid_response_is_reported(room: Room, said: str, last: str) -> None:
    async with listener(room, says=said) as (port, _):
        state = await room.keeper.wait_for_port(port, 0.3, "/")
        assert not state.open
        assert state.status == (503 if "503" in last else None)
        assert last in state.last


async def test_request_is_a_plain_get(room: Room) -> None:
    code = (
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "print(s.getsockname()[1], flush=True)\n"
        "c, _ = s.accept(); print(c.recv(65536)); c.sendall(b'HTTP/1.1 204 No\\r\\n\\r\\n')"
    )
    stream = await room.keeper.start(spec("/usr/bin/env", "python3", "-c", code))
    port = int((await anext(stream))[1])
    assert (await room.keeper.wait_for_port(port, 10.0, "/a/b?c=d%20e")).status == 204
    seen = b"".join([data async for _, data in stream])
    assert seen == b"%r\n" % b"GET /a/b?c=d%20e HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nConnection: close\r\n\r\n"


async def test_invalid_requests_are_rejected(room: Room) -> None:
    for port in (0, -1, 65536):
        with pytest.raises(InvalidRequest, match="port"):
            await room.keeper.wait_for_port(port, 1.0)
    for path in ("", "x", "/a b", "/a\r\nX: y", "/\n", "/\0", "/é", "/" + "x" * 2048):
        with pytest.raises(InvalidRequest, match="http_path"):
            await room.keeper.wait_for_port(80, 1.0, path)


async def test_waits_are_bounded_and_end_with_their_callers(room: Room) -> None:
    port = await free_port(room)
    waits = [asyncio.create_task(room.keeper.wait_for_port(port, 60.0)) for _ in range(65)]
    done, pending = await asyncio.wait(waits, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert [type(one.exception()) for one in done] == [QuotaExceeded]
    threads = len(list(Path(f"/proc/{room.pid}/task").iterdir()))
    assert threads < 40, "those who wait must not cost threads"
    for wait in pending:
        wait.cancel()
    await asyncio.wait(pending)
    async with asyncio.timeout(30):
        while True:
            with suppress(QuotaExceeded):  # they are missed at their next try
                assert not (await room.keeper.wait_for_port(port, 0.0)).open
                break


async def test_keeper_that_answers_early_is_not_polled_forever(tmp_path: Path) -> None:
    async with keeper_that(tmp_path, says(answer(b'{"open":false,"status":null,"last":"no"}'))) as keeper:
        with pytest.raises(KeeperProtocolError, match="wait"):
            await keeper.wait_for_port(80, 60.0)


@pytest.mark.parametrize(
    "said",
    [b'{"open":true}', b'{"open":1,"status":null,"last":""}', b'{"open":true,"status":99,"last":""}',
     b'{"open":true,"status":null,"last":"' + b"x" * 300 + b'"}', b'{"open":true,"status":null,"last":"","more":1}'],
)  # fmt: skip
async def test_malformed_port_response_is_a_protocol_error(tmp_path: Path, said: bytes) -> None:
    async with keeper_that(tmp_path, says(answer(said))) as keeper:
        with pytest.raises(KeeperProtocolError):
            await keeper.wait_for_port(80, 1.0)
