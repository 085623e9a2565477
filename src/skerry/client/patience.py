"""How often, and how long, a broken stream is taken up again. No I/O."""

from __future__ import annotations

import time
from collections.abc import Iterator

from skerry.errors import ServerUnreachable

GIVE_UP_AFTER = 60.0  # seconds without a sign of life: longer than a server needs to start and find its sandboxes
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
ASK_AGAIN_AFTER = 30.0  # a server leaves no question open for longer than a minute


class Patience:
    """Each piece that comes renews it; each failure in a row is waited on a little longer than the one before."""

    def __init__(self) -> None:
        self.error: ServerUnreachable | None = None  # the last failure, if nothing came since
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE

    def renew(self) -> None:
        self.error, self._failing_since, self._pause = None, None, FIRST_PAUSE

    def pause(self, error: ServerUnreachable) -> float:
        """Seconds to wait before the next try; raises the error if there were enough of them."""
        self.error, now = error, time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > GIVE_UP_AFTER:
            raise error
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause


class Rounds(Patience):
    """The questions of a long wait: iterate for how many seconds each may take, until the time is over; None: never.
    There is always one."""

    def __init__(self, within: float | None) -> None:
        super().__init__()
        self._until = None if within is None else time.monotonic() + within

    def __iter__(self) -> Iterator[float]:
        while True:
            left = ASK_AGAIN_AFTER if self._until is None else max(0.0, self._until - time.monotonic())
            yield min(left, ASK_AGAIN_AFTER)
            if self._until is not None and time.monotonic() >= self._until:
                return
