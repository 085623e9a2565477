"""Many processes in one sandbox at the same time, beside as many on the host."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

from bench.measure import Figure, Part, row, timed
from skerry import Options, Process, Sandbox

MANY = 200
CROWD, CROWD_HOST = f"{MANY} processes in one sandbox at once", f"{MANY}× subprocess.Popen at once"
THREADS = 32


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
        with Sandbox(options=Options(pool=False)) as sandbox:
            times[CROWD].append(timed(lambda: right.append(inside(sandbox))))
        times[CROWD_HOST].append(timed(host))
    figure = Figure(f"{MANY} processes in one sandbox at once, right exits", min(right), least=MANY)
    return [row(name, spent) for name, spent in times.items()], [figure]
