"""Bytes of previews and forwarded ports count as network traffic of their sandbox, in its usage and in budgets."""

from __future__ import annotations

import http.client
import signal
import socket
from urllib.parse import urlsplit

from support.server import Server, wait_until

from skerry import Budget, Sandbox

SIZE = 1 << 20
SERVE = "head -c 1M /dev/zero > /tmp/file; cd /tmp; exec python3 -m http.server 8000"


def fetch_forwarded(sandbox: Sandbox) -> int:
    with sandbox.forward(8000) as forward, socket.create_connection(("127.0.0.1", forward.port), 60) as line:
        line.sendall(b"GET /file HTTP/1.0\r\n\r\n")
        got = 0
        while data := line.recv(1 << 16):
            got += len(data)
        return got


def fetch_preview(sandbox: Sandbox) -> int:
    preview = sandbox.expose(8000)
    assert preview.token is not None
    there = urlsplit(preview.url)
    line = http.client.HTTPConnection("127.0.0.1", there.port, timeout=60)
    line.request("GET", "/file", headers={"Host": there.netloc, "X-Skerry-Preview-Token": preview.token})
    size = len(line.getresponse().read())
    line.close()
    return size


def test_served_bytes_are_metered_and_survive_a_killed_server(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(server=own_server.address)
    sandbox.spawn(SERVE)
    sandbox.wait_for_port(8000)
    assert fetch_forwarded(sandbox) > SIZE
    used = sandbox.usage()
    assert SIZE < used.sent < 2 * SIZE
    assert 0 < used.received < SIZE
    assert fetch_preview(sandbox) == SIZE
    wait_until(lambda: sandbox.usage().sent > 2 * SIZE, "the report of the preview")
    assert sandbox.network.show().sent == 0, "the policy's limits are about traffic to the outside"
    stored = "SELECT sent FROM served_traffic WHERE sandbox = ?"
    wait_until(lambda: own_server.sql(stored, sandbox.id)[0][0] > 2 * SIZE, "the bytes to be stored")
    own_server.end(signal.SIGKILL)
    own_server.start()
    assert 2 * SIZE < sandbox.usage().sent < 3 * SIZE
    assert fetch_forwarded(sandbox) > SIZE
    assert 3 * SIZE < sandbox.usage().sent < 4 * SIZE
    sandbox.delete()


def test_served_bytes_use_a_budget_up(own_server: Server) -> None:
    own_server.start()
    sandbox = Sandbox.create(server=own_server.address, budget=Budget(network=f"{3 * SIZE // 2}"))
    sandbox.spawn(SERVE)
    sandbox.wait_for_port(8000)
    for _ in range(2):
        assert fetch_forwarded(sandbox) > SIZE
    wait_until(lambda: sandbox.info().state == "paused", "the budget to be exceeded")
    assert "budget" in (sandbox.info().reason or "")
    sandbox.delete()
