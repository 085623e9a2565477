"""`/mcp`: authentication, rights of tools, limits, and clean-up after a disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.mcp_clients import MODES, new_token, on_http
from support.server import Server, wait_until

from skerry.config import socket_path
from skerry.mcp.transports.http import MAX_BODY, MAX_REQUESTS, MAX_SESSIONS

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
MODERN = {**JSON, "MCP-Protocol-Version": "2026-07-28"}
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip
LISTING = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    with server.http() as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def opened(http: httpx2.Client, token: str) -> dict[str, str]:
    """Start a session of the older protocol and return the headers of its requests."""
    answer = http.post("/mcp", json=HELLO, headers={**JSON, **bearer(token)})
    assert answer.status_code == 200, answer.text
    session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
    headers = {**JSON, **bearer(token), **session}
    assert http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers).is_success
    return headers


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_foreign_origin_is_rejected(http: httpx2.Client, server: Server, origin: str) -> None:
    token = new_token(server)
    for headers in (JSON, MODERN):
        for method in ("POST", "GET", "DELETE"):
            answer = http.request(method, "/mcp", json=HELLO, headers={**headers, **bearer(token), "Origin": origin})
            assert answer.status_code == 403
            assert "mcp-session-id" not in answer.headers


async def test_deleted_token_ends_its_sessions(server: Server) -> None:
    with server.http() as http:
        made = http.post("/v1/tokens", json={"scope": "use"}).json()
        headers = opened(http, made["secret"])
        assert http.post("/mcp", json=LISTING, headers=headers).status_code == 200
        http.delete(f"/v1/tokens/{made['id']}").raise_for_status()
        assert http.post("/mcp", json=LISTING, headers=headers).status_code == 401
        assert http.get("/mcp", headers=headers).status_code == 401


def test_session_is_found_only_by_its_token(http: httpx2.Client, server: Server) -> None:
    headers = opened(http, new_token(server))
    for stranger in (new_token(server), new_token(server, "admin")):
        answer = http.post("/mcp", json=LISTING, headers={**headers, **bearer(stranger)})
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Session not found")
    assert http.post("/mcp", json=LISTING, headers=headers).status_code == 200
    assert http.delete("/mcp", headers=headers).status_code == 200
    assert http.post("/mcp", json=LISTING, headers=headers).status_code == 404


@pytest.mark.parametrize("mode", MODES)
async def test_sandbox_of_another_owner_is_not_found(server: Server, mode: str) -> None:
    async with on_http(server, mode) as ann, on_http(server, mode) as ben:
        hers = (await ann.call("run", command="true"))["sandbox"]
        for tool, arguments in (
            ("run", {"command": "true"}), ("read_file", {"path": "/etc/hostname"}), ("remove_sandbox", {}),
            ("fork_sandbox", {}), ("review_diff", {}), ("list_processes", {}),
        ):  # fmt: skip
            assert "not found" in await ben.fails(tool, sandbox=hers, **arguments)
        assert (await ben.call("list_sandboxes"))["sandboxes"] == []
        assert [one["sandbox"] for one in (await ann.call("list_sandboxes"))["sandboxes"]] == [hers]


async def test_each_token_has_its_own_default_sandbox(own_server: Server) -> None:
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
async def test_no_tool_approves_changes_with_any_scope(server: Server, scope: str) -> None:
    async with on_http(server, MODES[0], new_token(server, scope)) as talk:
        names = {tool.name for tool in (await talk.client.list_tools()).tools}
    words = ("accept", "approve", "apply", "decide", "reopen", "token", "admin")
    assert [name for name in names if any(word in name for word in words)] == []


async def test_tool_acts_with_the_rights_of_its_token(server: Server) -> None:
    """Its requests to the server have the same owner and are rejected as without MCP."""
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
async def test_disconnect_ends_runs_but_not_spawned_processes(server: Server, mode: str) -> None:
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


def test_too_large_body_is_not_read_to_its_end(http: httpx2.Client, server: Server) -> None:
    token = new_token(server)

    def endless() -> Iterator[bytes]:
        yield b'{"jsonrpc": "'
        for _ in range(2 * (MAX_BODY >> 20)):
            yield b"x" * (1 << 20)

    for headers in (JSON, MODERN):
        known = {**headers, **bearer(token)}
        assert http.post("/mcp", content=b"x" * (MAX_BODY + 1), headers=known).status_code == 413
        with contextlib.suppress(httpx2.WriteError, httpx2.ReadError):  # closed while it was still sending
            assert http.post("/mcp", content=endless(), headers=known).status_code == 413


@pytest.mark.parametrize("headers", [JSON, MODERN], ids=MODES[::-1])
@pytest.mark.parametrize(
    "body",
    ["", "null", "1", "[]", "{}", "[" * 50_000, '{"a":' * 50_000, '{"jsonrpc":"2.0","id":1}', "\xff", "\x00",
     json.dumps([LISTING] * 3), json.dumps({**LISTING, "id": None}), json.dumps({**LISTING, "method": "no/such"}),
     json.dumps({**LISTING, "id": [1]}), "9" * 5000],
)  # fmt: skip
def test_invalid_requests_are_rejected(http: httpx2.Client, server: Server, headers: dict[str, str], body: str) -> None:
    answer = http.post("/mcp", content=body.encode("latin-1"), headers={**headers, **bearer(new_token(server))})
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_simple_cross_origin_requests_are_rejected(http: httpx2.Client, server: Server, kind: str) -> None:
    for headers in (JSON, MODERN):
        known = {**headers, **bearer(new_token(server)), "Content-Type": kind}
        assert http.post("/mcp", content=json.dumps(HELLO), headers=known).status_code == 400


def test_sessions_per_token_are_limited(http: httpx2.Client, server: Server) -> None:
    token = new_token(server)
    sessions = [opened(http, token) for _ in range(MAX_SESSIONS)]
    assert http.post("/mcp", json=HELLO, headers={**JSON, **bearer(token)}).status_code == 429
    opened(http, new_token(server))
    http.delete("/mcp", headers=sessions[0]).raise_for_status()
    opened(http, token)


def test_flood_of_one_token_leaves_its_owner_the_other_calls(http: httpx2.Client, server: Server) -> None:
    """Each request of the flood stays open, because its body does not end."""
    token = new_token(server, owner="flo")
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 100\r\n\r\n{{"
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_REQUESTS):
            flood = stack.enter_context(socket.socket(socket.AF_UNIX))
            flood.connect(str(socket_path(server.state_dir)))
            flood.sendall(head.encode())
        wait_until(lambda: http.post("/mcp", json=HELLO, headers={**JSON, **bearer(token)}).status_code == 429, "429")
        answer = http.post("/mcp", json=HELLO, headers={**JSON, **bearer(token)})
        assert (answer.status_code, answer.json()["jsonrpc"]) == (429, "2.0")
        assert http.get("/v1/sandboxes", headers=bearer(token)).status_code == 200
        opened(http, new_token(server, owner="flo"))


@pytest.mark.parametrize("headers", [JSON, MODERN])
def test_message_with_too_many_values_is_rejected_before_it_is_decoded(
    http: httpx2.Client, server: Server, headers: dict[str, str]
) -> None:
    call = {"name": "run", "arguments": {"command": [1] * 400_000}}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}
    answer = http.post("/mcp", json=message, headers={**headers, **bearer(new_token(server))})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, -32600)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "TRACE"])
def test_other_methods_are_rejected(http: httpx2.Client, server: Server, method: str) -> None:
    for headers in (JSON, MODERN, opened(http, new_token(server))):
        answer = http.request(method, "/mcp", headers={**bearer(new_token(server)), **headers})
        assert 400 <= answer.status_code < 500


def test_stream_that_cannot_be_resumed_starts_again(http: httpx2.Client, server: Server) -> None:
    headers = {**opened(http, new_token(server)), "Last-Event-ID": "7"}
    with http.stream("GET", "/mcp", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
    with http.stream("GET", "/mcp", headers=headers) as stream:  # the first stream is closed by now or soon
        assert stream.status_code in (200, 409)


def descriptors(server: Server) -> int:
    assert server.process is not None
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_ended_sessions_leave_nothing_behind(http: httpx2.Client, server: Server) -> None:
    token = new_token(server)
    http.delete("/mcp", headers=opened(http, token)).raise_for_status()
    before = descriptors(server)
    for _ in range(30):
        http.delete("/mcp", headers=opened(http, token)).raise_for_status()
    wait_until(lambda: descriptors(server) <= before + 2, "descriptors to be closed")


async def test_stopping_server_does_not_wait_for_open_streams(own_server: Server) -> None:
    own_server.start()
    with own_server.http() as http:
        headers = opened(http, new_token(own_server))
        with http.stream("GET", "/mcp", headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert own_server.end() == 0
            assert stream.read() == b""
    assert '"level":"error"' not in own_server.log.read_text()


def test_mcp_library_is_loaded_for_the_first_client(own_server: Server) -> None:
    own_server.start(PYTHONHASHSEED="1")  # a separate program, not a fork of one that has loaded everything
    assert own_server.process is not None
    maps = Path(f"/proc/{own_server.process.pid}/maps")
    with own_server.http() as http:
        http.get("/v1/sandboxes").raise_for_status()
        assert "pydantic_core" not in maps.read_text()
        opened(http, new_token(own_server))
        assert "pydantic_core" in maps.read_text()


async def test_host_path_as_content_is_text(server: Server) -> None:
    """Over HTTP the SDK's client runs in the server as root: it must not read a text as a path of that machine."""
    async with on_http(server, MODES[0]) as talk:
        files = {"a": "/etc/shadow", "b": "@/etc/shadow", "c": "file:///etc/shadow"}
        code = "print(*(open(name).read() for name in 'abc'), sep='|')"
        ran = await talk.call("execute_code", language="python", code=code, files=files)
        assert ran["stdout"] == "|".join(files.values()) + "\n"
