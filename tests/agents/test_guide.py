"""The commands that README.md and docs/guides/coding-agents.md print are valid. Without a key each of them ends before
it creates anything; `make test-agents` runs agents to their end."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.pages import ROOT, blocks
from support.recorded_terminal import Wire
from support.server import Server

# A developer's own keys would start a real agent.
NO_KEYS = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": ""}
PAGES = ("README.md", "docs/guides/coding-agents.md")
COMMANDS = sorted(
    {
        line.partition("  #")[0].strip()
        for page in PAGES
        for block in blocks(ROOT / page)
        if block.why == "tests/agents/test_guide.py"
        for line in block.text.splitlines()
        if line.startswith("skerry agent ")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_printed_command_needs_only_a_key(command: str, server: Server, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    words = shlex.split(command)[1:]
    with Wire(server.address, *words, cols=200, cwd=tmp_path, **home, **NO_KEYS) as wire:
        assert wire.ends() == 2
        shown = wire.seen()
    assert re.search(rb"ANTHROPIC_API_KEY .* is not set", shown), shown


def test_commands_are_found() -> None:
    assert len(COMMANDS) >= 2
