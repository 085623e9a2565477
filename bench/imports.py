"""A repository on its way into a sandbox, beside git's own way to copy one."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import Figure, Part, Row, repeat, row, side_by_side, timed
from skerry import Options, Repo, Sandbox

FILES = 3000
PLAIN, COPIED, BEGUN = "create", "create, with a repository of 3,000 files", "the same, and its review begun"
CLONED = "git clone --local of it"
STATUS, EDITED = "repo.status of a copy of 3,000 files", "the same, after 10 edits and 10 deletions"
VERSION, BARE = "skerry --version", "python -c pass"


def imports(_: int, rounds: int = 7) -> Part:
    """Measure imports in turns, so that noise hits all alike. The time of an import is the difference
    between a create with it and one without."""
    times: dict[str, list[float]] = {PLAIN: [], COPIED: [], BEGUN: [], CLONED: []}
    with tempfile.TemporaryDirectory() as place:
        source = repository(Path(place, "source"))
        for turn in range(rounds):
            target = Path(place, f"clone{turn}")
            clone = ["git", "clone", "--quiet", "--local", source, target]
            times[CLONED].append(timed(lambda clone=clone: subprocess.run(clone, check=True)))
            for name, repo in ((PLAIN, None), (COPIED, Repo(source, review=False)), (BEGUN, Repo(source))):
                times[name].append(_created(repo))
        status_rows = _status(source)
        shutil.rmtree(source)
    rows = {name: row(name, spent) for name, spent in times.items()}
    clone, plain = rows[CLONED].p50, rows[PLAIN].p50
    figures = []
    for name, what in ((COPIED, "import"), (BEGUN, "import, with its review begun")):
        took = rows[name].p50 - plain
        most = 3.0 if name == BEGUN else None
        beside = f"{took:.0f} ms / {clone:.0f} ms"
        figures.append(Figure(f"{what} of 3,000 files / git clone --local", took / clone, beside, most=most))
    program = Path(sys.executable).with_name("skerry")
    works = {
        VERSION: lambda: subprocess.run([program, "--version"], check=True, stdout=subprocess.DEVNULL),
        BARE: lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
    }
    start_rows = side_by_side(works, 2 * rounds)
    return [*rows.values(), *status_rows, *start_rows], figures


def _status(source: Path, rounds: int = 10) -> list[Row]:
    """Measure the check of `ls`, `show` and `exec` at a terminal whether a copy is stale."""
    with Sandbox(repo=source, options=Options(use_pool=False)) as sandbox:
        current = repeat(STATUS, rounds, lambda: sandbox.repo.status(source))
        for number, file in enumerate(sorted(source.glob("src/*/*.py"))[:20]):
            file.unlink() if number % 2 else file.write_text("edited\n")
        assert sandbox.repo.status(source).files == 20
        return [current, repeat(EDITED, rounds, lambda: sandbox.repo.status(source))]


def _created(repo: Repo | None) -> float:
    made: list[Sandbox] = []
    spent = timed(lambda: made.append(Sandbox.create(repo=repo, options=Options(use_pool=False))))
    made[0].delete()
    return spent


def repository(place: Path) -> Path:
    """3,000 files of about 3 KiB in 50 directories, ten commits, packed as after a clone."""
    numbers = random.Random(6)
    words = ["".join(numbers.choices("abcdefghijklmnopqrstuvwxyz_", k=numbers.randint(2, 10))) for _ in range(4000)]
    files = [place / f"src/part{number // 60}/file{number}.py" for number in range(FILES)]
    _git(place.parent, "init", "--quiet", str(place))
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = (" ".join(numbers.choices(words, k=6)) for _ in range(numbers.randint(5, 130)))
        file.write_text("\n".join(lines) + "\n")
        if number % 300 == 299:
            _git(place, "add", "--all")
            _git(place, "commit", "--quiet", "-m", f"commit {number}")
    _git(place, "gc", "--quiet")
    return place


def _git(where: Path, *words: str) -> None:
    subprocess.run(["git", "-C", where, "-c", "user.name=b", "-c", "user.email=b@b", *words], check=True)
