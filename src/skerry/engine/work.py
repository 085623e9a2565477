"""What is at work in a sandbox: for idleness, for those who wait for an end, for whose an out-of-memory kill was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

VERDICTS_MOST = 256


class Work:
    """`running` follows the keeper's own events and nothing else, in their order; what a call knows sooner is for
    `begin` and `end`, which settle whose an out-of-memory kill was: the kernel counts them a sandbox, not a command, so
    that is certain only where one was at work alone."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.left_behind = False  # a command left processes behind since the start
        self._resting: set[str] = set()  # kernels between two runs: they live, and are not at work
        self._at_work: dict[str, int | None] = {}  # with the sandbox's count of kills before it
        self._crowded: set[str] = set()
        self._beside: set[str] = set()  # at work with none but kernels that rest
        self._verdicts: dict[str, bool | None] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    @property
    def busy(self) -> bool:
        return not self.running <= self._resting

    # -- as the keeper tells ------------------------------------------------------------------------------------------

    def started(self, process: str) -> None:
        self.running.add(process)

    def ended(self, process: str) -> None:
        self.running.discard(process)
        self._resting.discard(process)
        for future in self._waiting.pop(process, ()):
            if not future.done():
                future.set_result(None)

    def found(self, running: Iterable[str]) -> None:
        """What a starting server, or one that missed something, sees: nobody knows who was alone."""
        now = set(running)
        for process in self.running - now:
            self.ended(process)
        self.running = now
        for process in now - self._at_work.keys() - self._resting:
            self._at_work[process] = 0
            self._crowded.add(process)

    def over(self) -> None:
        """The sandbox ended, and with it what ran; nobody is told of an end here, those who wait see that it failed."""
        self.running.clear()
        self._resting.clear()
        waiting, self._waiting = self._waiting, {}
        for future in (one for many in waiting.values() for one in many):
            future.cancel()
        self.left_behind = False
        self._at_work.clear()
        self._crowded.clear()
        self._beside.clear()

    def end_of(self, process: str) -> asyncio.Future[None]:
        """Settled when the keeper tells of its end. Ask for it first, then whether it has ended already."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(process, set()).add(future)
        future.add_done_callback(lambda done: self._not_waiting(process, done))
        return future

    def _not_waiting(self, process: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(process, set())
        waiting.discard(future)
        if not waiting:
            self._waiting.pop(process, None)

    # -- whose an out-of-memory kill was ------------------------------------------------------------------------------

    def rest(self, process: str) -> None:
        """A kernel that waits for its next run. One that a starting server finds was not at work for certain."""
        self._resting.add(process)
        self._at_work.pop(process, None)
        self._crowded.discard(process)
        self._beside.discard(process)

    def is_resting(self, process: str) -> bool:
        return process in self._resting

    def begin(self, process: str, kills: int | None) -> None:
        self._resting.discard(process)
        if self._at_work or self.left_behind:
            self._crowded.update(self._at_work, (process,))
        elif self._resting:
            self._beside.add(process)
        self._at_work[process] = kills

    def end(self, process: str, count: Callable[[], int | None], killed: bool = False) -> bool | None:
        """Was it killed for want of memory? None: something was, and nobody can tell what. The first answer stands.
        What an earlier server saw, and what is long ago, is not known either. `killed`: it, or what it waited for, was
        ended by a KILL that nobody here sent; otherwise it may have been a kernel that rests."""
        if process not in self._at_work:
            return self._verdicts.get(process)
        kills = count()
        before, crowded = self._at_work.pop(process), process in self._crowded
        crowded |= process in self._beside and not killed
        self._crowded.discard(process)
        self._beside.discard(process)
        verdict: bool | None = None
        if kills is not None and before is not None:
            verdict = False if kills <= before else None if crowded else True
        self._verdicts[process] = verdict
        while len(self._verdicts) > VERDICTS_MOST:
            del self._verdicts[next(iter(self._verdicts))]
        return verdict


def is_killed(exit_code: int | None, signal: str | None, timed_out: bool) -> bool:
    """By KILL, or a shell whose command was; not for its time."""
    return not timed_out and (signal == "KILL" or exit_code == 128 + 9)
