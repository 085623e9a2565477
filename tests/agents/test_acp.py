"""Messages between an editor and an agent: mapped paths, and attacks of an agent on the editor's machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skerry.client.agents.acp import MAX_LINE, AcpBridge, LineReader, Passed

TOP = "/home/ada/my project"


@pytest.fixture
def bridge() -> AcpBridge:
    return AcpBridge((TOP, "/work/link"))


def line(**message: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def told_agent(bridge: AcpBridge, **message: object) -> Any:
    return json.loads(bridge.from_editor(line(**message)).to_agent)


def told_editor(bridge: AcpBridge, **message: object) -> Any:
    return json.loads(bridge.from_agent(line(**message)).to_editor)


def updated(bridge: AcpBridge, **update: object) -> Any:
    return told_editor(bridge, method="session/update", params={"sessionId": "s", "update": update})["params"]["update"]


@pytest.mark.parametrize(
    ("cwd", "inside"),
    [(TOP, "/workspace"), (f"{TOP}/src/", "/workspace/src"), ("/work/link/src", "/workspace/src"),
     (f"{TOP}/../other", None), ("/home/ada/my project 2", None), ("/", None), ("src", None), (5, None), (None, None)],
)  # fmt: skip
def test_session_begins_below_the_workspace(bridge: AcpBridge, cwd: object, inside: str | None) -> None:
    for method in ("session/new", "session/load", "session/resume"):
        passed = bridge.from_editor(line(id=1, method=method, params={"cwd": cwd}))
        if inside is None:
            assert passed.to_agent == b""
            assert json.loads(passed.to_editor)["error"]["code"] == -32602
        else:
            assert json.loads(passed.to_agent)["params"]["cwd"] == inside


def test_mcp_servers_of_the_editor_stay_outside(bridge: AcpBridge) -> None:
    servers = [{"name": "db", "command": "/usr/bin/db", "env": [{"name": "PASSWORD", "value": "secret"}]}, 7]
    params = {"cwd": TOP, "mcpServers": servers, "additionalDirectories": [f"{TOP}/docs", "/etc"]}
    passed = bridge.from_editor(line(id=1, method="session/new", params=params))
    assert json.loads(passed.to_agent)["params"] == {
        "cwd": "/workspace", "mcpServers": [], "additionalDirectories": ["/workspace/docs"],
    }  # fmt: skip
    assert passed.notice.endswith("db")
    assert b"secret" not in passed.to_agent


def test_extensions_of_the_editor_stay_outside(bridge: AcpBridge) -> None:
    meta = {"_meta": {"home": "/home/ada"}}
    told = told_agent(bridge, id=1, method="initialize", params={"clientInfo": {"name": "ed", **meta}, **meta})
    assert told["params"]["clientInfo"] == {"name": "ed"}
    block = {"type": "text", "text": "hello", **meta}
    told = told_agent(bridge, id=2, method="session/prompt", params={"prompt": [block], **meta})
    assert told["params"] == {"prompt": [{"type": "text", "text": "hello"}]}
    assert told_agent(bridge, id=3, result={"outcome": {"outcome": "selected", **meta}})["result"] == {
        "outcome": {"outcome": "selected"}
    }
    passed = bridge.from_editor(line(id=4, method="_editor/open", params={}))
    assert (passed.to_agent, json.loads(passed.to_editor)["error"]["code"]) == (b"", -32601)
    assert bridge.from_editor(line(method="_editor/changed", params={})) == Passed()


@pytest.mark.parametrize(
    ("uri", "inside"),
    [("file:///home/ada/my%20project/a%20b.py#L3:5", "file:///workspace/a%20b.py#L3:5"),
     ("file://localhost/work/link/a.py?x=1", "file:///workspace/a.py?x=1"), ("file:///etc/hosts", "file:///etc/hosts"),
     ("https://example.com/a", "https://example.com/a"), ("zed:///agent/thread/1", "zed:///agent/thread/1")],
)  # fmt: skip
def test_links_in_a_prompt_lead_to_the_copy(bridge: AcpBridge, uri: str, inside: str) -> None:
    blocks = [{"type": "text", "text": uri}, {"type": "resource", "resource": {"uri": uri, "text": "its text"}}]
    passed = bridge.from_editor(line(id=1, method="session/prompt", params={"prompt": blocks}))
    text, block = json.loads(passed.to_agent)["params"]["prompt"]
    assert text["text"] == uri
    assert block["resource"] == {"uri": inside, "text": "its text"}
    assert passed.prompt


def test_paths_of_tool_calls_lead_to_the_repository(bridge: AcpBridge) -> None:
    diff = {"type": "diff", "path": "/workspace/a b.py", "oldText": None, "newText": "x"}
    link = {"type": "content", "content": {"type": "resource_link", "uri": "file:///workspace/a%20b.py#L1"}}
    raw = {"path": "/workspace/a b.py", "_meta": 1}
    found = updated(
        bridge, sessionUpdate="tool_call", toolCallId="1", title="Edit", kind="edit", rawInput=raw,
        content=[diff, link], locations=[{"path": "/workspace/a b.py", "line": 3}],
    )  # fmt: skip
    assert found["content"][0]["path"] == f"{TOP}/a b.py"
    assert found["content"][1]["content"]["uri"] == "file:///home/ada/my%20project/a%20b.py#L1"
    assert found["locations"] == [{"path": f"{TOP}/a b.py", "line": 3}]
    assert found["rawInput"] == raw


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/workspace/../etc/passwd", "/workspace2/a", "../.ssh/id", "/workspace/a\0b", "", 5, None, []],
)
def test_path_outside_of_the_workspace_is_not_one_of_this_machine(bridge: AcpBridge, path: Any) -> None:
    """An editor that follows an agent opens the files that it names."""
    diff = {"type": "diff", "path": path, "oldText": "root", "newText": "x"}
    found = updated(
        bridge, sessionUpdate="tool_call", toolCallId="1", locations=[{"path": path}, {"path": path, "line": 1}],
        content=[diff], other={"path": path, "name": 1}, cwd=path,
    )  # fmt: skip
    assert found["locations"] == []
    assert found["content"][0]["type"] == "content"
    assert not str(found["other"].get("path", "sandbox:")).startswith("/")
    assert found["cwd"] == TOP


@pytest.mark.parametrize(
    "uri", ["file:///etc/passwd", "file:///workspace/../x", "vscode://run", "file://host/a", 5, "x:y"]
)
def test_uri_of_the_agent_opens_nothing_else_on_this_machine(bridge: AcpBridge, uri: Any) -> None:
    found = updated(bridge, sessionUpdate="agent_message_chunk", content={"type": "resource_link", "uri": uri})
    assert found["content"]["uri"].startswith("sandbox:")


@pytest.mark.parametrize(
    "method",
    ["fs/write_text_file", "fs/read_text_file", "terminal/create", "terminal/output", "_zed/run", "elicitation/create",
     "session/prompt", "", "x" * 500],
)  # fmt: skip
def test_agent_cannot_use_the_editors_files_and_terminals(bridge: AcpBridge, method: str) -> None:
    passed = bridge.from_agent(line(id="a", method=method, params={"path": "/workspace/a", "command": "sh"}))
    assert passed.to_editor == b""
    assert json.loads(passed.to_agent) == {
        "jsonrpc": "2.0", "id": "a", "error": {"code": -32601, "message": "not available in a sandbox"},
    }  # fmt: skip
    assert bridge.from_agent(line(method=method)) == Passed()  # a notification; and one notice is enough


def test_agent_may_ask_for_permission(bridge: AcpBridge) -> None:
    asked = told_editor(bridge, id=7, method="session/request_permission", params={"toolCall": {"locations": []}})
    assert (asked["id"], asked["method"]) == (7, "session/request_permission")
    answer = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert told_agent(bridge, id=7, result=answer) == {"jsonrpc": "2.0", "id": 7, "result": answer}


@pytest.mark.parametrize("id_", [None, True, 1.5, [], {"a": 1}])
def test_request_with_an_unusual_id_is_dropped(bridge: AcpBridge, id_: object) -> None:
    for method in ("session/request_permission", "fs/read_text_file"):
        passed = bridge.from_agent(line(id=id_, method=method, params={}))
        assert (passed.to_agent, passed.to_editor) == (b"", b"")


def test_agent_offers_no_login_and_no_extension(bridge: AcpBridge) -> None:
    """Editors run the command of a terminal login on their machine."""
    bridge.from_editor(line(id=1, method="initialize", params={"protocolVersion": 2, "clientCapabilities": {"fs": 1}}))
    login = [{"id": "x", "_meta": {"terminal-auth": {"command": "sh", "args": ["-c", "id"]}}}]
    result = {"protocolVersion": 1, "authMethods": login, "_meta": {"zed": 1}, "agentCapabilities": {"_meta": {}}}
    assert told_editor(bridge, id=1, result=result)["result"] == {
        "protocolVersion": 1, "authMethods": [], "agentCapabilities": {},
    }  # fmt: skip


def test_editor_offers_nothing_of_this_machine(bridge: AcpBridge) -> None:
    params = {"protocolVersion": 2, "clientCapabilities": {"terminal": True}, "capabilities": {"fs": {}}, "new": 1}
    assert told_agent(bridge, id=1, method="initialize", params=params)["params"] == {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    }


def test_answer_without_a_request_is_dropped(bridge: AcpBridge) -> None:
    for id_ in (1, "x", None, [], {}, 1.5):
        assert bridge.from_agent(line(id=id_, result={})).to_editor == b""
    bridge.from_editor(line(id=1, method="session/prompt", params={"prompt": []}))
    assert told_editor(bridge, id=1, result={"stopReason": "end_turn"})["result"] == {"stopReason": "end_turn"}
    assert bridge.from_agent(line(id=1, result={})).to_editor == b""


def test_tool_calls_are_reported_with_the_files_that_they_change(bridge: AcpBridge) -> None:
    def call(**update: object) -> Any:
        found = bridge.from_agent(line(method="session/update", params={"update": update})).call
        return found and (found.id, found.name, found.paths, found.state)

    where = [{"path": "/workspace/a.py"}]
    edit = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Edit\n a.py", "kind": "edit", "locations": where}
    assert call(**edit) == ("1", "Edit a.py", ("/workspace/a.py",), "started")
    assert call(sessionUpdate="tool_call_update", toolCallId="1", status="failed") == ("1", "", (), "failed")
    read = {**edit, "toolCallId": "2", "kind": "read", "title": "Read"}
    assert call(**read) == ("2", "Read", (), "started")
    assert call(sessionUpdate="plan", entries=[]) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"[1]", b"null", b'"x"', b"[" * 100_000, b'{"a":' * 5_000, b'{"method": 5, "id": []}',
     b'{"method": "session/update", "params": [1]}', b'{"method": "session/update", "params": {"update": 1}}',
     b'{"method": "session/update", "params": {"update": {"sessionUpdate": "tool_call", "locations": 1}}}',
     b'{"method": "session/update", "params": {"text": "\\ud800"}}', b'{"id": 1, "error": [[]]}', b"\xff\xfe"],
)  # fmt: skip
def test_damaged_message_passes_nothing_on(bridge: AcpBridge, data: bytes) -> None:
    for passed in (bridge.from_agent(data), bridge.from_editor(data)):
        for out in (passed.to_agent, passed.to_editor):
            assert out == b"" or (json.loads(out) and out.count(b"\n") == 1)


def test_message_above_the_maximum_is_dropped() -> None:
    found: list[bytes] = []
    reader = LineReader(found.append)
    for _ in range(5):
        reader.feed(b"x" * (MAX_LINE // 4))
    reader.feed(b'y\n\n{"a": 1}\n{"b"')
    assert found == [b'{"a": 1}']
