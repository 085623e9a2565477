"""The account of one sandbox: counters of the kernel and the network worker in, usage out. No I/O.

CPU and network usage are differences of counters. Memory and disk are integrals: between two samples the value is taken
to change evenly. A counter that is lower than before has started again at zero."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from skerry.types import Prices, Usage, UsageTotals

Phase = Literal["running", "paused", "stopped"]
DAY_S: Final = 86400.0
MAX_COMMANDS: Final = 1024  # running commands, and the last background commands


@dataclass(frozen=True)
class Sample:
    """Counters at one moment. `at`: monotonic time. None: not measured, the last value counts; `cpu_s` None: no process
    runs. `active_s`: a counter of this server."""

    at: float
    cpu_s: float | None = None
    memory: int | None = None
    memory_peak: int = 0
    disk: int | None = None
    sent: int = 0
    received: int = 0
    active_s: float = 0.0


class Account:
    """`totals`: the usage since the sandbox was created, up to the last sample. `pending`: the part of each day that is
    not stored yet. `phase` None: the sandbox is not metered yet, or no longer."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.totals = UsageTotals()
        self.pending: dict[str, UsageTotals] = {}
        self.last = Sample(0.0)
        self.prices = Prices()
        self.dirty = False
        self.sampled = False  # by this server
        self._commands: dict[str, _Command] = {}

    def open(self, last: Sample, phase: Phase, totals: UsageTotals, prices: Prices) -> None:
        """Start from a stored state, or from the first sample of a new sandbox."""
        self.last, self.phase, self.totals, self.prices = last, phase, totals, prices
        self.dirty = True

    def close(self) -> None:
        self.phase, self.dirty = None, True

    # -- samples ------------------------------------------------------------------------------------------------------

    def advance(self, sample: Sample, phase: Phase | None = None) -> UsageTotals:
        """Account for the time since the last sample, and enter a phase. Return the usage since then. A sample older
        than the last is ignored: samples are taken in threads."""
        if self.phase is None or sample.at < self.last.at:
            return UsageTotals()
        used = self._used(sample)
        self.totals += used
        for day, part in _by_day(time.time(), sample.at - self.last.at, used):
            self.pending[day] = self.pending.get(day, UsageTotals()) + part
        last = self.last
        self.last = replace(
            sample, memory=last.memory if sample.memory is None else sample.memory,
            disk=last.disk if sample.disk is None else sample.disk,
            memory_peak=max(sample.memory_peak, last.memory_peak),
        )  # fmt: skip
        if phase == "stopped":  # the next start has new counters
            self.last = replace(self.last, cpu_s=None, memory=None, memory_peak=0)
        self.phase = phase or self.phase
        self.dirty = self.sampled = True
        return used

    def credit_active(self, spans: Iterable[tuple[float, float]]) -> None:
        """Count the time since the last sample in which processes ran while there was no server. `spans`: their start
        and end by the clock, as the keeper reports them."""
        now = time.time()
        since, active, until = now - (time.monotonic() - self.last.at), 0.0, 0.0
        for start, end in sorted(spans):
            start, end = max(start, until, since), min(end, now)
            if end > start:
                active, until = active + end - start, end
        self.last = replace(self.last, active_s=self.last.active_s - active)

    def _used(self, now: Sample) -> UsageTotals:
        last, seconds = self.last, now.at - self.last.at
        memory_now = (last.memory if now.memory is None else now.memory) or 0
        memory = memory_now if last.memory is None else last.memory
        disk_now = (last.disk if now.disk is None else now.disk) or 0
        disk = disk_now if last.disk is None else last.disk  # not measured yet: its present size all the time
        peak = now.memory_peak if now.memory_peak > last.memory_peak else max(memory, memory_now)
        runs = self.phase == "running"
        return UsageTotals(
            cpu_s=_increase(last.cpu_s, now.cpu_s),
            memory_byte_s=(memory + memory_now) / 2 * seconds if self.phase != "stopped" else 0.0,
            memory_peak=peak if self.phase != "stopped" and seconds > 0 else 0,
            disk_byte_s=(disk + disk_now) / 2 * seconds,
            sent=int(_increase(last.sent, now.sent)), received=int(_increase(last.received, now.received)),
            wall_s=seconds if runs else 0.0,
            active_s=min(_increase(last.active_s, now.active_s), seconds) if runs else 0.0,
        )  # fmt: skip

    def take_pending(self) -> dict[str, UsageTotals]:
        """Return what is to be stored; the caller gives it back if that fails."""
        pending, self.pending, self.dirty = self.pending, {}, False
        return pending

    def give_back(self, pending: dict[str, UsageTotals]) -> None:
        for day, part in pending.items():
            self.pending[day] = self.pending.get(day, UsageTotals()) + part
        self.dirty = True

    # -- commands -----------------------------------------------------------------------------------------------------

    def begin(self, process: str, sent: int, received: int, attached: bool) -> None:
        """A command starts. `attached`: a reader waits for its end, and calls `end`."""
        self._commands.pop(process, None)
        self._commands[process] = _Command(*self._integrals(), sent, received, attached)
        while len(self._commands) > MAX_COMMANDS:
            del self._commands[next(iter(self._commands))]

    def end(self, process: str, sent: int, received: int) -> None:
        """A command has ended, and its traffic is known. The first call counts."""
        command = self._commands.get(process)
        if command is not None and command.used is None:
            memory, disk = self._integrals()
            command.used = UsageTotals(
                memory_byte_s=max(memory - command.memory_byte_s, 0.0),
                disk_byte_s=max(disk - command.disk_byte_s, 0.0),
                sent=max(sent - command.sent, 0), received=max(received - command.received, 0),
            )  # fmt: skip

    def exited(self, process: str, sent: int, received: int) -> None:
        """The process of a command has exited."""
        command = self._commands.get(process)
        if command is not None and not command.attached:
            self.end(process, sent, received)

    def forget(self, process: str) -> None:
        """The reader of a command has left."""
        self._commands.pop(process, None)

    def usage_of(self, process: str, cpu_s: float, memory_peak: int, duration_s: float) -> Usage:
        """Return the usage of a command that has ended. CPU and peak memory are its own; memory, disk and network are
        those of the sandbox while it ran."""
        command = self._commands.get(process)
        shared = command.used if command is not None and command.used is not None else UsageTotals()
        return priced(
            UsageTotals(
                cpu_s=cpu_s, memory_peak=memory_peak, memory_byte_s=shared.memory_byte_s,
                disk_byte_s=shared.disk_byte_s, sent=shared.sent, received=shared.received,
                wall_s=duration_s, active_s=duration_s,
            ),
            self.prices,
        )  # fmt: skip

    def _integrals(self) -> tuple[float, float]:
        """Return the byte-seconds of memory and disk up to now: after the last sample, its values are assumed."""
        seconds = max(time.monotonic() - self.last.at, 0.0) if self.phase is not None else 0.0
        return (
            self.totals.memory_byte_s + (self.last.memory or 0) * seconds,
            self.totals.disk_byte_s + (self.last.disk or 0) * seconds,
        )


@dataclass
class _Command:
    """The sandbox's counters at the start of a command; `used`: at its end, the difference."""

    memory_byte_s: float
    disk_byte_s: float
    sent: int
    received: int
    attached: bool
    used: UsageTotals | None = None


def priced(used: UsageTotals, prices: Prices) -> Usage:
    """Return usage with its cost."""
    cost = prices.cost(used)
    return Usage(
        cpu_s=used.cpu_s, memory_peak=used.memory_peak, memory_byte_s=used.memory_byte_s,
        disk_byte_s=used.disk_byte_s, sent=used.sent, received=used.received, wall_s=used.wall_s,
        active_s=used.active_s, cost=cost, currency=prices.currency if cost is not None else None,
    )  # fmt: skip


def _increase(before: float | None, now: float | None) -> float:
    if before is None or now is None:
        return 0.0
    return now - before if now >= before else now


def day_of(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _by_day(now: float, seconds: float, used: UsageTotals) -> list[tuple[str, UsageTotals]]:
    """Divide the usage of the last seconds between days (UTC), by time. `now`: of the clock."""
    start, midnight = max(now - seconds, 0.0), now - now % DAY_S
    if midnight <= start:
        return [(day_of(now), used)]
    midnights = [midnight - DAY_S * number for number in range(int((midnight - start) / DAY_S) + 1)]
    edges = [start, *(edge for edge in reversed(midnights) if edge > start), now]
    parts, sent, received = [], 0, 0
    for since, until in pairwise(edges):
        share, done = (until - since) / seconds, (until - start) / seconds
        part = UsageTotals(
            cpu_s=used.cpu_s * share, memory_byte_s=used.memory_byte_s * share, memory_peak=used.memory_peak,
            disk_byte_s=used.disk_byte_s * share, wall_s=used.wall_s * share, active_s=used.active_s * share,
            sent=round(used.sent * done) - sent, received=round(used.received * done) - received,
        )  # fmt: skip
        sent, received = sent + part.sent, received + part.received
        parts.append((day_of((since + until) / 2), part))
    return parts
