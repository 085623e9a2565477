"""Globs, and the files that a review keeps apart as generated."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ledgers import put, said

from skerry.errors import InvalidRequest
from skerry.review.hunks.apply_decisions import decide
from skerry.review.hunks.review_state import ReviewState
from skerry.review.ledger.ledger import Ledger
from skerry.types import Decisions
from skerry.types.globs import Glob, check_globs

BASE = [b"app.py", b"target/kept.txt", b"app/[id]/page.tsx"]
NEW = [
    b"new.py", b"node_modules/a/package.json", b"node_modules/b/index.js", b"src/__pycache__/m.pyc", b"target/more.txt",
    b"ui/x.snap", b"app/i/page.tsx", b"build/out.js",
]  # fmt: skip


def state(tmp_path: Path, **more: object) -> ReviewState:
    ledger = Ledger.create(tmp_path / "ledger.git")
    ledger.commit(said(), [put(name, b"base\n") for name in BASE])
    ledger.commit(said(), [*(put(name, b"new\n") for name in NEW), put(b"app/[id]/page.tsx", b"changed\n")])
    return ReviewState(ledger, ledger.base, ledger.tip, b"key", **more)  # type: ignore[arg-type]


def accepted(current: ReviewState, **request: object) -> list[str]:
    outcome = decide(current, Decisions(do="accept", **request), {}, 1.0)  # type: ignore[arg-type]
    return sorted(path.decode() for path in outcome.decided)


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("*.py", "src/deep/a.py", True), ("*.py", "a.pyc", False), ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/deep/a.py", False), ("src/**/a.py", "src/a.py", True), ("src/**/a.py", "src/b/c/a.py", True),
        ("node_modules", "ui/node_modules/x/y.js", True), ("/node_modules", "ui/node_modules/x", False),
        ("node_modules/", "node_modules", False), ("?.txt", "a.txt", True), ("?.txt", "ab.txt", False),
        ("app/[id]/*", "app/[id]/page.tsx", True), ("app/[id]/*", "app/i/page.tsx", False), ("**", "a/b", True),
        ("a*b*c", "aXbXbc", True), ("*a*a*a*a*a*a*a*a*b", "a" * 4000, False),
    ],
)  # fmt: skip
def test_glob_matches_names_and_whole_directories(glob: str, path: str, expected: bool) -> None:
    assert Glob(glob).matches(path) is expected


@pytest.mark.parametrize("glob", ["", "/", "../x", "a/./b", "a\0b", "x" * 2000])
def test_glob_that_matches_no_path_is_rejected(glob: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a pattern"):
        check_globs("exclude", [glob])


def test_accept_all_leaves_generated_files_apart(tmp_path: Path) -> None:
    current = state(tmp_path, generated=("*.snap",))
    outcome = decide(current, Decisions(do="accept", all=True), {}, 1.0)
    assert sorted(outcome.decided) == [b"app/[id]/page.tsx", b"app/i/page.tsx", b"new.py", b"target/more.txt"]
    assert {one.path: one.files for one in outcome.generated} == {
        "*.snap": 1, "build/": 1, "node_modules/": 2, "src/__pycache__/": 1
    }  # fmt: skip
    assert accepted(current, paths=("src", "ui"), exclude=()) == []


def test_generated_files_are_selected_by_a_path_or_glob_that_names_them(tmp_path: Path) -> None:
    current = state(tmp_path, generated=("*.snap",))
    assert accepted(current, paths=("build",)) == ["build/out.js"]
    assert accepted(current, paths=("target",)) == ["target/more.txt"]
    assert accepted(current, paths=("ui/x.snap",)) == ["ui/x.snap"]
    for flagged in ("**/*.pyc", "node_modules/**/*.js"):
        outcome = decide(current, Decisions(do="accept", paths=(flagged,)), {}, 1.0)
        assert (len(outcome.decided), len(outcome.held_back)) == (0, 1), "programs load it"
    assert accepted(current, paths=("*.js",)) == []
    decided = decide(current, Decisions(do="accept", paths=("build",)), {}, 1.0).decided
    again = ReviewState(current.ledger, current.base, current.tip, b"key", decided)
    selected = again.select()
    listed = [delta.path for delta in again.ledger.deltas(again.base, again.tip) if selected(delta)]
    assert b"build/out.js" in listed, "a file that was decided about is listed"


def test_globs_and_exclude_select_what_they_say_and_names_stay_literal(tmp_path: Path) -> None:
    current = state(tmp_path)
    assert accepted(current, paths=("app/[id]/page.tsx",)) == ["app/[id]/page.tsx"]
    assert accepted(current, paths=("app/*/page.tsx",)) == ["app/[id]/page.tsx", "app/i/page.tsx"]
    assert accepted(current, all=True, exclude=("app", "*.snap")) == ["new.py", "target/more.txt"]
    assert accepted(current, paths=("*.tsx",), exclude=("app/i/**",)) == ["app/[id]/page.tsx"]
