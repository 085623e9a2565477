"""What the server knows of itself: when it was busy last, where it listens, and the request that it stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Control:
    """Shared by all listeners of one server."""

    def __init__(self) -> None:
        self.started_at = time.time()
        self.addresses: list[str] = []
        self.document: dict[str, Any] = {}
        self.stopping = asyncio.Event()
        self._active = 0
        self._began = self._last = time.monotonic()

    @contextmanager
    def request(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._last = time.monotonic()

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._began

    def idle_for(self) -> float:
        """Seconds since the last request ended; 0 while one is under way."""
        return 0.0 if self._active else time.monotonic() - self._last

    def stop(self) -> None:
        self.stopping.set()
