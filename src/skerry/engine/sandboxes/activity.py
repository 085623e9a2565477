"""Running processes of a sandbox: for idleness, for callers that wait for an exit, and for attributing out-of-memory
kills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

MAX_OOM_VERDICTS = 256


class Activity:
    """`running` follows the keeper's events in their order and nothing else. Calls that know earlier use `begin` and
    `end`, which attribute out-of-memory kills: the kernel counts them per sandbox, not per command, so the attribution
    is certain only for a command that ran alone."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.left_behind = False  # a command left processes behind since the start
        self._resting: set[str] = set()  # kernels between two runs: alive, but not busy
        self._kills_before: dict[
            str, int | None
        ] = {}  # running commands, with the sandbox's count of kills before each
        self._ran_with_others: set[str] = set()
        self._ran_beside_idle_kernels: set[str] = set()  # commands that ran with no other process than idle kernels
        self._oom_verdicts: dict[str, bool | None] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._active_s = 0.0
        self._active_since: float | None = None

    @property
    def active_s(self) -> float:
        """Return how long commands have run, of those that this server knows: a counter, which never decreases."""
        since = self._active_since
        return self._active_s + (time.monotonic() - since if since is not None else 0.0)

    @property
    def active(self) -> bool:
        return self._active_since is not None

    def _update_active_time(self) -> None:
        """Start or stop counting the active time. Called after each change."""
        if self._kills_before or self.busy:
            if self._active_since is None:
                self._active_since = time.monotonic()
        elif self._active_since is not None:
            self._active_s, self._active_since = self.active_s, None

    @property
    def busy(self) -> bool:
        return not self.running <= self._resting

    # -- keeper events ------------------------------------------------------------------------------------------------

    def started(self, process: str) -> None:
        self.running.add(process)
        self._update_active_time()

    def ended(self, process: str) -> None:
        self.running.discard(process)
        self._resting.discard(process)
        self._update_active_time()
        for future in self._waiting.pop(process, ()):
            if not future.done():
                future.set_result(None)

    def set_running(self, running: Iterable[str]) -> None:
        """Take the list of running processes of a server that has just started or that missed events. It is unknown
        which of them ran alone."""
        now = set(running)
        for process in self.running - now:
            self.ended(process)
        self.running = now
        for process in now - self._kills_before.keys() - self._resting:
            self._kills_before[process] = 0
            self._ran_with_others.add(process)
        self._update_active_time()

    def clear(self) -> None:
        """Forget everything: the sandbox ended. Waiting callers are cancelled and see that the sandbox failed."""
        self.running.clear()
        self._resting.clear()
        waiting, self._waiting = self._waiting, {}
        for future in (one for many in waiting.values() for one in many):
            future.cancel()
        self.left_behind = False
        self._kills_before.clear()
        self._ran_with_others.clear()
        self._ran_beside_idle_kernels.clear()
        self._update_active_time()

    def end_of(self, process: str) -> asyncio.Future[None]:
        """Return a future that is done when the keeper reports the exit. Call this first, then check whether the
        process has ended."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(process, set()).add(future)
        future.add_done_callback(lambda done: self._remove_waiter(process, done))
        return future

    def _remove_waiter(self, process: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(process, set())
        waiting.discard(future)
        if not waiting:
            self._waiting.pop(process, None)

    # -- out-of-memory kills ------------------------------------------------------------------------------------------

    def mark_resting(self, process: str) -> None:
        """Mark a kernel as waiting for its next run."""
        self._resting.add(process)
        self._kills_before.pop(process, None)
        self._ran_with_others.discard(process)
        self._ran_beside_idle_kernels.discard(process)
        self._update_active_time()

    def is_resting(self, process: str) -> bool:
        return process in self._resting

    def begin(self, process: str, kills: int | None) -> None:
        self._resting.discard(process)
        if self._kills_before or self.left_behind:
            self._ran_with_others.update(self._kills_before, (process,))
        elif self._resting:
            self._ran_beside_idle_kernels.add(process)
        self._kills_before[process] = kills
        self._update_active_time()

    def end(self, process: str, count: Callable[[], int | None], killed: bool = False) -> bool | None:
        """Return whether the process was killed by the out-of-memory killer; None if that is uncertain. The first
        answer is final. Kills that an earlier server saw, or that are long ago, are uncertain too. `killed`: the
        process, or its child, was ended by a KILL that the server did not send; otherwise the victim may have been a
        resting kernel."""
        if process not in self._kills_before:
            return self._oom_verdicts.get(process)
        kills = count()
        before, crowded = self._kills_before.pop(process), process in self._ran_with_others
        crowded |= process in self._ran_beside_idle_kernels and not killed
        self._ran_with_others.discard(process)
        self._ran_beside_idle_kernels.discard(process)
        self._update_active_time()
        verdict: bool | None = None
        if kills is not None and before is not None:
            verdict = False if kills <= before else None if crowded else True
        self._oom_verdicts[process] = verdict
        while len(self._oom_verdicts) > MAX_OOM_VERDICTS:
            del self._oom_verdicts[next(iter(self._oom_verdicts))]
        return verdict


def is_killed(exit_code: int | None, signal: str | None, timed_out: bool) -> bool:
    """Return whether the process ended by KILL, or is a shell with a command that did; a timeout does not count."""
    return not timed_out and (signal == "KILL" or exit_code == 128 + 9)
