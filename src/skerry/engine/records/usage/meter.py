"""The meter: takes samples of every sandbox's counters, and stores usage.

Samples are taken at each transition, for a caller that wants present figures, and periodically: often while commands
run, rarely while a sandbox is idle or paused. A stopped sandbox needs none: only its disk counts, which does not
change.

The counters of a living sandbox survive the server, so a server that is killed loses nothing of them: the next one
accounts for the time without a server too. Usage is stored every STORE_S seconds and at the end of each sandbox. A host
that loses power loses at most that time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import msgspec

from skerry.config import Settings
from skerry.engine.hooks import Hook
from skerry.engine.host import Host
from skerry.engine.network.attempts import AttemptLog
from skerry.engine.records.usage.account import Phase, Sample, day_of, priced
from skerry.engine.records.usage.store import AccountRow, StoredState, UsageFilter, UsageStore
from skerry.engine.sandboxes.record import POOL_OWNER, SandboxRecord
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import NotFound, SkerryError
from skerry.runtimes import Counters
from skerry.runtimes.processes import boot_id
from skerry.types import Caller, Prices, Usage, UsageReport, UsageTotals, parse_span

log = logging.getLogger("skerry.engine")
TICK_S: Final = 1.0
ACTIVE_S: Final = 2.0  # between samples while commands run, and once after them
IDLE_S: Final = 40.0
RESTING_S: Final = 300.0  # paused and stopped sandboxes
STORE_S: Final = 30.0
DISK_SHARE: Final = 100  # measuring a disk may take a hundredth of the time: a driver may have to count every file


class UsageSubscriber(Protocol):
    """A service that acts on usage, such as budgets."""

    def on_usage(self, sandbox: Sandbox, used: UsageTotals) -> None:
        """A sample was taken: the sandbox has used this since the last call. The calls of all servers add up to
        `sandbox.account.totals`, except for peaks. On the event loop's thread."""


class Meter(Hook):
    """`engine.meter`. `prices`: the operator's. `used`: by all sandboxes, since this server started."""

    def __init__(
        self,
        settings: Settings,
        store: UsageStore,
        host: Host,
        registry: SandboxRegistry,
        attempts: AttemptLog,
        tasks: Tasks,
    ) -> None:
        self.store, self.prices, self.used = store, prices_of(settings), UsageTotals()
        self._host, self._registry, self._attempts, self._tasks = host, registry, attempts, tasks
        self._keep_s = parse_span(settings["usage.keep"])
        self._boot = boot_id()
        self._stored = {row.id: row for row in store.open_accounts()}  # of an earlier server, until taken up
        self._ended: dict[str, _Unsaved] = {}  # accounts of deleted sandboxes that could not be stored yet
        self._names: dict[str, str] = {}  # of sandboxes: a deletion takes the name away first
        self._disk_due: dict[str, float] = {}
        self._subscribers: list[UsageSubscriber] = []
        self._saving = asyncio.Lock()
        self._save_at = 0.0

    def add(self, *subscribers: UsageSubscriber) -> None:
        self._subscribers += subscribers

    async def start(self) -> None:
        """Take up the accounts of an earlier server, and close those of sandboxes that are gone. Called once, when the
        registry is complete."""
        for sandbox in self._registry:
            self._open_stored(sandbox)
        for sandbox_id in self._stored:
            await asyncio.to_thread(self.store.close_account, sandbox_id)
        self._stored.clear()
        self._tasks.spawn(self._watch())

    async def close(self) -> None:
        """Store everything up to the last samples: the next server continues from there. The engine's tasks have
        ended."""
        await self._save(durable=True)
        self.store.close()

    # -- figures ------------------------------------------------------------------------------------------------------

    def totals(self, sandbox_id: str) -> UsageTotals | None:
        """Return the usage of a sandbox up to its last sample, also of a deleted one; None if it is unknown."""
        sandbox = self._registry.get(sandbox_id)
        if sandbox is not None and sandbox.account.phase is not None:
            return sandbox.account.totals
        row = self.store.find(sandbox_id)
        return row.totals if row is not None else None

    async def sample(self, *sandboxes: Sandbox) -> None:
        """Take a sample of each sandbox now: `sandbox.account.totals` is current afterwards."""
        measured = await asyncio.to_thread(lambda: [self._measure(sandbox) for sandbox in sandboxes])
        for sandbox, found in zip(sandboxes, measured, strict=True):
            self._apply(sandbox, found)

    async def usage(self, caller: Caller, ref: str) -> Usage:
        """Return the usage of the caller's sandbox since it was created, also of a deleted one by its ID."""
        try:
            sandbox = self._registry.find(caller, ref)
        except NotFound:
            row = await asyncio.to_thread(self.store.find, ref)
            if row is None or (row.owner != caller.owner and caller.scope != "admin"):
                raise
            return priced(row.totals, self.prices)
        await self.sample(sandbox)
        now = await asyncio.to_thread(current_usage, self._host, sandbox)
        used = priced(sandbox.account.totals, self.prices)
        return msgspec.structs.replace(used, disk=now.disk, memory=now.memory, pids=now.pids, pids_peak=now.pids_peak)

    async def knows(self, caller: Caller, sandbox_id: str) -> bool:
        """Return whether the caller's usage includes this sandbox."""
        sandbox = self._registry.get(sandbox_id)
        if sandbox is not None:
            return sandbox.record.is_seen_by(caller)
        row = await asyncio.to_thread(self.store.find, sandbox_id)
        return row is not None and (row.owner == caller.owner or caller.scope == "admin")

    async def report(self, caller: Caller, by: str, wanted: UsageFilter) -> UsageReport:
        """Return usage by group: the caller's, or for an administrator that of all owners."""
        if caller.scope != "admin":
            if wanted.owner not in (None, caller.owner):
                raise NotFound(f"owner {wanted.owner!r} not found")
            wanted = replace(wanted, owner=caller.owner)
        await self.sample(*(sandbox for sandbox in self._registry if wanted.owner in (None, sandbox.record.owner)))
        await self._save()
        rows, total, more = await asyncio.to_thread(self.store.groups, by, wanted)
        return UsageReport(
            by=by, since=wanted.since, until=wanted.until, more=more, total=total.usage, sandboxes=total.sandboxes,
            rows=[msgspec.structs.replace(row, cost=self.prices.cost(row.usage)) for row in rows],
            cost=self.prices.cost(total.usage), currency=self.prices.currency if self.prices.known else None,
        )  # fmt: skip

    # -- transitions --------------------------------------------------------------------------------------------------

    def on_running(self, sandbox: Sandbox) -> None:
        if sandbox.record.owner == POOL_OWNER:
            return
        self._open_stored(sandbox)
        if sandbox.record.name is not None:
            self._names[sandbox.record.id] = sandbox.record.name
        account, runtime = sandbox.account, sandbox.runtime
        counters = runtime.counters(sandbox.record.id, brief=True) if runtime is not None else None
        sample = self._sample_of(sandbox, _Measured(time.monotonic(), *(counters or ())))
        if account.phase is None:  # usage counts from here: a fork starts at zero, and so does a claimed sandbox
            account.open(sample, "running", UsageTotals(), self.prices)
        self._advance(sandbox, sample, "running")
        self._save_at = 0.0

    def on_paused(self, sandbox: Sandbox) -> None:
        self._apply(sandbox, self._measure(sandbox, disk=False), "paused")
        self._save_at = 0.0

    async def before_stop(self, sandbox: Sandbox) -> None:
        """The memory of the last moments: it is gone once the processes have ended."""
        if sandbox.account.phase == "running":
            await self.sample(sandbox)

    async def before_delete(self, sandbox: Sandbox) -> None:
        if sandbox.record.name is not None:
            self._names[sandbox.record.id] = sandbox.record.name

    async def on_cleared(self, sandbox: Sandbox, last: Counters | None) -> None:
        self._open_stored(sandbox)
        account = sandbox.account
        if account.phase is None:
            return
        if not account.sampled:  # by this server: it is not known how long the sandbox ran after the last one
            account.phase = "stopped"
        found = _Measured(time.monotonic(), last.cpu_s if last is not None else None)
        if last is not None:
            found = found._replace(memory_peak=last.memory_peak)
        self._apply(sandbox, found, "stopped")
        if sandbox.record.state == "deleting":
            account.close()
            self._ended[sandbox.record.id] = self._unsaved(sandbox, deleted_at=time.time())
            for known in (self._names, self._disk_due):
                known.pop(sandbox.record.id, None)
        await self._save()

    # -- samples ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        day = ""
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            due = [sandbox for sandbox in self._registry if _is_due(sandbox, now)]
            if due:
                await self.sample(*due)
            if now >= self._save_at:
                await self._save(durable=True)
                self._save_at = now + STORE_S
            if day != (today := day_of(time.time())):
                day = today
                await self._forget()

    async def _forget(self) -> None:
        try:
            await asyncio.to_thread(self.store.forget, day_of(max(time.time() - self._keep_s, 0.0)))
        except sqlite3.Error as error:
            log.warning("failed to remove old records of usage", extra={"error": str(error)})

    def _measure(self, sandbox: Sandbox, disk: bool = True) -> _Measured:
        """Read the counters of a sandbox. In a thread, unless the caller cannot wait."""
        at, record, runtime = time.monotonic(), sandbox.record, sandbox.runtime
        if sandbox.account.phase in (None, "stopped") or runtime is None:
            return _Measured(at)
        counters = runtime.counters(record.id)
        found = _Measured(at, *counters) if counters is not None else _Measured(at)
        if disk and self._disk_due.get(record.id, 0.0) <= at:
            start = time.perf_counter()
            with contextlib.suppress(SkerryError, OSError, ValueError):  # being deleted
                found = found._replace(disk=self._host.driver.usage(record.upper))
            self._disk_due[record.id] = at + (time.perf_counter() - start) * DISK_SHARE
        return found._replace(init=_name(record))

    def _apply(self, sandbox: Sandbox, found: _Measured, phase: Phase | None = None) -> None:
        if found.init is not None and found.init != _name(sandbox.record):  # it was started again meanwhile
            return
        self._advance(sandbox, self._sample_of(sandbox, found), phase)

    def _sample_of(self, sandbox: Sandbox, found: _Measured) -> Sample:
        sent, received = self._attempts.traffic(sandbox.record.id)
        served = self._attempts.served(sandbox.record.id)
        return Sample(
            at=found.at, cpu_s=found.cpu_s, memory=found.memory, memory_peak=found.memory_peak, disk=found.disk,
            sent=sent + served[0], received=received + served[1], active_s=sandbox.activity.active_s,
        )  # fmt: skip

    def _advance(self, sandbox: Sandbox, sample: Sample, phase: Phase | None) -> None:
        used = sandbox.account.advance(sample, phase)
        self.used += used
        for subscriber in self._subscribers:
            subscriber.on_usage(sandbox, used)

    # -- the store ----------------------------------------------------------------------------------------------------

    def _open_stored(self, sandbox: Sandbox) -> None:
        """Continue the account of an earlier server. Its counters count if they are of the same processes."""
        row, record, account = self._stored.pop(sandbox.record.id, None), sandbox.record, sandbox.account
        if row is None or row.state is None or account.phase is not None:
            return
        state, init = row.state, _name(record)
        phases: dict[str, Phase] = {"running": "running", "paused": "paused"}
        phase = phases.get(record.state, state.phase) if state.init == init else "stopped"
        account.open(state.resumed(self._boot, init), phase, row.totals, self.prices)

    def _unsaved(self, sandbox: Sandbox, deleted_at: float | None = None) -> _Unsaved:
        record, account = sandbox.record, sandbox.account
        state = None
        if account.phase is not None:
            ago = max(time.monotonic() - account.last.at, 0.0)
            state = StoredState(
                account.phase, time.time() - ago, account.last.at, self._boot, _name(record), account.last
            )
        row = AccountRow(
            id=record.id, owner=record.owner, actor=record.spec.actor, image=record.spec.image,
            name=record.name or self._names.get(record.id), labels=record.spec.labels,
            created_at=record.created_at, totals=account.totals, state=state, deleted_at=deleted_at,
        )  # fmt: skip
        return row, account.take_pending()

    async def _save(self, *, durable: bool = False) -> None:
        """Store the accounts that changed. What cannot be stored, for example on a full disk, is kept for the next
        time."""
        async with self._saving:
            self._attempts.flush()  # counters on disk that are behind a stored sample would count from zero again
            changed = [sandbox for sandbox in self._registry if sandbox.account.dirty]
            ended, self._ended = self._ended, {}
            unsaved = [self._unsaved(sandbox) for sandbox in changed if sandbox.account.phase is not None]
            if not unsaved and not ended:
                return
            try:
                await asyncio.to_thread(self.store.save, [*unsaved, *ended.values()], durable=durable)
            except sqlite3.Error as error:
                log.warning("failed to store usage", extra={"error": str(error)})
                self._ended = {**ended, **self._ended}
                for row, days in unsaved:
                    self._give_back(row, days)

    def _give_back(self, row: AccountRow, days: dict[str, UsageTotals]) -> None:
        sandbox = self._registry.get(row.id)
        if sandbox is not None:
            sandbox.account.give_back(days)
        elif row.id in self._ended:  # deleted meanwhile
            ended, more = self._ended[row.id]
            self._ended[row.id] = ended, _sum_days(more, days)


class _Measured(NamedTuple):
    at: float
    cpu_s: float | None = None
    memory: int | None = None
    memory_peak: int = 0
    disk: int | None = None
    init: str | None = None


_Unsaved = tuple[AccountRow, dict[str, UsageTotals]]


def current_usage(host: Host, sandbox: Sandbox) -> Usage:
    """Return the present use of memory, processes and disk; CPU time and peaks since the last start."""
    disk, runtime = None, sandbox.runtime
    with contextlib.suppress(NotFound, OSError):  # being created, or being deleted
        disk = host.driver.usage(sandbox.record.upper)
    used = runtime.usage(sandbox.record.id) if runtime is not None and sandbox.keeper is not None else Usage()
    return msgspec.structs.replace(used, disk=disk)


def prices_of(settings: Settings) -> Prices:
    return Prices(**{name: settings[f"prices.{name}"] for name in Prices.__struct_fields__})


def _is_due(sandbox: Sandbox, now: float) -> bool:
    """Return whether a sample should be taken. The samples of idle sandboxes are spread over the interval."""
    account, activity = sandbox.account, sandbox.activity
    if account.phase is None:
        return False
    if account.phase != "running":
        return now - account.last.at >= RESTING_S
    if account.last.disk is None:  # none yet
        return True
    if activity.active or activity.active_s > account.last.active_s:
        return now - account.last.at >= ACTIVE_S
    return now - account.last.at >= IDLE_S * (0.75 + (hash(sandbox.record.id) & 255) / 1024)


def _name(record: SandboxRecord) -> str:
    """Return the identity of the processes that a sandbox's counters belong to."""
    init = record.init
    return f"{init.pid} {init.start_time} {init.boot_id}" if init is not None else ""


def _sum_days(one: dict[str, UsageTotals], other: dict[str, UsageTotals]) -> dict[str, UsageTotals]:
    days = one.keys() | other.keys()
    return {day: one.get(day, UsageTotals()) + other.get(day, UsageTotals()) for day in days}
