# Generated from client/_async/forward.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.forward(3000)`: a port of this machine that leads to one inside, TCP as it is."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from skerry.client import backend_sync as backend
from skerry.client import preview_requests as requests
from skerry.client._sync.websocket import WebSocket
from skerry.errors import InvalidRequest, ServerUnreachable, SkerryError
from skerry.types import check_port

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox

SILENT = 90.0  # the server pings every 20 s
EOF = "eof"


class Forward:
    """Listens while it is entered.

        with sandbox.forward(5432) as forward:
            connect(forward.host, forward.port)

    A connection that the inside refuses is reset, and `on_error` told why; the rest goes on."""

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
        self._listener: backend.Listener | None = None

    def __enter__(self) -> Forward:
        self._listener = backend.Listener.open(*self._place, self._serve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end the connections that are open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    @property
    def host(self) -> str:
        return self._address[0]

    @property
    def port(self) -> int:
        """The one here."""
        return self._address[1]

    @property
    def remote(self) -> int:
        """The one inside."""
        return self._remote

    @property
    def _address(self) -> tuple[str, int]:
        if self._listener is None:
            raise InvalidRequest("this forward is not open", hint="`with sandbox.forward(…) as forward:`")
        return self._listener.address

    def _serve(self, here: backend.Stream) -> None:
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
            backend.both(pipe.inward, pipe.outward, pipe.broken)
        finally:
            here.close()
            there.close()


class _Pipe:
    """One connection. Each direction ends by itself; where one breaks, both are broken off."""

    def __init__(self, here: backend.Stream, there: WebSocket) -> None:
        self._here = here
        self._there = there

    def inward(self) -> None:
        while data := self._here.read():
            self._there.send(data)
        self._there.send(EOF)

    def outward(self) -> None:
        while (message := self._there.receive(SILENT)) != EOF:
            if message is None:
                raise ServerUnreachable("the connection was broken off")
            if isinstance(message, bytes):
                self._here.write(message)
        self._here.end()

    def broken(self) -> None:
        with contextlib.suppress(OSError):
            self._there.cut()  # first: else the local end that follows could be told as an orderly one
        self._here.reset()
