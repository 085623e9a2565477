"""Threads for those who read ledgers. How long a comparison takes is up to who wrote the files: one sandbox never has
all of the threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
P = ParamSpec("P")
THREADS = 4
EACH = 2


class Lanes:
    def __init__(self, name: str, threads: int = THREADS, each: int = EACH) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._each = each
        self._turns: WeakKeyDictionary[Hashable, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, whose: Hashable, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Whoever leaves does not end the work: it counts until its thread is done."""
        turns = self._turns.setdefault(whose, asyncio.Semaphore(self._each))
        await turns.acquire()
        try:
            doing = asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))
        except BaseException:
            turns.release()
            raise
        doing.add_done_callback(lambda _: turns.release())
        return await asyncio.shield(doing)

    def close(self) -> None:
        self._pool.shutdown()
