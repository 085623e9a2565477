"""`skerry compare`: several attempts at one task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server

from skerry import Sandbox
from skerry.errors import Conflict, InvalidRequest, NotFound


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("task")


@pytest.fixture(scope="module")
def attempts(server: Server, top: Path) -> Iterator[list[Sandbox]]:
    """Three attempts: one without changes, one that succeeds, one that fails."""
    (top / "add.py").write_text("def add(a, b):\n    return 0\n")
    (top / "check.py").write_text("from add import add\nassert add(1, 2) == 3, 'it can not add'\n")
    with Sandbox(repo=top, server=server.address) as first:
        forks = first.fork(2)
        forks[0].run("sed -i 's/return 0/return a + b/' add.py; echo done > note.txt", check=True)
        forks[1].run("sed -i 's/return 0/return a - b/' add.py", check=True)
        forks[1].run("true", check=True)
        yield [first, *forks]
        for fork in forks:
            fork.delete(force=True)


def test_compare_reports_checks_and_usage(server: Server, attempts: list[Sandbox]) -> None:
    first, good, bad = attempts
    found = first.review.compare(good, bad.id, check="python3 check.py")
    assert [one.sandbox for one in found.attempts] == [first.id, good.id, bad.id]
    assert [(len(one.files), one.added, one.removed, one.commands) for one in found.attempts] == [
        (0, 0, 0, 0), (2, 2, 1, 1), (1, 1, 1, 2),
    ]  # fmt: skip
    assert [one.check is not None and one.check.ok for one in found.attempts] == [False, True, False]
    assert found.paths == {"add.py": (good.id, bad.id), "note.txt": (good.id,)}
    assert [bool(one.duration_s and one.cpu_s) for one in found.attempts] == [False, True, True]
    assert all((one.memory_peak or 0) > 0 for one in found.attempts)
    assert not good.files.exists("__pycache__")  # the checks ran in forks


def test_command_line_shows_attempts_side_by_side(server: Server, attempts: list[Sandbox]) -> None:
    ids = [one.id for one in attempts]
    before = {one.id for one in Sandbox.list(server=server.address)}
    done = skerry("compare", *ids, "--check", "python3 check.py", server=server.address)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert "AssertionError: it can not add" in rows[ids[0]]
    assert rows[ids[1]].rstrip().endswith("ok")
    assert rows["add.py"].split()[1:] == ["+1", "-1", "+1", "-1"]
    assert rows["note.txt"].split()[1:] == ["+1", "-0"]
    data = json.loads(skerry("compare", ids[1], "--json", server=server.address).stdout)
    assert data["attempts"][0]["check"] is None
    assert data["paths"] == {"add.py": [ids[1]], "note.txt": [ids[1]]}
    assert {one.id for one in Sandbox.list(server=server.address)} == before  # all forks are deleted


def test_incomparable_sandboxes_are_reported(server: Server, attempts: list[Sandbox], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="each of them once"):
        attempts[0].review.compare(attempts[0].id)
    with pytest.raises(NotFound):
        attempts[0].review.compare("nobody")
    with Sandbox(server=server.address) as plain, pytest.raises(NotFound, match="has no review"):
        attempts[0].review.compare(plain)


def test_hunks_of_several_attempts_can_be_applied(attempts: list[Sandbox], top: Path) -> None:
    _, good, bad = attempts
    (note,) = (hunk for hunk in good.review.changes().hunks if hunk.path == "note.txt")
    good.review.accept(note)
    bad.review.accept(*bad.review.changes().hunks)
    assert [file.path for file in good.review.apply(top).files] == ["note.txt"]
    assert [file.path for file in bad.review.apply(top).files] == ["add.py"]
    assert (top / "add.py").read_text() == "def add(a, b):\n    return a - b\n"
    good.review.accept(*good.review.changes(state="open").hunks)
    with pytest.raises(Conflict, match=r"add\.py"):  # two changes of one line: a person must choose
        good.review.apply(top)
    bad.review.undo(top)
    assert [file.path for file in good.review.apply(top).files] == ["add.py"]
    assert (top / "add.py").read_text() == "def add(a, b):\n    return a + b\n"
