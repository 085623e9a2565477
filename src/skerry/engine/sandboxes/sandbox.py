"""A sandbox in memory: its record, its keeper client, its users and running processes."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from skerry.engine.network.attempts import AttemptStats
from skerry.engine.processes.session_lock import SessionStates
from skerry.engine.records.usage.account import Account
from skerry.engine.sandboxes.activity import Activity
from skerry.engine.sandboxes.record import SandboxRecord
from skerry.errors import BudgetExceeded, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper
from skerry.runtimes import Runtime
from skerry.storage import Driver
from skerry.types import NetworkAttempt, Usage, parse_lifetime, readable_size

if TYPE_CHECKING:
    from skerry.engine.review.workspace import ReviewedWorkspace

DRAIN_TIMEOUT_S = 1.0
IDLE = "idle"  # the reason of a pause or stop


class DenialSource(Protocol):
    """Knows the denied attempts of processes (`network.gateway`)."""

    async def denied_to(self, sandbox_id: str, process: str, before: int) -> tuple[NetworkAttempt, ...]:
        """Return the attempts of a process that has ended that were denied or failed."""


class WaitingCall(Protocol):
    """A call that waits for a command or for code (`processes.run`, `code.kernels`)."""

    async def interrupt(self) -> None:
        """Close its connection to the keeper: the caller gets an error."""


class Sandbox:
    """`lock`: held while the state changes; calls into a running sandbox need no lock."""

    def __init__(self, record: SandboxRecord) -> None:
        self.record = record
        self.lock = asyncio.Lock()
        self.runtime: Runtime | None = None
        self.keeper: Keeper | None = None
        self._driver: Driver | None = None
        self._fork_failures: int | None = None  # at the last look
        self._pidfd: int | None = None
        self._calls = 0
        self._used_at = time.monotonic()
        self._ended = asyncio.Event()
        self.sessions = SessionStates()
        self.starting = False  # between stopped and running; the record still says stopped
        self.deleted = False
        self.stop_reason: str | None = None  # why it was stopped last, also once it runs again
        self.adopted = asyncio.Event()  # cleared until a starting server has taken it over
        self.adopted.set()
        self.thawed = asyncio.Event()  # cleared while the sandbox is frozen for a snapshot and its keeper can't answer
        self.thawed.set()
        self._thawed_at = -math.inf
        self.buffered_input = 0  # bytes that came with starts and that programs have not read yet
        self.activity = Activity()
        self.account = Account()  # its usage
        self.listener_task: asyncio.Task[None] | None = None  # receives the keeper's events
        self.attempts = AttemptStats()
        self.workspace: ReviewedWorkspace | None = None  # its workspace is under review
        self.denials: DenialSource | None = None  # set with its gateway
        self.exhausted: BudgetExceeded | None = None  # the reason of a pause or stop by a budget
        self.waiting_calls: set[WaitingCall] = set()
        self._startup: asyncio.Task[None] | None = None

    def begin_startup(self, task: asyncio.Task[None]) -> None:
        """Its `on_start` commands are being started, or its condition is not met yet."""
        self._startup = task

    async def wait_started(self) -> None:
        """Wait until it is ready, or has failed to become ready."""
        while self._startup is not None and not self._startup.done():
            await asyncio.wait((self._startup,))

    def attach(self, runtime: Runtime, driver: Driver, keeper: Keeper, pidfd: int, ended: Callable[[], None]) -> None:
        """The sandbox runs; `ended` is called when its first process is gone."""
        self.runtime, self.keeper, self._pidfd, self._driver = runtime, keeper, pidfd, driver
        self._fork_failures = runtime.fork_failures(self.record.id)
        self._ended.clear()
        asyncio.get_running_loop().add_reader(pidfd, self._end, ended)
        self.mark_active()

    def _end(self, ended: Callable[[], None]) -> None:
        self.close_pidfd()
        self._ended.set()
        ended()

    @contextmanager
    def init_pidfd(self) -> Iterator[int]:
        """A pidfd of it: a copy, since ours is closed, and its number another's, as soon as it ends."""
        if self._pidfd is None:
            raise SandboxUnavailable(f"{self.record.id} is not running", details={"state": self.record.info().state})
        copy = os.dup(self._pidfd)
        try:
            yield copy
        finally:
            os.close(copy)

    async def denied_attempts(self, process: str, before: int = 0) -> tuple[NetworkAttempt, ...]:
        """Return the failed network attempts of a process that has ended. `before`: the number of attempts before it
        started."""
        return await self.denials.denied_to(self.record.id, process, before) if self.denials is not None else ()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait_exited(self) -> None:
        await self._ended.wait()

    def close_pidfd(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    async def detach(self) -> None:
        """Let go of it: the sandbox itself is not touched."""
        await self._stop_listening()
        self.close_pidfd()
        if self.keeper is not None:
            await self.keeper.close()
            self.keeper = None
        self.activity.clear()

    async def _stop_listening(self) -> None:
        """A keeper that has ended may have sent more events than were read yet."""
        task, self.listener_task = self.listener_task, None
        if task is None:
            return
        if self._ended.is_set():
            await asyncio.wait((task,), timeout=DRAIN_TIMEOUT_S)
        task.cancel()
        await asyncio.wait((task,))

    def begin_metering(self, process: str, *, attached: bool = True) -> None:
        """A command is about to start. `attached`: a caller waits for its end."""
        self.account.begin(process, self.attempts.sent, self.attempts.received, attached)

    def usage_of(self, process: str, cpu_s: float, memory_peak: int, duration_s: float) -> Usage:
        """Return the usage of a command that has ended, from the keeper's figures and the sandbox's counters."""
        self.account.end(process, self.attempts.sent, self.attempts.received)
        return self.account.usage_of(process, cpu_s, memory_peak, duration_s)

    def count_oom_kills(self) -> int | None:
        return self.runtime.oom_kills(self.record.id) if self.runtime is not None else None

    def count_fork_failures(self) -> int | None:
        return self.runtime.fork_failures(self.record.id) if self.runtime is not None else None

    def is_disk_full(self) -> bool:
        """Return whether the sandbox has less than a fiftieth of its disk left, or a MiB."""
        if self._driver is None or not self._driver.enforces_limit:
            return False
        maximum = self.record.spec.limits.disk_bytes
        try:
            left = maximum - self._driver.usage(self.record.upper)
        except (SkerryError, OSError):  # deleted meanwhile
            return False
        return left < max(maximum // 50, 1 << 20)

    def reached_limit(self) -> str | None:
        """Return a hint for a command that failed, if the sandbox has reached its limit of processes or disk."""
        limits = self.record.spec.limits
        if self._fork_failed():
            return f"it needed more than its limit of {limits.pids} processes and threads: --pids, Limits(pids=…)"
        if self.is_disk_full():
            size = readable_size(limits.disk_bytes)
            return f"it needed more disk than its limit of {size}: --disk, Limits(disk=…)"
        return None

    def _fork_failed(self) -> bool:
        """Return whether a start of a process failed since the last call."""
        now = self.count_fork_failures()
        before, self._fork_failures = self._fork_failures, now
        return now is not None and before is not None and now > before

    async def interrupt_calls(self) -> None:
        """End the calls that wait for a command or for code, if a budget ended the sandbox: it may
        stay paused for ever."""
        if self.exhausted is not None and self.record.state != "running":
            for call in list(self.waiting_calls):
                await call.interrupt()

    def interrupted_error(self) -> SkerryError:
        """Return the error for a call that was interrupted through no fault of the keeper."""
        if self.exhausted is not None:
            return self.exhausted
        how, reason = ("paused", self.record.reason) if self.record.state == "paused" else ("ended", self.stop_reason)
        return SandboxUnavailable(
            f"{self.record.id} was {how} in the middle of the call" + (f": {reason}" if reason else ""),
            details={"state": self.record.info().state, "reason": reason},
        )

    def mark_active(self) -> None:
        self._used_at = time.monotonic()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A call is under way: not idle until it ends."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self.mark_active()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It is frozen: calls that come meanwhile wait."""
        self.thawed.clear()
        try:
            yield
        finally:
            self._thawed_at = time.monotonic()
            self.thawed.set()

    def was_frozen_within(self, seconds: float) -> bool:
        """A keeper that was silent so long need not have been at fault."""
        return not self.thawed.is_set() or time.monotonic() - self._thawed_at < seconds

    @property
    def idle_due(self) -> bool:
        """Return whether the idle timeout is over. A sandbox that was paused for idleness is stopped after another
        timeout; a sandbox that a caller paused stays paused."""
        idle, record = self.record.spec.lifecycle.idle_timeout, self.record
        asleep = record.state == "paused" and record.reason == IDLE
        if idle is None or self._calls or not (asleep or (record.state == "running" and not self.activity.busy)):
            return False
        return time.monotonic() - self._used_at > parse_lifetime(idle)

    @property
    def lifetime_over(self) -> bool:
        return self.record.ends_at is not None and time.time() >= self.record.ends_at

    @property
    def counts_as_live(self) -> bool:
        """Return whether it counts towards the maximum of live sandboxes. A sandbox that is being ended counts until
        its end is complete."""
        return self.starting or self.record.state not in ("stopped", "failed")
