"""A WebSocket over the client's connections: with the same address, token and errors as any other call."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

import httpx2

from skerry.client.transport import backend_async as backend
from skerry.client.transport.connection import translate_stream_errors
from skerry.client.transport.requests.sandboxes import Request, as_upgrade
from skerry.client.transport.websocket_codec import Handshake, MessageCodec
from skerry.errors import ServerUnreachable

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient

READ = 64 << 10
MAX_UNREAD = 1 << 20  # unread bytes beyond which `look` stops reading
CLOSE_TIMEOUT = 2.0


class AsyncWebSocket:
    """One reader and any number of writers at a time."""

    def __init__(self, client: AsyncClient, response: httpx2.Response) -> None:
        self.messages = MessageCodec()
        self._client = client
        self._response = response
        self._stream = backend.UpgradedStream(response.extensions["network_stream"])
        self._waiting: deque[bytes | str] = deque()
        self._held = 0
        self._reading = backend.Lock()
        self._writing = backend.Lock()

    @classmethod
    async def open(cls, client: AsyncClient, request: Request) -> AsyncWebSocket:
        handshake = Handshake()
        response = await client.upgrade(as_upgrade(request, handshake.headers()))
        try:
            handshake.check(response.headers.get("sec-websocket-accept"))
        except BaseException:
            await response.aclose()
            raise
        return cls(client, response)

    async def receive(self, timeout: float | None) -> bytes | str | None:
        """Return the next message; None at the end. Raise TimeoutError if no data arrived in time."""
        while not self._waiting:
            if self.messages.over:
                return None
            async with self._reading:
                if not self._waiting and not self.messages.over:
                    await self._take(timeout)
        message = self._waiting.popleft()
        self._held -= len(message)
        return message

    async def look(self) -> None:
        """Process the data that has arrived: answer pings, and notice a closed connection."""
        if not await backend.try_acquire(self._reading):
            return  # another reader sees it
        try:
            while not self.messages.over and self._held < MAX_UNREAD and self._stream.readable:
                with contextlib.suppress(TimeoutError):
                    await self._take(CLOSE_TIMEOUT)
        finally:
            self._reading.release()

    async def _take(self, timeout: float | None) -> None:
        with translate_stream_errors(self._client.address):
            data = await self._stream.read(READ, timeout)
        for message in self.messages.feed(data):
            self._waiting.append(message)
            self._held += len(message)
        if answers := self.messages.answers():
            await self._write(answers)

    async def send(self, message: bytes | str) -> None:
        await self._write(self.messages.encode(message))

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            with translate_stream_errors(self._client.address):
                await self._stream.write(data)

    async def aclose(self) -> None:
        """Send a close frame, and wait briefly until the other side has received everything. The connection ends in
        every case; concurrent calls on it fail."""
        try:
            with contextlib.suppress(ServerUnreachable, TimeoutError), translate_stream_errors(self._client.address):
                if not self._writing.locked():
                    await self._stream.write(self.messages.farewell(), CLOSE_TIMEOUT)
                    await self._hear_out()
        finally:
            self._stream.abort()
            await self._response.aclose()

    def cut(self) -> None:
        """Cut the connection: concurrent calls on it fail."""
        self._stream.abort()

    async def _hear_out(self) -> None:
        if not await backend.try_acquire(self._reading):
            return
        until = time.monotonic() + CLOSE_TIMEOUT
        try:
            while time.monotonic() < until and (data := await self._stream.read(READ, CLOSE_TIMEOUT)):
                self.messages.feed(data)
        finally:
            self._reading.release()
