"""Commands in a sandbox, beside the same on the host."""

from __future__ import annotations

import time

from bench.measure import Part, repeat, row, side_by_side, times
from bench.peers import TRUE, run
from skerry import Options, Sandbox

COLD = Options(use_pool=False)
MEBIBYTE = b"x" * (1 << 20)
RUN = "run(['/bin/true'])"
SPAWN_BYTE, RUN_BYTE = "spawn → first byte", "run → first byte"


def inside(count: int) -> Part:
    with Sandbox(options=COLD) as sandbox:
        works = {RUN: lambda: sandbox.run(["/bin/true"]), TRUE: lambda: run(["/bin/true"])}
        ran, plain = side_by_side(works, count * 5)
        rows = [
            ran,
            plain,
            repeat("files.write, 1 MiB", count, lambda: sandbox.files.write("/workspace/m", MEBIBYTE)),
            repeat("files.read_bytes, 1 MiB", count, lambda: sandbox.files.read_bytes("/workspace/m")),
        ]
    return rows, [times(ran, plain, most=5)]


def first_bytes(count: int) -> Part:
    """To the first byte of a command's output: left to itself and followed, or waited for; in turns."""
    spent: dict[str, list[float]] = {SPAWN_BYTE: [], RUN_BYTE: []}
    with Sandbox(options=COLD) as sandbox:
        for _ in range(count * 2 + 2):
            start = time.perf_counter()
            next(iter(sandbox.spawn(["echo", "up"]).follow()))
            spent[SPAWN_BYTE].append((time.perf_counter() - start) * 1000)
            came: list[float] = []
            start = time.perf_counter()
            sandbox.run(["echo", "up"], on_output=lambda _, came=came: came.append(time.perf_counter()))
            spent[RUN_BYTE].append((came[0] - start) * 1000)
    rows = [row(name, found[2:]) for name, found in spent.items()]
    return rows, [times(rows[0], rows[1], most=2)]
