"""A worker that violates the protocol: `python lying_worker.py LIE UID PARENT`, with the server's channel as fd 3."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

channel = socket.socket(fileno=3)
ATTEMPT = (
    b'{"id":"%s","at":1.0,"kind":"connection","host":"x","decision":"denied","why":"y","port":null,"address":null,'
    b'"method":null,"path":null,"process":null,"rule":null,"hint":null,"secrets":[],"sent":0,"received":0,'
    b'"duration_s":null,"ended":true,"count":1,"seq":0}'
)


def say(body: bytes, length: int | None = None, fds: int = 0) -> None:
    channel.sendall(struct.pack("!IB", len(body) if length is None else length, fds) + body)


def flood(body: bytes) -> None:
    """Send as fast as possible for a while; the server limits the rate."""
    end = time.monotonic() + 3
    while time.monotonic() < end:
        say(body)


def main(lie: str) -> None:
    if lie == "silent":
        time.sleep(600)
    if lie == "early":
        say(b'{"type":"Done","number":1}')
    say(b'{"type":"Ready"}')
    if lie == "flood":
        flood(b'{"type":"AttemptMessage","sandbox":"sb-aaaaaaaaaa","attempt":' + ATTEMPT % b"aa" + b"}")
    elif lie == "twice":
        say(b'{"type":"Ready"}')
    elif lie == "long":
        say(b"", length=1 << 31)
    elif lie == "fds":
        socket.send_fds(channel, [struct.pack("!IB", 16, 1) + b'{"type":"Ready"}'], [0])
    elif lie == "exit":
        os._exit(3)
    elif lie == "sleep":
        time.sleep(600)
    elif lie == "spin":
        while os.getppid() == int(sys.argv[3]):
            pass
    while channel.recv(1 << 16):
        pass


main(sys.argv[1])
