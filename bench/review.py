"""Reviews: what a command pays for being watched, how soon its changes are told, and what a large change costs."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.files import Memory
from bench.measure import Figure, Part, Row, row, side_by_side, timed, times
from skerry import Client, Options, Sandbox

SCAN, TELL = "changes of 100 in 10,000 files, kept and asked for", "the same, from the command's end to a watcher"
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
        for part in (_watched, _compared, _long):
            more_rows, more_figures = part(client, count)
            rows += more_rows
            figures += more_figures
    return rows, figures


@contextlib.contextmanager
def _reviewed(client: Client, hundreds: int) -> Iterator[Sandbox]:
    with Sandbox(options=Options(pool=False), server=client) as sandbox:
        sandbox.run(["python3", "-c", _TREE.format(hundreds)], check=True)
        sandbox.review.begin()
        yield sandbox


def _watched(client: Client, count: int) -> Part:
    with _reviewed(client, 100) as sandbox, Sandbox(options=Options(pool=False), server=client) as plain:
        plain.run(["python3", "-c", _TREE.format(100)], check=True)
        works = {NOTHING: lambda: sandbox.run(["true"]), UNTRACKED: lambda: plain.run(["true"])}
        nothing, untracked = side_by_side(works, count)
        kept, told = [], []
        for turn in range(max(5, count // 4)):
            sandbox.run(_CHANGE.format(turn))
            kept.append(timed(lambda: sandbox.review.history(limit=1)))
        with sandbox.review.watch() as watch:
            for turn in range(max(5, count // 4)):
                ended = sandbox.run(_CHANGE.format(-turn)) and time.perf_counter()
                next(watch)
                told.append((time.perf_counter() - ended) * 1000)
    rows = [row(SCAN, kept), row(TELL, told), nothing, untracked]
    pays = nothing.p50 - untracked.p50
    return rows, [
        Figure(f"{SCAN}, ms", rows[0].p50, most=100),
        Figure("from a command's end to a watcher, ms", rows[1].p50, most=300),
        Figure("what a command pays that changed nothing, ms", pays, f"{nothing.p50:.1f} - {untracked.p50:.1f}", 10),
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
    with Sandbox(options=Options(pool=False), server=client) as sandbox:
        sandbox.run("cd /workspace; seq 200000 > long; seq 200000 > other")
        sandbox.review.begin()
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
