"""The commands of the guides do what they are printed to do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.calling import environment
from forking import bin_directory
from serving import Server

GUIDES = Path(__file__).parent.parent.parent / "docs" / "guides"
MARK = "-- next --"
# What is another one each time: ids, an event's number and time, a process's number and age, and a table's widths.
VARYING = (
    (r"\b(p|sb|sn)-[a-z2-7]{10}\b", r"\1-ID"), (r"^ *\d+  \d{4}-\d\d-\d\dT[\d:]+Z", "N TIME"),
    (r"^(p-ID) +\d+ (.*) \d+ s ", r"\1 N \2 N s "), (r"skerry_token=\S+", "TOKEN"), (r"\bh-(?:[0-9a-f]{16}|…)", "h-ID"),
    (r"(localhost|127\.0\.0\.1):\d+/", r"\1:PORT/"), (r" +", " "),
)  # fmt: skip


def blocks(guide: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", (GUIDES / guide).read_text(), re.MULTILINE | re.DOTALL)


def commands(guide: str) -> Iterator[tuple[str, list[str]]]:
    """Each line after a `$`, with the lines that it prints."""
    for block in blocks(guide, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *printed = part.splitlines()
            yield command, printed


def plain(text: str) -> str:
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def settings(server: Server) -> dict[str, str]:
    return environment(
        SKERRY_SERVER=server.address, PATH=f"{bin_directory()}:{Path(sys.executable).parent}:/usr/bin:/bin"
    )


@pytest.mark.parametrize(
    "guide",
    [
        "processes.md",
        "sessions.md",
        "previews.md",
        "lifecycle.md",
        "snapshots.md",
        "repositories.md",
        "applying.md",
        "run-code.md",
    ],
)
def test_a_guides_commands_print_what_it_says(server: Server, guide: str) -> None:
    listed = list(commands(guide))
    script = "\n".join(f"{command}\necho; echo '{MARK}'" for command, _ in listed)
    done = subprocess.run(
        ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=settings(server), timeout=100, check=False,
    )  # fmt: skip
    for (command, printed), said in zip(listed, done.stdout.split(MARK), strict=False):
        missing = [line for line in printed if plain(line) not in [plain(found) for found in said.splitlines()]]
        assert missing == [], f"$ {command}\n{said}"


@pytest.mark.parametrize(
    "guide",
    ["processes.md", "sessions.md", "terminals.md", "previews.md", "lifecycle.md", "snapshots.md", "run-code.md"],
)
def test_a_guides_programs_run(server: Server, guide: str) -> None:
    programs = blocks(guide, "python")
    assert programs
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=settings(server),
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{program}\n{done.stderr}"
