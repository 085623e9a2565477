"""State as a thing: snapshots, forks, sleep and wake; of a large workspace beside an empty one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.creation import COLD, CREATE, first_output
from bench.measure import Figure, Part, Row, row, timed, times
from bench.peers import TRUE, run
from skerry import Limits, Sandbox, Snapshot
from skerry.config import load

FILES, MEGABYTES = 10_000, 500
DIRTY_MEGABYTES = 300
EMPTY, LARGE = "an empty workspace", f"{FILES:,} files, {MEGABYTES} MB"
WAKE, CYCLE = "wake → first output", "stop → wake → first output"
FILL = f"""
import os
piece = os.urandom({MEGABYTES}_000_000 // {FILES})
for n in range({FILES}):
    os.makedirs(f"/workspace/d{{n // 100}}", exist_ok=True)
    with open(f"/workspace/d{{n // 100}}/{{n}}", "wb") as file: file.write(piece)
"""


@contextmanager
def workspaces() -> Iterator[dict[str, Sandbox]]:
    with Sandbox(options=COLD) as empty, Sandbox(options=COLD, limits=Limits(memory="4G", disk="20G")) as large:
        large.run(["python3", "-c", FILL], check=True, timeout=300)
        yield {EMPTY: empty, LARGE: large}


def snapshots(count: int) -> Part:
    """Measure snapshots and forks in turns. All data is on the disk before each; `dirty` measures unwritten data.
    A fork is complete when it runs, like a cold create: the two are compared. A bare program shows the load."""
    taken: dict[str, list[float]] = {EMPTY: [], LARGE: []}
    forked: dict[str, list[float]] = {EMPTY: [], LARGE: []}
    frozen: list[float] = []
    created: list[float] = []
    plain: list[float] = []
    with workspaces() as spaces:
        for turn in range(count // 2 + 2):
            for name, sandbox in spaces.items():
                sync_disk()
                start = time.perf_counter()
                snapshot = sandbox.snapshot()
                spent = (time.perf_counter() - start) * 1000
                taken[name] += [spent] * (turn >= 2)
                frozen.append((snapshot.info.frozen_s or 0) * 1000)
                Snapshot.get(snapshot.id, server=snapshot.client)  # its size is being found out beside: to the end
                snapshot.delete()
        for turn in range(count // 2 + 2):
            for name, sandbox in spaces.items():
                sync_disk()
                start = time.perf_counter()
                (fork,) = sandbox.fork()
                forked[name] += [(time.perf_counter() - start) * 1000] * (turn >= 2)
                fork.delete()
            start = time.perf_counter()
            other = Sandbox.create(options=COLD)
            created += [(time.perf_counter() - start) * 1000] * (turn >= 2)
            other.delete()
            plain.append(timed(lambda: run(["/bin/true"])))
        unsynced, more = dirty(spaces[LARGE])
        five, five_figures = forks(spaces[LARGE], max(count // 8, 3))
    rows = [row(f"snapshot, {name}", spent) for name, spent in taken.items()]
    rows += [row(f"fork, {name}", spent) for name, spent in forked.items()]
    made, bare = row("create, cold", created), row(TRUE, plain)
    busy = f"beside a create of {made.p50:.1f} ms and {TRUE} of {bare.p50:.1f} ms"
    figures = []
    for none, much in ((rows[0], rows[1]), (rows[2], rows[3])):
        figures += [Figure(f"{much.name}, ms", much.p50, f"p95 {much.at(0.95):.1f} ms; {busy}", most=30)]
        figures += [times(much, none, most=4)]
    figures.append(times(rows[2], made, most=1.2))
    median = row("frozen", frozen).p50
    figures.append(Figure("frozen in these snapshots at most, ms", max(frozen), f"p50 {median:.1f} ms", most=30))
    return [*rows, made, *unsynced, *five], [*figures, *more, *five_figures]


def sync_disk() -> None:
    """The sandboxes' file system, and no other."""
    state = load().state_dir
    subprocess.run(["sync", "-f", str(state / "pool" if (state / "pool").is_mount() else state)], check=True)


def dirty(sandbox: Sandbox, rounds: int = 3) -> Part:
    """Compare a snapshot of much unwritten data with `syncfs` of as much."""
    plain: list[float] = []
    taken: list[float] = []
    frozen: list[float] = []
    for _ in range(rounds):
        write_unsynced(sandbox)
        plain.append(timed(sync_disk))
        write_unsynced(sandbox)
        start = time.perf_counter()
        snapshot = sandbox.snapshot()
        taken.append((time.perf_counter() - start) * 1000)
        frozen.append((snapshot.info.frozen_s or 0) * 1000)
        snapshot.delete()
    rows = [row(f"snapshot, {DIRTY_MEGABYTES} MB unwritten", taken), row(f"syncfs of {DIRTY_MEGABYTES} MB", plain)]
    beside = ", ".join(f"{one:.1f}" for one in frozen)
    worst = Figure(f"frozen with {DIRTY_MEGABYTES} MB unwritten, ms", max(frozen), beside, most=30)
    return rows, [times(rows[0], rows[1]), worst]


def write_unsynced(sandbox: Sandbox) -> None:
    sync_disk()
    sandbox.run(f"head -c {DIRTY_MEGABYTES}M /dev/zero > /workspace/dirty", check=True)


def forks(sandbox: Sandbox, rounds: int) -> Part:
    """Five forks, until each of them has run something, in turns with one create."""
    spent: dict[str, list[float]] = {"five forks → first outputs": [], CREATE: []}
    sync_disk()
    for _ in range(rounds + 1):
        start = time.perf_counter()
        made = sandbox.fork(5)
        assert all(fork.run(["echo", "up"]).stdout == "up\n" for fork in made)
        spent["five forks → first outputs"].append((time.perf_counter() - start) * 1000)
        for fork in made:
            fork.delete()
        once, other = first_output(COLD)
        spent[CREATE].append(once)
        other.delete()
    five, one = (row(name, found[1:]) for name, found in spent.items())
    return [five], [times(five, one, most=5)]


def sleep(count: int) -> Part:
    """A named sandbox that has files, stopped and woken, in turns with a cold create."""
    woken: list[float] = []
    cycles: list[float] = []
    stops: list[float] = []
    pauses: list[float] = []
    creates: list[float] = []
    name = f"bench-{time.time_ns() % 10**9}"
    with Sandbox(name=name, options=COLD) as sandbox:
        try:
            sandbox.run("head -c 1M /dev/urandom > /workspace/file", check=True)
            for turn in range(count + 2):
                start = time.perf_counter()
                sandbox.stop()
                stopped = time.perf_counter()
                assert sandbox.run(["echo", "up"]).stdout == "up\n"
                end = time.perf_counter()
                sandbox.pause()
                paused = time.perf_counter()
                assert sandbox.run(["echo", "up"]).stdout == "up\n"
                thawed = time.perf_counter()
                spent, other = first_output(COLD)
                other.delete()
                if turn >= 2:
                    creates.append(spent)
                    stops.append((stopped - start) * 1000)
                    woken.append((end - stopped) * 1000)
                    cycles.append((end - start) * 1000)
                    pauses.append((thawed - paused) * 1000)
        finally:
            sandbox.delete()
    rows = [
        row(CYCLE, cycles),
        row("stop", stops),
        row(WAKE, woken),
        row("wake of a paused one → first output", pauses),
    ]
    cold: Row = row(CREATE, creates)
    return rows, [times(rows[0], cold, most=2), times(rows[2], cold)]
