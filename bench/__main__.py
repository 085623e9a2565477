"""python -m bench [--json FILE] [--count N] [PART ...]: measure. The exit code is 1 if a figure misses its bound."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.code import code
from bench.creation import at_once, claim, cold, images
from bench.crowd import crowd, neighbour
from bench.density import density
from bench.e2b import e2b
from bench.far import address
from bench.files import large_files
from bench.imports import imports
from bench.inside import first_bytes, inside
from bench.mcp import mcp
from bench.measure import Figure, Part, Row
from bench.network import network
from bench.previews import previews
from bench.records import records
from bench.restart import restart
from bench.review import review
from bench.ssh import ssh
from bench.states import sleep, snapshots
from bench.stream import stream
from bench.trees import trees
from bench.volumes import volumes

STATE_DIR = "/var/lib/skerry-bench"
PARTS: dict[str, Callable[[int], Part]] = {
    "crowd": crowd, "neighbour": neighbour, "stream": stream, "files": large_files, "network": network, "cold": cold,
    "images": images, "claim": claim,
    "inside": inside, "bytes": first_bytes, "trees": trees, "import": imports, "review": review,
    "code": code, "mcp": mcp, "previews": previews, "snapshots": snapshots, "sleep": sleep, "at_once": at_once,
    "density": density, "restart": restart, "records": records, "volumes": volumes, "ssh": ssh,
    "e2b": e2b,
}  # fmt: skip


def show(rows: list[Row], figures: list[Figure]) -> bool:
    """Print the tables; return whether all bounds hold."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    table = Table("operation", "n", "p50 ms", "p95 ms", "p99 ms")
    for one in rows:
        table.add_row(one.name, str(len(one.times)), *(f"{one.at(p):.2f}" for p in (0.50, 0.95, 0.99)))
    console.print(table)
    table = Table("figure", "value", "of", "bound", "")
    for figure in figures:
        verdict = "-" if figure.bound == "-" else "ok" if figure.holds else "MISSED"
        table.add_row(figure.name, f"{figure.value:.2f}", figure.beside, figure.bound, verdict)
    console.print(table)
    bound = [figure for figure in figures if figure.bound != "-"]
    missed = [figure for figure in bound if not figure.holds]
    console.print(f"{len(bound) - len(missed)} of {len(bound)} bounds hold.")
    for figure in missed:
        console.print(
            f"MISSED: {figure.name}: {figure.value:.2f}, bound {figure.bound} ({figure.beside})", style="bold"
        )
    return not missed


def use_own_state() -> bool:
    """Use a separate state directory, and so a separate server, unless the environment names one: a benchmark must not
    fill or change the state of this host's sandboxes. The directory stays, with its base image, for the next run."""
    if os.environ.keys() & {"SKERRY_STATE_DIR", "SKERRY_SERVER"}:
        return False
    os.environ["SKERRY_STATE_DIR"] = STATE_DIR
    return True


def _skerry(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "skerry", *words], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--count", type=int, default=40, help="repetitions of the slow ones (default: 40)")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    args = parser.parse_args()
    own = use_own_state()
    # for a server that this starts: the servers of the network part are on this machine, which only the operator opens
    os.environ.setdefault("SKERRY_MAX_NETWORK", f"*,{address()[1]}:*")
    for name in ("SKERRY_MAX_SANDBOXES", "SKERRY_MAX_SANDBOXES_PER_OWNER"):
        os.environ.setdefault(name, "1200")  # the part that restarts a server has 1,000
    if unknown := set(args.parts) - PARTS.keys():
        parser.error(f"there is no part {sorted(unknown)[0]!r}; one of {', '.join(PARTS)}")
    rows: list[Row] = []
    figures: list[Figure] = []
    if "SKERRY_SERVER" not in os.environ:
        _skerry("image", "build", "base")
    try:
        for name in args.parts or PARTS:
            print(f"{name} …", file=sys.stderr)
            more_rows, more_figures = PARTS[name](args.count)
            rows += more_rows
            figures += more_figures
    finally:
        if own:
            _skerry("server", "stop")
    held = show(rows, figures)
    if args.json:
        report = {"rows": [one.as_json() for one in rows], "figures": [one.as_json() for one in figures]}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
