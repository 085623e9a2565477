"""When, and for how long, a broken stream is reconnected. No I/O."""

from __future__ import annotations

import time
from collections.abc import Iterator

from skerry.errors import ServerUnreachable

GIVE_UP_AFTER = 60.0  # seconds without any response: longer than a server needs to start and find its sandboxes
STABLE_AFTER = 5.0  # seconds after which a connection counts as working, also without data
MIN_DELAY = 0.05
MAX_DELAY = 2.0
POLL_INTERVAL = 30.0  # a server answers every request within a minute


class Backoff:
    """Delays between attempts: each piece of data resets it; each failure in a row waits longer than the one before. A
    connection that ends soon, without data, is a failure too."""

    def __init__(self) -> None:
        self.error: ServerUnreachable | None = None  # the last failure, if no data arrived since
        self._failing_since: float | None = None
        self._delay = MIN_DELAY
        self._connected_at: float | None = None

    def reset(self) -> None:
        """Note new data: progress, which cannot repeat for ever."""
        self.error, self._failing_since, self._delay, self._connected_at = None, None, MIN_DELAY, None

    def connected(self) -> None:
        """Note an answer without new data."""
        self._connected_at = time.monotonic()

    def next_delay(self, error: ServerUnreachable) -> float:
        """Return the seconds to wait before the next attempt; raise the error if attempts failed for too long."""
        now = time.monotonic()
        if self._connected_at is not None and now - self._connected_at > STABLE_AFTER:
            self.reset()
        self.error, self._connected_at = error, None
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > GIVE_UP_AFTER:
            raise error
        delay, self._delay = self._delay, min(2 * self._delay, MAX_DELAY)
        return delay


class PollDeadline(Backoff):
    """The polls of a long wait: iterate for the seconds that each may take, until the deadline; None: no deadline. At
    least one is made."""

    def __init__(self, within: float | None) -> None:
        super().__init__()
        self._until = None if within is None else time.monotonic() + within

    def __iter__(self) -> Iterator[float]:
        while True:
            left = POLL_INTERVAL if self._until is None else max(0.0, self._until - time.monotonic())
            yield min(left, POLL_INTERVAL)
            if self._until is not None and time.monotonic() >= self._until:
                return
