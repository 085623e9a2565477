"""What the server knows of itself: when it was busy last, where it listens, and the request that it stop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from skerry.errors import QuotaExceeded
from skerry.server.mcp import Room
from skerry.types import Caller

CALLS_MOST: Final = 512


class Control:
    """Shared by all listeners of one server."""

    def __init__(self) -> None:
        self.started_at = time.time()
        self.addresses: list[str] = []
        self.document: dict[str, Any] = {}
        self.mcp = Room()
        self.stopping = asyncio.Event()
        self._active = 0
        self._open: Counter[str] = Counter()
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
    def call(self, caller: Caller) -> Iterator[None]:
        """Each open call may hold a megabyte for who does not read its answer; the server is everybody's."""
        owner = caller.owner
        if caller.scope != "admin" and self._open[owner] >= CALLS_MOST:
            raise QuotaExceeded(
                f"{CALLS_MOST} calls of yours are open at once", hint="close some, or wait for their end"
            )
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._began

    def idle_for(self) -> float:
        """Seconds since the last request ended; 0 while one is under way."""
        return 0.0 if self._active else time.monotonic() - self._last

    def stop(self) -> None:
        self.stopping.set()
