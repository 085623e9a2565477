"""A gibibyte of output, streamed to a reader: from a sandbox, and from `cat` through a pipe on the host."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from bench.measure import Figure, Part, row, timed
from skerry import Options, Output, Sandbox

SIZE = 1 << 30
STREAM, STREAM_HOST = "run(cat, on_output=…), 1 GiB", "cat through a pipe, 1 GiB"


def stream(_: int, rounds: int = 5) -> Part:
    """In turns; and by how many bytes the server grew at most meanwhile."""
    times: dict[str, list[float]] = {STREAM: [], STREAM_HOST: []}
    with tempfile.NamedTemporaryFile() as file, Sandbox(options=Options(use_pool=False)) as sandbox:
        os.truncate(file.name, SIZE)
        sandbox.run(["truncate", "-s", str(SIZE), "/workspace/gib"], check=True)
        status = Path(f"/proc/{sandbox.client.info()['pid']}")
        sandbox_reads(sandbox)
        before = resident(status, "VmRSS")
        (status / "clear_refs").write_text("5")  # reset the peak
        for _ in range(rounds):
            times[STREAM_HOST].append(timed(lambda: host_reads(file.name)))
            times[STREAM].append(timed(lambda: sandbox_reads(sandbox)))
        grown = resident(status, "VmHWM") - before
    rows = [row(name, spent) for name, spent in times.items()]
    share = Figure(
        "cat through a pipe / run(cat, on_output=…)", rows[1].p50 / rows[0].p50,
        f"{rows[1].p50:.0f} ms / {rows[0].p50:.0f} ms", least=0.25,
    )  # fmt: skip
    return rows, [share, Figure("growth of the server meanwhile, MB", grown / 1e6, most=32)]


def sandbox_reads(sandbox: Sandbox) -> None:
    got = 0

    def count(output: Output) -> None:
        nonlocal got
        got += len(output.data)

    sandbox.run(["cat", "/workspace/gib"], on_output=count, check=True)
    assert got == SIZE


def host_reads(name: str) -> None:
    got = 0
    with subprocess.Popen(["cat", name], stdout=subprocess.PIPE, bufsize=0) as cat:
        assert cat.stdout is not None
        while data := os.read(cat.stdout.fileno(), 256 << 10):
            got += len(data)
    assert got == SIZE


def resident(process: Path, name: str) -> int:
    lines = (process / "status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) << 10
