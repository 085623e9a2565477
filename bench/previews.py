"""A request through a preview, beside one straight to the same program on the host; both on kept connections."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from urllib.parse import urlsplit

from bench.measure import Figure, Part, side_by_side
from skerry import Sandbox

PREVIEW, DIRECT = "request through a preview", "request to the program itself"
FRESH, FRESH_DIRECT = "the same, new connection", "the same directly, new connection"
PORT = 8399
PROGRAM = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # head and body in one write: else one waits 40 ms for the acknowledgement of the other
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "1000"); self.end_headers()
        self.wfile.write(b"x" * 1000)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""


class Asking:
    """One client; `keep`: with one connection for all requests."""

    def __init__(self, port: int, headers: dict[str, str], keep: bool) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = headers
        self._keep = keep

    def once(self) -> None:
        self._connection.request("GET", "/", headers=self._headers)
        answer = self._connection.getresponse()
        assert answer.status == 200
        assert len(answer.read()) == 1000
        if not self._keep:
            self._connection.close()


def previews(count: int) -> Part:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM])
    try:
        with Sandbox() as sandbox:
            sandbox.files.write("/workspace/program.py", PROGRAM)
            sandbox.spawn("exec python3 program.py")
            sandbox.wait_for_port(PORT)
            time.sleep(0.5)
            preview = sandbox.expose(PORT)
            headers = {"Host": urlsplit(preview.url).netloc, "X-Skerry-Preview-Token": preview.token or ""}
            port = urlsplit(preview.path_url).port or 0
            works = {
                name: Asking(where, headers, keep).once
                for name, where, keep in (
                    (PREVIEW, port, True), (DIRECT, PORT, True), (FRESH, port, False), (FRESH_DIRECT, PORT, False),
                )
            }  # fmt: skip
            rows = side_by_side(works, count * 10)
    finally:
        program.kill()
        program.wait()
    through, direct = rows[0].p50, rows[1].p50
    name = "a request through a preview, ms above a direct one"
    return rows, [Figure(name, through - direct, f"{through:.2f} ms, {direct:.2f} ms", most=3)]
