"""The worker's preview server in a thread, in front of real servers on this machine's loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import http.server
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import uvloop

from skerry.network.messages import ListenPreviews, SharePreview
from skerry.network.worker.previews.listener import PreviewServer

BOX, OTHER = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"
TOKEN, OTHER_TOKEN = "t" * 43, "o" * 43


class PreviewHarness:
    """`inside` maps a sandbox's port to a port of this machine."""

    def __init__(self, max_per_address: int = 1024) -> None:
        self._max_per_address = max_per_address
        self.inside: dict[tuple[str, int], int] = {}
        self.dials: deque[tuple[str, int]] = deque(maxlen=10_000)
        self.used: deque[str] = deque(maxlen=10_000)
        self.sent = self.received = 0
        self.unforeseen: list[dict[str, Any]] = []
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.unforeseen.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> PreviewHarness:
        self._thread.start()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.call(self._listen(listener))
        return self

    async def _listen(self, listener: socket.socket) -> None:
        self.previews = PreviewServer(self._dial, self._note_use)
        await self.previews.listen(
            listener,
            ListenPreviews(
                domains=("localhost", "preview.example"),
                secure=("preview.example",),
                max_per_address=self._max_per_address,
            ),
        )

    def _note_use(self, sandbox: str, sent: int, received: int) -> None:
        self.used.append(sandbox)
        self.sent, self.received = self.sent + sent, self.received + received

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def stop(self) -> None:
        self.call(self.previews.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
        assert self.unforeseen == []

    async def _dial(self, sandbox: str, port: int) -> socket.socket:
        self.dials.append((sandbox, port))
        there = self.inside.get((sandbox, port))
        if there is None:
            raise ConnectionRefusedError
        connected = socket.socket()
        connected.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", there))
        except BaseException:
            connected.close()
            raise
        return connected

    def share(
        self, sandbox: str, port: int, there: int | None, token: str | None = TOKEN, expires: float | None = None,
        name: str | None = None,
    ) -> str:  # fmt: skip
        """Share a preview and return its host name."""
        if there is not None:
            self.inside[sandbox, port] = there
        hashed = None if token is None else hashlib.sha256(token.encode()).hexdigest()
        share = SharePreview(sandbox=sandbox, port=port, token_hash=hashed, expires=expires, name=name)

        async def put() -> None:
            self.previews.share(share)

        self.call(put())
        return f"{name or port}-{sandbox}.localhost:{self.port}"

    def unshare(self, sandbox: str, port: int) -> None:
        async def take() -> None:
            self.previews.unshare(sandbox, port)

        self.call(take())

    def ask(
        self, host: str, path: str = "/", *, method: str = "GET", token: str | None = TOKEN, body: Any = None,
        **headers: str,
    ) -> tuple[http.client.HTTPResponse, bytes]:  # fmt: skip
        """Send one request on a new connection. Header names: `_` for `-`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["X-Skerry-Preview-Token"] = token
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers={"Host": host, **given})
            answer = connection.getresponse()
            return answer, answer.read()

    def raw(self, data: bytes, *, end: bool = False) -> bytes:
        """Send raw bytes and return the answer until the peer closes."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20, source_address=(source, 0))


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes. A connection that stays open fails the test with a timeout."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            got += piece
    return got


class Inside(http.server.BaseHTTPRequestHandler):
    """A program inside that records its requests."""

    protocol_version = "HTTP/1.1"
    seen: deque[tuple[str, str, list[tuple[str, str]], bytes]]

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        self.server.seen.append((self.command, self.path, self.headers.items(), body))  # type: ignore[attr-defined]
        self.answer(body)

    def answer(self, body: bytes) -> None:
        name = self.path.partition("?")[0].strip("/").replace("-", "_")
        found = getattr(self, f"give_{name}", None)
        if found is not None:
            found()
            return
        self.whole(200, str(len(body)).encode() if body else b"hello")

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET  # noqa: N815 -- as http.server looks them up

    def whole(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)

    def give_nothing(self) -> None:
        self.whole(204, b"")

    def give_same(self) -> None:
        self.whole(304, b"")

    def give_cookies(self) -> None:
        lines = ("a=1; Domain=localhost; Path=/", "b=2; dOmAiN = .localhost; HttpOnly", "skerry_preview=mine", "c=3")
        more = (("Service-Worker-Allowed", "/"), ("Clear-Site-Data", '"*"'), ("Alt-Svc", 'h2="evil.example:443"'))
        self.whole(200, b"", *(("Set-Cookie", line) for line in lines), *more)

    def give_moved(self) -> None:
        self.whole(302, b"", ("Location", "/next"))

    def give_hop(self) -> None:
        self.whole(200, b"", ("Connection", "X-Mine, keep-alive"), ("X-Mine", "1"), ("Keep-Alive", "timeout=5"),
                   ("Proxy-Authenticate", "Basic"), ("X-Other", "2"))  # fmt: skip

    def give_big(self) -> None:
        self.whole(200, b"x" * (8 << 20))

    def give_events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            self.server.gate.acquire(timeout=20)  # type: ignore[attr-defined]
            piece = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def give_until_close(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")
        self.close_connection = True

    def give_torn(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        self.close_connection = True

    def give_nonsense(self) -> None:
        self.wfile.write(b"!\0 not http at all\r\n\r\n")
        self.close_connection = True

    def give_close(self) -> None:
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def inside(handler: type = Inside, port: int = 0) -> Iterator[Any]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.daemon_threads = True
    server.seen, server.gate = deque(maxlen=1000), threading.Semaphore(0)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()


@contextlib.contextmanager
def serve_raw(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve each connection with `talk`; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(20)
            threading.Thread(target=_quietly, args=(talk, connection), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _quietly(talk: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        talk(connection)
