"""The whole story in one terminal: a copy of a project, an agent at work, watching, reviewing, applying, undoing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.calling import skerry
from cli.multiplexer import Window
from cli.test_guides import blocks
from cli.test_review_guide import steady
from serving import Server

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


def test_nothing_lands_unapproved_from_beginning_to_end(window: Window, project: Path, server: Server) -> None:
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
    seen = [steady(line) for line in window.screen().splitlines()]
    assert [line for line in blocks("review.md", "text")[0].splitlines()[1:-1] if steady(line) not in seen] == []
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
        "scripts/review_picture.py makes it anew"
    )
    window.press("C-z")
    window.is_back()
    window.enter("fg")
    window.shows("1/2 basket.py")
    window.resize(60, 18)
    window.shows("y accept  n reject")
    window.resize(review_picture.COLS, review_picture.ROWS)
    window.type("?")
    window.shows("reject; a reason is asked for")
    window.type("x")
    window.shows("1/2 basket.py")
    window.type("y")
    window.shows("2/2 basket.py")
    window.type("n")
    window.type("two digits are enough")
    window.press("Enter")
    window.shows("Everything is decided: 1 accepted, 1 rejected, 0 open.")
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
    window.is_back()
    landed = (project / "basket.py").read_text()
    assert landed == before.replace("discount / 100", "min(discount, 100) / 100")
    assert git(project, "diff", "--stat", "--cached") == ""
    assert git(project, "status", "--porcelain") == " M basket.py\n?? notes.txt\n"
    assert subprocess.run([*TESTS.split()], cwd=project, capture_output=True, check=False).returncode == 0

    window.clear()
    window.enter(f"skerry unapply {NAME}")
    window.is_back()
    assert (project / "basket.py").read_text() == before
    window.enter(f"clear; skerry rm {NAME}")
    window.shows(f"{NAME}: deleted")
