"""`engine.budgets`: counts usage to budgets, reports at 80 %, and pauses or stops sandboxes at 100 %.

`_charge` is the only place where used amounts grow, by the difference between a sandbox's metered totals and the totals
that are counted already. It runs on the event loop's thread, so sandboxes of one label share its budget without a race.
Usage counts to the labels in force when it was used: samples are taken before labels change.

The meter samples active sandboxes every few seconds. When a budget may be used up sooner, because all its sandboxes
together can use the rest of it in less time, samples are planned for that time."""

from __future__ import annotations

import asyncio
import builtins
import logging
import math
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from skerry.engine.database import is_busy
from skerry.engine.events import Events, PendingEvent
from skerry.engine.hooks import Hook
from skerry.engine.records.usage.budget_accounts import (
    BudgetAccount,
    BudgetTable,
    Increment,
    increment,
    scope_allows,
)
from skerry.engine.records.usage.meter import Meter
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.record import POOL_OWNER, SandboxRecord, SandboxSpec
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.tasks import Tasks
from skerry.errors import BudgetExceeded, Conflict, NotFound, PermissionDenied, QuotaExceeded, SkerryError
from skerry.types import (
    UNITS,
    Amount,
    BudgetInfo,
    BudgetRequest,
    Caller,
    UpdateRequest,
    UsageTotals,
    normal_budget,
)

log = logging.getLogger("skerry.engine")
MAX_PER_OWNER: Final = 1000  # budgets of labels
PLAN_S: Final = 30.0  # how far ahead samples are planned; the meter's own are more frequent
MIN_S: Final = 0.2  # the shortest time between samples for one budget, and the addition for each of its sandboxes
MIN_EACH_S: Final = 0.01
RETRY_S: Final = 5.0
NO_PRICES: Final = "no prices are set, so the cost stays 0: the settings prices.cpu_hour and others"
_CPUS: Final = os.cpu_count() or 1
_MEMORY: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_NETWORK: Final = 125 << 20
_HOST: Final = UsageTotals(cpu_s=_CPUS, memory_byte_s=_MEMORY, disk_byte_s=1 << 40, sent=_NETWORK)  # in a second


class BudgetService(Hook):
    """`engine.budgets`. A `UsageSubscriber` of the meter."""

    def __init__(
        self,
        table: BudgetTable,
        meter: Meter,
        events: Events,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        tasks: Tasks,
    ) -> None:
        self._table, self._meter, self._events = table, meter, events
        self._registry, self._lifecycle, self._tasks = registry, lifecycle, tasks
        self._changed: set[BudgetAccount] = set()  # not stored yet, like the next two
        self._marked: set[str] = set()
        self._news: builtins.list[PendingEvent] = []
        self._settling = False
        self._paces: dict[str, Pace] = {}
        self._most_cost = meter.prices.cost(_HOST) or 0.0
        self._planned: dict[str, asyncio.TimerHandle] = {}  # the next samples for budgets, by their IDs

    # -- requests -----------------------------------------------------------------------------------------------------

    async def list(self, caller: Caller, ref: str | None = None) -> builtins.list[BudgetInfo]:
        """Return the budgets that a sandbox's usage counts to; by default all that the caller sees."""
        if ref is not None:
            sandbox = self._registry.find(caller, ref)
            await self._refresh(sandbox)
            return [self._info(account) for account in self._table.of(sandbox.record)]
        await self._refresh(*(one for one in self._registry if one.record.is_seen_by(caller)))
        seen = [account for account in self._table if _is_seen(account, caller)]
        records = [one.record for one in self._registry if one.record.is_seen_by(caller)]
        own = [account for record in records if (account := self._table.own(record)) is not None]
        return [self._info(account) for account in (*seen, *own)]

    async def _refresh(self, *sandboxes: Sandbox) -> None:
        """Count the usage of sandboxes with budgets up to now."""
        if counted := [one for one in sandboxes if self._table.of(one.record)]:
            await self._meter.sample(*counted)

    async def set(self, caller: Caller, request: BudgetRequest) -> BudgetInfo:
        """Set the budget of a label or an owner, or change its amounts: the used amounts stay. A new budget counts
        usage from now on."""
        owner, label, budget = request.owner or caller.owner, request.label or "", normal_budget(request.budget)
        if caller.scope != "admin" and (not label or owner != caller.owner):
            raise PermissionDenied(
                "permission denied: budgets of owners need the scope 'admin'", hint="set the budget of a label"
            )
        made = BudgetAccount(new_id("bu-"), owner, budget or request.budget, caller.scope, time.time(), label)
        await self._meter.sample(*(one for one in self._registry if made.covers(one.record)))
        account = self._table.get(owner, label)
        if account is None:
            self._check_count(owner)
            account = made
        else:
            _check_change(account, caller)
        self._table.put(account, made.budget, caller.scope)
        self._settle(account)
        return self._info(account)

    def _check_count(self, owner: str) -> None:
        if sum(account.owner == owner for account in self._table) >= MAX_PER_OWNER:
            raise QuotaExceeded(
                f"the owner {owner!r} has {MAX_PER_OWNER:,} budgets already", hint="remove some: `skerry budget rm`"
            )

    def remove(self, caller: Caller, budget_id: str) -> None:
        """Remove the budget of a label or an owner with its used amounts. Those of a sandbox are part of the
        sandbox."""
        for account in self._table:
            if account.id == budget_id and _is_seen(account, caller):
                _check_change(account, caller)
                self._table.remove(account)
                self._changed.discard(account)
                self._cancel(account)
                return
        if budget_id.startswith("sb-"):
            raise NotFound(
                f"budget {budget_id[:80]!r} not found", hint=f"skerry update {budget_id[:80]} --budget none removes it"
            )
        raise NotFound(f"budget {budget_id[:80]!r} not found", hint="`skerry budget ls` lists them")

    def _info(self, account: BudgetAccount) -> BudgetInfo:
        free = account.budget.cost is not None and not self._most_cost
        return account.info(NO_PRICES if free else None)

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    def check(self, record: SandboxRecord) -> None:
        """Raise BudgetExceeded if a budget of the sandbox is used up."""
        if (error := self._error(record)) is not None:
            raise error

    def _error(self, record: SandboxRecord) -> BudgetExceeded | None:
        account = self._exceeded(record)
        return account.error() if account is not None else None

    def _exceeded(self, record: SandboxRecord) -> BudgetAccount | None:
        """Return a budget that is used up. One that stops sandboxes has precedence over one that pauses them."""
        found = [account for account in self._table.of(record) if account.exceeded]
        return next((one for one in found if one.budget.on_exceeded == "stop"), found[0] if found else None)

    def check_update(self, caller: Caller, record: SandboxRecord, request: UpdateRequest) -> None:
        """Raise PermissionDenied if the update would change a budget that was set with a higher scope, or take the
        sandbox out of it."""
        own = self._table.own(record)
        if request.budget is not None and own is not None:
            _check_change(own, caller)
        if request.labels is None:
            return
        for account in self._table.of(record):
            if account.label and account.label not in {f"{k}={v}" for k, v in request.labels.items()}:
                _check_change(account, caller, "labels")

    def updated(self, record: SandboxRecord) -> None:
        """Apply the budgets of a sandbox after an update."""
        if record.spec.budget is None:
            self._table.forget(record.id)
        for account in self._table.of(record, keep=True):
            self._settle(account, record)

    async def before_update(self, sandbox: Sandbox, request: UpdateRequest) -> None:
        """Count the usage so far to the present labels and budget."""
        if request.labels is not None or request.budget is not None:
            await self._meter.sample(sandbox)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def before_start(self, record: SandboxRecord) -> None:
        self.check(record)

    async def before_command(self, sandbox: Sandbox) -> None:
        """Check with present figures if a budget is nearly used up, and be there when the command may use it up."""
        near = [account for account in self._table.of(sandbox.record) if self._is_near(account)]
        if near:
            await self._refresh(sandbox)
        self.check(sandbox.record)
        for account in near:
            self._plan(account, sandbox)

    def on_running(self, sandbox: Sandbox) -> None:
        """End a sandbox whose budget was used up while it started, or while no server ran."""
        sandbox.exhausted = None
        if self._exceeded(sandbox.record) is not None:
            self._tasks.spawn(self._end(sandbox))

    async def on_deleted(self, sandbox: Sandbox) -> None:
        """Forget the sandbox's own budget. Its usage stays in the budgets of its labels and its owner."""
        sandbox_id = sandbox.record.id
        self._changed = {account for account in self._changed if account.sandbox != sandbox_id}
        self._marked.discard(sandbox_id)
        self._paces.pop(sandbox_id, None)
        if (planned := self._planned.pop(sandbox_id, None)) is not None:
            planned.cancel()
        self._table.forget(sandbox_id, mark=True)

    # -- usage --------------------------------------------------------------------------------------------------------

    def on_usage(self, sandbox: Sandbox, used: UsageTotals) -> None:
        """A sample was taken. The other sandboxes of the same round follow at once: store and plan after them."""
        self._charge(sandbox)
        if self._tasks.closing:
            self._store()
        elif self._changed and not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle_round)

    def _settle_round(self) -> None:
        self._settling = False
        near = [account for account in self._changed if self._is_near(account)]
        self._store()
        for account in near:
            self._plan(account)

    def _charge(self, sandbox: Sandbox) -> None:
        """Add the usage of a sandbox since it was counted last to all its budgets."""
        record, totals = sandbox.record, sandbox.account.totals
        new = totals.wall_s == 0.0 and totals.cpu_s == 0.0
        unmetered = sandbox.account.phase is None and new  # a stopped one, until it is taken up
        if record.owner == POOL_OWNER or sandbox.deleted or unmetered:
            return
        counted = self._table.marks.get(record.id, totals)
        if new:  # or the meter lost the account of an earlier server, and starts again
            counted = totals
        more, counted = increment(counted, totals, self._meter.prices)
        self._table.marks[record.id] = counted
        if not (accounts := self._table.of(record, keep=True)):
            return
        self._marked.add(record.id)
        self._paces[record.id] = Pace.after(self._paces.get(record.id), sandbox.account.last.at, more)
        for account in accounts:
            account.add(more)
            self._changed.add(account)
            self._report(account, record)

    def _store(self) -> None:
        """Store used amounts, counted usage and events together. While a thread writes, or on a full disk, they are
        kept for the next time."""
        if not (self._changed or self._marked or self._news):
            return
        try:
            with self._events.transaction(*self._news, wait=False) as cursor:
                self._table.write(cursor, self._changed, self._marked)
        except sqlite3.Error as error:
            if not is_busy(error):
                log.warning("failed to store used amounts of budgets", extra={"error": str(error)})
            return
        self._changed, self._marked, self._news = set(), set(), []

    def _settle(self, account: BudgetAccount, record: SandboxRecord | None = None) -> None:
        """Report and enforce a budget that was set or changed."""
        covered = (
            [record] if record is not None else [one.record for one in self._registry if account.covers(one.record)]
        )
        self._changed.add(account)
        self._marked.update(one.id for one in covered)
        if covered:
            self._report(account, covered[0])
        if account.exceeded:  # also for a sandbox that has come under it, or another action
            self._enforce(account)
        self._store()
        if self._is_near(account):
            self._plan(account)

    def _report(self, account: BudgetAccount, record: SandboxRecord) -> None:
        """Publish the levels that a budget has reached with the usage of this sandbox, and enforce it at 100 %."""
        news = account.take_news()
        for amount, level in news:
            kind = "budget.exceeded" if level == 100 else "budget.warning"
            reason = account.describe(amount)
            self._news.append(PendingEvent(kind, record.owner, record.id, record.name, time.time(), reason))
            log.warning(kind, extra={"budget": account.id, "sandbox": record.id, "use": reason})
        if any(level == 100 for _, level in news):
            self._enforce(account)

    def _enforce(self, account: BudgetAccount) -> None:
        for sandbox in self._registry:
            if account.covers(sandbox.record):
                self._tasks.spawn(self._end(sandbox))

    # -- samples near the end of a budget -----------------------------------------------------------------------------

    def _is_near(self, account: BudgetAccount) -> bool:
        """Return whether a budget may be used up within PLAN_S seconds, by all that this host can use in that time."""
        if account.exceeded:
            return False
        most = {"cpu": _CPUS, "wall": len(self._registry) + 1, "cost": self._most_cost, "network": _NETWORK}
        return any(account.is_near(one, most[one] * UNITS[one] * PLAN_S) for one in account.budget.maxima)

    def _plan(self, account: BudgetAccount, starting: Sandbox | None = None) -> None:
        """Plan the next sample for the earliest time at which the budget may be used up."""
        self._cancel(account)
        running = [one for one in self._registry if one.account.phase == "running" and account.covers(one.record)]
        seconds = self._seconds_left(account, running, starting)
        if seconds < PLAN_S:
            delay = max(seconds, MIN_S + MIN_EACH_S * len(running))
            self._planned[account.id] = asyncio.get_running_loop().call_later(delay, self._sample, account)

    def _cancel(self, account: BudgetAccount) -> None:
        if (planned := self._planned.pop(account.id, None)) is not None:
            planned.cancel()

    def _sample(self, account: BudgetAccount) -> None:
        self._planned.pop(account.id, None)
        running = [one for one in self._registry if one.account.phase == "running" and account.covers(one.record)]
        if running and not self._tasks.closing:
            self._tasks.spawn(self._meter.sample(*running))

    def _seconds_left(self, account: BudgetAccount, running: Sequence[Sandbox], starting: Sandbox | None) -> float:
        """Return the shortest time in which the running sandboxes can use up the budget."""
        now, left = time.monotonic(), math.inf
        rates = [(self._rates(one, one is starting), max(now - one.account.last.at, 0.0)) for one in running]
        for amount, maximum in account.budget.maxima.items():
            rate = sum(each[amount] for each, _ in rates)
            since = sum(each[amount] * age for each, age in rates)  # used since the last samples, at most
            if rate > 0:
                left = min(left, (maximum - account.used[amount] - since) / rate)
        return left

    def _rates(self, sandbox: Sandbox, starting: bool) -> dict[Amount, float]:
        """Return the most units per second that a sandbox uses: all its CPUs while a command runs; of network traffic,
        the last pace."""
        limits, pace = sandbox.record.spec.limits, self._paces.get(sandbox.record.id, Pace())
        busy = starting or sandbox.activity.active
        cpu = (limits.cpus or _CPUS) * UNITS["cpu"] if busy else 2 * pace.cpu
        most = UsageTotals(
            cpu_s=cpu / UNITS["cpu"], memory_byte_s=limits.memory_bytes, disk_byte_s=limits.disk_bytes,
            sent=round(pace.network),
        )  # fmt: skip
        cost = (self._meter.prices.cost(most) or 0.0) * UNITS["cost"]
        return {"cpu": cpu, "cost": cost, "network": pace.network, "wall": UNITS["wall"]}

    # -- ending -------------------------------------------------------------------------------------------------------

    async def _end(self, sandbox: Sandbox) -> None:
        """Pause or stop a sandbox while a budget is used up; calls that wait for a command in it fail."""
        account, state = self._exceeded(sandbox.record), sandbox.record.state
        stop = account is not None and account.budget.on_exceeded == "stop"
        if account is None or not (state == "running" or (stop and state == "paused")):
            return
        sandbox.exhausted = account.error()
        try:
            await self._pause_or_stop(sandbox, stop, sandbox.exhausted.message)
        except NotFound:  # deleted meanwhile
            return
        except (SkerryError, OSError) as error:
            log.error("failed to enforce a budget", extra={"sandbox": sandbox.record.id, "error": str(error)})
            asyncio.get_running_loop().call_later(RETRY_S, self._end_soon, sandbox)
        if sandbox.record.state == "running":  # the budget was raised meanwhile, or the attempt failed
            sandbox.exhausted = None
        await sandbox.interrupt_calls()

    def _end_soon(self, sandbox: Sandbox) -> None:
        if not self._tasks.closing:
            self._tasks.spawn(self._end(sandbox))

    async def _pause_or_stop(self, sandbox: Sandbox, stop: bool, reason: str) -> None:
        def still() -> bool:
            return self._exceeded(sandbox.record) is not None

        if not stop:
            try:
                await self._lifecycle.pause(sandbox, reason, still)
                return
            except Conflict:  # it does not run any more
                return
            except NotFound:
                raise
            except SkerryError as error:  # it cannot be frozen
                log.warning("failed to pause", extra={"sandbox": sandbox.record.id, "error": error.message})
        await self._lifecycle.stop(sandbox, reason, still=still)


@dataclass(frozen=True)
class Pace:
    """Units per second between the last two samples of a sandbox; `at`: the time of the last."""

    at: float = 0.0
    cpu: float = 0.0
    network: float = 0.0

    @classmethod
    def after(cls, last: Pace | None, at: float, more: Increment) -> Pace:
        if last is None or at <= last.at:
            return last or cls(at)
        return cls(at, more.cpu / (at - last.at), more.network / (at - last.at))


def _is_seen(account: BudgetAccount, caller: Caller) -> bool:
    return account.owner == caller.owner or caller.scope == "admin"


def _check_change(account: BudgetAccount, caller: Caller, what: str = "budget") -> None:
    if not scope_allows(caller.scope, account.set_by):
        raise PermissionDenied(
            f"{what}: permission denied: the budget of {account.subject} was set with the scope {account.set_by!r}; "
            f"this token has {caller.scope!r}",
            hint=f"a token with the scope {account.set_by} can change it",
        )


def with_budget(spec: SandboxSpec, caller: Caller, request: UpdateRequest) -> SandboxSpec:
    """Return the spec with the requested budget, if there is one."""
    if request.budget is None:
        return spec
    return replace(spec, budget=normal_budget(request.budget), budget_set_by=caller.scope)
