"""Subscribers of a review: each has a queue, and one that is too slow gets an event that it missed some."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from skerry.types import ReviewEvent

MAX_WAITING = 256  # events that one may be behind


class ReviewSubscriber:
    """Iterate for events from now on, until the review ends. `tip`: the commit up to which everything is known."""

    def __init__(self, among: set[ReviewSubscriber]) -> None:
        self.tip = ""
        self._waiting: deque[ReviewEvent] = deque()
        self._earlier: set[str] = set()
        self._more = asyncio.Event()
        self._over = False
        self._among = among
        among.add(self)

    def first(self, events: Sequence[ReviewEvent], tip: str) -> None:
        """Add the events from before the subscription."""
        self.tip = tip
        self._earlier = {event.tip for event in events}
        self._waiting.extendleft(reversed(events))
        self._more.set()

    def publish(self, event: ReviewEvent) -> None:
        if event.type == "change" and event.tip in self._earlier:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
            event = ReviewEvent(type="lost", sandbox=event.sandbox, tip=event.tip)
        self._waiting.append(event)
        self._more.set()

    def end(self) -> None:
        self._over = True
        self._more.set()

    async def __aiter__(self) -> AsyncIterator[ReviewEvent]:
        while True:
            self._more.clear()
            while self._waiting:
                yield self._waiting.popleft()
            if self._over:
                return
            await self._more.wait()

    async def aclose(self) -> None:
        self._among.discard(self)
