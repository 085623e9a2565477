# Generated from client/_async/forward.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.forward(3000)`: a port of this machine that forwards TCP connections to a port inside."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from skerry.client._sync.websocket import WebSocket
from skerry.client.transport import backend_sync as backend
from skerry.client.transport.requests import previews as requests
from skerry.errors import InvalidRequest, ServerUnreachable, SkerryError
from skerry.types import check_port

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

SILENCE_TIMEOUT = 90.0  # the server pings every 20 s
EOF = "eof"


class Forward:
    """Listens while the block is entered.

        with sandbox.forward(5432) as forward:
            connect(forward.host, forward.port)

    A connection that is refused inside is reset, and `on_error` receives the error; others continue.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        remote: int,
        *,
        local: int = 0,
        bind: str = "127.0.0.1",
        on_error: backend.Callback[SkerryError] | None = None,
    ) -> None:
        check_port(remote)
        if local:
            check_port(local)
        self._sandbox = sandbox
        self._remote = remote
        self._place = (bind, local)
        self._on_error = on_error
        self._listener: backend.PortListener | None = None

    def __enter__(self) -> Forward:
        self._listener = backend.PortListener.open(*self._place, self.serve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and close the open connections."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    @property
    def host(self) -> str:
        return self._address[0]

    @property
    def port(self) -> int:
        """The port on this machine."""
        return self._address[1]

    @property
    def remote(self) -> int:
        """The port inside."""
        return self._remote

    @property
    def _address(self) -> tuple[str, int]:
        if self._listener is None:
            raise InvalidRequest("this forward is not open", hint="`with sandbox.forward(…) as forward:`")
        return self._listener.address

    def serve(self, here: backend.LocalConnection) -> None:
        """Forward one connection, also of another listener."""
        try:
            request = requests.connect(self._sandbox.id, self._remote)
            there = WebSocket.open(self._sandbox.client, request)
        except SkerryError as error:
            here.reset()
            if self._on_error is not None:
                backend.deliver(self._on_error, error)
            return
        pipe = _Pipe(here, there)
        try:
            backend.run_both(pipe.inward, pipe.outward, pipe.broken)
        finally:
            here.close()
            there.close()


class _Pipe:
    """One connection. Each direction ends independently; a failure of one ends both."""

    def __init__(self, here: backend.LocalConnection, there: WebSocket) -> None:
        self._here = here
        self._there = there

    def inward(self) -> None:
        while data := self._here.read():
            self._there.send(data)
        self._there.send(EOF)

    def outward(self) -> None:
        while (message := self._there.receive(SILENCE_TIMEOUT)) != EOF:
            if message is None:
                raise ServerUnreachable("the connection was closed")
            if isinstance(message, bytes):
                self._here.write(message)
        self._here.end()

    def broken(self) -> None:
        with contextlib.suppress(OSError):
            self._there.cut()  # first: otherwise the local end could be seen as an orderly one
        self._here.reset()
