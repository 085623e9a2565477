"""The guide to secrets: its commands print what it says, and its program runs, against hosts of the tests' world."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cli.test_guides import blocks, commands, plain, settings
from serving import Server
from world.git import TOKEN as PUSH_TOKEN

GUIDE = "secrets.md"
TOKEN = "tok-5f2c8d1e9a7b4c63"
# What is another one each time.
VARYING = (
    (r"(skerry-secret-API_TOKEN-)[a-z2-7]{32}", r"\1MARK"), (r"\b[0-9a-f]{40}\b", "COMMIT"),
    (r"sent \d+, received \d+", "sent N, received N"), (r"^ *\d+ +\d\d:\d\d:\d\d ", "N TIME "),
)  # fmt: skip


def alike(text: str) -> str:
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return plain(text)


def environment(server: Server) -> dict[str, str]:
    return {**settings(server), "API_TOKEN": TOKEN, "GIT_TOKEN": PUSH_TOKEN}


def test_the_commands_print_what_the_guide_says(world_server: Server, tmp_path: Path) -> None:
    for command, printed in commands(GUIDE):
        done = subprocess.run(
            ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=environment(world_server), cwd=tmp_path, timeout=60, check=False,
        )  # fmt: skip
        assert [alike(line) for line in done.stdout.splitlines()] == [alike(line) for line in printed], command
        assert TOKEN not in done.stdout
        assert PUSH_TOKEN not in done.stdout


def test_the_program_runs(world_server: Server, tmp_path: Path) -> None:
    (program,) = blocks(GUIDE, "python")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(world_server), cwd=tmp_path,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"Bearer {'*' * len(TOKEN)}" in done.stdout
    assert done.stdout.endswith("gone\n\n")
    assert TOKEN not in done.stdout
