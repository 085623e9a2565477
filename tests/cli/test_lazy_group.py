"""The table of commands: sections of the help, and modules that are imported on use."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest
from support.cli import skerry

from skerry.cli.app import SECTIONS, CommandEntry
from skerry.cli.app import skerry as group

CLI = Path(__file__).parent.parent.parent / "src" / "skerry" / "cli"
ENTRIES = [entry for section in SECTIONS for entry in section.entries]
# Libraries that load slowly and that only some commands of a module need.
SLOW = (
    "asyncio", "viewer", "watch_app", "review import app", "pygments", "_async", "_sync", "skerry.mcp", "skerry.server",
    "skerry.engine", "skerry.client.ssh",
    "skerry.client.agents.worker",
)  # fmt: skip


def test_every_command_is_in_exactly_one_section() -> None:
    assert [section.heading for section in SECTIONS] == [
        "Run",
        "Agents",
        "Sandboxes",
        "Review",
        "Network",
        "Images",
        "Admin",
    ]
    assert set(Counter(entry.name for entry in ENTRIES).values()) == {1}
    assert group.list_commands(click.Context(group)) == [entry.name for entry in ENTRIES]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entry_names_its_command_and_describes_it(entry: CommandEntry) -> None:
    command = group.commands[entry.name]
    assert command.name == entry.name
    assert entry.help[0].isupper()
    assert entry.help.endswith(".")
    assert len(entry.help) <= 60


def test_help_shows_every_section_with_its_commands() -> None:
    shown = skerry("--help").stdout.decode()
    for section in SECTIONS:
        lines = shown.partition(f"\n{section.heading}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == [entry.name for entry in section.entries]
        assert [line.split(maxsplit=1)[1] for line in lines] == [entry.help for entry in section.entries]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nonsense"]])
def test_commands_are_imported_on_use(words: list[str]) -> None:
    script = (
        "import sys; from skerry.cli.app import SECTIONS, skerry\n"
        f"try: skerry.main({words!r}, prog_name='skerry', standalone_mode=False)\n"
        "except Exception: pass\n"
        "modules = {entry.module for section in SECTIONS for entry in section.entries}\n"
        "print('loaded:', *(modules & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == "loaded:"


def test_shell_completes_command_names_with_help() -> None:
    done = skerry(_SKERRY_COMPLETE="fish_complete", COMP_WORDS="re", COMP_CWORD="re")
    names = [line.split(b"\t")[0].split(b",")[-1] for line in done.stdout.splitlines()]
    assert {b"resume", b"review", b"reject"} <= set(names)
    assert b"Review changes hunk by hunk." in done.stdout


def test_misspelled_command_gets_a_suggestion() -> None:
    done = skerry("snapshto")
    assert done.returncode == 2
    assert b"Did you mean 'snapshot'?" in done.stderr


def test_only_slow_stacks_are_imported_inside_functions() -> None:
    wrong = []
    for path in CLI.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and path.name != "__init__.py":
                found = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                wrong += [
                    f"{path.name}: {text}" for text in map(ast.unparse, found) if not any(s in text for s in SLOW)
                ]
    assert wrong == []
