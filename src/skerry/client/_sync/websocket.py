# Generated from client/_async/websocket.py by scripts/generate_sync.py. Do not edit.
"""A WebSocket over the client's connections: with the same address, token and errors as any other call."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

import httpx2

from skerry.client.transport import backend_sync as backend
from skerry.client.transport.connection import translate_stream_errors
from skerry.client.transport.requests.sandboxes import Request, as_upgrade
from skerry.client.transport.websocket_codec import Handshake, MessageCodec
from skerry.errors import ServerUnreachable

if TYPE_CHECKING:
    from skerry.client._sync.client import Client

READ = 64 << 10
MAX_UNREAD = 1 << 20  # unread bytes beyond which `look` stops reading
CLOSE_TIMEOUT = 2.0


class WebSocket:
    """One reader and any number of writers at a time."""

    def __init__(self, client: Client, response: httpx2.Response) -> None:
        self.messages = MessageCodec()
        self._client = client
        self._response = response
        self._stream = backend.UpgradedStream(response.extensions["network_stream"])
        self._waiting: deque[bytes | str] = deque()
        self._held = 0
        self._reading = backend.Lock()
        self._writing = backend.Lock()

    @classmethod
    def open(cls, client: Client, request: Request) -> WebSocket:
        handshake = Handshake()
        response = client.upgrade(as_upgrade(request, handshake.headers()))
        try:
            handshake.check(response.headers.get("sec-websocket-accept"))
        except BaseException:
            response.close()
            raise
        return cls(client, response)

    def receive(self, timeout: float | None) -> bytes | str | None:
        """Return the next message; None at the end. Raise TimeoutError if no data arrived in time."""
        while not self._waiting:
            if self.messages.over:
                return None
            with self._reading:
                if not self._waiting and not self.messages.over:
                    self._take(timeout)
        message = self._waiting.popleft()
        self._held -= len(message)
        return message

    def look(self) -> None:
        """Process the data that has arrived: answer pings, and notice a closed connection."""
        if not backend.try_acquire(self._reading):
            return  # another reader sees it
        try:
            while not self.messages.over and self._held < MAX_UNREAD and self._stream.readable:
                with contextlib.suppress(TimeoutError):
                    self._take(CLOSE_TIMEOUT)
        finally:
            self._reading.release()

    def _take(self, timeout: float | None) -> None:
        with translate_stream_errors(self._client.address):
            data = self._stream.read(READ, timeout)
        for message in self.messages.feed(data):
            self._waiting.append(message)
            self._held += len(message)
        if answers := self.messages.answers():
            self._write(answers)

    def send(self, message: bytes | str) -> None:
        self._write(self.messages.encode(message))

    def _write(self, data: bytes) -> None:
        with self._writing:
            with translate_stream_errors(self._client.address):
                self._stream.write(data)

    def close(self) -> None:
        """Send a close frame, and wait briefly until the other side has received everything. The connection ends in
        every case; concurrent calls on it fail."""
        try:
            with contextlib.suppress(ServerUnreachable, TimeoutError), translate_stream_errors(self._client.address):
                if not self._writing.locked():
                    self._stream.write(self.messages.farewell(), CLOSE_TIMEOUT)
                    self._hear_out()
        finally:
            self._stream.abort()
            self._response.close()

    def cut(self) -> None:
        """Cut the connection: concurrent calls on it fail."""
        self._stream.abort()

    def _hear_out(self) -> None:
        if not backend.try_acquire(self._reading):
            return
        until = time.monotonic() + CLOSE_TIMEOUT
        try:
            while time.monotonic() < until and (data := self._stream.read(READ, CLOSE_TIMEOUT)):
                self.messages.feed(data)
        finally:
            self._reading.release()
