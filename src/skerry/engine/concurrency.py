"""Bounded work: fair shares of threads for sandboxes that read ledgers, quotas for owners that run large reads, and
fair turns for commands that start."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from skerry.errors import QuotaExceeded

T = TypeVar("T")
P = ParamSpec("P")
THREADS = 4
THREADS_PER_KEY = 2
ACTIVE_S = 0.25


class FairThreadPool:
    """Threads shared by sandboxes. The author of the files controls how long a comparison takes, so one sandbox never
    gets all of the threads."""

    def __init__(self, name: str, threads: int = THREADS, each: int = THREADS_PER_KEY) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._each = each
        self._turns: WeakKeyDictionary[Hashable, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, whose: Hashable, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work in a thread. A cancelled caller does not end the work: it counts until its thread is done."""
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


class OwnerQuota:
    """Bounds large reads: a total number, and fewer for one owner, so that one owner never blocks the others. The work
    has separate threads: starting and stopping sandboxes never waits for it."""

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
        """Run work in a thread. The caller holds a slot."""
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


class FairTurns:
    """Bounds work that one key, and all keys of one owner, have under way. A key that is the only active one has
    `alone` turns; active keys share half of them, so that a busy key leaves the processors to a quiet one. A free turn
    goes to the owner's keys in rotation, so that a key with one call never waits behind all calls of a busy one. Owners
    do not wait for each other."""

    def __init__(self, alone: int, each_owner: int, active_s: float = ACTIVE_S) -> None:
        self._alone, self._each_owner, self._active_s = alone, each_owner, active_s
        self._busy: Counter[str] = Counter()  # turns taken, by key and by owner
        self._used: OrderedDict[str, float] = OrderedDict()  # active keys by the time of their last call
        self._waiting: dict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def turn(self, owner: str, key: str) -> AsyncIterator[None]:
        await self._take(owner, key)
        try:
            yield
        finally:
            self._give_back(owner, key)

    async def _take(self, owner: str, key: str) -> None:
        self._used[key] = time.monotonic()
        self._used.move_to_end(key)
        queues = self._waiting.get(owner)
        if self._has_room(owner, key) and not (queues and queues.get(key)):
            self._count(owner, key, 1)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(owner, OrderedDict()).setdefault(key, deque())
        queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # the turn came at the same moment
                self._give_back(owner, key)
            elif turn in queue:
                queue.remove(turn)
            raise

    def _has_room(self, owner: str, key: str) -> bool:
        return self._busy[f"owner:{owner}"] < self._each_owner and self._busy[f"key:{key}"] < self._share()

    def _share(self) -> int:
        """Return the turns of each active key."""
        now = time.monotonic()
        while self._used and next(iter(self._used.values())) < now - self._active_s:
            key, _ = self._used.popitem(last=False)
            if self._busy[f"key:{key}"]:
                self._used[key] = now
        return self._alone if len(self._used) < 2 else max(1, self._alone // (2 * len(self._used)))

    def _count(self, owner: str, key: str, turns: int) -> None:
        for name in (f"owner:{owner}", f"key:{key}"):
            self._busy[name] += turns
            if not self._busy[name]:
                del self._busy[name]

    def _give_back(self, owner: str, key: str) -> None:
        self._count(owner, key, -1)
        while self._start_next(owner):  # all that fit: the share may have grown since the last call ended
            pass

    def _start_next(self, owner: str) -> bool:
        """Give a turn to one waiting call, if one has room; return whether it did."""
        queues, started = self._waiting.get(owner, OrderedDict()), False
        for key in list(queues):
            queue = queues[key]
            while queue and queue[0].done():  # cancelled
                queue.popleft()
            if queue and self._has_room(owner, key):
                self._count(owner, key, 1)
                queue.popleft().set_result(None)
                queues.move_to_end(key)
                started = True
                break
        for key in [key for key, queue in queues.items() if not queue]:
            del queues[key]
        if not queues:
            self._waiting.pop(owner, None)
        return started


async def stream_from_thread(
    in_thread: Callable[..., Awaitable[Any]], pieces: Generator[bytes, None, None]
) -> AsyncGenerator[bytes, None]:
    """Yield pieces that a thread produces, one at a time: none is produced ahead of a slow reader. A reader that leaves
    waits for the current piece, because a running generator can't be closed."""
    making: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            making = asyncio.ensure_future(in_thread(next, pieces, None))
            piece = await asyncio.shield(making)
            if piece is None:
                return
            yield piece
    finally:
        if making is not None and not making.done():
            await asyncio.wait((making,))
        await in_thread(pieces.close)
