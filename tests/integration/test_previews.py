"""Ports of sandboxes, shown by URL."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.server import Server, wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from skerry import AsyncSandbox, Conflict, InvalidRequest, Lifecycle, NotFound, Preview, QuotaExceeded, Sandbox

PROGRAM = r"""
import base64, hashlib, http.server, socketserver, sys, threading
gate = threading.Semaphore(0)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            while head := self.rfile.read(2):  # small frames, sent back as they are but unmasked
                mask, size = self.rfile.read(4), head[1] & 127
                data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
                self.connection.sendall(bytes([head[0], size]) + data)
                if head[0] & 15 == 8: break
            self.close_connection = True
            return
        if self.path == "/next": gate.release(); return self.say(b"released")
        if self.path == "/events":
            self.send_response(200); self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for number in range(3):
                gate.acquire(); piece = b"data: %d\n\n" % number
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.say(f"{self.path}\n{self.headers}".encode())
    def do_PUT(self):
        left = int(self.headers["Content-Length"]); digest = hashlib.sha256()
        while left: piece = self.rfile.read(min(left, 65536)); digest.update(piece); left -= len(piece)
        self.say(digest.hexdigest().encode())
    def say(self, body):
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def serve_inside(sandbox: Sandbox, port: int) -> None:
    sandbox.files.write("/workspace/program.py", PROGRAM)
    sandbox.spawn(f"exec python3 program.py {port}")
    sandbox.wait_for_port(port)


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        serve_inside(sandbox, 8000)
        yield sandbox


def ask(preview: Preview, path: str = "/", *, token: bool = True, **headers: str) -> tuple[int, bytes]:
    """As a program asks that can't look up names below localhost: by address, with the name as Host."""
    connection = connected(preview)
    with contextlib.closing(connection):
        given = {"X-Skerry-Preview-Token": preview.token} if token and preview.token else {}
        connection.request("GET", path, headers={"Host": urlsplit(preview.url).netloc, **given, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()


def connected(preview: Preview) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", urlsplit(preview.path_url).port or 0, timeout=60)


def curl(preview: Preview, *args: str, url: str | None = None) -> str:
    place = urlsplit(preview.url).netloc
    done = subprocess.run(
        ["curl", "-sS", "--resolve", f"{place}:127.0.0.1", *args, url or preview.url],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_preview_needs_its_token(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    assert re.fullmatch(rf"http://8000-{sandbox.id}\.localhost:\d+/", preview.url)
    assert preview.token is not None
    assert len(preview.token) >= 43
    assert ask(preview, "/a?b=c")[1].startswith(b"/a?b=c\n")
    assert ask(preview, token=False)[0] == 404
    assert preview.token.encode() not in ask(preview)[1]
    assert preview.token not in repr(preview)


def test_link_opens_once_in_a_browser(sandbox: Sandbox, tmp_path: Path) -> None:
    preview, jar = sandbox.expose(8000), str(tmp_path / "cookies")
    assert curl(preview, "-L", "-c", jar, "-b", jar, url=preview.link).startswith("/\n")
    assert curl(preview, "-b", jar, url=f"{preview.url}page").startswith("/page\n")
    assert "No preview here" in curl(preview)


def test_path_form_works_without_host_names(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    got = curl(preview, "-H", f"X-Skerry-Preview-Token: {preview.token}", url=f"{preview.path_url}deep")
    assert got.startswith("/deep\n")
    assert f"X-Forwarded-Prefix: /-/8000-{sandbox.id}".lower() in got.lower()


def test_program_sees_the_preview_host_and_the_client_address(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    _, seen = ask(preview, **{"X-Forwarded-For": "6.6.6.6"})
    headers = dict(line.lower().split(": ", 1) for line in seen.decode().splitlines() if ": " in line)
    place = urlsplit(preview.url).netloc
    assert (headers["host"], headers["x-forwarded-host"]) == (place, place)
    assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.1", "http")


def web_socket(preview: Preview) -> ClientConnection:
    sock = socket.create_connection(("127.0.0.1", urlsplit(preview.path_url).port or 0), timeout=30)
    token = {"X-Skerry-Preview-Token": preview.token or ""}
    return connect(preview.url.replace("http", "ws"), sock=sock, additional_headers=token)


def test_websocket_passes_and_ends_with_the_preview(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    with web_socket(preview) as web:
        for message in ("text", b"bytes"):
            web.send(message)
            assert web.recv(30) == message
    with web_socket(preview) as web:
        web.send("x")
        assert web.recv(30) == "x"
        preview.revoke()
        with pytest.raises(ConnectionClosed):
            web.recv(30)


def test_large_upload_is_complete(sandbox: Sandbox, tmp_path: Path) -> None:
    preview, file = sandbox.expose(8000), tmp_path / "large"
    file.write_bytes(os.urandom(30 << 20))
    here = subprocess.run(["sha256sum", str(file)], capture_output=True, text=True, check=True).stdout[:64]
    assert curl(preview, "-T", str(file), "-H", f"X-Skerry-Preview-Token: {preview.token}") == here


def test_server_sent_events_are_not_buffered(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    connection = connected(preview)
    headers = {"Host": urlsplit(preview.url).netloc, "X-Skerry-Preview-Token": preview.token or ""}
    connection.request("GET", "/events", headers=headers)
    answer = connection.getresponse()
    for number in range(3):
        ask(preview, "/next")  # the program sends the next one only now
        assert answer.read1(100) == b"data: %d\n\n" % number
    connection.close()


def test_starting_program_is_waited_for(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8001)
    got: list[tuple[int, bytes]] = []
    asking = threading.Thread(target=lambda: got.append(ask(preview, "/late")))
    asking.start()
    sandbox.spawn("sleep 1; exec python3 program.py 8001")
    asking.join(30)
    assert got[0][0] == 200
    preview.revoke()


def test_exposing_a_port_again_updates_its_preview(sandbox: Sandbox) -> None:
    first = sandbox.expose(8002)
    second = sandbox.expose(8002, public=True, expires="1h")
    third = sandbox.expose(8002)
    assert first.url == second.url == third.url
    assert first.info.id == second.info.id
    assert (second.token, second.link, second.public) == (None, second.url, True)
    assert second.expires is not None
    assert abs(second.expires - time.time() - 3600) < 60
    assert (third.token, third.expires) == (first.token, None)
    assert [preview.info for preview in sandbox.previews.list() if preview.port == 8002] == [third.info]
    third.revoke()


def test_named_preview_has_its_name_in_the_url(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000, name="web")
    assert re.fullmatch(rf"http://web-{sandbox.id}\.localhost:\d+/", preview.url)
    assert preview.path_url.endswith(f"/-/web-{sandbox.id}/")
    assert ask(preview, "/a")[1].startswith(b"/a\n")
    assert sandbox.expose(8000).name == "web"
    assert sandbox.previews.get("web").info == sandbox.previews.get(8000).info
    with pytest.raises(Conflict, match="already has the name 'web'"):
        sandbox.expose(8003, name="web")
    preview.revoke()
    with pytest.raises(NotFound, match="no preview with name 'web'"):
        sandbox.previews.get("web")
    sandbox.expose(8003, name="web").revoke()


def test_chosen_token_opens_the_preview_and_is_checked(sandbox: Sandbox) -> None:
    chosen = "chosen-token-0123456789"
    first = sandbox.expose(8000, token=chosen)
    assert first.token == chosen
    assert ask(first)[0] == 200
    assert sandbox.expose(8000).token == chosen
    assert sandbox.previews.check_token(8000, chosen)
    assert not sandbox.previews.check_token(8000, f"{chosen}x")
    changed = sandbox.expose(8000, token="another-token-0123456789")
    assert [ask(preview)[0] for preview in (first, changed)] == [404, 200]
    changed.revoke()
    assert not sandbox.previews.check_token(8000, "another-token-0123456789")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "8000"}, {"name": "Web"}, {"name": "a_b"}, {"name": "a" * 33}, {"name": "-a"}, {"name": ""},
        {"token": "short"}, {"token": "x" * 129}, {"token": "a b" * 10}, {"token": "é" * 20},
        {"token": "skt_" + "a" * 40}, {"token": "x" * 20, "public": True},
    ],
)  # fmt: skip
def test_invalid_name_or_token_is_rejected(server: Server, sandbox: Sandbox, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        sandbox.expose(8000, **wrong)
    assert "x" * 20 not in str(refused.value)
    with server.http() as http_:
        path = f"/v1/sandboxes/{sandbox.id}/previews"
        assert http_.post(path, json={"port": 8000, **wrong}).status_code == 400


def test_public_preview_needs_no_token_until_it_is_private_again(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000, public=True)
    assert ask(preview, token=False)[0] == 200
    sandbox.expose(8000)
    assert ask(preview, token=False)[0] == 404


def test_revoked_and_expired_previews_are_gone(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    assert ask(preview)[0] == 200
    preview.revoke()
    assert ask(preview)[0] == 404
    with pytest.raises(NotFound, match="no preview of port 8000"):
        preview.revoke()
    again = sandbox.expose(8000, expires=0.5)
    assert again.token != preview.token

    def gone() -> bool:
        try:
            return ask(again)[0] == 404
        except (ConnectionError, http.client.HTTPException):
            return False  # the preview ended during this request: the end closes open connections

    wait_until(gone, "it to expire")
    assert 8000 not in [one.port for one in sandbox.previews.list()]


def test_previews_of_another_owner_are_not_found(server: Server, sandbox: Sandbox) -> None:
    sandbox.expose(8000)
    with server.http() as http_:
        token = http_.post("/v1/tokens", json={"scope": "use", "owner": "mallory"}).json()["secret"]
        headers = {"Authorization": f"Bearer {token}"}
        path = f"/v1/sandboxes/{sandbox.id}/previews"
        assert http_.get(path, headers=headers).status_code == 404
        assert http_.post(path, headers=headers, json={"port": 8000, "public": True}).status_code == 404
        assert http_.delete(f"{path}/8000", headers=headers).status_code == 404


def test_token_does_not_reach_another_sandbox(server: Server, sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    with Sandbox(server=server.address) as other:
        second = other.expose(8000)
        place = urlsplit(second.url).netloc
        assert ask(preview, Host=place)[0] == 404


def test_invalid_request_is_rejected(sandbox: Sandbox) -> None:
    for port in (0, 65536, -1):
        with pytest.raises(InvalidRequest):
            sandbox.expose(port)
    with pytest.raises(InvalidRequest):
        sandbox.expose(8000, expires="soon")


def test_number_of_previews_is_bounded(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        for port in range(9000, 9064):
            sandbox.expose(port)
        sandbox.expose(9000)
        with pytest.raises(QuotaExceeded):
            sandbox.expose(9999)


def test_preview_is_deleted_with_its_sandbox(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        serve_inside(sandbox, 8000)
        preview = sandbox.expose(8000)
        assert ask(preview)[0] == 200
        box_id = sandbox.id
    assert ask(preview)[0] == 404
    assert server.sql("SELECT * FROM previews WHERE sandbox = ?", box_id) == []


def test_preview_resumes_a_paused_sandbox(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        serve_inside(sandbox, 8000)
        preview = sandbox.expose(8000)
        assert ask(preview)[0] == 200  # a connection is kept from now on
        sandbox.pause()
        assert ask(preview)[0] == 200
        # the server inside can answer as soon as the sandbox is thawed, before its record is written
        wait_until(lambda: sandbox.info().state == "running", "the resume to be recorded")


def test_preview_resumes_a_stopped_sandbox(server: Server) -> None:
    with Sandbox(server=server.address, name=f"sleeper-{os.getpid()}") as sandbox:
        preview = sandbox.expose(8000)
        sandbox.stop()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, preview)
            wait_until(lambda: sandbox.info().state == "running", "it to be woken")
            serve_inside(sandbox, 8000)  # like a separate service starts
            assert asking.result(60)[0] == 200
        sandbox.delete()


def test_sandbox_without_auto_resume_stays_asleep(server: Server) -> None:
    name = f"sound-{os.getpid()}"
    with Sandbox(server=server.address, name=name, lifecycle=Lifecycle(auto_resume=False)) as sandbox:
        serve_inside(sandbox, 8000)
        preview = sandbox.expose(8000)
        assert ask(preview)[0] == 200
        sandbox.pause()
        told = set()
        for _ in range(20):
            with contextlib.suppress(ConnectionError, http.client.HTTPException):  # a kept connection is cut
                told.add(ask(preview)[0])
        assert told == {503}, "it is there, and asleep, at every moment"
        assert sandbox.info().state == "paused"
        sandbox.resume()
        assert ask(preview)[0] == 200
        sandbox.delete()


def test_preview_listener_does_not_serve_the_api(sandbox: Sandbox) -> None:
    preview = sandbox.expose(8000)
    for host in ("localhost", "127.0.0.1", urlsplit(preview.url).netloc.removeprefix(f"8000-{sandbox.id}.")):
        for path in ("/v1/sandboxes", "/healthz", "/openapi.json", "/", f"/v1/sandboxes/{sandbox.id}/previews"):
            assert ask(preview, path, Host=host)[0] == 404
    assert ask(preview, "/v1/sandboxes", Host="evil.example")[0] == 421


def test_listener_is_on_loopback_and_holds_the_ipv6_port(sandbox: Sandbox) -> None:
    port = urlsplit(sandbox.expose(8000).path_url).port or 0
    lines = Path("/proc/net/tcp").read_text().splitlines()
    assert any(f"0100007F:{port:04X}" in line for line in lines)
    with socket.socket(socket.AF_INET6) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            thief.bind(("::1", port))


async def test_async_client_exposes(server: Server, sandbox: Sandbox) -> None:
    twin = await AsyncSandbox.get(sandbox.id, server=server.address)
    preview = await twin.expose(8003, expires=60)
    assert [one.url for one in await twin.previews.list() if one.port == 8003] == [preview.url]
    await preview.revoke()
    await twin.aclose()


def skerry(server: Server, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "skerry", "--server", server.address, *args],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_commands_expose_list_and_revoke(server: Server, sandbox: Sandbox) -> None:
    link = skerry(server, "expose", sandbox.id, "8000").strip()
    assert re.fullmatch(rf"http://8000-{sandbox.id}\.localhost:\d+/\?skerry_token=[\w-]+", link)
    data = json.loads(skerry(server, "expose", sandbox.id, "8004", "--public", "--expires", "1h", "--json"))
    assert data["link"] == data["url"]
    assert data["token"] is None
    rows = skerry(server, "preview", "ls", sandbox.id).splitlines()
    assert rows[0].split() == ["PORT", "NAME", "ACCESS", "EXPIRES", "LINK"]
    assert any(row.startswith("8004") and "public" in row for row in rows)
    skerry(server, "preview", "rm", sandbox.id, "8004")
    assert 8004 not in [one["port"] for one in json.loads(skerry(server, "preview", "ls", "--json", sandbox.id))]
    skerry(server, "preview", "rm", sandbox.id)
    assert json.loads(skerry(server, "preview", "ls", "--json", sandbox.id)) == []


# One from above those that servers look for first: other servers of this machine start and end meanwhile.
ANY_PORT = {"SKERRY_PREVIEW_LISTEN": "127.0.0.1:0"}

# -- servers and workers that end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_urls_survive_a_server_restart(own_server: Server, how: signal.Signals) -> None:
    own_server.start(**ANY_PORT)
    with Sandbox(server=own_server.address) as sandbox:
        serve_inside(sandbox, 8000)
        preview = sandbox.expose(8000)
        assert ask(preview)[0] == 200
        own_server.end(how)
        own_server.start(**ANY_PORT)
        again = Sandbox.get(sandbox.id, server=own_server.address)
        assert [one.info for one in again.previews.list()] == [preview.info]
        wait_until(lambda: _quietly(lambda: ask(preview)[0]) == 200, "the preview to be back")


def test_leftovers_of_deleted_sandboxes_are_swept(own_server: Server) -> None:
    own_server.start(**ANY_PORT)
    own_server.end()
    own_server.sql("INSERT INTO previews VALUES ('sb-aaaaaaaaaa', 80, 'pv-a', 0, 'token', 0, NULL, NULL)")
    own_server.start(**ANY_PORT)
    assert own_server.sql("SELECT * FROM previews") == []


def test_dead_worker_is_replaced(own_server: Server) -> None:
    own_server.start()
    with Sandbox(server=own_server.address) as sandbox:
        serve_inside(sandbox, 8000)
        preview = sandbox.expose(8000)
        assert ask(preview)[0] == 200
        worker = _worker_of(own_server)
        gone = os.pidfd_open(worker)
        os.kill(worker, signal.SIGKILL)
        assert select.select([gone], [], [], 10)[0]
        os.close(gone)
        assert ask(preview)[0] == 200, "who asks meanwhile waits for the next one, which knows every preview"


def _worker_of(server: Server) -> int:
    assert server.process is not None
    for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"skerry.network.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("the server has no network worker")


def _quietly(work: Callable[[], int]) -> int | None:
    try:
        return work()
    except (OSError, http.client.HTTPException):
        return None


def test_taken_port_is_replaced_by_the_next(own_server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own_server.start(SKERRY_PREVIEW_LISTEN=f"127.0.0.1:{port}")
        with Sandbox(server=own_server.address) as sandbox:
            serve_inside(sandbox, 8000)
            preview = sandbox.expose(8000)
            assert urlsplit(preview.url).port != port
            assert ask(preview)[0] == 200
        assert "preview port is in use" in own_server.tail()


def test_domain_behind_a_tls_proxy_is_in_the_urls(own_server: Server) -> None:
    own_server.start(SKERRY_PREVIEW_URL="https://*.preview.example.com", SKERRY_PREVIEW_LISTEN="127.0.0.1:0")
    with Sandbox(server=own_server.address) as sandbox:
        serve_inside(sandbox, 8000)
        preview = sandbox.expose(8000)
        assert preview.url == f"https://8000-{sandbox.id}.preview.example.com/"
        status, seen = ask(preview)
        assert status == 200
        assert b"x-forwarded-proto: https" in seen.lower()


def test_disabled_previews_cannot_be_created(own_server: Server) -> None:
    own_server.start(SKERRY_PREVIEW_LISTEN="none")
    with Sandbox(server=own_server.address) as sandbox, pytest.raises(Exception, match="not served here"):
        sandbox.expose(8000)
