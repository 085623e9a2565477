"""python -m bench [--json FILE] [--count N]"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.crowd import MANY, crowd
from bench.files import CP_IN, CP_OUT, READ_LARGE, WRITE_LARGE, large_files
from bench.measure import Row, private_memory, repeat, row, side_by_side, timed
from bench.network import figures as network_figures
from bench.network import network
from bench.peers import peers, run
from bench.previews import DIRECT, PREVIEW, previews
from bench.stream import STREAM, STREAM_HOST, stream
from bench.trees import FILES, UPLOAD, WRITE, trees
from skerry import Options, Sandbox

COLD = Options(pool=False)
MEBIBYTE = b"x" * (1 << 20)


CREATE, RUN, TRUE = "create → first output, cold", "run(['/bin/true'])", "subprocess.run(['/bin/true'])"
SPAWN_BYTE, RUN_BYTE = "spawn → first byte", "run → first byte"


def create_and_peers(count: int) -> list[Row]:
    """Creating a sandbox, in turns with whatever else this machine has for the purpose."""
    deletes: list[float] = []

    def create() -> float:
        start = time.perf_counter()
        sandbox = Sandbox.create(options=COLD)
        assert sandbox.run(["echo", "up"]).stdout == "up\n"
        spent = time.perf_counter() - start
        deletes.append(timed(sandbox.delete))
        return spent * 1000

    creates: list[float] = []
    with peers() as works:
        rows = side_by_side({CREATE: lambda: creates.append(create()), **works}, count)
    return [row(CREATE, creates[2:]), *rows[1:], row("delete", deletes[2:])]


def inside(count: int) -> list[Row]:
    with Sandbox(options=COLD) as sandbox:
        works = {RUN: lambda: sandbox.run(["/bin/true"]), TRUE: lambda: run(["/bin/true"])}
        return [
            *side_by_side(works, count * 5),
            repeat("files.write, 1 MiB", count, lambda: sandbox.files.write("/workspace/m", MEBIBYTE)),
            repeat("files.read_bytes, 1 MiB", count, lambda: sandbox.files.read_bytes("/workspace/m")),
        ]


def first_bytes(count: int) -> list[Row]:
    """To the first byte of a command's output: left to itself and followed, or waited for; in turns."""
    times: dict[str, list[float]] = {SPAWN_BYTE: [], RUN_BYTE: []}
    with Sandbox(options=COLD) as sandbox:
        for _ in range(count + 2):
            start = time.perf_counter()
            next(iter(sandbox.spawn(["echo", "up"]).follow()))
            times[SPAWN_BYTE].append((time.perf_counter() - start) * 1000)
            came: list[float] = []
            start = time.perf_counter()
            sandbox.run(["echo", "up"], on_output=lambda _, came=came: came.append(time.perf_counter()))
            times[RUN_BYTE].append((came[0] - start) * 1000)
    return [row(name, spent[2:]) for name, spent in times.items()]


def at_once(number: int) -> Row:
    def one(index: int) -> tuple[float, str]:
        start = time.perf_counter()
        with Sandbox(options=COLD) as sandbox:
            output = sandbox.run(["hostname"]).stdout
            return (time.perf_counter() - start) * 1000, output

    with ThreadPoolExecutor(number) as pool:
        done = list(pool.map(one, range(number)))
    if len({output for _, output in done}) != number:
        sys.exit(f"{number} creates at once did not give {number} distinct first outputs")
    return row(f"create → first output, {number} at once", [spent for spent, _ in done])


def idle_memory() -> int:
    with Sandbox(options=COLD) as sandbox:
        sandbox.run(["/bin/true"])
        return private_memory(sandbox.id)


def ratios(
    rows: dict[str, Row], memory: int, right: int, grown: int, files_grown: int, connected: int
) -> list[dict[str, object]]:
    """The issue's figures: what was measured, against what, and the bound."""
    create = rows[CREATE]
    found: list[dict[str, object]] = []

    def add(name: str, value: float, bound: float, at_most: bool = True) -> None:
        holds = value <= bound if at_most else value >= bound
        sign = "≤" if at_most else "≥"
        found.append({"figure": name, "value": round(value, 2), "bound": f"{sign} {bound:g}", "holds": holds})

    with Sandbox(options=COLD) as sandbox:
        runtime = sandbox.isolation.runtime if sandbox.isolation else "runc"
    bare = rows.get(f"{runtime} run (the same config)")
    if bare is not None:
        add(f"create → first output / bare {runtime} run", create.p50 / bare.p50, 2)
    docker = rows.get("docker run --rm --network none")
    if docker is not None:
        add("docker run / create → first output", docker.p50 / create.p50, 5, at_most=False)
    add("run / subprocess.run", rows[RUN].p50 / rows[TRUE].p50, 5)
    add("spawn → first byte / run → first byte", rows[SPAWN_BYTE].p50 / rows[RUN_BYTE].p50, 2)
    add(f"{MANY} processes in one sandbox at once, right exits", right, MANY, at_most=False)
    add("cat through a pipe / run(cat, on_output=…)", rows[STREAM_HOST].p50 / rows[STREAM].p50, 0.25, at_most=False)
    add("growth of the server meanwhile, MB", grown / 1e6, 32)
    add("private memory of an idle sandbox, MB", memory / 1e6, 6)
    add("files.write of 1 GiB, share of cp's rate", rows[CP_IN].p50 / rows[WRITE_LARGE].p50, 0.3, at_most=False)
    add("files.stream of 1 GiB, share of cp's rate", rows[CP_OUT].p50 / rows[READ_LARGE].p50, 0.3, at_most=False)
    add("growth of server and SDK meanwhile, MB", files_grown / 1e6, 64)
    add("3,000 files, one call each / one upload", rows[WRITE].p50 * FILES / rows[UPLOAD].p50, 20, at_most=False)
    for figure in network_figures(rows, connected):
        add(*figure)
    add("a request through a preview, ms above a direct one", rows[PREVIEW].p50 - rows[DIRECT].p50, 3)
    return found


def show(rows: list[Row], figures: list[dict[str, object]]) -> None:
    console = Console()
    table = Table("what", "n", "p50 ms", "p95 ms", "p99 ms")
    for one in rows:
        table.add_row(one.name, str(len(one.times)), *(f"{one.at(p):.2f}" for p in (0.50, 0.95, 0.99)))
    console.print(table)
    table = Table("figure", "value", "bound", "")
    for figure in figures:
        table.add_row(
            *(str(figure[key]) for key in ("figure", "value", "bound")), "ok" if figure["holds"] else "MISSED"
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--count", type=int, default=40, help="repetitions of the slow ones (default: 40)")
    args = parser.parse_args()
    crowds, right = crowd()
    streams, grown = stream()
    large, files_grown = large_files()
    networks, connected = network(args.count)
    rows = [
        *create_and_peers(args.count),
        *inside(args.count),
        *first_bytes(args.count * 2),
        *large,
        *trees(),
        *crowds,
        *streams,
        *networks,
        *previews(args.count),
        at_once(10),
        at_once(50),
    ]
    figures = ratios({one.name: one for one in rows}, idle_memory(), right, grown, files_grown, connected)
    show(rows, figures)
    if args.json:
        args.json.write_text(json.dumps({"rows": [one.as_json() for one in rows], "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
