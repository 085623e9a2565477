"""Watch the event loop: every caller waits while one callback holds it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator
from types import FrameType

log = logging.getLogger("skerry.server")
BEAT_S = 0.1
STALL_S = 0.1  # a beat that is later than this counts as a stall


class LoopMonitor:
    """Counts stalls of the event loop. A task notes each beat; a thread looks at the loop's stack when a beat is late.

    `lag_s`: how late the last beat was. `longest_busy_s`: the longest stall without the time in which the whole process
    did not run, because the machine was busy with other work."""

    def __init__(self) -> None:
        self.stalls = 0
        self.lag_s = 0.0
        self.longest_s = 0.0
        self.longest_busy_s = 0.0
        self._due = float("inf")
        self._thread_id = 0
        self._seen: tuple[str, str] | None = None
        self._stop = threading.Event()

    @property
    def seen_route(self) -> str | None:
        """The route that holds the loop now; empty: work outside of a route."""
        return None if self._seen is None else self._seen[0]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._thread_id = threading.get_ident()
        beating = asyncio.create_task(self._beat())
        thread = threading.Thread(target=self._look, name="loop-monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            beating.cancel()
            self._stop.set()

    async def _beat(self) -> None:
        while True:
            began, busy = time.monotonic(), time.process_time()
            self._seen, self._due = None, began + BEAT_S
            await asyncio.sleep(BEAT_S)
            late = time.monotonic() - self._due
            self._note(late, min(late, time.process_time() - busy))

    def _note(self, late: float, busy: float) -> None:
        self.lag_s = max(late, 0.0)
        self.longest_busy_s = max(self.longest_busy_s, busy)
        if late < STALL_S:
            return
        self.stalls += 1
        self.longest_s = max(self.longest_s, late)
        route, place = self._seen or ("", "")
        extra = {"ms": round(late * 1000), "busy_ms": round(busy * 1000), "path": route, "function": place}
        log.warning("event loop was blocked", extra=extra)

    def _look(self) -> None:
        while not self._stop.wait(STALL_S / 2):
            if not self.seen_route and time.monotonic() > self._due + STALL_S / 2:  # look again until a route is seen
                frame = sys._current_frames().get(self._thread_id)
                self._seen = _describe(frame)


def _describe(frame: FrameType | None) -> tuple[str, str]:
    """Return the route that runs on the loop, if any, and the innermost function of this package."""
    place = ""
    while frame is not None:
        code = frame.f_code
        if not place and frame.f_globals.get("__name__", "").startswith("skerry."):
            place = f"{frame.f_globals['__name__']}.{code.co_qualname}"
        if code.co_qualname == "Endpoint._serve" and "route" in frame.f_locals:
            route = frame.f_locals["route"]
            return f"{route.method} {route.path}", place
        frame = frame.f_back
    return "", place
