"""Five hundred idle sandboxes at once: memory of each, and the effect of many on creating more."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.creation import COLD
from bench.measure import Figure, Part, private_memory, row, timed
from skerry import Client, Sandbox

MANY = 500
WORKERS = 4
PART = 100  # so many at the beginning and at the end are compared
WITHIN_S = 180.0
LABEL = {"skerry-bench": "density"}


def density(_: int) -> Part:
    with Client() as client:
        clear(client)
        try:
            return measured(client)
        finally:
            clear(client)


def clear(client: Client) -> None:
    """Delete the sandboxes of this run, and of an earlier one that was interrupted."""
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda sandbox: sandbox.delete(), Sandbox.list(labels=LABEL, server=client)))


def measured(client: Client) -> Part:
    server = int(client.info()["pid"])
    before, resident = available(), server_memory(server)
    creates, sandboxes = create_many(client, MANY)
    taken, grown = before - available(), server_memory(server) - resident
    sample = [private_memory(sandbox.id) for sandbox in sandboxes[:: max(len(sandboxes) // 20, 1)]]
    with ThreadPoolExecutor(WORKERS) as pool:
        deletes = list(pool.map(lambda sandbox: timed(sandbox.delete), sandboxes))
    each = len(sandboxes) or 1
    first, last = mean(creates[:PART]), mean(creates[-PART:])
    full, bare = mean(deletes[:PART]), mean(deletes[-PART:])
    private = sum(sample) / max(len(sample), 1)
    figures = [
        Figure(f"{MANY} idle sandboxes at once", len(sandboxes), f"within {WITHIN_S:.0f} s", least=MANY),
        Figure(
            "memory of the machine that each of them takes, MB", taken / each / 1e6,
            f"private {private / 1e6:.1f} MB; the server grew by {grown / each / 1e6:.2f} MB for each", most=6,
        ),
        Figure(
            f"create, the last {PART} / the first {PART}", last / first, f"{last:.1f} ms / {first:.1f} ms", most=1.5
        ),
        Figure(
            f"delete, the first {PART} of {MANY} / the last {PART}", full / bare, f"{full:.1f} ms / {bare:.1f} ms",
            most=1.5,
        ),
    ]  # fmt: skip
    return [row(f"create, {WORKERS} at a time, to {MANY}", creates), row("delete of them", deletes)], figures


def create_many(client: Client, number: int) -> tuple[list[float], list[Sandbox]]:
    """In the order in which they were begun. After the time is up no more are begun."""
    end = time.monotonic() + WITHIN_S * number / MANY
    spent: list[float] = []
    made: list[Sandbox] = []

    def one(_: int) -> None:
        if time.monotonic() > end:
            return
        try:
            start = time.perf_counter()
            sandbox = Sandbox.create(labels=LABEL, options=COLD, server=client)
            spent.append((time.perf_counter() - start) * 1000)
            made.append(sandbox)
        except Exception as error:  # counted and reported
            print(f"a create beside {len(made)} others failed: {error}", file=sys.stderr)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(one, range(number)))
    return spent, made


def mean(values: list[float]) -> float:
    return sum(values) / max(len(values), 1)


def available() -> int:
    """Return the bytes of memory that the machine has left, caches included."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable"))) * 1024


def server_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) * 1024
