"""Limits of one sandbox's traffic: bytes per second and in total, of all its connections and both directions
together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.25  # so many seconds' worth may move at once
_MIN_PIECE: Final = 64 << 10


class TokenBucket:
    """A token bucket: `per_second` events, and `capacity` at once after a quiet time."""

    def __init__(self, per_second: int, capacity: int) -> None:
        self._per_second, self._capacity = per_second, capacity
        self._left, self._at = float(capacity), time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(self._capacity, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class TrafficMeter:
    """`on_traffic` is called when bytes have moved, `on_exhausted` once when `max_bytes` is reached."""

    def __init__(self, on_traffic: Callable[[], None], on_exhausted: Callable[[], None]) -> None:
        self._on_traffic, self._on_exhausted = on_traffic, on_exhausted
        self.sent = self.received = 0  # since the sandbox was created
        self.bytes_per_second: int | None = None
        self.max_bytes: int | None = None
        self._tokens, self._at = 0.0, time.monotonic()

    def limit(self, bytes_per_second: int | None, max_bytes: int | None) -> None:
        self.bytes_per_second, self.max_bytes = bytes_per_second, max_bytes
        self._tokens, self._at = float(self._burst()), time.monotonic()

    @property
    def exhausted(self) -> bool:
        return self.max_bytes is not None and self.sent + self.received >= self.max_bytes

    def allowance(self, want: int) -> int:
        """Return how many of `want` bytes may move now; 0: none before `delay()`."""
        if self.max_bytes is not None:
            want = min(want, max(0, self.max_bytes - self.sent - self.received))
        if self.bytes_per_second is None:
            return want
        now = time.monotonic()
        self._tokens = min(self._burst(), self._tokens + (now - self._at) * self.bytes_per_second)
        self._at = now
        return min(want, int(self._tokens)) if self._tokens >= 1 else 0

    def delay(self) -> float:
        """Return the seconds until a worthwhile piece may move."""
        if self.bytes_per_second is None:
            return 0.05
        return min(1.0, max(0.001, (min(_MIN_PIECE, self._burst()) - self._tokens) / self.bytes_per_second))

    def add(self, sent: int, received: int) -> None:
        was_over = self.exhausted
        self.sent += sent
        self.received += received
        if self.bytes_per_second is not None:
            self._tokens -= sent + received
        self._on_traffic()
        if self.exhausted and not was_over:
            self._on_exhausted()

    async def wait_allowance(self, want: int) -> int:
        """Wait until `allowance` is not 0 and return it."""
        while not (allowed := self.allowance(want)):
            if self.exhausted:
                raise ConnectionAbortedError("the sandbox's byte limit is used up")
            await asyncio.sleep(self.delay())
        return allowed

    def _burst(self) -> float:
        return max(4096.0, (self.bytes_per_second or 0) * _BURST_S)
