"""Viewers of a terminal: a correct one, from the `websockets` package, and one that sends arbitrary bytes."""

from __future__ import annotations

import json
import socket
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect, unix_connect

from support.listening_server import Listening

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def path_of(process: str, ref: str = "echo") -> str:
    return f"/v1/sandboxes/{ref}/processes/{process}/terminal"


def view(listening: Listening, process: str, query: str = "", **options: Any) -> ClientConnection:
    """A viewer on the unix socket."""
    return unix_connect(str(listening.socket), f"ws://localhost{path_of(process)}{query}", compression=None, **options)


def view_by_tcp(listening: Listening, process: str, token: str) -> ClientConnection:
    url = listening.url.replace("http:", "ws:") + path_of(process)
    return connect(url, additional_headers={"Authorization": f"Bearer {token}"}, compression=None, proxy=None)


def said(viewer: ClientConnection) -> Any:
    """The next message: bytes, or JSON."""
    message = viewer.recv(timeout=20)
    return json.loads(message) if isinstance(message, str) else message


def handshake(path: str, *headers: str, version: str = "1.1", method: str = "GET", key: str = KEY) -> bytes:
    lines = [
        f"{method} {path} HTTP/{version}", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", *headers,
    ]  # fmt: skip
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def frame(data: bytes, opcode: Opcode = Opcode.BINARY, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


class RawViewer:
    """Reads only on request."""

    def __init__(self, listening: Listening, process: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(str(listening.socket))
        self.socket.sendall(handshake(path_of(process)))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")

    def __enter__(self) -> RawViewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_until_it_stands(self, data: bytes, patience: float = 1.0) -> int:
        """Send without end; how much was taken before the other side took no more for a while, or closed."""
        self.socket.settimeout(patience)
        taken = 0
        try:
            while taken < 64 << 20:
                taken += self.socket.send(data)
        except (TimeoutError, ConnectionError):
            return taken
        raise AssertionError("all of it was taken")

    def end(self) -> int | None:
        """Read to the end: the close frame's code, None if there was none."""
        self.socket.settimeout(20)
        received = bytearray()
        try:
            while piece := self.socket.recv(1 << 16):
                received += piece
        except ConnectionError:
            pass
        at = received.rfind(b"\x88")
        return int.from_bytes(received[at + 2 : at + 4], "big") if at >= 0 else None
