"""A client reaches only sandboxes that it created or that its configuration names. A model may be misled by what it
reads: no tool, argument or resource leads to another sandbox of the same person."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from mcp.shared.exceptions import MCPError
from support.mcp_clients import MODES, Talk, new_token, on_http
from support.server import Server

from skerry import AsyncClient, AsyncSandbox
from skerry.errors import Conflict, QuotaExceeded, SandboxUnavailable
from skerry.mcp.failures import error_text

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOLS = {
    "run": {"command": "true"}, "spawn": {"command": "true"}, "wait": {"process": "p-aaaaaaaaaa"},
    "read_output": {"process": "p-aaaaaaaaaa"}, "write_input": {"process": "p-aaaaaaaaaa", "text": "x"},
    "kill": {"process": "p-aaaaaaaaaa"}, "list_processes": {}, "run_code": {"code": "1"}, "read_file": {"path": "a"},
    "write_file": {"path": "a", "content": "b"}, "replace_in_file": {"path": "a", "old": "b", "new": "c"},
    "patch_files": {"diff": "x"}, "list_files": {}, "search_files": {"pattern": "a"}, "glob_files": {"pattern": "*"},
    "get_file": {"path": "a"}, "remove_sandbox": {}, "fork_sandbox": {}, "snapshot_sandbox": {},
    "rollback_sandbox": {"snapshot": "s"}, "review_diff": {}, "review_rejections": {}, "network_denied": {},
    "expose_port": {"port": 80}, "list_languages": {},
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def theirs(talk: Talk) -> AsyncIterator[AsyncSandbox]:
    """A sandbox of the same person and token that no client created."""
    async with talk.sdk() as client:
        sandbox = await AsyncSandbox.create(name=f"theirs-{id(talk)}", server=client)
        yield sandbox
        await sandbox.delete()


async def test_no_tool_reaches_a_sandbox_that_the_client_did_not_create(talk: Talk, theirs: AsyncSandbox) -> None:
    takes = {
        tool.name for tool in (await talk.client.list_tools()).tools if "sandbox" in tool.input_schema["properties"]
    }
    assert takes == TOOLS.keys()
    missing = await talk.fails("run", command="true", sandbox="no-such-sandbox")
    for ref in (theirs.id, str(theirs.name)):
        for tool, arguments in TOOLS.items():
            said = await talk.fails(tool, sandbox=ref, **arguments)
            assert said == missing.replace("no-such-sandbox", ref), f"{tool}: as if it did not exist"
    for place in ("files/etc/passwd", "workspace/a", "diff", "processes/p-aaaaaaaaaa/output"):
        with pytest.raises(MCPError, match="not found"):
            await talk.client.read_resource(f"skerry://sandboxes/{theirs.id}/{place}")
    await theirs.info()
    assert (await theirs.run("ls")).stdout == ""


async def test_list_has_only_sandboxes_of_the_client(talk: Talk, theirs: AsyncSandbox) -> None:
    own = (await talk.call("run", command="true"))["sandbox"]
    made = (await talk.call("create_sandbox"))["sandbox"]
    (fork,) = (await talk.call("fork_sandbox", sandbox=made))["sandboxes"]
    async with talk.sdk() as client:
        (persons,) = await (await AsyncSandbox.get(made, server=client)).fork()
        listed = {one["sandbox"] for one in (await talk.call("list_sandboxes"))["sandboxes"]}
        assert {own, made, fork["sandbox"]} <= listed
        assert listed.isdisjoint({theirs.id, persons.id}), "nor a person's fork of a sandbox of the client"
        assert "not found" in await talk.fails("run", command="true", sandbox=persons.id)
        await persons.delete()
    for one in (made, fork["sandbox"]):
        await talk.call("remove_sandbox", sandbox=one)


async def test_configuration_names_further_sandboxes_or_all(talk: Talk, theirs: AsyncSandbox) -> None:
    for connection in (talk.naming(str(theirs.name)), talk.naming(theirs.id), talk.wide()):
        async with connection as other:
            assert (await other.call("run", command="echo here", sandbox=theirs.id))["stdout"] == "here\n"
            assert theirs.id in {one["sandbox"] for one in (await other.call("list_sandboxes"))["sandboxes"]}
    assert "not found" in await talk.fails("run", command="true", sandbox=theirs.id)


async def test_snapshot_of_a_foreign_sandbox_is_no_image(talk: Talk, theirs: AsyncSandbox) -> None:
    snapshot = await theirs.snapshot(f"kept-{id(talk)}")
    for image in (snapshot.id, str(snapshot.name)):
        assert f"image '{image}' not found" in await talk.fails("create_sandbox", image=image)
    async with talk.wide() as other:
        made = await other.call("create_sandbox", image=snapshot.id)
        await other.call("remove_sandbox", sandbox=made["sandbox"])
    await snapshot.delete()


async def test_session_name_of_a_foreign_sandbox_is_rejected(talk: Talk, theirs: AsyncSandbox) -> None:
    said = await talk.fails("execute_code", language="python", code="1", session_id=str(theirs.name))
    assert "already exists and is not yours" in said
    assert "choose another name" in said
    said = await talk.fails("create_sandbox", name=str(theirs.name))
    assert "already exists" in said
    assert "skerry rm" not in said


async def test_http_client_keeps_its_sandboxes_after_a_restart(own_server: Server) -> None:
    own_server.start()
    token = new_token(own_server, owner="ann")
    async with on_http(own_server, MODES[0], token) as talk:
        made = (await talk.call("create_sandbox"))["sandbox"]
    own_server.end()
    own_server.start()
    async with on_http(own_server, MODES[0], token) as talk:
        assert [one["sandbox"] for one in (await talk.call("list_sandboxes"))["sandboxes"]] == [made]
        assert (await talk.call("run", command="true", sandbox=made))["ok"]
    async with on_http(own_server, MODES[0], new_token(own_server, owner="ann")) as other:
        assert (await other.call("list_sandboxes"))["sandboxes"] == []


async def test_errors_advise_no_model_to_delete(own_server: Server) -> None:
    own_server.start(SKERRY_MAX_SANDBOXES_PER_OWNER="1")
    token = new_token(own_server)
    async with on_http(own_server, MODES[0], token) as talk:
        await talk.call("run", command="true")
        said = await talk.fails("create_sandbox")
        executed = await talk.call("execute_code", language="python", code="1")
    async with AsyncClient(own_server.address, token=token) as client:
        with pytest.raises(QuotaExceeded, match="1") as person:
            await AsyncSandbox.create(server=client)
    assert "skerry rm" in str(person.value.hint), "a person gets that hint"
    assert "ask the person" in said
    for text in (said, str(executed)):
        assert not re.search(r"\b(delete|remove|rm|prune)", text), text


async def test_no_hint_of_the_source_advises_a_model_to_delete() -> None:
    sources = Path(error_text.__code__.co_filename).parent.parent.rglob("*.py")
    hints = {hint for path in sources for hint in re.findall(r'hint=f?"([^"]+)"', path.read_text())}
    assert any("skerry rm" in hint for hint in hints)
    for hint in hints:
        for kind in (QuotaExceeded, Conflict, SandboxUnavailable):
            said = error_text(kind("it failed", hint=hint))
            assert not re.search(r"\b(delete|remove|rm|prune)\b", said, re.IGNORECASE), said
