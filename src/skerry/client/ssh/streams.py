"""Bytes to and from a sandbox: a command with both directions open at once, and connections inside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Final, Protocol

from skerry.client._async.client import AsyncClient
from skerry.client._async.websocket import AsyncWebSocket
from skerry.client.transport.requests import previews, sandboxes
from skerry.client.transport.requests.sandboxes import Request
from skerry.client.transport.responses import StartedFrame, decode, error_frame
from skerry.codecs.frames import ERROR, EXIT, OUTPUT, STARTED, STDOUT, FrameDecoder
from skerry.errors import Conflict, SandboxUnavailable, ServerUnreachable, SkerryError
from skerry.types import Pty, RunRequest, RunResult

MAX_HELD: Final = 1 << 20  # bytes of input beyond which the sender waits


class Input:
    """Bytes on their way to a command. `full` is True while the sender should wait."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._over = False

    def put(self, data: bytes) -> None:
        if not self._over:
            self._parts.append(data)
            self._held += len(data)
            self._news.set()
            if self._held >= MAX_HELD:
                self._room.clear()

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until the sender may go on."""
        await self._room.wait()

    def end(self) -> None:
        """No more will come."""
        self._over = True
        self._news.set()

    def discard(self) -> None:
        """Drop everything: the command reads no more."""
        self._over = True
        self._parts.clear()
        self._held = 0
        self._room.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            await self._news.wait()
            self._news.clear()
            data, over = b"".join(self._parts), self._over
            self._parts.clear()
            self._held = 0
            self._room.set()
            if data:
                yield data
            if over:
                return


class Command:
    """One command. Closing it early ends the command with its process tree."""

    def __init__(self, client: AsyncClient, sandbox: str, request: RunRequest) -> None:
        self.input = Input()
        self.result: RunResult | None = None
        self._client, self._sandbox = client, sandbox
        self._request = sandboxes.with_stdin_stream(request)
        self._id = ""
        self._stack = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] | None = None
        self._decoder = FrameDecoder()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start it. Raise the server's error if it does not start."""
        stream = self._client.stream(sandboxes.run(self._sandbox, self._request))
        self._chunks = await self._stack.enter_async_context(stream)
        while not self._id:
            self._decoder.push(await anext(self._chunks, b"") or self._lost())
            if (frame := self._decoder.next()) is not None:
                self._take(*frame)
        self._spawn(sandboxes.stdin(self._sandbox, self._id, self.input.chunks(), close=True), self.input.discard)

    async def output(self) -> AsyncIterator[tuple[bool, bytes]]:
        """Yield its output to its end, each piece with True for stderr. The command waits for a slow reader."""
        while self.result is None:
            for is_error, data in self._arrived():
                yield is_error, data
            if self.result is None:
                assert self._chunks is not None  # noqa: S101
                self._decoder.push(await anext(self._chunks, b"") or self._lost())

    def _arrived(self) -> Iterator[tuple[bool, bytes]]:
        """Yield the output that has arrived. Neighbouring frames of one stream are joined, because each piece becomes a
        packet and the keeper's frames are small."""
        parts: list[bytes] = []
        stream = STDOUT
        while self.result is None and (frame := self._decoder.next()) is not None:
            kind, payload = frame
            if parts and kind != stream:
                yield stream != STDOUT, b"".join(parts)
                parts = []
            if kind in OUTPUT:
                stream = kind
                parts.append(payload)
            else:
                self._take(kind, payload)
        if parts:
            yield stream != STDOUT, b"".join(parts)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == STARTED:
            self._id = decode(payload, StartedFrame).id
        elif kind == EXIT:
            self.result = decode(payload, RunResult)
        elif kind == ERROR:
            raise error_frame(payload)

    def _lost(self) -> bytes:
        raise SandboxUnavailable("the output ended before the command did", hint="`skerry show` shows its state")

    def signal(self, name: str) -> None:
        """Send a signal to the command and its group. A command that has ended ignores it."""
        self._spawn(sandboxes.signal(self._sandbox, self._id, name))

    def resize(self, size: Pty) -> None:
        """Resize its terminal."""
        self._spawn(sandboxes.resize(self._sandbox, self._id, size.cols, size.rows))

    def _spawn(self, request: Request, then: object = None) -> None:
        task = asyncio.ensure_future(self._send(request, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, request: Request, then: object) -> None:
        try:
            with contextlib.suppress(SkerryError):  # the command has ended, or its output reports the failure
                await self._client.request(request)
        finally:
            if callable(then):
                then()

    async def aclose(self) -> None:
        for task in set(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._stack.aclose()


KEEPER: Final = "/run/skerry/bin/skerry-keeper"
SILENCE_TIMEOUT: Final = 90.0  # the server pings every 20 s
_EOF: Final = "eof"
_MAX_REASON: Final = 500


class Stream(Protocol):
    """Bytes both ways; each direction ends independently."""

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end."""

    async def write(self, data: bytes) -> None: ...
    async def end(self) -> None: ...
    async def aclose(self) -> None: ...


class PortStream:
    """A connection to a port on the sandbox's loopback, over the server."""

    def __init__(self, socket: AsyncWebSocket) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, client: AsyncClient, sandbox: str, port: int) -> PortStream:
        return cls(await AsyncWebSocket.open(client, previews.connect(sandbox, port)))

    async def read(self) -> bytes:
        while (message := await self._socket.receive(SILENCE_TIMEOUT)) != _EOF:
            if message is None:
                raise ServerUnreachable("the connection was closed")
            if isinstance(message, bytes) and message:
                return message
        return b""

    async def write(self, data: bytes) -> None:
        await self._socket.send(data)

    async def end(self) -> None:
        await self._socket.send(_EOF)

    async def aclose(self) -> None:
        await self._socket.aclose()


class DialedStream:
    """A connection that a program inside makes, as the user of the login and under the sandbox's network policy."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._output: AsyncIterator[tuple[bool, bytes]] = command.output()
        self._early = b""

    @classmethod
    async def open(cls, client: AsyncClient, sandbox: str, user: str | None, target: tuple[str, ...]) -> DialedStream:
        stream = cls(Command(client, sandbox, RunRequest(cmd=[KEEPER, "dial", *target], user=user)))
        try:
            await stream._connect()
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def _connect(self) -> None:
        """Wait for the first byte, which reports the connection."""
        await self._command.start()
        reason = b""
        async for is_error, data in self._output:
            if not is_error:
                self._early = data[1:]
                return
            reason = (reason + data)[:_MAX_REASON]
        raise Conflict(reason.decode("utf-8", "replace").strip() or "the connection failed")

    async def read(self) -> bytes:
        if early := self._early:
            self._early = b""
            return early
        async for is_error, data in self._output:
            if not is_error:
                return data
        return b""

    async def write(self, data: bytes) -> None:
        self._command.input.put(data)
        await self._command.input.room()

    async def end(self) -> None:
        self._command.input.end()

    async def aclose(self) -> None:
        await self._command.aclose()


async def lines(command: Command, limit: int) -> AsyncIterator[bytes]:
    """Yield the lines of a program's stdout. A longer line than `limit` ends them: the program is not trusted."""
    held = b""
    async with aclosing(command.output()) as pieces:  # type: ignore[type-var]
        async for is_error, data in pieces:
            if is_error:
                continue
            *whole, held = (held + data).split(b"\n")
            for line in whole:
                if len(line) > limit:
                    raise Conflict("the listener inside sent a line that is too long")
                yield line
            if len(held) > limit:
                raise Conflict("the listener inside sent a line that is too long")
