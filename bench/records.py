"""The audit log, metering and traces: their share of a command, a log of a million records, a trace of ten thousand
steps."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import usage
from bench.inside import RUN
from bench.measure import Figure, Part, repeat, row, timed
from bench.switched_server import Records, switched_server
from skerry import Sandbox
from skerry.config import load
from skerry.engine.records.audit.index import AuditFilter, AuditIndex
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.segments import AuditLog
from skerry.engine.records.audit.service import AuditService
from skerry.engine.records.audit.verification import verify
from skerry.engine.records.trace.recorder import Step, plain
from skerry.engine.records.trace.store import TraceBounds, TraceStore, TraceThreads
from skerry.types import RunRequest, RunResult, TraceStep, Usage

EFFECTS = 1_000_000
BLOCK = 20  # commands between two turns of the switch
STEPS = 10_000
FILTERS = {
    "all": AuditFilter(),
    "type": AuditFilter(type="process.run"),
    "family": AuditFilter(type="file"),
    "sandbox": AuditFilter(sandbox="sb-abcdef0042"),
    "actor": AuditFilter(actor="tk-abcdefgh42"),
    "owner": AuditFilter(owner="tk-own0001"),
    "nothing in common": AuditFilter(owner="tk-own0001", actor="tk-abcdefgh02"),
    "old": AuditFilter(since=1.0),
    "future": AuditFilter(since=1e10),
}


def records(count: int) -> Part:
    with Sandbox() as sandbox:
        ran = repeat(RUN, count * 5, lambda: sandbox.run(["/bin/true"]))
        shown = _long_trace(sandbox)
    root = Path(tempfile.mkdtemp(prefix="skerry-bench-"))
    try:
        (root / "state").mkdir()
        keys = KeyStore(root / "keys", root / "state")
        cost = _cost(AuditLog(root / "state" / "small", keys, keep_s=None), keys)
        traced = _trace_cost(root / "state" / "traces")
        rows, figures = _million(AuditLog(root / "state" / "audit", keys, keep_s=None), keys, root, ran.p50, cost)
        share = Figure(
            "trace, % of a command", traced / ran.p50 * 100, f"{traced * 1000:.0f} µs / {ran.p50:.2f} ms", most=5
        )
        opened = Figure(f"trace of {STEPS:,} steps, s", shown, "`skerry trace`", most=1)
        more, switched = _turns(count, root)
        return [*rows, *more], [*figures, *switched, usage.exactness(), usage.idle(), share, opened]
    finally:
        shutil.rmtree(root)


def _turns(count: int, root: Path) -> Part:
    """A command with and without audit log and metering, and with `audit.sync = "all"`: one server and one sandbox, in
    turns."""
    spent: dict[Records, list[float]] = {state: [] for state in Records}
    with switched_server(root / "switch") as switch, Sandbox() as sandbox:
        for _ in range(BLOCK):
            sandbox.run(["/bin/true"])
        for turn in range(max(2, count // 2) * len(Records)):
            state = Records(turn % len(Records))
            switch(state)
            sandbox.run(["/bin/true"])
            spent[state] += [timed(lambda: sandbox.run(["/bin/true"])) for _ in range(BLOCK)]
        switch(Records.ON)
    names = {Records.ON: "on", Records.OFF: "off", Records.SYNCED: 'on, audit.sync = "all"'}
    on, off, synced = rows = [row(f"{RUN}, audit and metering {names[state]}", spent[state]) for state in Records]
    return rows, [
        Figure(
            "a command with audit and metering, % slower than without", (on.p50 / off.p50 - 1) * 100,
            f"{on.p50:.3f} ms on, {off.p50:.3f} ms off", most=5,
        ),
        Figure(
            'a command with audit.sync = "all", % slower than with "boundary"', (synced.p50 / on.p50 - 1) * 100,
            f"{synced.p50:.3f} and {on.p50:.3f} ms; lower quartiles {synced.at(0.25):.3f} and {on.at(0.25):.3f} ms",
        ),
    ]  # fmt: skip


def _long_trace(sandbox: Sandbox) -> float:
    """Return the seconds of `skerry trace` for a trace of many steps. They are written by the code that the server
    uses; so many commands would take a minute."""
    threads = TraceThreads()
    store = TraceStore(load().state_dir / "traces" / sandbox.id, TraceBounds(1 << 30, 0), threads)
    for _ in range(STEPS):
        _traced_command(store)
    store.close()
    threads.close()
    command = [sys.executable, "-m", "skerry", "trace", sandbox.id]
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        shown = subprocess.run(command, check=True, capture_output=True).stdout
        spent.append(time.perf_counter() - start)
        assert shown.count(b"process.run") >= STEPS
    return min(spent)


def _trace_cost(place: Path) -> float:
    """Return the milliseconds of the event loop for the two lines of a command."""
    threads = TraceThreads()
    store = TraceStore(place, TraceBounds(1 << 30, 0), threads)
    start = time.perf_counter()
    for _ in range(2000):
        _traced_command(store)
    spent = time.perf_counter() - start
    store.close()
    threads.close()
    return spent / 2000 * 1000


def _traced_command(store: TraceStore) -> None:
    step = TraceStep(
        n=0, at=time.time(), kind="process.run", text="make test", process="p-abcdefghij",
        params=plain(RunRequest(cmd="make test", env={"CI": "1"}, timeout=300)),
    )  # fmt: skip
    made = Step(store, store.begin(step))
    made.output("stdout", b"42 passed in 1.23s\n" * 10)
    made.end(RunResult(id="p-abcdefghij", exit_code=0, duration_s=1.25, usage=Usage(cpu_s=1.1, memory_peak=1 << 24)))


def _cost(log: AuditLog, keys: KeyStore) -> float:
    """Milliseconds of the event loop for the two records of a command; the disk is not waited for."""

    async def work() -> float:
        audit = AuditService(keys, log, AuditIndex(Path(f"{log.segments[0].path}.db")), "boundary")
        start = time.perf_counter()
        for _ in range(2000):
            action = audit.begin(
                "process.run", owner="local", actor="uid:0", source="unix", sandbox="sb-abcdefghij",
                params={"cmd": ["/bin/true"], "wait": True},
            )  # fmt: skip
            await action.durable()
            action.end(200, params={"exit_code": 0, "id": "p-abcdefghij"})
        spent = time.perf_counter() - start
        await audit.close()
        return spent / 2000 * 1000

    return asyncio.run(work())


def _million(log: AuditLog, keys: KeyStore, root: Path, run_ms: float, cost_ms: float) -> Part:
    for number in range(EFFECTS):
        log.reserve(1000)
        line, _ = log.append(
            type=("process.run", "file.write", "code.run")[number % 3], owner=f"tk-own{number % 50:04d}",
            actor=f"tk-abcdefgh{number % 60:02d}", source="unix", sandbox=f"sb-abcdef{number % 5000:04d}",
            params={"cmd": ["/bin/true"]},
        )  # fmt: skip
        log.append(type="result", of=line.seq, status=200, params={"exit_code": 0, "id": "p-abcdefghij"})
        if number % 500 == 0:
            log.seal()
            log.maintain()
    index = AuditIndex(root / "state" / "audit" / "index.db")
    index.update(log.segments)
    log.close()
    size = sum(file.stat().st_blocks * 512 for file in (root / "state" / "audit").iterdir())
    start = time.perf_counter()
    report = verify([segment.path for segment in log.segments], keys.trusted(), [])
    spent = time.perf_counter() - start
    assert report.ok
    rows = [
        row(f"audit page: {name}", [_page(index, log, wanted) for _ in range(10)]) for name, wanted in FILTERS.items()
    ]
    index.close()
    slowest = max(rows, key=lambda one: one.p50)
    metering_ms = usage.cost_ms()
    share = (cost_ms + metering_ms) / run_ms * 100
    beside = f"{cost_ms * 1000:.0f} + {metering_ms * 1000:.0f} µs / {run_ms:.2f} ms"
    return rows, [
        Figure("audit and metering, % of a command", share, beside, most=5),
        Figure(
            "verify 1,000,000 records, s", spent * 1e6 / report.records, f"{report.records:,} in {spent:.1f} s", most=30
        ),
        Figure(f"slowest audit page of {EFFECTS:,} effects, ms", slowest.p50, slowest.name, most=50),
        Figure("disk per audit record, bytes", size / report.records, "a line, with its part of the index", most=400),
        Figure("disk per effect, bytes", size / EFFECTS, "its record, its result and the index"),
    ]


def _page(index: AuditIndex, log: AuditLog, wanted: AuditFilter) -> float:
    start = time.perf_counter()
    index.page(wanted, None, 100, log.segments)
    return (time.perf_counter() - start) * 1000
