"""Requests, greetings and questions that were nearly right, sent to everything that listens: `garbage.py SEED SECONDS`.
Prints how many."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import sys
import time

PROXY, RESOLVER = ("198.18.0.2", 3128), ("198.18.0.1", 53)
RESET = struct.pack("ii", 1, 0)
LINES = (
    b"GET /public HTTP/1.1\r\nHost: paths.example.test\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc"
    b"GET / HTTP/1.1\r\nHost: paths.example.test\r\n\r\n"
)
CHUNKS = (
    b"POST /public HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    b"3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\n"
)
CONNECT = (
    b"CONNECT api.example.test:443 HTTP/1.1\r\nHost: api.example.test:443\r\nProxy-Authorization: Basic YTpi\r\n\r\n"
)
UPGRADE = (
    b"GET http://api.example.test/a?b HTTP/1.1\r\nHost: api.example.test\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\x85\0\0\0\0hello"
)
QUESTION = b"\x12\x34\1\0\0\1\0\0\0\0\0\1\3api\7example\4test\0\0\1\0\1\0\0\x29\x10\0\0\0\0\0\0\x0c\0\x0a\0\x08abcdefgh"
WORDS = (
    b"\r\n",
    b"\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"chunked",
    b"Content-Length: 5\r\n",
    b"\x16\x03\1",
    b"%00",
    b"//",
    b"@",
)


def greeting(name: bytes) -> bytes:
    entry = b"\0" + struct.pack("!H", len(name)) + name
    extensions = struct.pack("!HHH", 0, len(entry) + 2, len(entry)) + entry + struct.pack("!HHHH", 10, 4, 2, 23)
    extensions += struct.pack("!HHHHH", 13, 6, 4, 0x0403, 0x0804) + struct.pack("!HHBH", 43, 3, 2, 0x0303)
    body = b"\x03\x03" + bytes(32) + b"\0" + struct.pack("!HHH", 4, 0xC02B, 0xC02F) + b"\1\0"
    body += struct.pack("!H", len(extensions)) + extensions
    message = b"\1" + struct.pack("!I", len(body))[1:] + body
    return b"\x16\x03\1" + struct.pack("!H", len(message)) + message


NEARLY = (
    (("paths.example.test", 80), LINES), (("api.example.test", 80), CHUNKS), (PROXY, CONNECT), (PROXY, UPGRADE),
    (("api.example.test", 443), greeting(b"api.example.test")), (("api.example.test", 8080), UPGRADE),
    (("api.example.test", 8443), greeting(b"api.example.test")),
    (("inspected.example.test", 443), greeting(b"inspected.example.test")),
    (RESOLVER, struct.pack("!H", len(QUESTION)) + QUESTION),
)  # fmt: skip


def spoilt(data: bytes, dice: random.Random) -> bytes:
    spoil = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(spoil) + 1)
        kind = dice.randrange(6)
        if kind == 0:
            spoil[at : at + 1] = bytes([dice.randrange(256)])
        elif kind == 1:
            spoil[at:at] = dice.choice((*WORDS, os.urandom(dice.randint(1, 20))))
        elif kind == 2:
            del spoil[at : at + dice.randint(1, 30)]
        elif kind == 3:
            spoil[at:at] = spoil[at : at + dice.randint(1, 60)]
        elif kind == 4:
            del spoil[at:]
        else:
            spoil *= dice.choice((1, 2, 3))
    return bytes(spoil)


def ask(data: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.settimeout(0.02)
        caller.connect(RESOLVER)
        caller.send(data[:1400])
        caller.recv(2000)


def talk(where: tuple[str, int], data: bytes, dice: random.Random) -> None:
    with socket.create_connection(where, 3) as caller:
        caller.settimeout(0.05)
        size = max(1, len(data) // dice.randint(1, 4))
        for at in range(0, len(data), size):
            caller.send(data[at : at + size])
        if dice.random() < 0.3:
            caller.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            caller.recv(4000)
        if dice.random() < 0.3:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def main(seed: int, seconds: float) -> None:
    dice, count, end = random.Random(seed), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += 1
        with contextlib.suppress(OSError):
            if dice.random() < 0.15:
                ask(spoilt(QUESTION, dice))
            else:
                where, data = dice.choice(NEARLY)
                talk(where, spoilt(data, dice), dice)
    print(count)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
