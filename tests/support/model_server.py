"""The scripted model of tests/world/models.py on a port of the loopback interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from world.models import completion


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        said = completion(self.path.partition("?")[0], body)
        data = json.dumps(said or {"error": {"message": f"{self.path} not found"}}).encode()
        self.send_response(200 if said is not None else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name in the standard library
        """Log nothing."""


@contextmanager
def model_server() -> Iterator[str]:
    """Serve the model; yield its URL without a path."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
