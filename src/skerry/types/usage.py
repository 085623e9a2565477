"""Usage: the resources that sandboxes and commands have used, prices, and reports."""

from __future__ import annotations

import math
import re
import time
from datetime import date

from skerry.errors import InvalidRequest
from skerry.types.values import Answer, Value, parse_span

HOUR_S = 3600.0
MONTH_S = 30 * 86400.0
GB = 1 << 30
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
MAX_USAGE_ROWS = 10_000
USAGE_GROUPS = ("sandbox", "actor", "image", "owner", "day")


class UsageTotals(Answer, frozen=True, kw_only=True):
    """Resources used so far. `memory_byte_s`, `disk_byte_s`: bytes times seconds. `sent`, `received`: bytes to and from
    other hosts. `wall_s`: time in which the sandbox ran, so neither paused nor stopped. `active_s`: the part of it in
    which a command, code or a terminal ran."""

    cpu_s: float = 0.0
    memory_byte_s: float = 0.0
    memory_peak: int = 0
    disk_byte_s: float = 0.0
    sent: int = 0
    received: int = 0
    wall_s: float = 0.0
    active_s: float = 0.0

    def __add__(self, other: UsageTotals) -> UsageTotals:
        return UsageTotals(
            cpu_s=self.cpu_s + other.cpu_s, memory_byte_s=self.memory_byte_s + other.memory_byte_s,
            memory_peak=max(self.memory_peak, other.memory_peak), disk_byte_s=self.disk_byte_s + other.disk_byte_s,
            sent=self.sent + other.sent, received=self.received + other.received,
            wall_s=self.wall_s + other.wall_s, active_s=self.active_s + other.active_s,
        )  # fmt: skip


class Usage(Answer, frozen=True, kw_only=True):
    """Resource usage of a command or a sandbox. Only a running sandbox has `memory` (without caches that can be freed)
    and `pids`, the current values; only code in a context has `memory_start` and `cpu_peak_percent` (100: one core, in
    a tenth of a second). The other fields are as in `UsageTotals`; those of a sandbox count since it was
    created. `cost`: by the operator's prices; None: none is set."""

    cpu_s: float = 0.0
    memory_peak: int | None = None
    disk: int | None = None
    pids_peak: int | None = None
    memory: int | None = None
    pids: int | None = None
    memory_start: int | None = None
    cpu_peak_percent: float | None = None
    memory_byte_s: float = 0.0
    disk_byte_s: float = 0.0
    sent: int = 0
    received: int = 0
    wall_s: float = 0.0
    active_s: float = 0.0
    cost: float | None = None
    currency: str | None = None


class Prices(Value, frozen=True, kw_only=True):
    """The operator's price table. None: this resource costs nothing. GB are 2^30 bytes; a month has 30 days."""

    cpu_hour: float | None = None
    memory_gb_hour: float | None = None
    disk_gb_month: float | None = None
    network_gb: float | None = None
    currency: str = "USD"

    @property
    def known(self) -> bool:
        """Return whether the operator has set any price."""
        return (self.cpu_hour, self.memory_gb_hour, self.disk_gb_month, self.network_gb) != (None,) * 4

    def cost(self, used: UsageTotals) -> float | None:
        """Return the cost of usage; None if no price is set."""
        if not self.known:
            return None
        return (
            used.cpu_s / HOUR_S * (self.cpu_hour or 0.0)
            + used.memory_byte_s / GB / HOUR_S * (self.memory_gb_hour or 0.0)
            + used.disk_byte_s / GB / MONTH_S * (self.disk_gb_month or 0.0)
            + (used.sent + used.received) / GB * (self.network_gb or 0.0)
        )


class UsageRow(Answer, frozen=True, kw_only=True):
    """The usage of one group. `key`: the sandbox's ID, the label's value, the actor, the image, the owner or the day;
    None: sandboxes without the label. `name`: of a sandbox, if it had one."""

    key: str | None
    usage: UsageTotals
    sandboxes: int
    cost: float | None = None
    name: str | None = None


class UsageReport(Answer, frozen=True, kw_only=True):
    """Usage by group, the largest first; days in order. `since`, `until`: the first and the last day, in UTC. `more`:
    the number of further rows, which `total` includes. `currency`: of all costs; None: no price is set."""

    by: str
    since: str | None
    until: str | None
    rows: list[UsageRow]
    total: UsageTotals
    sandboxes: int = 0
    cost: float | None = None
    currency: str | None = None
    more: int = 0


def check_day(day: str, what: str) -> None:
    """Raise InvalidRequest unless it is a day like 2026-11-30."""
    try:
        known = _DAY.fullmatch(day) is not None and date.fromisoformat(day) is not None
    except ValueError:
        known = False
    if not known:
        raise InvalidRequest(f"{what}: {day[:40]!r} is not a day", hint="like 2026-11-30, in UTC")


def usage_day(when: str | float, what: str) -> str:
    """Return the day (UTC) of a time span before now like "7d", of a day like "2026-11-30", or of a Unix time."""
    if isinstance(when, str):
        if _DAY.fullmatch(when):
            check_day(when, what)
            return when
        at = time.time() - parse_span(when, what)
    else:
        at = float(when)
    if not (math.isfinite(at) and 0 <= at < 1e11):
        raise InvalidRequest(f"{what}: {when!r} is out of range", hint="like 7d, or 2026-11-30")
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def check_usage_group(by: str) -> None:
    """Raise InvalidRequest unless usage can be grouped by this."""
    if by not in USAGE_GROUPS and not (by.startswith("label:") and 0 < len(by) - 6 <= 256):
        raise InvalidRequest(f"by: {by[:80]!r} is not a group", hint=f"one of {', '.join(USAGE_GROUPS)}, or label:KEY")
