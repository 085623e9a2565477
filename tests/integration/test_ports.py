"""Waiting until a program inside listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from serving import Server

from skerry import AsyncSandbox, Sandbox
from skerry.errors import CommandTimeout, InvalidRequest, NotFound, SandboxUnavailable

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
def box(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        sandbox.files.write("/workspace/server.py", SERVER)
        yield sandbox


def test_a_port_is_waited_for_until_it_is_open(box: Sandbox) -> None:
    process = box.spawn("sleep 0.3; exec python3 server.py 8001")
    box.wait_for_port(8001)
    assert box.run("python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8001))\"").ok
    process.kill()


def test_a_path_is_waited_for_until_it_answers(box: Sandbox) -> None:
    process = box.spawn("exec python3 server.py 8002")
    box.wait_for_port(8002, http_path="/ready")
    with pytest.raises(CommandTimeout, match=r"port 8002 was not open within 0.5 s.*503"):
        box.wait_for_port(8002, timeout=0.5, http_path="/never")
    process.kill()


def test_a_port_that_nobody_opens_times_out_and_says_what_was_seen(box: Sandbox) -> None:
    with pytest.raises(CommandTimeout, match=r"port 8003 was not open within 0.2 s; last seen: \w+"):
        box.wait_for_port(8003, timeout=0.2)


async def test_the_async_twin_waits_too(server: Server) -> None:
    async with AsyncSandbox(server=server.address) as sandbox:
        await sandbox.spawn("exec python3 -m http.server 8004")
        await sandbox.wait_for_port(8004, http_path="/")


def test_a_sandbox_that_goes_away_ends_the_wait(server: Server) -> None:
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
def test_what_is_no_port_or_path_is_refused(server: Server, box: Sandbox, port: int, path: str | None) -> None:
    with pytest.raises(InvalidRequest):
        box.wait_for_port(port, http_path=path)
    with server.http() as http:
        query = {} if path is None else {"http_path": path}
        assert http.get(f"/v1/sandboxes/{box.id}/ports/{port}/wait", params=query).status_code in (400, 404)
