"""Ports of E2B's sandboxes by host name and by header: HTTP, streams, WebSockets, access tokens."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from support.e2b import SETTINGS, Account, Box
from support.server import Server, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, unix_connect

from skerry.codecs.api_keys import key_of
from skerry.config import socket_path

OPERATORS = SETTINGS
PROGRAM = r"""
import base64, hashlib, http.server, socketserver, threading
gate = threading.Semaphore(0)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket" and self.path != "/refuse": return self.socket()
        if self.path == "/next": gate.release(); return self.say(b"released")
        if self.path == "/raw": self.wfile.write(b"no http\r\n\r\n"); self.close_connection = True; return
        if self.path == "/cut": self.close_connection = True; return
        if self.path == "/none":
            self.send_response(304); self.send_header("Content-Length", "7"); self.end_headers(); return
        if self.path == "/events":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for number in range(2):
                gate.acquire(); piece = b"%d\n" % number
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n"); return
        self.say(f"{self.path}\n{self.headers}".encode())
    do_HEAD = do_OPTIONS = do_GET
    def do_PUT(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16): data += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        else: data = self.rfile.read(int(self.headers["Content-Length"]))
        self.say(hashlib.sha256(data).hexdigest().encode())
    def say(self, body):
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Set-Cookie", "a=b; Domain=example; Path=/"); self.send_header("X-Accel-Redirect", "/etc")
        self.send_header("Content-Length", str(len(body))); self.end_headers()
        if self.command != "HEAD": self.wfile.write(body)
    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101); self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
        given = self.headers.get("Sec-WebSocket-Protocol")
        if given: self.send_header("Sec-WebSocket-Protocol", given.split(",")[0])
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while head := self.rfile.read(2):
            mask, size = self.rfile.read(4), head[1] & 127
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
            if data == b"huge": self.connection.sendall(b"\x82\x7f" + (1 << 40).to_bytes(8, "big"))
            else: self.connection.sendall(bytes([head[0], size]) + data)
            if head[0] & 15 == 8: break
        self.close_connection = True
    def log_message(self, *words): pass
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("127.0.0.1", 8080), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[Account]:
    made = Account(server, "ann")
    with made.http:
        yield made


@contextmanager
def serving(account: Account, **more: Any) -> Iterator[Box]:
    """Create a sandbox with the program on port 8080."""
    box = account.create(**more)
    try:
        box.account.http.post("/files?path=app.py", files={"file": ("app.py", PROGRAM.encode())}, headers=box.headers())
        box.run("setsid -f python3 app.py > log 2>&1")
        token = {"E2B-Traffic-Access-Token": box.made["trafficAccessToken"]}
        wait_until(lambda: visit(box, "/", headers=token).status_code == 200, "the program")
        yield box
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


@pytest.fixture(scope="module")
def box(account: Account) -> Iterator[Box]:
    with serving(account) as made:
        yield made


@pytest.fixture(scope="module")
def closed(account: Account) -> Iterator[Box]:
    """A sandbox with ports that need an access token."""
    network = {"allowPublicTraffic": False, "maskRequestHost": "inside.example:${PORT}"}
    with serving(account, network=network) as made:
        yield made


def host(box: Box, port: int = 8080) -> str:
    return f"{port}-{box.id}.boxes.example"


def visit(
    box: Box, path: str, method: str = "GET", headers: dict[str, str] | None = None, **more: Any
) -> httpx2.Response:
    port = more.pop("port", 8080)
    return box.account.http.request(method, path, headers={"Host": host(box, port), **(headers or {})}, **more)


def websocket(server: Server, box: Box, path: str = "/", **more: Any) -> ClientConnection:
    return unix_connect(
        str(socket_path(server.state_dir)), uri=f"ws://{host(box)}{path}", open_timeout=60, close_timeout=60, **more
    )


def test_port_is_reached_by_its_host_name(box: Box) -> None:
    answer = visit(box, "/a%2Fb?x=1&y=%20", headers={"Origin": "https://elsewhere.example", "Cookie": "c=d"})
    assert answer.status_code == 200
    path, _, lines = answer.text.partition("\n")
    assert path == "/a%2Fb?x=1&y=%20"
    assert f"host: {host(box)}" in lines.lower()
    assert "cookie: c=d" in lines.lower()
    assert "x-forwarded-proto: http\n" in lines.lower().replace("\r", "")
    assert visit(box, "/missing").status_code == 404
    assert visit(box, "/", "HEAD").content == b""
    assert visit(box, "/none").status_code == 304


def test_port_is_reached_by_headers(box: Box) -> None:
    headers = {"E2b-Sandbox-Id": box.id, "E2b-Sandbox-Port": "8080"}
    answer = box.account.http.get("/by-header", headers=headers)
    assert answer.text.startswith("/by-header\n")
    assert "e2b-" not in answer.text.lower()
    assert f"host: {host(box)}" in answer.text.lower()


@pytest.mark.parametrize("size", [0, 3 << 20])
def test_body_reaches_the_program_whole(box: Box, size: int) -> None:
    data = bytes(range(256)) * (size // 256)
    assert visit(box, "/", "PUT", content=data).text == hashlib.sha256(data).hexdigest()
    pieces = (data[start : start + 100_000] for start in range(0, len(data), 100_000))
    assert visit(box, "/", "PUT", content=pieces).text == hashlib.sha256(data).hexdigest()


def test_response_streams_as_the_program_writes_it(box: Box) -> None:
    with box.account.http.stream("GET", "/events", headers={"Host": host(box)}) as answer:
        lines = answer.iter_lines()
        for number in ("0", "1"):
            assert visit(box, "/next").text == "released"
            assert next(lines) == number


def test_websocket_messages_pass_in_both_directions(server: Server, box: Box) -> None:
    with websocket(server, box, "/ws", subprotocols=["chat", "skerry"]) as line:
        assert line.subprotocol == "chat"
        for message in ("text", b"\x00\xff", "", "ä"):
            line.send(message)
            assert line.recv(60) == message
    with pytest.raises(InvalidStatus) as refused, websocket(server, box, "/refuse"):
        pass
    assert refused.value.response.status_code == 200


def test_port_without_a_program_is_unavailable(box: Box) -> None:
    answer = visit(box, "/", port=8081)
    assert (answer.status_code, answer.json()["code"], answer.json()["port"]) == (502, 502, 8081)
    assert answer.json()["sandboxId"] == box.id
    for path in ("/raw", "/cut"):
        answer = visit(box, path)
        assert (answer.status_code, answer.json()["code"]) == (502, 502), path
    gone = box.account.http.get("/", headers={"Host": "8080-sb-aaaaaaaaaa.boxes.example"})
    assert gone.status_code == 502


def test_private_ports_need_the_access_token(closed: Box, box: Box) -> None:
    for token in (None, "x", box.made["trafficAccessToken"], closed.account.key):
        headers = {"E2B-Traffic-Access-Token": token} if token is not None else {}
        answer = visit(closed, "/", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, 403), token
    answer = visit(closed, "/", headers={"E2B-Traffic-Access-Token": closed.made["trafficAccessToken"]})
    assert answer.status_code == 200
    assert "host: inside.example:8080" in answer.text.lower()
    assert closed.made["trafficAccessToken"] not in answer.text
    shown = closed.account.api("GET", f"/sandboxes/{closed.id}").json()["network"]
    assert (shown["allowPublicTraffic"], shown["maskRequestHost"]) == (False, "inside.example:${PORT}")


def test_sandbox_of_other_clients_has_no_public_ports(server: Server) -> None:
    with server.http() as http:
        made = http.post("/v1/sandboxes", json={"image": "base"}).raise_for_status().json()
        try:
            answer = http.get("/", headers={"Host": f"8080-{made['id']}.boxes.example"})
            assert (answer.status_code, answer.json()["code"]) == (403, 403)
        finally:
            http.delete(f"/v1/sandboxes/{made['id']}").raise_for_status()


def test_paused_sandbox_resumes_for_permitted_traffic_only(account: Account) -> None:
    with serving(account, autoPause=True, autoResume={"enabled": True}, network={"allowPublicTraffic": False}) as box:

        def state() -> str:
            found: str = account.api("GET", f"/sandboxes/{box.id}").json()["state"]
            return found

        assert account.api("POST", f"/sandboxes/{box.id}/pause").status_code == 204
        assert visit(box, "/").status_code == 403
        assert state() == "paused"
        assert visit(box, "/", headers={"E2B-Traffic-Access-Token": box.made["trafficAccessToken"]}).status_code == 200
        assert state() == "running"
    with serving(account) as box:
        assert account.api("POST", f"/sandboxes/{box.id}/pause").status_code == 204
        assert (visit(box, "/").status_code, account.api("GET", f"/sandboxes/{box.id}").json()["state"]) == (
            502,
            "paused",
        )


def test_path_of_the_api_on_a_port_reaches_the_program(box: Box) -> None:
    """A program may have the paths of the control plane; its host name decides."""
    answer = visit(box, "/v2/sandboxes", headers={"X-API-Key": "the program's"})
    assert answer.text.startswith("/v2/sandboxes\n")
    assert "x-api-key: the program's" in answer.text.lower()


def test_tokens_of_the_server_do_not_reach_the_program(box: Box) -> None:
    headers = {
        "X-API-Key": box.account.key, "Authorization": f"Bearer {box.account.key}", "X-Access-Token": box.token,
        "E2B-Traffic-Access-Token": box.made["trafficAccessToken"], "X-Other": key_of(box.account.key),
    }  # fmt: skip
    answer = visit(box, "/", headers=headers)
    assert answer.status_code == 200
    for secret in headers.values():
        assert secret not in answer.text


def test_response_cannot_command_a_proxy_or_other_hosts(box: Box) -> None:
    answer = visit(box, "/")
    assert "x-accel-redirect" not in answer.headers
    assert "domain" not in answer.headers["set-cookie"].lower()


def test_huge_message_of_a_program_ends_its_websocket(server: Server, box: Box) -> None:
    with websocket(server, box, "/ws") as line:
        line.send("huge")
        with pytest.raises(ConnectionClosed):
            line.recv(60)
    assert visit(box, "/").status_code == 200


@pytest.mark.parametrize("name", ["0-{}", "65536-{}", "08080-{}x", "-{}"])
def test_host_names_without_a_port_reach_no_program(box: Box, name: str) -> None:
    answer = box.account.http.get("/", headers={"Host": f"{name.format(box.id)}.boxes.example"})
    assert answer.status_code in (400, 401, 404, 502), answer.text
    assert "user-agent" not in answer.text.lower()


@pytest.mark.parametrize(
    "lines",
    [
        "GET / HTTP/1.1\r\nHost: {}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        "GET / HTTP/1.1\r\nHost: {}\r\nX: a\r\n b: c\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "TRACE / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {}\r\nHost: other\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {}\r\nX: a\0b\r\nConnection: close\r\n\r\n",
    ],
)
def test_ambiguous_request_does_not_reach_the_program(server: Server, box: Box, lines: str) -> None:
    """Two readings of one request could hide another request behind the first."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(str(socket_path(server.state_dir)))
        line.sendall(lines.format(host(box)).encode())
        assert line.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_masks_that_are_no_host_are_refused(account: Account) -> None:
    for mask in ("a b", "a\r\nX: y", "", "${PORT}", "a:${HOST}", "a/b", "x" * 300):
        answer = account.api("POST", "/sandboxes", json={"templateID": "base", "network": {"maskRequestHost": mask}})
        assert (answer.status_code, answer.json()["code"]) == (400, 400), mask
