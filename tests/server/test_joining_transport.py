"""The head of a response and the first bytes of its body are sent together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from skerry.server.http.protocol import JoiningTransport


class Recorder(asyncio.Transport):
    """Keeps each call's bytes; a socket would join them."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.sent.append(b"".join(list_of_data))

    def close(self) -> None:
        self.sent.append(b"closed")

    def abort(self) -> None:
        self.sent.append(b"aborted")


async def test_head_is_sent_with_the_first_bytes_of_the_body() -> None:
    socket = Recorder()
    joining = JoiningTransport(socket, asyncio.get_running_loop())
    for _ in range(2):
        joining.expects_head = True
        for piece in (b"head ", b"body ", b"more"):
            joining.write(piece)
    await asyncio.sleep(0)
    assert socket.sent == [b"head body ", b"more"] * 2


async def test_head_does_not_wait_for_a_body_that_is_not_there() -> None:
    socket = Recorder()
    joining = JoiningTransport(socket, asyncio.get_running_loop())
    joining.expects_head = True
    joining.write(b"head")
    assert socket.sent == []
    await asyncio.sleep(0)
    joining.write(b"body")
    assert socket.sent == [b"head", b"body"]


async def test_close_sends_the_head_first_and_abort_drops_it() -> None:
    for end, expected in (("close", [b"head", b"closed"]), ("abort", [b"aborted"])):
        socket = Recorder()
        joining = JoiningTransport(socket, asyncio.get_running_loop())
        joining.expects_head = True
        joining.write(b"head")
        getattr(joining, end)()
        await asyncio.sleep(0)
        assert socket.sent == expected
