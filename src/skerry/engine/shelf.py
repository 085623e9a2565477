"""What the pool keeps of one image."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from skerry.engine.live import Live
from skerry.engine.rows import Spec

RECENT_S: Final = 900.0
RETRY_S: Final = 10.0  # after a failure; twice as long after each that follows
RETRY_MOST_S: Final = 600.0


@dataclass(eq=False)
class Shelf:
    """The ready sandboxes of one image, the oldest first."""

    image: str
    spec: Spec
    ready: list[Live] = field(default_factory=list)
    making: int = 0
    hits: int = 0
    misses: int = 0
    uses: int = 0
    used_at: float | None = None
    failures: int = 0
    failed: str = ""
    again_at: float = 0.0
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # none is in the making

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def recent(self) -> bool:
        return self.used_at is not None and time.monotonic() - self.used_at < RECENT_S

    @property
    def failing(self) -> bool:
        return time.monotonic() < self.again_at

    def note_failure(self, error: Exception) -> None:
        self.failed, self.failures = str(error), self.failures + 1
        self.again_at = time.monotonic() + min(RETRY_S * 2 ** (self.failures - 1), RETRY_MOST_S)

    @property
    def worthwhile(self) -> bool:
        """A snapshot is from its second use on: the steps of a build are used once."""
        return self.recent and (self.uses > 1 or not any(layer.startswith("snap:") for layer in self.spec.layers))
