"""The plain tool definitions: their schemas, the calls of a scripted model, and wrong calls."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from support.model_server import model_server

from skerry import NotFound, Sandbox
from skerry.integrations.tools import SandboxTools

EDITOR = "str_replace_based_edit_tool"
ASK = {"role": "user", "content": "Compute 6*7 with Python."}


@pytest.fixture
def tools(sandbox: Sandbox) -> SandboxTools:
    return SandboxTools(sandbox)


@pytest.fixture(scope="module")
def models() -> Iterator[str]:
    with model_server() as url:
        yield url


def post(url: str, **body: Any) -> Any:
    head = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head), timeout=60) as reply:
        return json.load(reply)


def test_openai_chat_round_trip_uses_bash(tools: SandboxTools, models: str) -> None:
    messages: list[Any] = [ASK]
    for _ in range(2):
        reply = post(f"{models}/v1/chat/completions", model="m", messages=messages, tools=tools.openai())
        messages += [message := reply["choices"][0]["message"], *tools.openai_results(message)]
    assert messages[-1]["content"] == "The sandbox printed: 42"


def test_openai_responses_round_trip_uses_bash(tools: SandboxTools, models: str) -> None:
    items: list[Any] = [ASK]
    for _ in range(2):
        reply = post(f"{models}/v1/responses", model="m", input=items, tools=tools.openai_responses())
        items += [*reply["output"], *tools.openai_responses_results(reply["output"])]
    assert items[-1]["content"][0]["text"] == "The sandbox printed: 42"


@pytest.mark.parametrize("native", [True, False])
def test_anthropic_round_trip_uses_bash(tools: SandboxTools, models: str, native: bool) -> None:
    messages: list[Any] = [ASK]
    for _ in range(2):
        reply = post(f"{models}/v1/messages", model="m", messages=messages, tools=tools.anthropic(native=native))
        messages.append({"role": "assistant", "content": reply["content"]})
        messages += tools.anthropic_results(reply["content"])
    assert messages[-1]["content"][0]["text"] == "The sandbox printed: 42"


def test_bash_keeps_its_directory_until_it_is_restarted(tools: SandboxTools) -> None:
    assert tools.call("bash", '{"command": "cd /tmp && A=5; false"}') == "exit code 1"
    assert tools.call("bash", {"command": "echo $A in $PWD; echo bad >&2"}) == "5 in /tmp\nbad"
    assert tools.call("bash", {"restart": True}) == "the session was restarted"
    assert tools.call("bash", {"command": "echo ${A:-unset} in $PWD"}) == "unset in /workspace"


def test_bash_reports_a_timeout_and_a_signal(sandbox: Sandbox) -> None:
    tools = SandboxTools(sandbox, timeout=1)
    assert "timed out after 1 s" in tools.call("bash", {"command": "echo before; sleep 600"})
    assert "exit code 143" in tools.call("bash", {"command": "bash -c 'kill -TERM $$'"})


def test_long_output_is_shortened_in_the_middle(sandbox: Sandbox) -> None:
    said = SandboxTools(sandbox, max_output=400).call("bash", {"command": "seq 100000"})
    assert len(said) < 500
    assert said.startswith("1\n2\n")
    assert said.endswith("100000")


def test_editor_creates_views_and_edits_a_file(tools: SandboxTools) -> None:
    def edit(command: str, **more: object) -> str:
        return tools.call(EDITOR, {"command": command, "path": "/tmp/edited/a.txt", **more})

    assert edit("create", file_text="one\ntwo\nthree") == "/tmp/edited/a.txt was created"
    assert "already exists" in edit("create", file_text="")
    assert edit("str_replace", old_str="two", new_str="2") == "/tmp/edited/a.txt was edited in line 2"
    assert edit("insert", insert_line=3, insert_text="four") == "/tmp/edited/a.txt was edited after line 3"
    assert edit("insert", insert_line=0, insert_text="zero\n") == "/tmp/edited/a.txt was edited after line 0"
    assert edit("view") == "     1\tzero\n     2\tone\n     3\t2\n     4\tthree\n     5\tfour"
    assert edit("view", view_range=[2, 3]) == "     2\tone\n     3\t2"
    assert tools.call(EDITOR, {"command": "view", "path": "/tmp/edited"}) == "/tmp/edited/a.txt"


def test_code_returns_output_values_and_errors(tools: SandboxTools) -> None:
    assert tools.call("code_execution", {"code": "print('on'); x = 6; x * 7"}) == "on\n42"
    assert "ZeroDivisionError" in tools.call("code_execution", {"code": "x / 0"})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("rm", {}, "tool 'rm' not found"),
        ("bash", "{", "not valid JSON"),
        ("bash", "[]", "not an object"),
        ("bash", {"command": 1}, "a string is needed"),
        ("bash", {"command": " "}, "empty"),
        (EDITOR, {"command": "undo_edit", "path": "/tmp/a"}, "'undo_edit' is unknown"),
        (EDITOR, {"command": "view", "path": "/missing"}, "no such file"),
        (EDITOR, {"command": "view", "path": "/etc/hostname", "view_range": [5, 1]}, "not a range"),
        (EDITOR, {"command": "view", "path": "/etc/hostname", "view_range": [True, 2]}, "two line numbers"),
        (EDITOR, {"command": "insert", "path": "/etc/hostname", "insert_line": -1, "insert_text": ""}, "0 or more"),
        (EDITOR, {"command": "insert", "path": "/etc/hostname", "insert_line": 9, "insert_text": ""}, "has only"),
        (EDITOR, {"command": "create", "path": "/etc/new", "file_text": ""}, "permission denied"),
        (EDITOR, {"command": "str_replace", "path": "/etc/hostname", "old_str": "no", "new_str": ""}, "error: "),
    ],
)
def test_wrong_call_is_a_text_for_the_model(tools: SandboxTools, name: str, arguments: Any, said: str) -> None:
    assert said in tools.call(name, arguments)
    [message] = tools.anthropic_results([{"type": "tool_use", "id": "t", "name": name, "input": arguments}])
    assert message["content"][0]["is_error"] is True


def test_call_in_a_deleted_sandbox_raises(sandbox: Sandbox) -> None:
    with Sandbox(server=sandbox.client) as other:
        tools = SandboxTools(other)
        other.delete()
        with pytest.raises(NotFound):
            tools.call("bash", {"command": "true"})
