"""A receiver of webhooks on the loopback interface that answers as a test asks: with a status, a redirect, or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from support.server import wait_until

SECRET = "whsec_" + "c2tlcnJ5" * 5  # 30 bytes


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found


class Receiver:
    """`answers`: statuses of the next requests; then `status`. Status 0: hold the connection until the end."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: list[int] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self._end = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.answers.pop(0) if receiver.answers else receiver.status
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, body))
                if status == 0:
                    receiver._end.wait(60)
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return

        class Listener(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A sender that gave up, or was killed, is no error here."""

        self._server = Listener(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def types(self) -> list[str]:
        return [one.json["type"] for one in list(self.received)]

    def wait_for(self, condition: Callable[[list[Received]], object], what: str) -> None:
        wait_until(lambda: condition(list(self.received)), what)

    def close(self) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def write_secret(directory: Path, text: str = SECRET) -> Path:
    path = directory / "webhook.secret"
    path.touch(0o600)
    path.write_text(text + "\n")
    return path
