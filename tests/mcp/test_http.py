"""`/mcp`: who is let in, as whom tools act, what is bounded, and what is left when a client is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import Server, wait_until
from talking import MODES, new_token, on_http

from skerry.mcp.http import BODY_MOST, SESSIONS_MOST

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
MODERN = {**JSON, "MCP-Protocol-Version": "2026-07-28"}
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip
LISTING = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def opened(http: httpx.Client, token: str) -> dict[str, str]:
    """A session of the older protocol, as the headers of its requests."""
    answer = http.post("/mcp", json=HELLO, headers={**JSON, **bearer(token)})
    assert answer.status_code == 200, answer.text
    session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
    headers = {**JSON, **bearer(token), **session}
    assert http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers).is_success
    return headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_a_foreign_origin_is_refused_before_anything_happens(http: httpx.Client, server: Server, origin: str) -> None:
    token = new_token(server)
    for headers in (JSON, MODERN):
        for method in ("POST", "GET", "DELETE"):
            answer = http.request(method, "/mcp", json=HELLO, headers={**headers, **bearer(token), "Origin": origin})
            assert answer.status_code == 403
            assert "mcp-session-id" not in answer.headers


async def test_a_token_that_is_deleted_ends_its_sessions_at_once(server: Server) -> None:
    with server.http() as http:
        made = http.post("/v1/tokens", json={"scope": "use"}).json()
        headers = opened(http, made["secret"])
        assert http.post("/mcp", json=LISTING, headers=headers).status_code == 200
        http.delete(f"/v1/tokens/{made['id']}").raise_for_status()
        assert http.post("/mcp", json=LISTING, headers=headers).status_code == 401
        assert http.get("/mcp", headers=headers).status_code == 401


def test_a_session_is_found_by_its_own_token_only(http: httpx.Client, server: Server) -> None:
    headers = opened(http, new_token(server))
    for stranger in (new_token(server), new_token(server, "admin")):
        answer = http.post("/mcp", json=LISTING, headers={**headers, **bearer(stranger)})
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Session not found")
    assert http.post("/mcp", json=LISTING, headers=headers).status_code == 200
    assert http.delete("/mcp", headers=headers).status_code == 200
    assert http.post("/mcp", json=LISTING, headers=headers).status_code == 404


@pytest.mark.parametrize("mode", MODES)
async def test_anothers_sandbox_is_not_found(server: Server, mode: str) -> None:
    async with on_http(server, mode) as ann, on_http(server, mode) as ben:
        hers = (await ann.call("run", command="true"))["sandbox"]
        for tool, arguments in (
            ("run", {"command": "true"}), ("read_file", {"path": "/etc/hostname"}), ("remove_sandbox", {}),
            ("fork_sandbox", {}), ("review_diff", {}), ("list_processes", {}),
        ):  # fmt: skip
            assert "there is no sandbox" in await ben.fails(tool, sandbox=hers, **arguments)
        assert (await ben.call("list_sandboxes"))["sandboxes"] == []
        assert [one["sandbox"] for one in (await ann.call("list_sandboxes"))["sandboxes"]] == [hers]


async def test_each_token_has_one_default_sandbox_of_its_own(own_server: Server) -> None:
    own_server.start()
    first, second = new_token(own_server, owner="ann"), new_token(own_server, owner="ann")
    found = set()
    for mode in MODES:
        async with on_http(own_server, mode, first) as talk:
            found.add((await talk.call("run", command="true"))["sandbox"])
    async with on_http(own_server, MODES[0], second) as talk:
        other = (await talk.call("run", command="true"))["sandbox"]
    own_server.end()
    own_server.start()
    async with on_http(own_server, MODES[0], first) as talk:
        found.add((await talk.call("run", command="true"))["sandbox"])
    assert len(found) == 1
    assert other not in found


@pytest.mark.parametrize("scope", ["use", "review", "admin"])
async def test_no_tool_approves_whatever_the_token_may(server: Server, scope: str) -> None:
    async with on_http(server, MODES[0], new_token(server, scope)) as talk:
        names = {tool.name for tool in (await talk.client.list_tools()).tools}
    words = ("accept", "approve", "apply", "decide", "reopen", "token", "admin")
    assert [name for name in names if any(word in name for word in words)] == []


async def test_a_tool_acts_with_the_rights_of_the_token_it_came_with(server: Server) -> None:
    """What it asks of the server is asked by the same owner, and refused as it would be without MCP."""
    token = new_token(server, owner="carl")
    async with on_http(server, MODES[0], token) as talk:
        await talk.call("run", command="true")
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if '"carl"' in line]
    paths = {line["path"] for line in lines if line["event"] == "request"}
    assert {"/mcp", "/v1/sandboxes/{ref}/processes"} <= paths
    assert token not in server.log.read_text()


async def running(server: Server, sandbox: str) -> list[str]:
    def look() -> list[str]:
        with server.http() as http:
            found = http.get(f"/v1/sandboxes/{sandbox}/processes").raise_for_status().json()["processes"]
        return [one["id"] for one in found if one["state"] == "running"]

    return await asyncio.to_thread(look)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_vanishes_takes_its_run_with_it_and_leaves_what_it_spawned(
    server: Server, mode: str
) -> None:
    token = new_token(server)
    async with on_http(server, mode, token) as talk:
        spawned = await talk.call("spawn", command="sleep 300")
        sandbox = spawned["sandbox"]

    async def hang() -> None:
        async with on_http(server, mode, token) as talk:
            await talk.call("run", command="sleep 300", timeout=600)

    task = asyncio.ensure_future(hang())
    async with asyncio.timeout(60):
        while len(await running(server, sandbox)) < 2:
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        while (left := await running(server, sandbox)) != [spawned["process"]]:
            assert spawned["process"] in left
            await asyncio.sleep(0.02)
    async with on_http(server, mode, token) as talk:
        await talk.call("kill", process=spawned["process"])


def test_a_body_that_is_too_large_is_not_read_to_its_end(http: httpx.Client, server: Server) -> None:
    token = new_token(server)

    def endless() -> Iterator[bytes]:
        yield b'{"jsonrpc": "'
        for _ in range(2 * (BODY_MOST >> 20)):
            yield b"x" * (1 << 20)

    for headers in (JSON, MODERN):
        known = {**headers, **bearer(token)}
        assert http.post("/mcp", content=b"x" * (BODY_MOST + 1), headers=known).status_code == 413
        with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # cut off while it was still sending
            assert http.post("/mcp", content=endless(), headers=known).status_code == 413


@pytest.mark.parametrize("headers", [JSON, MODERN], ids=MODES[::-1])
@pytest.mark.parametrize(
    "body",
    ["", "null", "1", "[]", "{}", "[" * 50_000, '{"a":' * 50_000, '{"jsonrpc":"2.0","id":1}', "\xff", "\x00",
     json.dumps([LISTING] * 3), json.dumps({**LISTING, "id": None}), json.dumps({**LISTING, "method": "no/such"}),
     json.dumps({**LISTING, "id": [1]}), "9" * 5000],
)  # fmt: skip
def test_nonsense_is_refused(http: httpx.Client, server: Server, headers: dict[str, str], body: str) -> None:
    answer = http.post("/mcp", content=body.encode("latin-1"), headers={**headers, **bearer(new_token(server))})
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_page_may_send_without_asking_is_refused(http: httpx.Client, server: Server, kind: str) -> None:
    for headers in (JSON, MODERN):
        known = {**headers, **bearer(new_token(server)), "Content-Type": kind}
        assert http.post("/mcp", content=json.dumps(HELLO), headers=known).status_code == 400


def test_a_token_has_so_many_sessions_and_no_more(http: httpx.Client, server: Server) -> None:
    token = new_token(server)
    sessions = [opened(http, token) for _ in range(SESSIONS_MOST)]
    assert http.post("/mcp", json=HELLO, headers={**JSON, **bearer(token)}).status_code == 503
    opened(http, new_token(server))
    http.delete("/mcp", headers=sessions[0]).raise_for_status()
    opened(http, token)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "TRACE"])
def test_other_methods_are_refused(http: httpx.Client, server: Server, method: str) -> None:
    for headers in (JSON, MODERN, opened(http, new_token(server))):
        answer = http.request(method, "/mcp", headers={**bearer(new_token(server)), **headers})
        assert 400 <= answer.status_code < 500


def test_a_stream_that_cant_be_taken_up_again_begins_anew(http: httpx.Client, server: Server) -> None:
    headers = {**opened(http, new_token(server)), "Last-Event-ID": "7"}
    with http.stream("GET", "/mcp", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
    with http.stream("GET", "/mcp", headers=headers) as stream:  # the first one is gone by now, or will be
        assert stream.status_code in (200, 409)


def descriptors(server: Server) -> int:
    assert server.process is not None
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_sessions_that_are_ended_leave_nothing_behind(http: httpx.Client, server: Server) -> None:
    token = new_token(server)
    http.delete("/mcp", headers=opened(http, token)).raise_for_status()
    before = descriptors(server)
    for _ in range(30):
        http.delete("/mcp", headers=opened(http, token)).raise_for_status()
    wait_until(lambda: descriptors(server) <= before + 2, "descriptors to be closed")


async def test_a_server_that_stops_does_not_wait_for_a_stream_that_nobody_ends(own_server: Server) -> None:
    own_server.start()
    with own_server.http() as http:
        headers = opened(http, new_token(own_server))
        with http.stream("GET", "/mcp", headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert own_server.end() == 0
            assert stream.read() == b""
    assert '"level":"error"' not in own_server.log.read_text()


def test_the_library_is_loaded_when_the_first_client_comes(own_server: Server) -> None:
    own_server.before = ("env",)  # a program of its own, not forked off one that has loaded everything
    own_server.start()
    assert own_server.process is not None
    maps = Path(f"/proc/{own_server.process.pid}/maps")
    with own_server.http() as http:
        http.get("/v1/sandboxes").raise_for_status()
        assert "pydantic_core" not in maps.read_text()
        opened(http, new_token(own_server))
        assert "pydantic_core" in maps.read_text()


async def test_a_path_as_content_is_content(server: Server) -> None:
    """Over HTTP the tools' client runs inside the server, as root: it must take no text for a file of that machine."""
    async with on_http(server, MODES[0]) as talk:
        files = {"a": "/etc/shadow", "b": "@/etc/shadow", "c": "file:///etc/shadow"}
        code = "print(*(open(name).read() for name in 'abc'), sep='|')"
        ran = await talk.call("execute_code", language="python", code=code, files=files)
        assert ran["stdout"] == "|".join(files.values()) + "\n"
