"""Coding agents in a terminal: the real programs with their full-screen interface, and a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents.test_run import VARIABLES, found_inside
from support.server import Server
from support.tmux import Window
from world import model_apis
from world.world import World

from skerry import Client, Sandbox

pytestmark = pytest.mark.agents
READY = {"claude-code": "bypass permissions on", "codex": "›", "gemini-cli": "Type your message"}
LEAVE = {"claude-code": "/exit", "codex": "/quit", "gemini-cli": "/quit"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", list(READY))
def test_agent_in_a_terminal_edits_and_is_reviewed(
    name: str, agent_server: Server, world: World, repository: Path, tmp_path: Path
) -> None:
    with Window(tmp_path, agent_server.address, cols=120, rows=40) as window:
        keys = " ".join(f"{variable}={value}" for variable, value in VARIABLES[name].items())
        window.enter(f"cd {repository}; export {keys}; clear")
        window.enter(f"skerry agent {name}")
        window.shows(READY[name])
        window.type(model_apis.TASK)
        window.shows(model_apis.TASK)
        window.press("Enter")
        window.shows(model_apis.DONE)
        window.type(LEAVE[name])
        window.shows(LEAVE[name])
        window.press("Enter")
        window.shows("1/1 calc.py")
        window.type("a")
        window.type("q")
        window.is_back()
    with Client(agent_server.address) as client:
        sandbox = Sandbox.get(f"{name}-calc", server=client)
        assert [hunk.path for hunk in sandbox.review.changes().hunks] == ["calc.py"]
        assert not found_inside(sandbox, model_apis.KEY)
        sandbox.delete(force=True, purge=True)
    assert world.strays() == []
