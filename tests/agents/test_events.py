"""Events of agents: the text for the user and the tool calls, from lines that the sandbox controls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skerry.client.agents.events import DIALECTS, MAX_LINE, AgentEvent, EventReader
from skerry.types import MAX_TOOL_NAME, MAX_TOOL_PATHS, ReportedCall

CLAUDE = [
    {"type": "system", "subtype": "init", "tools": []},
    {"type": "assistant", "message": {"content": [
        {"type": "text", "text": "I edit."},
        {"type": "tool_use", "id": "t1", "name": "Edit", "input": {"file_path": "/workspace/a.py", "old_string": "x"}},
        {"type": "tool_use", "id": "t2", "name": "Read", "input": {"file_path": "/workspace/b.py"}}]}},
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}},
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t2", "is_error": True}]}},
    {"type": "result", "subtype": "success", "is_error": False, "result": "I edit."},
]  # fmt: skip
CODEX = [
    {"type": "thread.started", "thread_id": "1"},
    {"type": "item.started", "item": {"id": "i1", "type": "command_execution", "command": "bash -lc 'ls\n'"}},
    {"type": "item.completed", "item": {"id": "i1", "type": "command_execution", "command": "ls", "status": "failed"}},
    {"type": "item.completed", "item": {"id": "i2", "type": "file_change", "status": "completed",
     "changes": [{"path": "/workspace/a.py", "kind": "update"}, {"path": "b.py", "kind": "add"}]}},
    {"type": "item.completed", "item": {"id": "i3", "type": "agent_message", "text": "Done."}},
]  # fmt: skip
GEMINI = [
    {"type": "message", "role": "user", "content": "task"},
    {"type": "tool_use", "tool_name": "write_file", "tool_id": "w1", "parameters": {"file_path": "a.py"}},
    {"type": "tool_result", "tool_id": "w1", "status": "success"},
    {"type": "message", "role": "assistant", "content": "Do", "delta": True},
    {"type": "message", "role": "assistant", "content": "ne", "delta": True},
]
OPENCODE = [
    {"type": "tool_use", "part": {"tool": "edit", "callID": "c1", "state":
     {"status": "completed", "input": {"filePath": "/workspace/a.py"}}}},
    {"type": "text", "part": {"text": "Done."}},
    {"type": "error", "error": {"name": "Overloaded", "data": {"message": "too busy"}}},
]  # fmt: skip
PI = [
    {"type": "session", "version": 3, "id": "uuid", "cwd": "/workspace"},
    {"type": "message_end", "message": {"role": "user", "content": "task"}},
    {"type": "message_update", "assistantMessageEvent": {"type": "text_delta", "contentIndex": 0, "delta": "I ed"}},
    {"type": "message_end", "message": {"role": "assistant", "content": [{"type": "text", "text": "I edit."}]}},
    {"type": "tool_execution_start", "toolCallId": "p1", "toolName": "edit", "args": {"path": "a.py"}},
    {"type": "tool_execution_end", "toolCallId": "p1", "toolName": "edit", "result": {}, "isError": True},
    {
        "type": "message_end",
        "message": {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "busy"},
    },
]


def read(dialect: str, events: list[Any], step: int = 7) -> list[AgentEvent]:
    data = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    reader = EventReader(dialect)
    return [event for at in range(0, len(data), step) for event in reader.feed(data[at : at + step])]


def calls(found: list[AgentEvent]) -> list[tuple[str, str, tuple[str, ...], str]]:
    return [(one.call.id, one.call.name, one.call.paths, one.call.state) for one in found if one.call is not None]


def test_claude_code_reports_calls_and_their_results() -> None:
    found = read("claude-code", CLAUDE)
    assert "".join(one.text for one in found) == "I edit.\n"
    assert calls(found) == [
        ("t1", "Edit /workspace/a.py", ("/workspace/a.py",), "started"), ("t2", "Read /workspace/b.py", (), "started"),
        ("t1", "", (), "ended"), ("t2", "", (), "failed"),
    ]  # fmt: skip
    (error,) = read("claude-code", [{"type": "result", "is_error": True, "result": "Invalid API key"}])
    assert error.error == "Invalid API key"


def test_codex_reports_commands_and_changed_files() -> None:
    found = read("codex", CODEX)
    assert "".join(one.text for one in found) == "Done.\n"
    assert calls(found) == [
        ("i1", "shell bash -lc 'ls '", (), "started"), ("i1", "shell ls", (), "failed"),
        ("i2", "edit /workspace/a.py, b.py", ("/workspace/a.py", "b.py"), "ended"),
    ]  # fmt: skip


def test_gemini_cli_text_arrives_in_pieces() -> None:
    found = read("gemini-cli", GEMINI)
    assert "".join(one.text for one in found) == "Done"
    assert calls(found) == [("w1", "write_file a.py", ("a.py",), "started"), ("w1", "", (), "ended")]


def test_opencode_reports_a_call_at_its_end() -> None:
    found = read("opencode", OPENCODE)
    assert calls(found) == [("c1", "edit /workspace/a.py", ("/workspace/a.py",), "ended")]
    assert ("Done." in found[1].text, found[2].error) == (True, "too busy")


def test_pi_reports_calls_and_its_error() -> None:
    found = read("pi", PI)
    assert "".join(one.text for one in found) == "I edit.\n"
    assert calls(found) == [("p1", "edit a.py", ("a.py",), "started"), ("p1", "", (), "failed")]
    assert found[-1].error == "busy"


def test_line_that_is_no_event_is_text() -> None:
    reader = EventReader("claude-code")
    found = [*reader.feed(b"warning: \xff\n\n[1, 2]\nthe end"), *reader.end()]
    assert [one.text for one in found] == ["warning: �\n", "[1, 2]\n", "the end\n"]


def test_endless_line_is_dropped() -> None:
    reader = EventReader("codex")
    assert [event for _ in range(6) for event in reader.feed(b"x" * (MAX_LINE // 4))] == []
    assert list(reader.feed(b'x\n{"type": "item.completed", "item": {"type": "agent_message", "text": "Hi"}}\n')) == [
        AgentEvent(text="Hi\n")
    ]


HOSTILE: list[Any] = [
    None, True, 3, 1e300, "text", "\0\ud800", [], [[]], {}, {"content": 5}, {"content": [5, None, {"type": []}]},
    {"type": {}, "id": []}, [{"path": {}}], {"file_path": ["x"]}, "y" * 100_000, {"message": {"content": "no"}},
]  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_event_is_a_valid_report_or_nothing(dialect: str) -> None:
    """Every field of every known event gets every kind of value."""
    known = {"claude-code": CLAUDE, "codex": CODEX, "gemini-cli": GEMINI, "opencode": OPENCODE, "pi": PI}[dialect]
    for event in known:
        for changed in _changed(event):
            for found in read(dialect, [changed], 1 << 20):
                found.text.encode()
                if found.call is not None:
                    check(found.call)


def _changed(value: Any) -> Any:
    """Yield copies with one part replaced."""
    yield from HOSTILE
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        for other in _changed(part):
            copy = value.copy()
            copy[key] = other
            yield copy


def check(call: ReportedCall) -> None:
    assert 1 <= len(call.id) <= 128
    assert len(call.name) <= MAX_TOOL_NAME
    assert len(call.paths) <= MAX_TOOL_PATHS
    ReportedCall(id=call.id, name=call.name, paths=call.paths)  # checks its texts again


def test_nested_json_of_any_depth_is_text() -> None:
    reader = EventReader("claude-code")
    (found,) = reader.feed(b"[" * 100_000 + b"\n")
    assert found.call is None
