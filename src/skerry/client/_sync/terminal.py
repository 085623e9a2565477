# Generated from client/_async/terminal.py by scripts/generate_sync.py. Do not edit.
"""`process.terminal()`: what a process's terminal shows, and what is typed into it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from skerry.client import backend_sync as backend
from skerry.client import requests, screen
from skerry.client._sync.websocket import WebSocket
from skerry.client.messages import NORMAL
from skerry.client.outcome import Gathered
from skerry.client.patience import Patience
from skerry.client.responses import raised
from skerry.client.screen import PIECE, REPLAY, Failed, Missing, Started
from skerry.errors import CommandTimeout, Conflict, InvalidRequest, ServerUnreachable, SkerryError
from skerry.types import ProcessInfo, Pty, Result, RunResult

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

SILENT = 90.0  # the server pings every 20 s
LIVED = 60.0  # a connection that held so long was a good one
_BROKEN = frozenset((1001, 1006, 1012))  # closings after which it is worth to call again


class Terminal:
    """A view of a process's terminal; there may be many. Leaving it leaves the process as it is.

        with process.terminal() as terminal:
            terminal.write("ls\\n")
            for data in terminal:
                print(data)

    A connection that breaks, or a server that is started again, goes unnoticed: it goes on where it was."""

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
        self._patience = Patience()
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
        """Where the next byte stands; `process.terminal(since=…)` goes on from there."""
        return self._since or 0

    @property
    def process(self) -> ProcessInfo | None:
        """The process as it was when this view began."""
        return self._process

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    def read(self, timeout: float | None = None) -> bytes:
        """What it shows next, as it comes. Nothing (`b""`): the process has ended, and `result` says how."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.result is None:
            socket = self._connected()
            try:
                message = socket.receive(_left(deadline))
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise CommandTimeout(f"the terminal showed nothing more within {timeout} s") from None
                self._again(socket, ServerUnreachable(f"the server at {self._address} went silent"))
                continue
            except ServerUnreachable as error:
                self._again(socket, error)
                continue
            if isinstance(message, bytes):
                self._since = self.offset + len(message)
                self._failure = None
                self._patience.renew()
                if message:
                    return message
            elif message is not None:
                self._understand(message)
            else:
                self._again(socket, self._closed(socket))
        return b""

    def write(self, data: bytes | str) -> None:
        """Type. Waits while the program does not read and much is waiting already."""
        if isinstance(data, str):
            data = data.encode()
        for start in range(0, len(data), PIECE):
            self._send(data[start : start + PIECE])

    def resize(self, cols: int, rows: int) -> None:
        """Give it another size. Programs inside are told (SIGWINCH); of several viewers the last one counts."""
        Pty(cols=cols, rows=rows)
        self._send(screen.resize(cols, rows))

    def _send(self, message: bytes | str) -> None:
        """What was sent into a connection that breaks right then may be lost, so it is not sent twice."""
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
        request = requests.terminal(self._sandbox.id, self._name, replay=self._replay, since=self._since)
        socket = WebSocket.open(self._sandbox.client, request)
        self._opened_at = time.monotonic()
        return socket

    def _again(self, broken: WebSocket, error: ServerUnreachable) -> WebSocket:
        """A new connection where `broken` stood, unless somebody else has made one."""
        with self._reopening:
            if time.monotonic() - self._opened_at > LIVED:
                self._patience.renew()
            while self._socket is broken:
                if self._failure is not None or broken.messages.code not in _BROKEN:
                    raise self._failure or error
                broken.close()
                backend.sleep(self._patience.pause(error))
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
        said = screen.understood(text)
        self._failure = None
        if isinstance(said, Started):
            self._process, self._since = said.process, said.offset
        elif isinstance(said, Missing):
            self.missing += said.missing
            self._since = self.offset + said.missing
        elif isinstance(said, Failed):
            self._failure = raised(said.error)
        elif isinstance(said, RunResult):
            self.result = Gathered().result(said)

    def _connected(self) -> WebSocket:
        if self._socket is None:
            raise InvalidRequest("this terminal is not open", hint="`with process.terminal() as terminal:`")
        return self._socket

    @property
    def _address(self) -> str:
        return str(self._sandbox.client.address)


def _left(deadline: float | None) -> float:
    return SILENT if deadline is None else max(0.0, min(SILENT, deadline - time.monotonic()))
