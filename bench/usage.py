"""Metering: how exact the CPU time is, its share of a command, and the cost of idle sandboxes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.creation import COLD
from bench.measure import Figure
from skerry import Client, Sandbox
from skerry.config import load, run_dir
from skerry.engine.records.usage.account import Account, Sample
from skerry.engine.sandboxes.activity import Activity
from skerry.runtimes.cgroups import Cgroups
from skerry.types import Prices, UsageTotals

IDLE = 100
SECONDS = 30.0
SETTLE_S = 10.0
STATS = [Path("/sys/fs/cgroup") / name / "cpu.stat" for name in ("unified/skerry", "skerry", "unified", "")]
LOAD = ["python3", "-c", "for _ in range(6): sum(i * i for i in range(5_000_000))"]


def exactness() -> Figure:
    """The metered CPU time of a known load against the kernel's counter."""
    cgroups = Cgroups(f"/skerry/{run_dir(load().state_dir).name}")
    with Sandbox() as sandbox:
        sandbox.run(["/bin/true"])
        before, metered = cgroups.counters(sandbox.id), sandbox.usage().cpu_s
        command = sandbox.run(LOAD).usage.cpu_s
        metered, after = sandbox.usage().cpu_s - metered, cgroups.counters(sandbox.id)
    assert before is not None
    assert after is not None
    kernel = after.cpu_s - before.cpu_s
    beside = f"{metered:.3f} s, the kernel {kernel:.3f} s, the command's result {command:.3f} s"
    return Figure("metered CPU, % off the kernel's", abs(metered - kernel) / kernel * 100, beside, most=2)


def cost_ms() -> float:
    """Milliseconds for a command: the account in the server, and the keeper's read of the command's cgroup."""
    account, activity = Account(), Activity()
    prices = Prices(cpu_hour=0.05, memory_gb_hour=0.005, disk_gb_month=0.1, network_gb=0.05)
    account.open(Sample(time.monotonic(), 0.0, 1 << 20, 1 << 20, 1 << 20), "running", UsageTotals(), prices)
    stat = str(next(file for file in STATS if file.exists()))
    start = time.perf_counter()
    for number in range(2000):
        process = f"p-{number}"
        activity.begin(process, 0)
        account.begin(process, 0, 0, attached=True)
        activity.end(process, lambda: 0)
        account.end(process, 0, 0)
        account.usage_of(process, 0.001, 1 << 20, 0.002)
        descriptor = os.open(stat, os.O_RDONLY)
        os.read(descriptor, 1024)
        os.close(descriptor)
    return (time.perf_counter() - start) / 2000 * 1000


def idle() -> Figure:
    """The server's CPU time with idle sandboxes less that without, in percent of a core: with metering, the audit log
    and everything else that the server does for them."""
    with Client() as client:
        server = int(client.info()["pid"])
        sandboxes: list[Sandbox] = []
        try:
            alone = _share(server)
            sandboxes += [Sandbox.create(options=COLD, server=client) for _ in range(IDLE)]
            for sandbox in sandboxes:
                sandbox.run(["/bin/true"])
            together = _share(server)
        finally:
            for sandbox in sandboxes:
                sandbox.delete()
    beside = f"{together:.2f} % with them, {alone:.2f} % without"
    return Figure(f"{IDLE} idle sandboxes, % of a core", together - alone, beside, most=0.5)


def _share(server: int) -> float:
    time.sleep(SETTLE_S)
    before = _cpu_s(server)
    time.sleep(SECONDS)
    return (_cpu_s(server) - before) / SECONDS * 100


def _cpu_s(pid: int) -> float:
    """The CPU time of all threads; /proc/<pid>/stat counts in hundredths of a second only."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((tasks / task / "schedstat").read_text().split()[0]) for task in os.listdir(tasks)) / 1e9
