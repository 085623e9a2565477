"""The commands that README.md and the pages of agents print are valid. Without a key each of them ends before
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

from skerry.client.agents.credentials import variables_of
from skerry.client.agents.kits import BUILT_IN, load_kit

# A developer's own keys would start a real agent.
NO_KEYS = {
    variable: ""
    for name in BUILT_IN
    for kit in [load_kit(name)]
    for credential in kit.credentials
    for variable in variables_of(kit, credential)
}
# README.md, coding-agents.md, claude-code.md, codex.md, gemini-cli.md, open-agents.md, aider.md, copilot.md
PAGES = (
    "README.md",
    "docs/guides/coding-agents.md",
    *(f"docs/agents/{page.name}" for page in ROOT.glob("docs/agents/*.md")),
)
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
    assert re.search(rb"needs a credential: .*(KEY|TOKEN) is not set here", shown), shown


def test_commands_are_found() -> None:
    assert len(COMMANDS) >= 2
