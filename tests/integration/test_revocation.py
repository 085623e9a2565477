"""A deleted token loses its open streams at once: terminals, runs, followed output and logs, port connections, MCP."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from support.server import Server, wait_until
from support.terminal_viewers import frame, handshake

from skerry import Process, Pty, Sandbox
from skerry.config import socket_path

MCP = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
ANSWERS = 20
CLOSE = (1008).to_bytes(2, "big") + b"the token was deleted"
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip


@pytest.fixture
def shell(sandbox: Sandbox) -> Iterator[Process]:
    process = sandbox.spawn(["bash", "--norc", "--noprofile"], pty=Pty(cols=100, rows=30), env={"PS1": "$ "})
    yield process
    process.kill()


def new_token(server: Server) -> tuple[str, str]:
    with server.http() as http:
        made = http.post("/v1/tokens", json={"scope": "use", "owner": "local"}).json()
    return made["id"], made["secret"]


def delete(server: Server, token: str, secret: str | None = None) -> int:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    with server.http() as http:
        return http.delete(f"/v1/tokens/{token}", headers=headers).status_code


class Stream:
    """An open call on its own connection, read only at the end."""

    def __init__(self, server: Server, request: bytes, secret: str | None = None) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        login = "" if secret is None else f"Authorization: Bearer {secret}\r\n"
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(15)
        self.socket.connect(str(socket_path(server.state_dir)))
        self.socket.sendall(head + f"\r\n{login}\r\n".encode() + body)
        self.status = int(self.socket.recv(13, socket.MSG_WAITALL)[9:12])

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ended(self) -> bool:
        """Return, without waiting, whether the server has disconnected; of a WebSocket, whether it has said why."""
        self.socket.setblocking(False)
        try:
            while piece := self.socket.recv(65536):
                if self.status == 101 and piece.endswith(CLOSE):
                    return True
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def rest(self) -> bytes:
        """Read until the server disconnects. A stream that stays open fails the test with a timeout."""
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := self.socket.recv(65536):
                received += piece
        return received


def assert_ended(server: Server, streams: list[Stream]) -> None:
    """Assert that the server has disconnected them before it has answered a few small requests: that is its own measure
    of "at once", whatever the load of the machine."""
    with server.http() as http:
        for _ in range(ANSWERS):
            streams = [stream for stream in streams if not stream.ended()]
            if not streams:
                return
            assert http.get("/healthz").status_code == 200
    pytest.fail(f"{len(streams)} streams are open after {ANSWERS} answers to another caller")


def get(path: str, accept: str = "application/x-ndjson", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}{more}\r\n\r\n".encode()


def post(path: str, body: bytes, accept: str = "application/x-ndjson") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_deleting_a_token_closes_its_streams(server: Server, sandbox: Sandbox, shell: Process) -> None:
    token, secret = new_token(server)
    _, other = new_token(server)
    one = f"/v1/sandboxes/{sandbox.id}"
    sandbox.spawn(["python3", "-m", "http.server", "8123"])
    assert sandbox.wait_for_port(8123, timeout=60) is None
    requests = [
        post(f"{one}/processes?wait=true", b'{"cmd":"echo begun; sleep 1000"}'),
        post(f"{one}/code", b'{"code":"print(1, flush=True)\\nimport time\\ntime.sleep(1000)","language":"python"}'),
        get(f"{one}/processes/{shell.id}/output?follow=true"),
        get("/v1/events?follow=true&since=0"),
        get(f"{one}/network/log?follow=true"),
        get(f"{one}/network/approvals"),
        get(f"{one}/files/watch?path=/tmp"),
        handshake(f"{one}/processes/{shell.id}/terminal"),
        handshake(f"{one}/ports/8123/connect"),
    ]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(Stream(server, request, secret)) for request in requests]
        kept = stack.enter_context(Stream(server, requests[2], other))
        assert [stream.status for stream in streams] == [200] * 7 + [101] * 2
        assert delete(server, token) == 204
        assert_ended(server, streams)
        assert not kept.ended()
        for stream in streams:
            stream.socket.settimeout(60)
            stream.rest()
    wait_until(lambda: not sandbox.run("pgrep -fx 'sleep 1000'").stdout, "the run to end with its caller")


def test_terminal_of_a_deleted_token_executes_nothing_more(server: Server, sandbox: Sandbox, shell: Process) -> None:
    token, secret = new_token(server)
    path = f"/v1/sandboxes/{sandbox.id}/processes/{shell.id}/terminal"
    with Stream(server, handshake(path), secret) as terminal:
        terminal.socket.sendall(frame(b"touch /tmp/before\n"))
        wait_until(lambda: sandbox.files.exists("/tmp/before"), "the first command to run")
        assert delete(server, token) == 204
        with contextlib.suppress(ConnectionError):
            terminal.socket.sendall(frame(b"touch /tmp/after\n"))
        terminal.rest()
    sandbox.run("true")
    with shell.terminal() as own:
        own.write("touch /tmp/last\n")
        wait_until(lambda: sandbox.files.exists("/tmp/last"), "the last command to run")
    assert not sandbox.files.exists("/tmp/after")


def test_mcp_session_of_a_deleted_token_ends(server: Server) -> None:
    token, secret = new_token(server)
    authorization = {"Authorization": f"Bearer {secret}"}
    with server.http() as http:
        answer = http.post("/mcp", json=HELLO, headers={**MCP, **authorization})
        session = answer.headers["Mcp-Session-Id"]
        more = f"\r\nMcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25"
        with Stream(server, get("/mcp", "text/event-stream", more), secret) as stream:
            assert stream.status == 200
            assert delete(server, token) == 204
            assert_ended(server, [stream])


def test_tool_of_a_deleted_token_is_cancelled(server: Server, sandbox: Sandbox) -> None:
    token, secret = new_token(server)
    url = f"/mcp?sandbox={sandbox.id}"
    arguments = {"command": "touch /tmp/tool; sleep 2000", "sandbox": sandbox.id}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run", "arguments": arguments}}
    with server.http() as http:
        answer = http.post(url, json=HELLO, headers={**MCP, "Authorization": f"Bearer {secret}"})
        headers = {**MCP, "Authorization": f"Bearer {secret}", "Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    with ThreadPoolExecutor(1) as pool, server.http() as http:
        waiting = pool.submit(http.post, url, json=call, headers=headers)
        wait_until(lambda: sandbox.files.exists("/tmp/tool"), "the tool to run")
        assert delete(server, token) == 204
        with pytest.raises(httpx2.TransportError):
            waiting.result(15)
    wait_until(lambda: not sandbox.run("pgrep -fx 'sleep 2000'").stdout, "the tool's command to end")


def test_caller_that_deletes_its_own_token_gets_the_response(server: Server) -> None:
    with server.http() as http:
        made = http.post("/v1/tokens", json={"scope": "admin"}).json()
    assert delete(server, made["id"], made["secret"]) == 204
    assert delete(server, made["id"], made["secret"]) == 401
