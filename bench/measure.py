"""Timing by repetition, and the memory of a sandbox."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """Milliseconds, sorted."""

    name: str
    times: tuple[float, ...]

    def at(self, part: float) -> float:
        return self.times[min(len(self.times) - 1, math.ceil(part * len(self.times)) - 1)]

    @property
    def p50(self) -> float:
        return self.at(0.50)

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "n": len(self.times), "p50": self.p50, "p95": self.at(0.95), "p99": self.at(0.99)}


@dataclass(frozen=True)
class Figure:
    """A measured figure and its bound. Without a bound it is only reported."""

    name: str
    value: float
    beside: str = ""  # the measurements that it was made of
    most: float | None = None
    least: float | None = None

    @property
    def bound(self) -> str:
        if self.most is None and self.least is None:
            return "-"
        return f"≤ {self.most:g}" if self.most is not None else f"≥ {self.least:g}"

    @property
    def holds(self) -> bool:
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    def as_json(self) -> dict[str, object]:
        return {
            "figure": self.name, "value": round(self.value, 3), "beside": self.beside, "bound": self.bound,
            "holds": self.holds,
        }  # fmt: skip


def times(one: Row, other: Row, *, most: float | None = None, least: float | None = None, name: str = "") -> Figure:
    """How many times the other's median it takes."""
    beside = f"{one.p50:.2f} ms / {other.p50:.2f} ms"
    return Figure(name or f"{one.name} / {other.name}", one.p50 / other.p50, beside, most, least)


Part = tuple[list[Row], list[Figure]]


def row(name: str, times: list[float]) -> Row:
    return Row(name, tuple(sorted(times)))


def repeat(name: str, count: int, once: Callable[[], object], warm: int = 2) -> Row:
    return side_by_side({name: once}, count, warm)[0]


def side_by_side(works: dict[str, Callable[[], object]], count: int, warm: int = 2) -> list[Row]:
    """In turns, so that a noisy moment of the machine hits all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(count + warm):
        for name, once in works.items():
            spent = timed(once)
            if turn >= warm:
                times[name].append(spent)
    return [row(name, spent) for name, spent in times.items()]


def timed(once: Callable[[], object]) -> float:
    start = time.perf_counter()
    once()
    return (time.perf_counter() - start) * 1000


def private_memory(cgroup_name: str) -> int:
    """Return the private memory of the processes of a sandbox in bytes (smaps_rollup)."""
    pids: set[str] = set()
    for depth in ("", "*/"):  # v2 at the top, or each hierarchy in a separate directory
        for group in Path("/sys/fs/cgroup").glob(f"{depth}skerry/*/{cgroup_name}"):
            pids |= {pid for listing in group.rglob("cgroup.procs") for pid in listing.read_text().split()}
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean", "Private_Dirty")):
                total += int(line.split()[1]) * 1024
    return total
