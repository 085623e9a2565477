"""A scripted server over a real unix socket: for responses that a correct server never sends."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SANDBOX = {
    "id": "sb-aaaaaaaaaa",
    "state": "running",
    "image": "base",
    "limits": {},
    "lifecycle": {},
    "created_at": 1.0,
}


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Said:
    """An answer; `whole=False` closes the connection before it is complete, `status=0` without any. `later` returns
    more of the body, after the first part was sent."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    whole: bool = True
    later: Callable[[], bytes] | None = None


def said(value: Any, status: int = 200) -> Said:
    return Said(status, json.dumps(value).encode())


def refused(status: int, code: str, message: str = "no", **more: Any) -> Said:
    return said({"error": {"code": code, "message": message, "hint": None, "details": {}, **more}}, status)


@dataclass
class Lying:
    address: str
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def lying(directory: Path, answer: Callable[[Asked], Said]) -> Iterator[Lying]:
    path = directory / "l.sock"
    told = Lying(f"unix://{path}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, parts.path, parse_qs(parts.query), headers, self._body(headers))
            told.asked.append(asked)
            self._say(answer(asked))

        def _body(self, headers: dict[str, str]) -> bytes:
            if headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(headers.get("content-length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _say(self, it: Said) -> None:
            if not it.status:
                self.close_connection = True
                return
            self.send_response(it.status)
            self.send_header("content-type", it.kind)
            if it.later is not None:
                self.send_header("connection", "close")
            elif it.status != 204:
                self.send_header("content-length", str(len(it.body) + (0 if it.whole else 10)))
            self.end_headers()
            self.wfile.write(it.body)
            if it.later is not None:
                self.wfile.flush()
                self.wfile.write(it.later())
            self.close_connection = not it.whole or it.later is not None

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        block_on_close = False

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()
