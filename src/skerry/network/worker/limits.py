"""What one sandbox may move: bytes a second, bytes in all. Both ways together, all its connections together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.25  # so much of a second's worth may go at once
_LEAST: Final = 64 << 10


class Turns:
    """How often something may happen: so many a second, and so many at once after a quiet time."""

    def __init__(self, a_second: int, at_once: int) -> None:
        self._a_second, self._at_once = a_second, at_once
        self._left, self._at = float(at_once), time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(self._at_once, self._left + (now - self._at) * self._a_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Meter:
    """`changed` is called when bytes have gone through, `used_up` once when the total is reached."""

    def __init__(self, changed: Callable[[], None], used_up: Callable[[], None]) -> None:
        self._changed, self._used_up = changed, used_up
        self.sent = self.received = 0  # in all
        self.bandwidth: int | None = None
        self.total: int | None = None
        self._tokens, self._at = 0.0, time.monotonic()

    def limit(self, bandwidth: int | None, total: int | None) -> None:
        self.bandwidth, self.total = bandwidth, total
        self._tokens, self._at = float(self._burst()), time.monotonic()

    @property
    def over(self) -> bool:
        return self.total is not None and self.sent + self.received >= self.total

    def allowance(self, want: int) -> int:
        """How many of `want` bytes may move now; 0: none before `delay()`."""
        if self.total is not None:
            want = min(want, max(0, self.total - self.sent - self.received))
        if self.bandwidth is None:
            return want
        now = time.monotonic()
        self._tokens = min(self._burst(), self._tokens + (now - self._at) * self.bandwidth)
        self._at = now
        return min(want, int(self._tokens)) if self._tokens >= 1 else 0

    def delay(self) -> float:
        """Seconds until a worthwhile piece may move."""
        if self.bandwidth is None:
            return 0.05
        return min(1.0, max(0.001, (min(_LEAST, self._burst()) - self._tokens) / self.bandwidth))

    def add(self, sent: int, received: int) -> None:
        was_over = self.over
        self.sent += sent
        self.received += received
        if self.bandwidth is not None:
            self._tokens -= sent + received
        self._changed()
        if self.over and not was_over:
            self._used_up()

    async def room(self, want: int) -> int:
        """As `allowance`, once there is some."""
        while not (allowed := self.allowance(want)):
            if self.over:
                raise ConnectionAbortedError("the sandbox's total is used up")
            await asyncio.sleep(self.delay())
        return allowed

    def _burst(self) -> float:
        return max(4096.0, (self.bandwidth or 0) * _BURST_S)
