"""How often, and how long, a broken stream is taken up again. No I/O."""

from __future__ import annotations

import time

from skerry.errors import ServerUnreachable

GIVE_UP_AFTER = 60.0  # seconds without a sign of life: longer than a server needs to start and find its sandboxes
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


class Patience:
    """Each piece that comes renews it; each failure in a row is waited on a little longer than the one before."""

    def __init__(self) -> None:
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE

    def renew(self) -> None:
        self._failing_since, self._pause = None, FIRST_PAUSE

    def pause(self, error: ServerUnreachable) -> float:
        """Seconds to wait before the next try; raises the error if there were enough of them."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > GIVE_UP_AFTER:
            raise error
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause
