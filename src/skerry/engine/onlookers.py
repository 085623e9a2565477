"""Those who watch a review: each has its own queue, and one that is too slow is told that it missed something."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from skerry.types import ReviewEvent

WAITING_MOST = 256  # events that one may be behind


class Onlooker:
    """Iterate for what is told from now on, until the review is over. `tip`: up to which commit all is known."""

    def __init__(self, among: set[Onlooker]) -> None:
        self.tip = ""
        self._waiting: deque[ReviewEvent] = deque()
        self._earlier: set[str] = set()
        self._more = asyncio.Event()
        self._over = False
        self._among = among
        among.add(self)

    def first(self, events: Sequence[ReviewEvent], tip: str) -> None:
        """What came before it began to watch, or just then."""
        self.tip = tip
        self._earlier = {event.tip for event in events}
        self._waiting.extendleft(reversed(events))
        self._more.set()

    def tell(self, event: ReviewEvent) -> None:
        if event.type == "change" and event.tip in self._earlier:
            return
        if len(self._waiting) >= WAITING_MOST:
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
