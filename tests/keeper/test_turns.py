"""Programs with a channel, and their turns."""

from __future__ import annotations

import asyncio

from keeper.room import Room, spec

from skerry.keeper import Turn

MIB = 1 << 20
ECHO = """
import os, sys, socket
c = socket.socket(fileno=3)
c.set_inheritable(False)
def take():
    head = b""
    while len(head) < 4:
        piece = c.recv(4 - len(head))
        if not piece: sys.exit(0)
        head += piece
    body = bytearray()
    while len(body) < int.from_bytes(head, "big"):
        body += c.recv(1 << 20)
    return bytes(body)
def say(data):
    c.sendall(len(data).to_bytes(4, "big") + data)
while True:
    exec(take())
"""


def message(code: str) -> bytes:
    return len(code.encode()).to_bytes(4, "big") + code.encode()


async def program(room: Room, source: str = ECHO, **more: object) -> str:
    command = spec("/usr/bin/python3", "-c", source, channel=True, **more)
    process = await room.keeper.spawn(command)
    assert process.channel
    return command.id


async def said(turn: Turn, until: bytes) -> dict[str, bytes]:
    """What came until the channel had `until`."""
    got: dict[str, bytes] = {"stdout": b"", "stderr": b"", "channel": b""}
    async with asyncio.timeout(30):
        async for kind, data in turn:
            got[kind] += data
            if until in got["channel"]:
                break
    return got


async def test_a_program_is_handed_bytes_and_answers(room: Room) -> None:
    process = await program(room)
    turn = await room.keeper.turn(process, message("print(6 * 7, flush=True); say(b'done')"))
    got = await said(turn, b"done")
    assert got["stdout"] == b"42\n"
    usage = await turn.over()
    assert usage.duration_s > 0
    assert usage.max_rss > MIB
    again = await room.keeper.turn(process, message("say(b'done')"))
    assert again.offset == turn.offset
    await said(again, b"done")
    await again.over()
