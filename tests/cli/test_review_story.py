"""A complete review in one terminal: copy a project, change it, watch, review, apply, undo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support.cli import skerry
from support.pages import plain, texts
from support.server import Server
from support.tmux import Window

from skerry.cli.review.watch_model import SETTLE_S

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import review_picture  # noqa: E402

NAME = review_picture.NAME
TESTS = "python3 -m unittest -q"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return review_picture.repository(tmp_path)


@pytest.fixture
def window(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Window]:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    with Window(tmp_path, server.address, cols=review_picture.COLS, rows=review_picture.ROWS) as made:
        yield made
    skerry("rm", "-f", NAME, server=server.address)


def git(project: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=project, capture_output=True, text=True, check=True).stdout


def test_only_approved_changes_are_applied(window: Window, project: Path, server: Server) -> None:
    def agent(*command: str) -> None:
        done = skerry("exec", NAME, "--", *command, server=server.address)
        assert done.returncode == 0, done.stderr

    before = (project / "basket.py").read_text()
    (project / "notes.txt").write_text("not committed\n")
    window.enter(f"cd {project}")
    window.enter(f"skerry create --repo . --name {NAME}")
    window.shows("sb-")
    window.is_back()

    window.clear()
    window.enter(f"skerry watch {NAME}")
    window.shows("? help  q quit")
    agent("bash", "-c", "cat notes.txt > /dev/null && echo '# done' >> test_basket.py")
    window.shows("test_basket.py: a accept  r reject")
    window.shows("+ # done")
    window.type("r")
    window.type("no notes in tests")
    window.press("Enter")
    window.shows("1 rejected in test_basket.py")
    first, second = review_picture.COMMANDS
    agent(*first)
    window.shows("basket.py: a accept  r reject  u undo  ? help  q quit")
    seen = [plain(line) for line in window.screen().splitlines()]
    shown = texts(ROOT / "docs/guides/review.md", "text")[0].splitlines()[1:-1]
    assert [line for line in shown if plain(line) not in seen] == []
    agent(*second)
    window.shows(":.3f}")
    window.type("q")
    window.is_back()
    assert (project / "basket.py").read_text() == before

    window.clear()
    window.enter(f"skerry review {NAME} basket.py")
    window.shows("exit 0")
    window.shows("1/2 basket.py")
    made = review_picture.words_of(review_picture.drawn(window.screen(colours=True)))
    assert made == review_picture.words_of(review_picture.PICTURE.read_text()), (
        "scripts/review_picture.py draws it again"
    )
    window.press("C-z")
    window.is_back()
    window.enter("fg")
    window.shows("1/2 basket.py")
    window.resize(60, 18)
    window.shows("y accept  n reject")
    window.resize(review_picture.COLS, review_picture.ROWS)
    window.type("?")
    window.shows("reject, with a reason")
    window.type("x")
    window.shows("1/2 basket.py")
    window.type("y")
    window.shows("2/2 basket.py")
    window.type("n")
    window.type("two digits are enough")
    window.press("Enter")
    window.shows("All hunks are decided: 1 accepted, 1 rejected, 0 open.")
    window.type("q")
    window.shows(f"hint: skerry apply {NAME}")
    window.is_back()
    assert (project / "basket.py").read_text() == before, "nothing lands by being accepted"
    assert (
        "two digits are enough"
        in skerry("exec", NAME, "cat", "/run/skerry/review.json", server=server.address).stdout.decode()
    )

    window.clear()
    window.enter(f"skerry apply {NAME} --check '{TESTS}'")
    window.shows("reverts it")  # the prompt alone may be the one before the command
    window.is_back()
    landed = (project / "basket.py").read_text()
    assert landed == before.replace("discount / 100", "min(discount, 100) / 100")
    assert git(project, "diff", "--stat", "--cached") == ""
    assert git(project, "status", "--porcelain") == " M basket.py\n?? notes.txt\n"
    assert subprocess.run([*TESTS.split()], cwd=project, capture_output=True, check=False).returncode == 0

    window.clear()
    window.enter(f"skerry undo {NAME}")
    window.shows("1 file restored")
    window.is_back()
    assert (project / "basket.py").read_text() == before
    window.enter(f"clear; skerry rm -f {NAME}")
    window.shows(f"{NAME}: deleted")


def test_watch_applies_a_change_next_to_an_open_one_and_undoes_it(
    window: Window, project: Path, server: Server
) -> None:
    def agent(line: str) -> None:
        done = skerry("exec", NAME, "--", "sed", "-i", line, "lines.txt", server=server.address)
        assert done.returncode == 0, done.stderr

    (project / "lines.txt").write_text("".join(f"line {number}\n" for number in range(9)))
    window.enter(f"cd {project}")
    window.enter(f"skerry create --repo . --name {NAME}")
    window.shows("sb-")
    window.is_back()
    window.clear()
    window.enter(f"skerry watch --apply {NAME}")
    window.shows("? help  q quit")
    agent("s/line 3/LEFT OPEN/")
    window.shows("LEFT OPEN")
    agent("s/line 5/taken/")
    window.shows("+ taken")
    Event().wait(SETTLE_S + 0.1)  # a key right after a new change is ignored
    window.type("a")
    window.shows("1 applied in lines.txt")
    lines = (project / "lines.txt").read_text().splitlines()
    assert (lines[3], lines[5]) == ("line 3", "taken")
    window.type("u")
    window.shows("undone")
    assert "taken" not in (project / "lines.txt").read_text()
    window.type("q")
    window.is_back()
    done = skerry("watch", "--apply", NAME, server=server.address)
    assert (done.returncode, b"--apply needs a terminal" in done.stderr) == (2, True)
