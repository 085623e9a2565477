# Generated from client/_async/terminal.py by scripts/generate_sync.py. Do not edit.
"""`process.terminal()`: the output and input of a process's terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from skerry.client._sync.websocket import WebSocket
from skerry.client.results.command import OutputCollector
from skerry.client.transport import backend_sync as backend
from skerry.client.transport import terminal_messages
from skerry.client.transport.backoff import Backoff
from skerry.client.transport.requests import sandboxes
from skerry.client.transport.responses import to_error
from skerry.client.transport.terminal_messages import PIECE, REPLAY, TerminalError, TerminalGap, TerminalStarted
from skerry.client.transport.websocket_codec import NORMAL
from skerry.errors import CommandTimeout, Conflict, InvalidRequest, ServerUnreachable, SkerryError
from skerry.types import ProcessInfo, Pty, Result, RunResult

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

SILENCE_TIMEOUT = 90.0  # the server pings every 20 s
STABLE_AFTER = 60.0  # after so many seconds a connection counts as successful
_BROKEN = frozenset((1001, 1006, 1012))  # close codes after which reconnecting is useful


class Terminal:
    r"""A view of a process's terminal; a process can have several. Leaving it does not affect the process.

        with process.terminal() as terminal:
            terminal.write("ls\\n")
            for data in terminal:
                print(data)

    It reconnects after a broken connection or a restart of the server, and continues at the same position.
    """

    def __init__(self, sandbox: Sandbox, process: str, *, replay: int = REPLAY, since: int | None = None) -> None:
        for name, value in (("replay", replay), ("since", since)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidRequest(f"{name}: {value!r} is not a number of bytes")
        self._sandbox = sandbox
        self._name = process
        self._replay = replay
        self._since = since
        self._socket: WebSocket | None = None
        self._process: ProcessInfo | None = None
        self._failure: SkerryError | None = None
        self._reopening = backend.Lock()
        self._opened_at = 0.0
        self._backoff = Backoff()
        self.result: Result | None = None
        self.missing = 0

    def __enter__(self) -> Terminal:
        self._socket = self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    @property
    def offset(self) -> int:
        """The position of the next byte; `process.terminal(since=…)` continues there."""
        return self._since or 0

    @property
    def process(self) -> ProcessInfo | None:
        """The process at the start of this view."""
        return self._process

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    def read(self, timeout: float | None = None) -> bytes:
        """Return the next output. `b""`: the process has ended, and `result` is set."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.result is None:
            socket = self._connected()
            try:
                message = socket.receive(_left(deadline))
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise CommandTimeout(f"no terminal output within {timeout} s") from None
                self._again(socket, ServerUnreachable(f"the server at {self._address} stopped responding"))
                continue
            except ServerUnreachable as error:
                self._again(socket, error)
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
                self._again(socket, self._closed(socket))
        return b""

    def write(self, data: bytes | str) -> None:
        """Type. Waits while the program does not read and its input buffer is full."""
        if isinstance(data, str):
            data = data.encode()
        for start in range(0, len(data), PIECE):
            self._send(data[start : start + PIECE])

    def resize(self, cols: int, rows: int) -> None:
        """Set the size. Programs inside receive SIGWINCH; of several viewers the last one counts."""
        Pty(cols=cols, rows=rows)
        self._send(terminal_messages.resize(cols, rows))

    def _send(self, message: bytes | str) -> None:
        """Send a message once: if the connection breaks meanwhile, it may be lost, but never sent twice."""
        socket = self._connected()
        if self.result is not None:
            raise self._ended()
        try:
            socket.look()
            lost = socket.messages.over
        except ServerUnreachable:
            lost = True
        if lost and socket.messages.code == NORMAL:
            raise self._ended()
        if lost:
            socket = self._again(socket, self._closed(socket))
        socket.send(message)

    def _open(self) -> WebSocket:
        request = sandboxes.terminal(self._sandbox.id, self._name, replay=self._replay, since=self._since)
        socket = WebSocket.open(self._sandbox.client, request)
        self._opened_at = time.monotonic()
        return socket

    def _again(self, broken: WebSocket, error: ServerUnreachable) -> WebSocket:
        """Return a new connection in place of `broken`, unless another call has made one."""
        with self._reopening:
            if time.monotonic() - self._opened_at > STABLE_AFTER:
                self._backoff.reset()
            while self._socket is broken:
                if self._failure is not None or broken.messages.code not in _BROKEN:
                    raise self._failure or error
                broken.close()
                backend.sleep(self._backoff.next_delay(error))
                with contextlib.suppress(ServerUnreachable):
                    socket = self._open()
                    if self._socket is broken:
                        self._socket = socket
                    else:  # closed meanwhile
                        socket.close()
            return self._connected()

    def _closed(self, socket: WebSocket) -> ServerUnreachable:
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

    def _connected(self) -> WebSocket:
        if self._socket is None:
            raise InvalidRequest("this terminal is not open", hint="`with process.terminal() as terminal:`")
        return self._socket

    @property
    def _address(self) -> str:
        return str(self._sandbox.client.address)


def _left(deadline: float | None) -> float:
    return SILENCE_TIMEOUT if deadline is None else max(0.0, min(SILENCE_TIMEOUT, deadline - time.monotonic()))
