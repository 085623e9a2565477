"""Many processes in one sandbox at the same time, beside as many on the host."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bench.measure import Figure, Part, repeat, row, timed
from bench.measure import times as ratio
from bench.peers import TRUE, run
from skerry import Options, Process, Sandbox

MANY = 200
CROWD, CROWD_HOST = f"{MANY} processes in one sandbox at once", f"{MANY}× subprocess.Popen at once"
THREADS = 32
ALONE_S = 3.0
LEAST_RATE = 0.6


def command(number: int) -> list[str]:
    """Says its number, waits for the end of its stdin, and gives its number back."""
    return ["sh", "-c", 'echo "$0"; read x; exit "$0"', str(number)]


def inside(sandbox: Sandbox) -> int:
    """Starts them all, then lets them all end; how many said and gave back the right number while all of them ran."""

    def end(process: Process) -> tuple[int | None, str]:
        process.stdin.close()
        result = process.wait(60)
        return result.exit_code, result.stdout

    with ThreadPoolExecutor(THREADS) as pool:
        processes = list(pool.map(lambda number: sandbox.spawn(command(number)), range(MANY)))
        running = sum(process.state == "running" for process in sandbox.processes.list())
        ends = list(pool.map(end, processes))
    right = sum(found == (number, f"{number}\n") for number, found in enumerate(ends))
    return min(right, running)


def host() -> None:
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command(number), stdin=pipe, stdout=pipe) for number in range(MANY)]
    for number, process in enumerate(processes):
        assert process.communicate()[0] == f"{number}\n".encode()
        assert process.returncode == number


def crowd(_: int, rounds: int = 5) -> Part:
    times: dict[str, list[float]] = {CROWD: [], CROWD_HOST: []}
    right: list[int] = []
    for _ in range(rounds):
        with Sandbox(options=Options(use_pool=False)) as sandbox:
            times[CROWD].append(timed(lambda: right.append(inside(sandbox))))
        times[CROWD_HOST].append(timed(host))
    figure = Figure(f"{MANY} processes in one sandbox at once, right exits", min(right), least=MANY)
    rows = [row(name, spent) for name, spent in times.items()]
    return rows, [figure, ratio(rows[0], rows[1], most=4)]


def neighbour(count: int) -> Part:
    """One command after another in a quiet sandbox: alone, then while 32 threads of another process run commands in
    another sandbox. And these threads alone."""
    with Sandbox(options=Options(use_pool=False)) as busy, Sandbox(options=Options(use_pool=False)) as quiet:
        idle = repeat("a command, idle server", count * 5, lambda: quiet.run(["/bin/true"]))
        bare = repeat(TRUE, count * 5, lambda: run(["/bin/true"]))
        with hammer(busy) as alone:
            time.sleep(ALONE_S)
        name = f"a command beside {THREADS} threads of a neighbour"
        with hammer(busy) as rate:
            beside = repeat(name, count * 5, lambda: quiet.run(["/bin/true"]))
    of = f"{beside.at(0.99):.1f} ms / {idle.p50:.1f} ms"
    rates = f"{alone[0]:.0f}/s; {1000 / bare.p50:.0f}/s; beside the quiet one: {rate[0]:.0f}/s"
    return [idle, bare, beside], [
        Figure("a command beside a busy neighbour: p99 / idle p50", beside.at(0.99) / idle.p50, of, most=5),
        Figure(f"commands per second of {THREADS} threads in one sandbox", alone[0]),
        Figure(
            "their rate / that of bare programs, one after another",
            alone[0] * bare.p50 / 1000,
            rates,
            least=LEAST_RATE,
        ),
    ]


@contextmanager
def hammer(sandbox: Sandbox) -> Iterator[list[float]]:
    """Run commands with many threads of another process during the block; then, yield their rate."""
    argv = [sys.executable, "-m", "bench.hammer", sandbox.id]
    program = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"running\n"
    rate: list[float] = []
    yield rate
    rate.append(float(program.communicate(b"end\n")[0]))
