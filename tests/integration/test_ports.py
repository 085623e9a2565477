"""Waiting until a program inside listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.server import Server

from skerry import AsyncSandbox, Sandbox
from skerry.errors import CommandFailed, CommandTimeout, InvalidRequest, NotFound, SandboxUnavailable

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(200 if self.path == "/ready" and Handler.asked > 3 else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        sandbox.files.write("/workspace/server.py", SERVER)
        yield sandbox


def test_wait_for_port_ends_when_it_opens(sandbox: Sandbox) -> None:
    process = sandbox.spawn("sleep 0.3; exec python3 server.py 8001")
    sandbox.wait_for_port(8001)
    assert sandbox.run("python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8001))\"").ok
    process.kill()


def test_wait_for_port_with_a_path_ends_on_a_response(sandbox: Sandbox) -> None:
    process = sandbox.spawn("exec python3 server.py 8002")
    sandbox.wait_for_port(8002, http_path="/ready")
    with pytest.raises(CommandTimeout, match=r"port 8002 was not open within 0.5 s.*503"):
        sandbox.wait_for_port(8002, timeout=0.5, http_path="/never")
    process.kill()


def test_closed_port_times_out_with_the_last_state(sandbox: Sandbox) -> None:
    with pytest.raises(CommandTimeout, match=r"port 8003 was not open within 0.2 s; last seen: \w+"):
        sandbox.wait_for_port(8003, timeout=0.2)


async def test_async_client_waits(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        await sandbox.spawn("exec python3 -m http.server 8004")
        await sandbox.wait_for_port(8004, http_path="/")


def test_deleted_sandbox_ends_the_wait(server: Server) -> None:
    sandbox = Sandbox.create(server=server.address)
    failed: list[Exception] = []

    def wait() -> None:
        try:
            sandbox.wait_for_port(8005, timeout=60)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    sandbox.delete()
    thread.join(30)
    assert isinstance(failed[0], (SandboxUnavailable, NotFound))


@pytest.mark.parametrize(
    ("port", "path"),
    [(0, None), (65536, None), (-1, None), (80, "ready"), (80, "/a b"), (80, "/\r\nHost: x"), (80, "")],
)
def test_invalid_port_or_path_is_rejected(server: Server, sandbox: Sandbox, port: int, path: str | None) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.wait_for_port(port, http_path=path)
    with server.http() as http:
        query = {} if path is None else {"http_path": path}
        assert http.get(f"/v1/sandboxes/{sandbox.id}/ports/{port}/wait", params=query).status_code in (400, 404)


def test_wait_for_port_fails_at_once_when_its_process_has_ended(sandbox: Sandbox) -> None:
    ends = sandbox.spawn("sleep 0.3; echo no module >&2; exit 4")
    with pytest.raises(CommandFailed, match="no module") as caught:
        sandbox.wait_for_port(8009, timeout=600, process=ends)
    assert caught.value.result is not None
    assert caught.value.result.exit_code == 4
    with pytest.raises(CommandFailed):
        sandbox.wait_for_port(8009, timeout=600, process=ends)


def test_wait_for_port_until_a_status(sandbox: Sandbox) -> None:
    server = sandbox.spawn(["python3", "-m", "http.server", "8010"], cwd="/workspace")
    with pytest.raises(CommandTimeout, match="status 404"):
        sandbox.wait_for_port(8010, timeout=3, http_path="/ready.txt", status=200, process=server)
    sandbox.files.write("/workspace/ready.txt", "x")
    sandbox.wait_for_port(8010, timeout=60, http_path="/ready.txt", status=200, interval=0.05, process=server)
    server.kill()
    with pytest.raises(InvalidRequest):
        sandbox.wait_for_port(8010, status=200)
