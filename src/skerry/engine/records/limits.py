"""Events about reached limits: of memory, processes, disk and time.

The kernel counts out-of-memory kills and failed starts of processes for a sandbox as a whole. The counters are read
when a process or a run of code ends, and with the meter's samples: a service may lose its children one by one. Reported
counters are stored with their event: a server that is killed in the moment before reports a limit twice, not never."""

from __future__ import annotations

import time
from typing import NamedTuple

from skerry.engine.events import Events, PendingEvent
from skerry.engine.hooks import Hook
from skerry.engine.records.audit.service import AuditService
from skerry.engine.records.trace.service import TraceService
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.types import UsageTotals


class _LimitCounters(NamedTuple):
    """The kernel's counters, named like the events `limit.memory` and `limit.pids`."""

    memory: int
    pids: int


class LimitEvents(Hook):
    """A `UsageSubscriber` of the meter."""

    def __init__(self, events: Events, audit: AuditService, traces: TraceService) -> None:
        self._events, self._audit, self._traces = events, audit, traces
        self._reported: dict[str, _LimitCounters] = {}
        self._waiting: dict[str, _LimitCounters] = {}  # higher ones, seen by the meter

    def ended(self, sandbox: Sandbox, process: str, *, oom: bool, timed_out: bool, failed: bool) -> None:
        """A process, or a run of code in it, has ended. `oom`: it is certain that it was killed for its memory."""
        if timed_out:
            self._record(sandbox, "timeout", process)
        alone = sandbox.activity.running <= {process}
        for name in self._take_risen(sandbox):
            self._record(sandbox, name, process if alone or (oom and name == "memory") else None)
        if failed and sandbox.is_disk_full():
            self._record(sandbox, "disk", process)

    def on_usage(self, sandbox: Sandbox, used: UsageTotals) -> None:
        """Report counters that no end of a process has explained since the last sample."""
        sandbox_id, now = sandbox.record.id, _counters_of(sandbox)
        known = self._reported.get(sandbox_id)
        if now is None or known is None or now == known:
            return
        if self._waiting.get(sandbox_id) == now:
            for name in self._take_risen(sandbox):
                self._record(sandbox, name, None)
        else:
            self._waiting[sandbox_id] = now

    def on_running(self, sandbox: Sandbox) -> None:
        """Count from here: a started sandbox has new counters. Those of an adopted one continue after the report of an
        earlier server: limits that it has reached in between are reported too."""
        sandbox_id, now = sandbox.record.id, _counters_of(sandbox) or _LimitCounters(0, 0)
        known = self._reported.get(sandbox_id)
        if known is None:
            stored = self._events.limit_counters(sandbox_id)
            known = now if stored is None else _LimitCounters(*stored)
        if now.memory < known.memory or now.pids < known.pids:
            known = now
        self._reported[sandbox_id] = known

    async def on_deleted(self, sandbox: Sandbox) -> None:
        self._reported.pop(sandbox.record.id, None)
        self._waiting.pop(sandbox.record.id, None)

    def _take_risen(self, sandbox: Sandbox) -> list[str]:
        """Return the limits whose counter is higher than at the last report."""
        now, known = _counters_of(sandbox), self._reported.get(sandbox.record.id)
        if now is None or known is None:
            return []
        self._reported[sandbox.record.id] = now
        self._waiting.pop(sandbox.record.id, None)
        return [name for name in _LimitCounters._fields if getattr(now, name) > getattr(known, name)]

    def _record(self, sandbox: Sandbox, limit: str, process: str | None) -> None:
        record, name = sandbox.record, f"limit.{limit}"
        params, reason = ({"process": process}, f"of process {process}") if process is not None else ({}, None)
        self._audit.event(name, owner=record.owner, sandbox=record.id, params=params)
        counters = self._reported.get(record.id) if limit in _LimitCounters._fields else None
        event = PendingEvent(name, record.owner, record.id, record.name, time.time(), reason, counters=counters)
        self._events.publish(event)
        self._traces.event(record.id, name, {}, process=process)


def _counters_of(sandbox: Sandbox) -> _LimitCounters | None:
    kills, failures = sandbox.count_oom_kills(), sandbox.count_fork_failures()
    return None if kills is None else _LimitCounters(kills, failures or 0)
