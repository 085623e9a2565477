"""The guide to reviews: its commands print what it says, and its programs run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cli.test_guides import GUIDES, MARK, blocks, commands, plain, settings
from serving import Server

GUIDE = "review.md"
ROOT = GUIDES.parent.parent
# What is another one each time: hunks, commits, times, durations.
VARYING = ((r"h-[0-9a-f]{16}", "HUNK"), (r"\b[0-9a-f]{7}(?:[0-9a-f]{5})?\b", "COMMIT"),
           (r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", "TIME"), (r"\b\d+ ms|\b\d+\.\d+ ?s", "LONG"))  # fmt: skip


def steady(line: str) -> str:
    for pattern, same in VARYING:
        line = re.sub(pattern, same, line)
    return plain(line)


def test_the_guides_commands_print_what_it_says(server: Server, tmp_path: Path) -> None:
    listed = list(commands(GUIDE))
    script = "\n".join(f"{command}\necho; echo '{MARK}'" for command, _ in listed)
    names = {"GIT_AUTHOR_NAME": "You", "GIT_AUTHOR_EMAIL": "you@example.com"}
    committer = {"GIT_COMMITTER_NAME": "You", "GIT_COMMITTER_EMAIL": "you@example.com"}
    done = subprocess.run(
        ["bash", "-c", script.replace("/tmp/basket", str(tmp_path / "basket"))], stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, timeout=100, check=False,
        env={**settings(server), **names, **committer, "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(tmp_path)},
    )  # fmt: skip
    for (command, printed), said in zip(listed, done.stdout.split(MARK), strict=False):
        said = said.replace(str(tmp_path / "basket"), "/tmp/basket")
        missing = [line for line in printed if steady(line) not in [steady(found) for found in said.splitlines()]]
        assert missing == [], f"$ {command}\n{said}"


def test_the_guides_program_runs(server: Server) -> None:
    for program in blocks(GUIDE, "python"):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=settings(server), timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
