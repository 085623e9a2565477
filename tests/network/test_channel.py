"""The channel between server and worker: strict, bounded, and it leaks no descriptor."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.descriptors import descriptors, left_over

from skerry.network.channel import ChannelError, WorkerChannel
from skerry.network.messages import (
    CloseGateway,
    DialResult,
    Done,
    FromServer,
    FromWorker,
    ListenPreviews,
    OpenGateway,
    Ready,
    Rules,
    Sync,
)

Pair = tuple[WorkerChannel[Any], WorkerChannel[Any]]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    before = descriptors()
    ours, theirs = socket.socketpair()
    server, worker = WorkerChannel[Any](ours, FromWorker, 64 << 10), WorkerChannel[Any](theirs, FromServer)
    yield server, worker
    server.close()
    worker.close()
    assert left_over(before) == 0


async def test_messages_arrive_in_order_with_their_descriptors(pair: Pair) -> None:
    server, worker = pair
    fds = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
    server.send(Sync(number=1))
    server.send(OpenGateway(sandbox="sb-a", rules=Rules(allow=("x.example",))), fds)
    server.send(ListenPreviews(domains=("localhost",)), fds[:1])
    server.send(Sync(number=2))
    got = [await asyncio.wait_for(worker.receive(), 30) for _ in range(4)]
    assert [type(message).__name__ for message, _ in got] == ["Sync", "OpenGateway", "ListenPreviews", "Sync"]
    assert [len(fds) for _, fds in got] == [0, 4, 1, 0]
    taken = [fd for _, some in got for fd in some]
    assert not any(os.get_inheritable(fd) for fd in taken)
    for fd in fds + taken:
        os.close(fd)


async def test_unread_messages_wait_with_copies_of_their_descriptors(pair: Pair) -> None:
    server, worker = pair
    long = Rules(allow=tuple(f"host-{n}.example" for n in range(50_000)))
    fds = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
    for number in range(20):
        server.send(OpenGateway(sandbox=f"sb-{number}", rules=long), fds)
    for fd in fds:
        os.close(fd)
    assert server.unsent
    for number in range(20):
        message, got = await asyncio.wait_for(worker.receive(), 30)
        assert (message.sandbox, len(got), len(message.rules.allow)) == (f"sb-{number}", 4, 50_000)
        for fd in got:
            os.close(fd)


async def test_a_side_that_never_reads_is_given_up(pair: Pair) -> None:
    server, _ = pair
    long = Rules(allow=("x" * 2000,) * 3000)
    fds = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
    for _ in range(11):
        server.send(OpenGateway(sandbox="sb-a", rules=long), fds)
    with pytest.raises(ChannelError, match="does not read"):
        server.send(OpenGateway(sandbox="sb-a", rules=long), fds)
    for fd in fds:
        os.close(fd)


async def test_a_message_is_sent_with_just_the_descriptors_that_it_needs(pair: Pair) -> None:
    server, _ = pair
    for message, fds in ((Sync(number=1), (0,)), (DialResult(number=1), ()), (DialResult(number=1, error="no"), (0,))):
        with pytest.raises(ValueError, match="descriptors"):
            server.send(message, fds)


def frame(body: bytes, fds: int = 0, length: int | None = None) -> bytes:
    return struct.pack("!IB", len(body) if length is None else length, fds) + body


@pytest.mark.parametrize(
    "data",
    [
        frame(b'{"type":"Nonsense"}'), frame(b'{"type":"Done"}'), frame(b'{"type":"Done","number":1,"more":2}'),
        frame(b'{"type":"Done","number":"1"}'), frame(b'{"type":"Sync","number":1}'), frame(b"\xff\xfe"), frame(b""),
        frame(b"[" * 20_000), frame(b'{"type":"Done","number":1}', fds=1), frame(b'{"type":"Done","number":1}', fds=9),
        frame(b"", length=65_537), frame(b"", length=0xFFFFFFFF),
    ],
)  # fmt: skip
async def test_any_protocol_violation_ends_the_channel(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    server = WorkerChannel[Any](ours, FromWorker, 64 << 10)
    theirs.sendall(data + frame(b'{"type":"Ready"}'))
    with pytest.raises(ChannelError):
        await asyncio.wait_for(server.receive(), 30)
    with pytest.raises(ChannelError):  # and stays ended
        await asyncio.wait_for(server.receive(), 30)
    with pytest.raises(ChannelError):
        server.send(CloseGateway(sandbox="sb-a"))
    server.close()
    theirs.close()


async def test_unexpected_descriptors_end_the_channel_and_are_closed() -> None:
    before = descriptors()
    for count in (1, 4, 60):
        ours, theirs = socket.socketpair()
        worker = WorkerChannel[Any](ours, FromServer)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * count))]
        theirs.sendmsg([frame(b'{"type":"Sync","number":1}', fds=min(count, 255))], rights)
        with pytest.raises(ChannelError):
            await asyncio.wait_for(worker.receive(), 30)
        worker.close()
        theirs.close()
    assert left_over(before) == 0


async def test_orderly_end_differs_from_a_truncation() -> None:
    for data, expected in (
        (frame(b'{"type":"Ready"}'), EOFError),
        (frame(b'{"type":"Ready"}', length=99), ChannelError),
    ):
        ours, theirs = socket.socketpair()
        server = WorkerChannel[Any](ours, FromWorker)
        theirs.sendall(frame(b'{"type":"Done","number":7}') + data)
        theirs.close()
        assert (await server.receive())[0] == Done(number=7)
        if expected is EOFError:
            assert (await server.receive())[0] == Ready()
        with pytest.raises(expected):
            await asyncio.wait_for(server.receive(), 30)
        server.close()


async def test_close_wakes_a_waiting_receiver(pair: Pair) -> None:
    server, _ = pair
    waiting = asyncio.create_task(server.receive())
    await asyncio.sleep(0)
    server.close()
    with pytest.raises(ChannelError):
        await asyncio.wait_for(waiting, 30)
