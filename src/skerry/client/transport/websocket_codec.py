"""The client side of a WebSocket without a connection: bytes in, messages out. Pure; loaded on first use."""

from __future__ import annotations

import base64
import logging
import os
import threading

from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol, State
from websockets.utils import accept_key

from skerry.errors import ServerUnreachable

MAX_MESSAGE = 4 << 20
MAX_FRAGMENTS = 1024
NORMAL = 1000
_log = logging.getLogger("skerry.client.websocket")
_log.setLevel(logging.WARNING)


class Handshake:
    """The headers of the upgrade request, and the check of the response."""

    def __init__(self) -> None:
        self._key = base64.b64encode(os.urandom(16)).decode()

    def headers(self) -> dict[str, str]:
        return {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": self._key,
        }

    def check(self, accepted: str | None) -> None:
        if accepted != accept_key(self._key):
            raise ServerUnreachable(
                "the server's response is not a WebSocket handshake", hint="is there a proxy in between?"
            )


class MessageCodec:
    """One thread may feed it while another encodes."""

    def __init__(self) -> None:
        self._protocol = Protocol(CLIENT, max_size=MAX_MESSAGE, logger=_log)
        self._fragments: list[bytes] = []
        self._is_text = False
        self._one_at_a_time = threading.Lock()

    @property
    def over(self) -> bool:
        """Whether the connection has ended."""
        return self._protocol.state is not State.OPEN

    @property
    def code(self) -> int:
        """The close code of the other side; 1006: it sent none."""
        close = self._protocol.close_rcvd or self._protocol.close_sent
        return int(close.code) if close is not None else 1006

    @property
    def reason(self) -> str:
        close = self._protocol.close_rcvd or self._protocol.close_sent
        return close.reason if close is not None else ""

    def feed(self, data: bytes) -> list[bytes | str]:
        """Return the messages that are complete now. No bytes: the end of the connection."""
        with self._one_at_a_time:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
            return [message for frame in frames for message in self._taken(frame)]

    def encode(self, message: bytes | str) -> bytes:
        with self._one_at_a_time:
            if self.over:
                raise ServerUnreachable("the connection was closed")
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
            return b"".join(self._protocol.data_to_send())

    def answers(self) -> bytes:
        """Return the bytes owed to the other side: pongs, the echo of its close."""
        with self._one_at_a_time:
            return b"".join(self._protocol.data_to_send())

    def farewell(self) -> bytes:
        with self._one_at_a_time:
            if not self.over:
                self._protocol.send_close(NORMAL)
            return b"".join(self._protocol.data_to_send())

    def _taken(self, frame: Frame) -> list[bytes | str]:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return []
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if not frame.fin:
            if len(self._fragments) >= MAX_FRAGMENTS:
                self._protocol.fail(1008, "too many fragments")
            return []
        whole = b"".join(self._fragments)
        self._fragments.clear()
        return [whole.decode("utf-8", "replace") if self._is_text else whole]
