"""Coding agents with an editor: the real programs and their adapters, over the Agent Client Protocol."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents.test_run import VARIABLES, found_inside
from support.editor import Editor
from support.server import Server
from world import model_apis
from world.world import World

from skerry import Client, Sandbox

pytestmark = pytest.mark.agents


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini-cli"])
def test_editor_prompts_an_agent_whose_edit_is_a_tool_call(
    name: str, agent_server: Server, world: World, repository: Path
) -> None:
    with Editor(agent_server.address, repository, name, **VARIABLES[name]) as editor:
        editor.call(1, "initialize", protocolVersion=1, clientCapabilities={})
        session = editor.call(2, "session/new", cwd=str(repository), mcpServers=[])["result"]["sessionId"]
        prompt = [{"type": "text", "text": model_apis.TASK}]
        done = editor.call(3, "session/prompt", sessionId=session, prompt=prompt)
        assert done["result"]["stopReason"] == "end_turn"
        updates = [one["params"]["update"] for one in editor.heard if one["method"] == "session/update"]
        chunks = [one["content"] for one in updates if one["sessionUpdate"] == "agent_message_chunk"]
        assert model_apis.DONE in "".join(chunk.get("text", "") for chunk in chunks)
        assert not [one for one in editor.heard if one["method"] != "session/update"]  # no question
        assert editor.end()[0] == 0
    with Client(agent_server.address) as client:
        sandbox = Sandbox.get(f"{name}-calc", server=client)
        (hunk,) = sandbox.review.changes("calc.py").hunks
        (origin,) = sandbox.review.origin(hunk).entries
        assert origin.within is not None
        assert model_apis.EDIT in origin.command
        assert not found_inside(sandbox, model_apis.KEY)
        sandbox.delete(force=True, purge=True)
    assert world.strays() == []
