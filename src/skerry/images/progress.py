"""Measured progress of a build."""

from __future__ import annotations

import time
from collections.abc import Callable

from skerry.types import Progress

_INTERVAL = 0.2


class BuildStage:
    """One stage of a build. Reports at most five times a second; the remaining time is that of this stage, at its own
    rate."""

    def __init__(
        self, publish: Callable[[Progress], None], name: str, message: str, total: int = 0, start: int = 0
    ) -> None:
        self._publish = publish
        self._name, self._message = name, message
        self.total = total
        self._first = self._done = start
        self._began = time.monotonic()
        self._reported_at = 0.0
        self._report()

    def at(self, done: int, message: str | None = None) -> None:
        self._done = max(self._done, done)
        self._message = message or self._message
        if time.monotonic() - self._reported_at >= _INTERVAL:
            self._report()

    def add(self, amount: int) -> None:
        self.at(self._done + amount)

    def finish(self, message: str | None = None) -> None:
        self._message = message or self._message
        if self.total:
            self._done = self.total
        self._report()

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        self._publish(
            Progress(stage=self._name, message=self._message, done=self._done, total=self.total, eta_s=self._left())
        )

    def _left(self) -> float | None:
        if not self.total:
            return None
        if self._done >= self.total:
            return 0.0
        spent, gained = time.monotonic() - self._began, self._done - self._first
        if spent < 1.0 or gained <= 0:
            return None
        return round((self.total - self._done) * spent / gained, 1)
