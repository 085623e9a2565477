"""The tools for sandboxes, reviews and the network, and the list of tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from mcp.types import TextContent, TextResourceContents
from support.mcp_clients import Talk, held
from support.patch_sets import git
from support.server import Server

from skerry import AsyncClient, AsyncSandbox

pytestmark = pytest.mark.asyncio(loop_scope="session")

READS = {
    "wait", "read_output", "list_processes", "read_file", "list_files", "search_files", "glob_files", "get_file",
    "list_sandboxes", "review_diff", "review_rejections", "network_denied", "list_languages",
}  # fmt: skip
DESTROYS = {
    "run", "spawn", "kill", "run_code", "write_file", "replace_in_file", "patch_files", "remove_sandbox",
    "rollback_sandbox", "write_input", "execute_code",
}  # fmt: skip
REST = {"create_sandbox", "fork_sandbox", "snapshot_sandbox", "expose_port"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def reviewed(talk: Talk, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncSandbox]:
    """A sandbox of the caller with a copy of a repository and a change."""
    home: Path = tmp_path_factory.mktemp("repo")
    git(home, "init", "-q")
    (home / "a.txt").write_text("one\n")
    git(home, "add", ".")
    git(home, "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-qm", "first")
    async with talk.sdk() as client, AsyncSandbox(repo=home, server=client) as sandbox:
        await sandbox.run("printf 'one\\ntwo\\033[31m\\n' > a.txt; echo new > b.txt")
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wide(talk: Talk) -> AsyncIterator[Talk]:
    """A connection that may use all sandboxes of the caller."""
    async with held(talk.wide()) as connection:
        yield connection


async def test_every_tool_has_descriptions_and_schemas(talk: Talk) -> None:
    tools = (await talk.client.list_tools()).tools
    assert {tool.name for tool in tools} == READS | DESTROYS | REST
    for tool in tools:
        hints = tool.annotations
        assert hints is not None
        assert bool(hints.read_only_hint) == (tool.name in READS)
        assert bool(hints.destructive_hint) == (tool.name in DESTROYS)
        assert len(tool.description or "") > 40
        assert tool.title
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert tool.output_schema["properties"]
        assert all(field.get("description") or name == "ignore_case" for name, field in _fields(tool.input_schema))


def _fields(schema: dict[str, object]) -> list[tuple[str, dict[str, object]]]:
    properties = schema["properties"]
    assert isinstance(properties, dict)
    return list(properties.items())


async def test_no_tool_decides_about_changes_or_network_access(talk: Talk) -> None:
    words = [f"{tool.name} {tool.input_schema['properties'].keys()}" for tool in (await talk.client.list_tools()).tools]
    assert not [one for one in words if any(verb in one for verb in ("accept", "approve", "apply", "allow", "secret"))]


async def test_sandboxes_are_created_listed_and_removed(talk: Talk) -> None:
    made = await talk.call("create_sandbox", memory="256M", env={"WHO": "me"})
    assert (made["memory"], made["state"], made["default"]) == ("256M", "running", False)
    assert (await talk.call("run", command="echo $WHO", sandbox=made["sandbox"]))["stdout"] == "me\n"
    own = (await talk.call("run", command="true"))["sandbox"]
    listed = {one["sandbox"]: one["default"] for one in (await talk.call("list_sandboxes"))["sandboxes"]}
    assert listed.items() >= {made["sandbox"]: False, own: True}.items()
    assert (await talk.call("remove_sandbox", sandbox=made["sandbox"]))["removed"]
    assert "list_sandboxes" in await talk.fails("run", command="true", sandbox=made["sandbox"])


async def test_sandbox_with_accepted_changes_is_not_removed(wide: Talk, reviewed: AsyncSandbox, server: Server) -> None:
    (fork,) = await reviewed.fork()
    async with AsyncClient(server.address) as person:
        theirs = await AsyncSandbox.get(fork.id, server=person)
        await theirs.review.accept((await theirs.review.changes("b.txt")).hunks[0])
        told = await wide.fails("remove_sandbox", sandbox=fork.id)
        assert f"ask the person to apply them with `skerry apply {fork.id}`" in told
        assert "force" not in told
        await theirs.delete(force=True, purge=True)


async def test_snapshot_fork_and_rollback(talk: Talk) -> None:
    await talk.call("write_file", path="s.txt", content="first")
    kept = (await talk.call("snapshot_sandbox"))["snapshot"]
    await talk.call("write_file", path="s.txt", content="second")
    (fork,) = (await talk.call("fork_sandbox"))["sandboxes"]
    assert (await talk.call("read_file", path="s.txt", sandbox=fork["sandbox"]))["text"] == "second\n"
    await talk.call("rollback_sandbox", snapshot=kept)
    assert (await talk.call("read_file", path="s.txt"))["text"] == "first\n"
    started = await talk.call("create_sandbox", image=kept)
    assert (await talk.call("read_file", path="s.txt", sandbox=started["sandbox"]))["text"] == "first\n"
    for one in (fork, started):
        await talk.call("remove_sandbox", sandbox=one["sandbox"])


async def test_deleted_default_sandbox_is_reported_and_replaced(talk: Talk) -> None:
    first = await talk.call("run", command="touch /workspace/mark")
    async with talk.sdk() as client:
        await (await AsyncSandbox.get(first["sandbox"], server=client)).delete()
    told = await talk.fails("run", command="ls")
    assert "no longer exists" in told
    assert "call again" in told
    again = await talk.call("run", command="ls")
    assert again["sandbox"] != first["sandbox"]
    assert again["stdout"] == ""


async def test_diff_is_returned_in_parts(wide: Talk, reviewed: AsyncSandbox) -> None:
    diff = await wide.call("review_diff", sandbox=reviewed.id)
    assert {file["path"] for file in diff["files"]} == {"a.txt", "b.txt"}
    assert "+two\\x1b[31m\n" in diff["patch"]
    assert not diff["more"]
    text, offset, more = "", 0, True
    while more:
        part = await wide.call("review_diff", sandbox=reviewed.id, offset=offset, max_output=100)
        text, offset, more = text + part["patch"], part["offset"], part["more"]
    assert text == diff["patch"]
    only = await wide.call("review_diff", sandbox=reviewed.id, paths=["b.txt"])
    assert [file["path"] for file in only["files"]] == ["b.txt"]
    read = (await wide.client.read_resource(f"skerry://sandboxes/{reviewed.id}/diff")).contents[0]
    assert isinstance(read, TextResourceContents)
    assert read.text == diff["patch"]


async def test_rejections_are_returned_with_reasons(wide: Talk, reviewed: AsyncSandbox) -> None:
    hunk = next(hunk for hunk in (await reviewed.review.changes()).hunks if hunk.path == "a.txt")
    async with AsyncClient(wide.server.address) as person:
        theirs = await AsyncSandbox.get(reviewed.id, server=person)
        await theirs.review.reject(hunk, reason="no colours, please")
    told = await wide.call("review_rejections", sandbox=reviewed.id)
    (one,) = told["rejected"]
    assert (one["path"], one["reason"], one["hunk"]) == ("a.txt", "no colours, please", hunk.id)
    assert "+two\\x1b[31m" in one["text"]
    assert (told["open"], told["accepted"]) == (1, 0)


async def test_diff_without_a_repository_is_an_error(talk: Talk) -> None:
    assert "error:" in await talk.fails("review_diff")


async def test_denied_attempts_are_listed_with_the_allow_command(talk: Talk) -> None:
    script = "import socket; socket.create_connection(('example.org', 443), 5)"
    ran = await talk.call("run", command=["python3", "-c", script])
    assert not ran["ok"]
    told = await talk.call("network_denied")
    assert told["allowed"] == []
    assert "example.org" in {one["host"] for one in told["attempts"]}
    assert f"skerry network allow {ran['sandbox']} example.org" in told["how_to_ask"]
    last = max(one["seq"] for one in told["attempts"])
    assert (await talk.call("network_denied", since=last))["attempts"] == []


async def test_expose_port_returns_a_link(talk: Talk) -> None:
    shown = await talk.call("expose_port", port=8000, expires="1h")
    assert shown["url"].startswith("http")
    assert shown["link"].startswith(shown["url"].rstrip("/"))
    assert not shown["public"]
    assert (await talk.call("expose_port", port=8000))["url"] == shown["url"]
    assert "65535" in await talk.fails("expose_port", port=70000)


async def test_prompts_describe_the_work(talk: Talk) -> None:
    prompts = {one.name for one in (await talk.client.list_prompts()).prompts}
    assert prompts == {"work_in_sandbox", "fix_rejections"}
    given = await talk.client.get_prompt("work_in_sandbox", {"task": "Count the {braces}."})
    content = given.messages[0].content
    assert isinstance(content, TextContent)
    assert content.text.startswith("Count the {braces}.")
    assert "data" in (talk.client.instructions or "data")
