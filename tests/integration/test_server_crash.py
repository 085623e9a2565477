"""A server killed during a call: existing data stays complete, nothing of the call is left, and the
caller gets an error."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator

import pytest
from support.server import Server, wait_until

from skerry import Sandbox
from skerry.client.results.command import Output
from skerry.errors import ServerUnreachable

MIB = 1 << 20


@pytest.fixture
def sandbox(own_server: Server) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(server=own_server.start().address)
    yield sandbox
    sandbox.delete()


def test_crash_during_a_write_keeps_the_old_content(own_server: Server, sandbox: Sandbox) -> None:
    sandbox.files.write("f", "old")

    def content() -> Iterator[bytes]:
        yield bytes(8 * MIB)
        own_server.end(signal.SIGKILL)
        for _ in range(64):
            yield bytes(MIB)

    with pytest.raises(ServerUnreachable):
        sandbox.files.write("f", content())
    own_server.start()
    assert sandbox.files.read_text("f") == "old"
    wait_until(lambda: sandbox.run(["ls", "-A"]).stdout == "f\n", "the half-written file to be gone")


def test_crash_during_a_read_is_reported(own_server: Server, sandbox: Sandbox) -> None:
    sandbox.run("truncate -s 4G f", check=True)
    chunks, read = sandbox.files.stream("f"), 0
    while read < 8 * MIB:
        read += len(next(chunks))
    own_server.end(signal.SIGKILL)
    with pytest.raises(ServerUnreachable):
        deque(chunks, maxlen=0)
    own_server.start()
    assert sandbox.files.stat("f").size == 4 << 30


def test_crash_during_a_run_is_reported_and_ends_the_command(own_server: Server, sandbox: Sandbox) -> None:
    def heard(output: Output) -> None:
        if b"begun" in output.data:
            own_server.end(signal.SIGKILL)

    with pytest.raises(ServerUnreachable):
        sandbox.run("setsid sleep 1234 & echo begun; sleep 1234", on_output=heard)
    own_server.start()
    wait_until(lambda: sandbox.run(["pgrep", "-x", "sleep"], user="root").exit_code == 1, "the command to be gone")


UNREADY = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open("asked", "w")
        self.send_response(200 if os.path.exists("ready") else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8099), Handler).serve_forever()
"""


def test_wait_for_a_port_survives_a_crash(own_server: Server, sandbox: Sandbox) -> None:
    sandbox.spawn(["python3", "-c", UNREADY])
    waiting = threading.Thread(target=sandbox.wait_for_port, args=(8099, 60), kwargs={"http_path": "/"})
    waiting.start()
    wait_until(lambda: sandbox.files.exists("asked"), "the port to be asked")
    own_server.end(signal.SIGKILL)
    own_server.start()
    assert waiting.is_alive()
    sandbox.files.write("ready", "")
    waiting.join(60)
    assert not waiting.is_alive()
