"""Places for work that reads much: so many in all, and for one owner fewer, so that nobody keeps the others out."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from skerry.errors import QuotaExceeded

T = TypeVar("T")


class Slots:
    """Work in a slot has threads of its own: those that start and stop sandboxes never wait for it."""

    def __init__(self, total: int, each: int) -> None:
        self._total, self._each = total, each
        self._taken: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(total, thread_name_prefix="reading")

    @contextmanager
    def taken(self, owner: str) -> Iterator[None]:
        if self._taken[owner] >= self._each or self._taken.total() >= self._total:
            raise QuotaExceeded(
                "too many archives and comparisons are under way", hint="try again when one of them is done"
            )
        self._taken[owner] += 1
        try:
            yield
        finally:
            self._taken[owner] -= 1
            self._taken = +self._taken

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """In a thread, by one who has a slot."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def stoppable(self, work: Callable[[Callable[[], None]], T]) -> T:
        """The same; the work is given a check to call now and then, which ends it when its caller is cancelled."""
        over = threading.Event()

        def check() -> None:
            if over.is_set():
                raise InterruptedError

        try:
            return await self.run(work, check)
        finally:
            over.set()
