"""`process.terminal()`: the output and input of a process's terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from skerry.client._async.websocket import AsyncWebSocket
from skerry.client.results.command import OutputCollector
from skerry.client.transport import backend_async as backend
from skerry.client.transport import terminal_messages
from skerry.client.transport.backoff import Backoff
from skerry.client.transport.requests import sandboxes
from skerry.client.transport.responses import to_error
from skerry.client.transport.terminal_messages import PIECE, REPLAY, TerminalError, TerminalGap, TerminalStarted
from skerry.client.transport.websocket_codec import NORMAL
from skerry.errors import CommandTimeout, Conflict, InvalidRequest, ServerUnreachable, SkerryError
from skerry.types import ProcessInfo, Pty, Result, RunResult

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox

SILENCE_TIMEOUT = 90.0  # the server pings every 20 s
STABLE_AFTER = 60.0  # after so many seconds a connection counts as successful
_BROKEN = frozenset((1001, 1006, 1012))  # close codes after which reconnecting is useful


class AsyncTerminal:
    r"""A view of a process's terminal; a process can have several. Leaving it does not affect the process.

        async with process.terminal() as terminal:
            await terminal.write("ls\\n")
            async for data in terminal:
                print(data)

    It reconnects after a broken connection or a restart of the server, and continues at the same position.
    """

    def __init__(self, sandbox: AsyncSandbox, process: str, *, replay: int = REPLAY, since: int | None = None) -> None:
        for name, value in (("replay", replay), ("since", since)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidRequest(f"{name}: {value!r} is not a number of bytes")
        self._sandbox = sandbox
        self._name = process
        self._replay = replay
        self._since = since
        self._socket: AsyncWebSocket | None = None
        self._process: ProcessInfo | None = None
        self._failure: SkerryError | None = None
        self._reopening = backend.Lock()
        self._opened_at = 0.0
        self._backoff = Backoff()
        self.result: Result | None = None
        self.missing = 0

    async def __aenter__(self) -> AsyncTerminal:
        self._socket = await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.aclose()

    @property
    def offset(self) -> int:
        """The position of the next byte; `process.terminal(since=…)` continues there."""
        return self._since or 0

    @property
    def process(self) -> ProcessInfo | None:
        """The process at the start of this view."""
        return self._process

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    async def read(self, timeout: float | None = None) -> bytes:
        """Return the next output. `b""`: the process has ended, and `result` is set."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.result is None:
            socket = self._connected()
            try:
                message = await socket.receive(_left(deadline))
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise CommandTimeout(f"no terminal output within {timeout} s") from None
                await self._again(socket, ServerUnreachable(f"the server at {self._address} stopped responding"))
                continue
            except ServerUnreachable as error:
                await self._again(socket, error)
                continue
            if isinstance(message, bytes):
                self._since = self.offset + len(message)
                self._failure = None
                self._backoff.reset()
                if message:
                    return message
            elif message is not None:
                self._understand(message)
            else:
                await self._again(socket, self._closed(socket))
        return b""

    async def write(self, data: bytes | str) -> None:
        """Type. Waits while the program does not read and its input buffer is full."""
        if isinstance(data, str):
            data = data.encode()
        for start in range(0, len(data), PIECE):
            await self._send(data[start : start + PIECE])

    async def resize(self, cols: int, rows: int) -> None:
        """Set the size. Programs inside receive SIGWINCH; of several viewers the last one counts."""
        Pty(cols=cols, rows=rows)
        await self._send(terminal_messages.resize(cols, rows))

    async def _send(self, message: bytes | str) -> None:
        """Send a message once: if the connection breaks meanwhile, it may be lost, but never sent twice."""
        socket = self._connected()
        if self.result is not None:
            raise self._ended()
        try:
            await socket.look()
            lost = socket.messages.over
        except ServerUnreachable:
            lost = True
        if lost and socket.messages.code == NORMAL:
            raise self._ended()
        if lost:
            socket = await self._again(socket, self._closed(socket))
        await socket.send(message)

    async def _open(self) -> AsyncWebSocket:
        request = sandboxes.terminal(self._sandbox.id, self._name, replay=self._replay, since=self._since)
        socket = await AsyncWebSocket.open(self._sandbox.client, request)
        self._opened_at = time.monotonic()
        return socket

    async def _again(self, broken: AsyncWebSocket, error: ServerUnreachable) -> AsyncWebSocket:
        """Return a new connection in place of `broken`, unless another call has made one."""
        async with self._reopening:
            if time.monotonic() - self._opened_at > STABLE_AFTER:
                self._backoff.reset()
            while self._socket is broken:
                if self._failure is not None or broken.messages.code not in _BROKEN:
                    raise self._failure or error
                await broken.aclose()
                await backend.sleep(self._backoff.next_delay(error))
                with contextlib.suppress(ServerUnreachable):
                    socket = await self._open()
                    if self._socket is broken:
                        self._socket = socket
                    else:  # closed meanwhile
                        await socket.aclose()
            return self._connected()

    def _closed(self, socket: AsyncWebSocket) -> ServerUnreachable:
        reason = socket.messages.reason or f"code {socket.messages.code}"
        return ServerUnreachable(f"the terminal was closed: {reason}")

    def _ended(self) -> Conflict:
        return Conflict(f"process {self._name} has ended")

    def _understand(self, text: str) -> None:
        said = terminal_messages.decode_message(text)
        self._failure = None
        if isinstance(said, TerminalStarted):
            self._process, self._since = said.process, said.offset
        elif isinstance(said, TerminalGap):
            self.missing += said.missing
            self._since = self.offset + said.missing
        elif isinstance(said, TerminalError):
            self._failure = to_error(said.error)
        elif isinstance(said, RunResult):
            self.result = OutputCollector().result(said)

    def _connected(self) -> AsyncWebSocket:
        if self._socket is None:
            raise InvalidRequest("this terminal is not open", hint="`async with process.terminal() as terminal:`")
        return self._socket

    @property
    def _address(self) -> str:
        return str(self._sandbox.client.address)


def _left(deadline: float | None) -> float:
    return SILENCE_TIMEOUT if deadline is None else max(0.0, min(SILENCE_TIMEOUT, deadline - time.monotonic()))
