"""The first part of the guide to files: its programs run, and its commands print what it says."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from cli.test_guides import GUIDES, settings
from serving import Server

TEXT = (GUIDES / "files.md").read_text().partition("## Directories, in and out")[0]
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=re.findall(r"^## (.*)$", TEXT, re.MULTILINE)[: len(PROGRAMS)])
def test_a_program_of_the_guide_runs(server: Server, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=settings(server), timeout=60, check=False
    )
    assert done.returncode == 0, f"{program}\n{done.stderr}"
    for said in re.findall(r"print\(error\)  # (.*)", program):
        assert said in done.stdout


def test_the_commands_of_the_guide_print_what_it_says(server: Server) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    script = "\n".join(line[2:] for line in block.splitlines() if line.startswith("$ "))
    printed = [line for line in block.splitlines() if not line.startswith("$ ")]
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, env=settings(server), timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not re.fullmatch(r"(sb-[a-z2-7]{10}|files)", line)] == printed
