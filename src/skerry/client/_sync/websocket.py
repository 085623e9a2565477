# Generated from client/_async/websocket.py by scripts/generate_sync.py. Do not edit.
"""A WebSocket over the client's own connections: the same address, token, refusals and failures as any other call."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

import httpx

from skerry.client import backend_sync as backend
from skerry.client.connection import on_the_wire
from skerry.client.messages import Handshake, Messages
from skerry.client.requests import Request, upgrading
from skerry.errors import ServerUnreachable

if TYPE_CHECKING:
    from skerry.client._sync.client import Client

READ = 64 << 10
HELD = 1 << 20  # what may wait unread before `look` takes no more
AT_ONCE = 2.0


class WebSocket:
    """One reader and any number of writers at a time."""

    def __init__(self, client: Client, response: httpx.Response) -> None:
        self.messages = Messages()
        self._client = client
        self._response = response
        self._wire = backend.Wire(response.extensions["network_stream"])
        self._waiting: deque[bytes | str] = deque()
        self._held = 0
        self._reading = backend.Lock()
        self._writing = backend.Lock()

    @classmethod
    def open(cls, client: Client, request: Request) -> WebSocket:
        handshake = Handshake()
        response = client.upgraded(upgrading(request, handshake.headers()))
        try:
            handshake.check(response.headers.get("sec-websocket-accept"))
        except BaseException:
            response.close()
            raise
        return cls(client, response)

    def receive(self, timeout: float | None) -> bytes | str | None:
        """The next message; None: there will be none. TimeoutError: nothing at all came for so long."""
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
        """Take what has come already: pings are answered, and a connection that was cut is known to be."""
        if not backend.take_at_once(self._reading):
            return  # somebody reads, and sees it
        try:
            while not self.messages.over and self._held < HELD and self._wire.readable:
                with contextlib.suppress(TimeoutError):
                    self._take(AT_ONCE)
        finally:
            self._reading.release()

    def _take(self, timeout: float | None) -> None:
        with on_the_wire(self._client.address):
            data = self._wire.read(READ, timeout)
        for message in self.messages.feed(data):
            self._waiting.append(message)
            self._held += len(message)
        if answers := self.messages.answers():
            self._write(answers)

    def send(self, message: bytes | str) -> None:
        self._write(self.messages.encode(message))

    def _write(self, data: bytes) -> None:
        with self._writing:
            with on_the_wire(self._client.address):
                self._wire.write(data)

    def close(self) -> None:
        """Say farewell, and wait a moment until the other side has heard all that was sent. The connection ends in
        every case; what another thread or task is just doing with it fails."""
        try:
            with contextlib.suppress(ServerUnreachable, TimeoutError), on_the_wire(self._client.address):
                if not self._writing.locked():
                    self._wire.write(self.messages.farewell(), AT_ONCE)
                    self._hear_out()
        finally:
            self._wire.cut()
            self._response.close()

    def cut(self) -> None:
        """Break it off: what another thread is just doing with it fails."""
        self._wire.cut()

    def _hear_out(self) -> None:
        if not backend.take_at_once(self._reading):
            return
        until = time.monotonic() + AT_ONCE
        try:
            while time.monotonic() < until and (data := self._wire.read(READ, AT_ONCE)):
                self.messages.feed(data)
        finally:
            self._reading.release()
