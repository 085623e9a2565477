"""State that all listeners of a server share: the last activity, the addresses, and the request to stop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

from skerry.errors import QuotaExceeded
from skerry.server.loop_monitor import LoopMonitor
from skerry.server.metrics import RequestMetrics
from skerry.server.routes.mcp import McpMount
from skerry.types import Caller

MAX_CALLS: Final = 512


class Connection(Protocol):
    def revoke(self) -> None: ...

    def serving(self, task: asyncio.Task[Any]) -> AbstractContextManager[None]:
        """Cancel the task of the block when the caller disconnects; the block raises ClientDisconnected."""


class Control:
    """Shared by all listeners of one server."""

    def __init__(self) -> None:
        self.started_at = time.time()
        self.addresses: list[str] = []
        self.document: dict[str, Any] = {}
        self.mcp = McpMount()
        self.loop = LoopMonitor()
        self.requests = RequestMetrics()
        self.stopping = asyncio.Event()
        self._active = 0
        self._open: Counter[str] = Counter()
        self._connections: dict[str, Counter[Connection]] = {}  # with open calls, by token
        self._began = self._last = time.monotonic()

    @contextmanager
    def request(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._last = time.monotonic()

    @contextmanager
    def call(self, caller: Caller, connection: Connection | None) -> Iterator[None]:
        """Count an open call. Each may buffer a megabyte for a client that does not read, and all owners share the
        server. `revoke` finds the connection until the call ends."""
        owner = caller.owner
        if caller.scope != "admin" and self._open[owner] >= MAX_CALLS:
            raise QuotaExceeded(f"more than {MAX_CALLS} open calls", hint="close some calls, or wait until they end")
        self._open[owner] += 1
        try:
            with self._revocable(caller.token, connection):
                yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    @contextmanager
    def _revocable(self, token: str | None, connection: Connection | None) -> Iterator[None]:
        if token is None or connection is None:
            yield
            return
        connections = self._connections.setdefault(token, Counter())
        connections[connection] += 1
        try:
            yield
        finally:
            connections[connection] -= 1
            if not connections[connection]:
                del connections[connection]
            if not connections:
                self._connections.pop(token, None)

    def revoke(self, token: str, spared: Connection | None) -> None:
        """Disconnect the open calls and MCP sessions of a token. `spared` is the connection of the caller, which gets
        its response."""
        for connection in list(self._connections.get(token, ())):
            if connection is not spared:
                connection.revoke()
        self.mcp.revoke(token)

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._began

    def idle_for(self) -> float:
        """Return the seconds since the last request ended; 0 during a request."""
        return 0.0 if self._active else time.monotonic() - self._last

    def stop(self) -> None:
        self.stopping.set()
