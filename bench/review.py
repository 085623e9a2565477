"""Reviews: the cost for a command, the delay until its changes are reported, and the cost of a large change."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.files import Memory
from bench.measure import Figure, Part, Row, row, side_by_side, timed, times
from skerry import Client, Options, Sandbox
from skerry.types import Decisions

SCAN, NOTIFY = "changes of 100 in 10,000 files, kept and asked for", "the same, from the command's end to a watcher"
NOTHING, UNTRACKED = "run, nothing changed in 10,000 files", "run, in a sandbox without a review"
OURS, GIT = "review.diff, 100 changed in 3,000 files", "git diff of the same"
LONG_DIFF, LONG_REVIEW = "review.diff, 200,000 lines changed", "review.changes, 200,000 lines changed"
_TREE = """
import os
text = "".join(f"line {{n}}\\n" for n in range(40))
for d in range({0}):
    os.makedirs(f"/workspace/d{{d}}")
    for f in range(100):
        open(f"/workspace/d{{d}}/f{{f}}", "w").write(text)
"""
_CHANGE = "cd /workspace; for f in $(seq 0 99); do echo {0} >> d$((f % 30))/f$f; done"


def review(count: int) -> Part:
    rows: list[Row] = []
    figures: list[Figure] = []
    with Client() as client:
        for part in (_watched, _compared, _long, _decided):
            more_rows, more_figures = part(client, count)
            rows += more_rows
            figures += more_figures
    return rows, figures


@contextlib.contextmanager
def _reviewed(client: Client, hundreds: int) -> Iterator[Sandbox]:
    with Sandbox(options=Options(use_pool=False), server=client) as sandbox:
        sandbox.run(["python3", "-c", _TREE.format(hundreds)], check=True)
        sandbox.review.start()
        yield sandbox


def _watched(client: Client, count: int) -> Part:
    with _reviewed(client, 100) as sandbox, Sandbox(options=Options(use_pool=False), server=client) as plain:
        plain.run(["python3", "-c", _TREE.format(100)], check=True)
        works = {NOTHING: lambda: sandbox.run(["true"]), UNTRACKED: lambda: plain.run(["true"])}
        nothing, untracked = side_by_side(works, count)
        kept, notified = [], []
        for turn in range(max(5, count // 4)):
            sandbox.run(_CHANGE.format(turn))
            kept.append(timed(lambda: sandbox.review.history(limit=1)))
        with sandbox.review.watch() as watch:
            for turn in range(max(5, count // 4)):
                ended = sandbox.run(_CHANGE.format(-turn)) and time.perf_counter()
                next(watch)
                notified.append((time.perf_counter() - ended) * 1000)
    rows = [row(SCAN, kept), row(NOTIFY, notified), nothing, untracked]
    pays = nothing.p50 - untracked.p50
    return rows, [
        Figure(f"{SCAN}, ms", rows[0].p50, most=100),
        Figure("from a command's end to a watcher, ms", rows[1].p50, most=300),
        Figure(
            "cost for a command that changed nothing, ms", pays, f"{nothing.p50:.1f} - {untracked.p50:.1f}", most=10
        ),
    ]


def _compared(client: Client, count: int) -> Part:
    with _reviewed(client, 30) as sandbox, tempfile.TemporaryDirectory() as place:
        git = Path(place, "tree")
        sandbox.files.download("/workspace", git)
        for words in (("init", "-q"), ("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "x")):
            subprocess.run(["git", "-C", str(git), *words], check=True)
        sandbox.run(_CHANGE.format("changed"))
        for name in range(100):
            with (git / f"d{name % 30}" / f"f{name}").open("a") as file:
                file.write("changed\n")
        works = {
            OURS: lambda: sandbox.review.diff(),
            GIT: lambda: subprocess.run(["git", "-C", str(git), "diff"], check=True, stdout=subprocess.PIPE),
        }
        ours, plain = side_by_side(works, count)
        same = len(sandbox.review.diff().splitlines()) / max(1, len(works[GIT]().stdout.splitlines()))  # type: ignore[union-attr]
    return [ours, plain], [times(ours, plain, most=2), Figure("lines of the one / of the other", same, least=0.99)]


def _long(client: Client, count: int) -> Part:
    with Sandbox(options=Options(use_pool=False), server=client) as sandbox:
        sandbox.run("cd /workspace; seq 200000 > long; seq 200000 > other")
        sandbox.review.start()
        sandbox.run("cd /workspace; sed -i 's/$/ changed/' long; sed -i '1~2s/$/ x/' other")
        memory = Memory(str(client.info()["pid"]))
        works = {LONG_DIFF: lambda: sandbox.review.diff(), LONG_REVIEW: lambda: sandbox.review.changes()}
        rows = side_by_side(works, max(3, count // 10), warm=1)
        grown = memory.grown()
    return rows, [
        Figure("200,000 changed lines: growth of the server meanwhile, MB", grown / 1e6, most=256),
        Figure("200,000 changed lines: the diff, ms", rows[0].p50),
        Figure("200,000 changed lines: all hunks, ms", rows[1].p50),
    ]


_NEW_FILES = """
import os
for n in range({0}):
    os.makedirs(f"/workspace/d{{n // 200}}", exist_ok=True)
    open(f"/workspace/d{{n // 200}}/f{{n}}", "w").write(f"line {{n}}\\n")
"""
MANY = 20_000


def _decided(client: Client, _: int) -> Part:
    """Accept all of many new files at once, while another caller runs commands in another sandbox."""
    plain = Options(use_pool=False)
    with Sandbox(options=plain, server=client) as sandbox, Sandbox(options=plain, server=client) as other:
        sandbox.review.start()
        sandbox.run(["python3", "-c", _NEW_FILES.format(MANY)], check=True)
        sandbox.review.history(limit=1)
        over = threading.Event()
        quiet = [timed(lambda: other.run(["true"])) for _ in range(100)]
        busy: list[float] = []

        def neighbour() -> None:
            while not over.is_set():
                busy.append(timed(lambda: other.run(["true"])))

        thread = threading.Thread(target=neighbour)
        thread.start()
        accept = timed(lambda: sandbox.review.decide(Decisions(all=True, do="accept")))
        over.set()
        thread.join()
    name = f"accept all of {MANY:,} new files"
    rows = [row(name, [accept]), row("run of a neighbour, quiet", quiet), row("the same, meanwhile", busy)]
    return rows, [
        Figure(f"{name}, ms", accept, most=2_000),
        Figure("meanwhile, p99 of a neighbour's run, ms", statistics.quantiles(busy, n=100)[98], most=50),
    ]
