"""The worker's previews: access, forwarding, and the headers that each side sees."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.previews import BOX, OTHER, OTHER_TOKEN, TOKEN, PreviewHarness, inside, read_all, serve_raw
from support.server import wait_until
from websockets.sync.client import connect
from websockets.sync.server import serve

from skerry.network.worker.previews import listener, upstream


@pytest.fixture
def harness() -> Iterator[PreviewHarness]:
    made = PreviewHarness().start()
    yield made
    made.stop()


@pytest.fixture
def program() -> Iterator[Any]:
    with inside() as made:
        yield made


@pytest.fixture
def host(harness: PreviewHarness, program: Any) -> str:
    return harness.share(BOX, 8000, program.server_port)


def headers_seen(program: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in program.seen[-1][2]}


def test_many_small_pieces_leave_others_their_turn(
    harness: PreviewHarness, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, most = 0, 0

    def piece(*_: int) -> None:
        nonlocal pieces
        pieces += 1

    async def watch() -> None:
        nonlocal most
        while pieces < 20_000:
            before = pieces
            await asyncio.sleep(0)
            most = max(most, pieces - before)

    def small(connection: socket.socket) -> None:
        connection.recv(65536)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")

    monkeypatch.setattr(listener.UsageReporter, "of", lambda *_: piece)
    with serve_raw(small) as there:
        harness.inside[BOX, 8000] = there
        watching = asyncio.run_coroutine_threadsafe(watch(), harness._loop)
        _, body = harness.ask(host)
        watching.result(20)
    assert body == b"x" * 20_000
    assert most <= 200


# -- access -----------------------------------------------------------------------------------------------------------


def test_a_request_with_the_token_reaches_the_program(harness: PreviewHarness, host: str) -> None:
    answer, body = harness.ask(host, "/path?a=1&b=2")
    assert (answer.status, body) == (200, b"hello")


def test_request_without_the_token_learns_and_reaches_nothing(harness: PreviewHarness, program: Any, host: str) -> None:
    wrong = [harness.ask(host, token=token) for token in (None, "", "wrong", OTHER_TOKEN, TOKEN + "x", TOKEN[:-1])]
    nowhere = [
        harness.ask(name)
        for name in (f"8001-{BOX}.localhost", f"8000-{OTHER}.localhost", "nothing.localhost", "a.b.localhost",
                     f"08000-{BOX}.localhost", f"80000-{BOX}.localhost", f"x.8000-{BOX}.localhost")
    ]  # fmt: skip
    answers = {(answer.status, body) for answer, body in (*wrong, *nowhere)}
    assert len(answers) == 1  # an existing preview looks like a missing one
    assert answers.pop()[0] == 404
    assert not program.seen
    assert not harness.dials


def test_a_public_preview_needs_no_token(harness: PreviewHarness, program: Any) -> None:
    host = harness.share(BOX, 8000, program.server_port, token=None)
    assert harness.ask(host, token=None)[0].status == 200


def test_another_previews_token_opens_nothing(harness: PreviewHarness, program: Any, host: str) -> None:
    other = harness.share(OTHER, 8000, program.server_port, OTHER_TOKEN)
    assert harness.ask(host, token=OTHER_TOKEN)[0].status == 404
    assert harness.ask(other, token=TOKEN)[0].status == 404
    assert harness.ask(host, f"/-/8000-{OTHER}/", token=TOKEN)[1] == b"hello"  # the host decides, not the path
    assert harness.dials[-1] == (BOX, 8000)


def test_a_link_sets_a_cookie_once_and_leads_to_the_clean_address(
    harness: PreviewHarness, program: Any, host: str
) -> None:
    answer, body = harness.ask(host, f"/page?a=1&skerry_token={TOKEN}&b=2", token=None)
    assert answer.status == 303
    assert b"X-Skerry-Preview-Token" in body  # for curl users, who would see nothing otherwise
    assert harness.ask(host, f"/page?skerry_token={TOKEN}", method="HEAD", token=None)[1] == b""
    assert answer.headers["Location"] == "/page?a=1&b=2"
    assert answer.headers["Set-Cookie"] == f"skerry_preview={TOKEN}; Path=/; HttpOnly; SameSite=Lax"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert not program.seen
    answer, body = harness.ask(host, "/page?a=1", token=None, Cookie=f"x=1; skerry_preview={TOKEN}; y=2")
    assert body == b"hello"
    assert headers_seen(program)["cookie"] == "x=1; y=2"


def test_below_a_domain_with_tls_the_cookie_is_for_tls_and_that_host_alone(harness: PreviewHarness, host: str) -> None:
    name = host.replace(f"localhost:{harness.port}", "preview.example")
    answer, _ = harness.ask(name, f"/?skerry_token={TOKEN}", token=None)
    cookie = f"__Host-skerry_preview={TOKEN}; Path=/; HttpOnly; SameSite=Lax; Secure"
    assert answer.headers["Set-Cookie"] == cookie
    assert harness.ask(name, token=None, Cookie=f"skerry_preview={TOKEN}")[0].status == 404
    assert harness.ask(name, token=None, Cookie=f"__Host-skerry_preview={TOKEN}")[0].status == 200


def test_no_token_of_ours_reaches_the_program(harness: PreviewHarness, program: Any, host: str) -> None:
    harness.ask(host, f"/x?skerry_token={TOKEN}", method="POST", body=b"1", Cookie=f"skerry_preview={TOKEN}",
                Referer=f"http://{host}/?skerry_token={TOKEN}")  # fmt: skip
    command, path, headers, _ = program.seen[-1]
    assert (command, path) == ("POST", "/x")
    assert TOKEN not in str(headers)
    assert "cookie" not in headers_seen(program)


def test_no_token_of_the_api_reaches_the_program(harness: PreviewHarness, program: Any, host: str) -> None:
    token = "skt_" + "a2" * 20
    login = base64.b64encode(f"user:{token}".encode()).decode()
    for value in (f"Bearer {token}", f"bearer  {token}", token, f"Basic {login}"):
        harness.ask(host, Authorization=value, X_Api_Key=token)
        assert not {"authorization", "x-api-key"} & set(headers_seen(program)), value
    for value in ("Bearer the-programs-own", "Basic dXNlcjpwYXNz", "Basic ***"):
        harness.ask(host, Authorization=value)
        assert headers_seen(program)["authorization"] == value


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example", "//evil.example/%2f.."])
def test_an_open_redirect_by_the_tokens_exchange_stays_on_the_preview(
    harness: PreviewHarness, host: str, path: str
) -> None:
    answer, _ = harness.ask(host, f"{path}?skerry_token={TOKEN}", token=None)
    assert answer.status == 303
    assert answer.headers["Location"] == f"/.{path}"


def test_wrong_token_never_becomes_a_cookie(harness: PreviewHarness, program: Any) -> None:
    public = harness.share(BOX, 8000, program.server_port, token=None)
    answer, _ = harness.ask(public, "/?skerry_token=x;Domain=localhost", token=None)
    assert (answer.status, answer.headers["Set-Cookie"]) == (303, None)


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
     {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}, {"Origin": f"http://8000-{OTHER}.localhost"}],
)  # fmt: skip
def test_another_page_can_not_use_the_cookie(harness: PreviewHarness, host: str, headers: dict[str, str]) -> None:
    answer, _ = harness.ask(host, token=None, Cookie=f"skerry_preview={TOKEN}", **headers)
    assert answer.status == 404


def test_a_link_from_elsewhere_and_the_previews_own_page_can(harness: PreviewHarness, host: str) -> None:
    cookie = f"skerry_preview={TOKEN}"
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert harness.ask(host, token=None, Cookie=cookie, **link)[0].status == 200
    assert harness.ask(host, token=None, method="POST", body=b"", Cookie=cookie, **link)[0].status == 404
    assert (
        harness.ask(host, token=None, method="POST", body=b"", Cookie=cookie, Origin=f"http://{host}")[0].status == 200
    )


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["evil.example", "localhost.evil.example", f"8000-{BOX}.localhost.evil.example", f"8000-{BOX}", "10.0.0.1",
     f"8000-{BOX}.localhost.", f"8000-{BOX}.localhost:x", f"8000-{BOX}.localhost:123456", f"8000-{BOX}.localhost@x",
     f"8000-{BOX}_.localhost", "", "[::1", "xlocalhost", "preview.example.evil"],
)  # fmt: skip
def test_dns_rebinding_and_any_other_host_is_refused(
    harness: PreviewHarness, program: Any, host: str, name: str
) -> None:
    answer, _ = harness.ask(name, f"/-/8000-{BOX}/")
    assert answer.status == 421
    assert not harness.dials


@pytest.mark.parametrize("host_line", [b"Host: 8000-sb-aaaaaaaaaa.localhost\0", b"Host: a\0.localhost", b"Host : x",
                                       b"Host: a.localhost\r\nHost: b.localhost", b"X: 1"])  # fmt: skip
def test_a_host_that_is_no_host_is_refused(harness: PreviewHarness, host: str, host_line: bytes) -> None:
    answer = harness.raw(b"GET / HTTP/1.1\r\n" + host_line + b"\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421"))
    assert not harness.dials


def test_upper_case_means_the_same_preview(harness: PreviewHarness, program: Any, host: str) -> None:
    assert harness.ask(host.upper())[0].status == 200
    assert headers_seen(program)["host"] == host


def test_the_path_form_serves_those_without_such_names(harness: PreviewHarness, program: Any, host: str) -> None:
    for name in (f"127.0.0.1:{harness.port}", "localhost", "[::1]:80"):
        answer, body = harness.ask(name, f"/-/8000-{BOX}/deep/file?q=1")
        assert (answer.status, body) == (200, b"hello")
        assert program.seen[-1][1] == "/deep/file?q=1"
    assert headers_seen(program)["x-forwarded-prefix"] == f"/-/8000-{BOX}"
    assert harness.ask("127.0.0.1", f"/-/8000-{BOX}/moved")[0].headers["Location"] == f"/-/8000-{BOX}/next"
    answer, _ = harness.ask("127.0.0.1", f"/-/8000-{BOX}?a=1")
    assert (answer.status, answer.headers["Location"]) == (303, f"/-/8000-{BOX}/?a=1")
    answer, body = harness.ask("127.0.0.1", f"/-/8000-{BOX}/?skerry_token={TOKEN}", token=None)
    assert (answer.status, answer.headers["Set-Cookie"], body) == (200, None, b"hello")
    assert program.seen[-1][1] == "/"


def test_no_cookie_passes_the_path_form_because_all_previews_share_its_origin(
    harness: PreviewHarness, program: Any, host: str
) -> None:
    answer, _ = harness.ask("127.0.0.1", f"/-/8000-{BOX}/cookies", Cookie="theirs=1")
    assert answer.headers.get_all("Set-Cookie") is None
    assert not {"service-worker-allowed", "clear-site-data", "alt-svc"} & {name.lower() for name in answer.headers}
    assert "cookie" not in headers_seen(program)
    cookie = f"skerry_preview={TOKEN}"
    assert harness.ask("127.0.0.1", f"/-/8000-{BOX}/", token=None, Cookie=cookie)[0].status == 404


@pytest.mark.parametrize("path", ["/", "/-/", f"/-/8000-{BOX}x/", f"/-/8000-{BOX.upper()}/", f"/%2d/8000-{BOX}/",
                                  f"/x/-/8000-{BOX}/", f"//-/8000-{BOX}/", f"/-//8000-{BOX}/", f"/-/0-{BOX}/",
                                  f"/-/../-/8000-{BOX}/", f"/-/65536-{BOX}/"])  # fmt: skip
def test_invalid_preview_path_is_not_found(harness: PreviewHarness, host: str, path: str) -> None:
    assert harness.ask("127.0.0.1", path)[0].status == 404
    assert not harness.dials


def test_path_form_traversal_stays_inside_its_preview(harness: PreviewHarness, program: Any, host: str) -> None:
    harness.share(OTHER, 8000, program.server_port, OTHER_TOKEN)
    for path in (f"/-/8000-{BOX}/../8000-{OTHER}/", f"/-/8000-{BOX}/%2e%2e/8000-{OTHER}/"):
        assert harness.ask("127.0.0.1", path)[1] == b"hello"
        assert harness.dials[-1] == (BOX, 8000)


@pytest.mark.parametrize(
    "target", [f"http://8000-{BOX}.localhost/", "*", "8000", "/a b", "http://evil.example/", "/#x"]
)
def test_a_target_that_is_no_path_is_refused(harness: PreviewHarness, host: str, target: str) -> None:
    answer = harness.raw(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400")
    answer = harness.raw(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400")


# -- headers ----------------------------------------------------------------------------------------------------------


def test_untrusted_and_hop_by_hop_headers_are_dropped(harness: PreviewHarness, program: Any, host: str) -> None:
    harness.ask(host, "/hop", X_Forwarded_For="6.6.6.6", X_Forwarded_Host="evil", X_Forwarded_Proto="https",
                Forwarded="for=6.6.6.6", X_Real_IP="6.6.6.6", X_Forwarded_Prefix="/x", Connection="X-Secret, Host",
                X_Secret="1", TE="trailers", Proxy_Authorization="x", Keep_Alive="1", Upgrade="h2c")  # fmt: skip
    seen = headers_seen(program)
    assert (seen["x-forwarded-for"], seen["x-forwarded-host"], seen["x-forwarded-proto"]) == ("127.0.0.1", host, "http")
    assert seen["host"] == host
    gone = {"forwarded", "x-real-ip", "x-forwarded-prefix", "x-secret", "te", "proxy-authorization", "upgrade"}
    assert not gone & set(seen)
    answer, _ = harness.ask(host, "/hop")
    assert answer.headers["X-Other"] == "2"
    assert not {"x-mine", "keep-alive", "proxy-authenticate"} & {name.lower() for name in answer.headers}


def test_a_cookie_for_the_parent_domain_becomes_one_for_the_preview_alone(harness: PreviewHarness, host: str) -> None:
    answer, _ = harness.ask(host, "/cookies")
    assert answer.headers.get_all("Set-Cookie") == ["a=1; Path=/", "b=2; HttpOnly", "c=3"]
    assert "Alt-Svc" not in answer.headers  # it would lead a browser past the token


@pytest.mark.parametrize(
    "name", ["X-Accel-Redirect", "X-Accel-Expires", "X-Sendfile", "X-SendFile-Temporary", "X-Lighttpd-Send-File",
             "X-LiteSpeed-Location", "X-Reproxy-URL", "Clear-Site-Data"],
)  # fmt: skip
def test_attack_program_commands_the_web_server_in_front_or_clears_a_domain(harness: PreviewHarness, name: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(
            f"HTTP/1.1 200 OK\r\n{name}: /etc/passwd\r\nX-Accel-Buffering: no\r\nContent-Length: 2\r\n\r\nhi".encode()
        )

    with serve_raw(answer) as there:
        host = harness.share(BOX, 8000, there)
        response, body = harness.ask(host)
    assert body == b"hi"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert name not in response.headers


def test_answers_without_a_body_are_whole(harness: PreviewHarness, host: str) -> None:
    with harness.connect() as connection:
        for path, status in (("/nothing", b"204"), ("/same", b"304"), ("/", b"200")):
            method = "HEAD" if path == "/" else "GET"
            connection.sendall(
                f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n\r\n".encode()
            )
            head = connection.recv(65536)
            assert head.startswith(b"HTTP/1.1 " + status)
            assert head.endswith(b"\r\n\r\n")
    assert harness.ask(host, method="HEAD")[0].headers["Content-Length"] == "5"


def test_a_refused_head_has_no_body_and_the_connection_goes_on(harness: PreviewHarness, host: str) -> None:
    with harness.connect() as connection:
        for _ in range(2):
            connection.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 404")


def test_an_answer_that_ends_with_the_connection_is_whole(harness: PreviewHarness, host: str) -> None:
    assert harness.ask(host, "/until-close")[1] == b"all of it"


def test_incomplete_response_is_not_taken_for_a_complete_one(harness: PreviewHarness, host: str) -> None:
    request = f"GET /torn HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n\r\n".encode()
    assert b"Content-Length: 100" in (got := harness.raw(request)).replace(b"content-length", b"Content-Length")
    assert len(got.partition(b"\r\n\r\n")[2]) < 100


@pytest.mark.parametrize(("path", "status"), [("/nonsense", 502), ("/close", 502)])
def test_empty_or_invalid_response_becomes_an_error_page(
    harness: PreviewHarness, host: str, path: str, status: int
) -> None:
    answer, body = harness.ask(host, path)
    assert answer.status == status
    assert b"program inside" in body


# -- streams, uploads, WebSocket --------------------------------------------------------------------------------------


def test_events_come_as_they_are_sent(harness: PreviewHarness, program: Any, host: str) -> None:
    with harness.connect() as connection:
        connection.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n\r\n".encode())
        got = b""
        for number in range(3):
            program.gate.release()  # the next one is sent only now
            while b"data: %d\n" % number not in got:
                got += connection.recv(65536)
        assert b"text/event-stream" in got


@pytest.mark.parametrize("extra", [[], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"]])
def test_curl_uploads_much(harness: PreviewHarness, program: Any, host: str, tmp_path: Any, extra: list[str]) -> None:
    """curl announces it with Expect: 100-continue and waits for the answer."""
    file = tmp_path / "large"
    file.write_bytes(b"x" * (20 << 20))
    done = subprocess.run(
        ["curl", "-sS", "-T", str(file), "-H", f"X-Skerry-Preview-Token: {TOKEN}", "--resolve", f"{host}:127.0.0.1",
         *extra, f"http://{host}/upload"],
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == str(20 << 20).encode()


def test_a_large_answer_comes_whole(harness: PreviewHarness, host: str) -> None:
    assert harness.ask(host, "/big")[1] == b"x" * (8 << 20)


def test_response_before_the_end_of_the_upload_is_forwarded(harness: PreviewHarness) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)

    with serve_raw(refuse) as port:
        host = harness.share(BOX, 8000, port)
        head = f"POST / HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\nContent-Length: 99999999\r\n\r\n"
        assert harness.raw(head.encode() + b"x" * 100_000).startswith(b"HTTP/1.1 413")


def test_a_websocket_passes_both_ways(harness: PreviewHarness) -> None:
    with serve(lambda socket: [socket.send(message) for message in socket], "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = harness.share(BOX, 8000, server.socket.getsockname()[1])
        sock = harness.connect()
        with connect(f"ws://{host}/", sock=sock, additional_headers={"X-Skerry-Preview-Token": TOKEN}) as socket_:
            for message in ("text", b"bytes", "x" * 300_000, os.urandom(300_000)):
                socket_.send(message)
                assert socket_.recv(20) == message
        server.shutdown()
    wait_until(lambda: min(harness.sent, harness.received) > 300_000, "the report of the bytes in both directions")


def test_a_websocket_of_another_page_is_refused(harness: PreviewHarness) -> None:
    """Cross-site WebSocket hijacking: browsers send cookies along with those."""
    host = harness.share(BOX, 8000, None)
    request = (
        f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://evil.example\r\n"
        f"Cookie: skerry_preview={TOKEN}\r\n\r\n"
    )
    with harness.connect() as connection:
        connection.sendall(request.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")


# -- waiting and keeping ----------------------------------------------------------------------------------------------


def test_a_server_that_is_just_starting_is_waited_for(harness: PreviewHarness) -> None:
    host = harness.share(BOX, 8000, None)
    got: list[bytes] = []
    asking = threading.Thread(target=lambda: got.append(harness.ask(host)[1]))
    asking.start()
    wait_until(lambda: len(harness.dials) > 2, "it to try again")
    with inside() as program:
        harness.inside[BOX, 8000] = program.server_port
        asking.join(20)
    assert got == [b"hello"]


def test_port_without_a_listener_becomes_an_error_page_after_a_while(
    harness: PreviewHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "START_TIMEOUT_S", 0.3)
    answer, body = harness.ask(harness.share(BOX, 8123, None), Accept="text/html")
    assert answer.status == 502
    assert b"Nothing listens on port 8123" in body
    assert answer.headers["Retry-After"] == "2"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_connections_to_the_program_are_kept_and_used_again(harness: PreviewHarness, host: str) -> None:
    for _ in range(5):
        assert harness.ask(host)[0].status == 200
    assert len(harness.dials) == 1


def test_a_kept_connection_that_the_program_closed_is_replaced(harness: PreviewHarness) -> None:
    def once(connection: socket.socket) -> None:
        """Promises to keep the connection, and closes it when the second request has come."""
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        connection.recv(65536)

    with serve_raw(once) as port:
        host = harness.share(BOX, 8000, port)
        assert [harness.ask(host)[1] for _ in range(3)] == [b"ok"] * 3
        assert len(harness.dials) > 1


def test_unrequested_response_is_never_forwarded(harness: PreviewHarness) -> None:
    """A program inside that sends two responses to one request cannot choose the next one's response."""

    def twice(connection: socket.socket) -> None:
        number = 0
        while connection.recv(65536):
            number += 1
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    with serve_raw(twice) as port:
        host = harness.share(BOX, 8000, port)
        for _ in range(20):
            assert harness.ask(host)[1] == b"1"
            time.sleep(0.01)


def test_use_is_reported_at_a_limited_rate(harness: PreviewHarness, host: str) -> None:
    for _ in range(50):
        harness.ask(host)
    assert harness.used[0] == BOX
    assert len(harness.used) < 10


def test_bytes_of_requests_and_websockets_are_reported(harness: PreviewHarness, host: str) -> None:
    assert harness.ask(host, "/")[1] == b"hello"
    wait_until(lambda: harness.sent > 0, "the report of the request")
    assert len(b"hello") < harness.sent < 10_000  # with the heads


# -- the end of a preview ---------------------------------------------------------------------------------------------


def open_stream(harness: PreviewHarness, host: str, source: str = "127.0.0.1") -> socket.socket:
    connection = harness.connect(source)
    connection.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n\r\n".encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_revoking_closes_open_connections(harness: PreviewHarness, host: str) -> None:
    with open_stream(harness, host) as connection:
        harness.unshare(BOX, 8000)
        read_all(connection)  # it ends
    assert harness.ask(host)[0].status == 404


def test_revoking_closes_an_open_websocket(harness: PreviewHarness) -> None:
    with serve(lambda socket: [socket.send(message) for message in socket], "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = harness.share(BOX, 8000, server.socket.getsockname()[1])
        with connect(
            f"ws://{host}/", sock=harness.connect(), additional_headers={"X-Skerry-Preview-Token": TOKEN}
        ) as it:
            it.send("x")
            assert it.recv(20) == "x"
            harness.unshare(BOX, 8000)
            with pytest.raises(Exception, match="close"):
                it.recv(20)
        server.shutdown()


def test_expired_preview_is_closed_and_gone(harness: PreviewHarness, program: Any) -> None:
    host = harness.share(BOX, 8000, program.server_port, expires=time.time() + 0.5)
    with open_stream(harness, host) as connection:
        read_all(connection)
    assert harness.ask(host)[0].status == 404


def test_new_token_disconnects_clients_of_the_old_one(harness: PreviewHarness, program: Any, host: str) -> None:
    with open_stream(harness, host) as connection:
        harness.share(BOX, 8000, program.server_port, OTHER_TOKEN)
        read_all(connection)
    assert harness.ask(host)[0].status == 404
    assert harness.ask(host, token=OTHER_TOKEN)[0].status == 200


def test_new_settings_with_the_same_token_keep_connections(harness: PreviewHarness, program: Any, host: str) -> None:
    with open_stream(harness, host) as connection:
        harness.share(BOX, 8000, program.server_port, expires=time.time() + 3600)
        program.gate.release()
        got = b""
        while b"data: 0" not in got:
            got += connection.recv(65536)


def test_a_client_that_leaves_takes_its_connection_inside_with_it(harness: PreviewHarness) -> None:
    ended = threading.Event()

    def silent(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if connection.recv(1) == b"":
            ended.set()

    with serve_raw(silent) as port:
        open_stream(harness, harness.share(BOX, 8000, port)).close()
        assert ended.wait(20)


def test_no_descriptor_is_left_behind(harness: PreviewHarness, program: Any, host: str) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    harness.ask(host)
    harness.unshare(BOX, 8000)
    before = count()
    for _ in range(10):
        host = harness.share(BOX, 8000, program.server_port)
        for path in ("/", "/torn", "/close", "/nonsense", "/nothing", "/until-close"):
            with contextlib.suppress(http.client.HTTPException, ConnectionError):
                harness.ask(host, path)
        open_stream(harness, host).close()
        with open_stream(harness, host):
            harness.unshare(BOX, 8000)
        program.gate.release(6)  # the program's sockets
    wait_until(lambda: count() <= before + 4, "the descriptors to be closed")


# -- attacks on the listener ------------------------------------------------------------------------------------------

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 5",
     b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked",
     b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"Content-Length: 5\r\nContent-Length: 6",
     b"Content-Length: +5", b"Content-Length: 0x5", b"Content-Length: -1", b"Content-Length: 5, 6",
     b"Content-Length: 5 5", b"Transfer-Encoding:\x0bchunked", b"X: a\0b", b"X\x00: 1", b"X y: 1", b": x"],
)  # fmt: skip
def test_request_smuggling_through_the_preview_is_refused(
    harness: PreviewHarness, program: Any, host: str, headers: bytes
) -> None:
    head = f"POST / HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n".encode() + headers
    answer = harness.raw(head + b"\r\n\r\n0\r\n\r\n" + SMUGGLED)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
    assert not program.seen


@pytest.mark.parametrize("size", [b"5;ext=1", b"5\r\nhello\r\n0\r\nX: y\r\n\r\n"[:1] + b"", b"05"])
def test_chunked_body_is_reframed(harness: PreviewHarness, program: Any, host: str, size: bytes) -> None:
    head = f"POST / HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
    harness.raw(head.encode() + size + b"\r\nhello\r\n0\r\nX-Late: 1\r\n\r\n", end=True)
    assert program.seen[-1][3] == b"hello"
    assert "x-late" not in headers_seen(program)


def test_a_second_request_behind_the_first_is_judged_by_itself(
    harness: PreviewHarness, program: Any, host: str
) -> None:
    first = f"GET /first HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n\r\n"
    second = f"GET /second HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    answer = harness.raw((first + second).encode())
    assert answer.count(b"HTTP/1.1 200") == answer.count(b"HTTP/1.1 404") == 1
    assert [path for _, path, _, _ in program.seen] == ["/first"]


def test_huge_headers_are_refused(harness: PreviewHarness, host: str) -> None:
    head = f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n".encode()
    assert harness.raw(head + b"X: " + b"x" * 200_000).startswith(b"HTTP/1.1 431")
    assert harness.raw(head + b"X: y\r\n" * 50_000).startswith(b"HTTP/1.1 431")


def test_slowloris_is_bounded_in_time(harness: PreviewHarness, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.3)
    assert harness.raw(b"GET / HTTP/1.1\r\nHost: ").startswith(b"HTTP/1.1 408")


def test_client_that_does_not_read_error_pages_is_cut_off(
    harness: PreviewHarness, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT_S", 0.3)
    request = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    with harness.connect() as client:
        client.settimeout(120)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(ConnectionError):  # the listener resets the connection
            client.sendall(request * 1_000_000)


def test_many_slow_clients_lock_no_other_out(
    harness: PreviewHarness, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 20)
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(harness.connect()).sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert harness.ask(host)[0].status == 200


@pytest.fixture
def narrow() -> Iterator[PreviewHarness]:
    made = PreviewHarness(max_per_address=3).start()
    yield made
    made.stop()


def test_connections_of_one_address_are_limited(narrow: PreviewHarness, program: Any) -> None:
    host, other = narrow.share(BOX, 8000, program.server_port), "127.0.0.2"
    with contextlib.ExitStack() as stack:
        first, *_ = (stack.enter_context(open_stream(narrow, host)) for _ in range(3))
        with narrow.connect() as fourth:
            assert read_all(fourth) == b""
        stack.enter_context(open_stream(narrow, host, other))
        first.close()
        wait_until(lambda: _is_served(narrow, host), "another connection of the first address")


def _is_served(harness: PreviewHarness, host: str) -> bool:
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        return harness.ask(host)[0].status == 200
    return False


def test_slow_clients_of_one_address_lock_no_other_out(narrow: PreviewHarness, program: Any) -> None:
    """Not of that address either: its oldest connection without a request is closed."""
    host, begin = narrow.share(BOX, 8000, program.server_port), b"GET / HTTP/1.1\r\nHost: "
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(narrow.connect("127.0.0.2"))
        other.sendall(begin)
        for _ in range(20):
            stack.enter_context(narrow.connect()).sendall(begin)
        assert narrow.ask(host)[0].status == 200
        other.sendall(f"{host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\nConnection: close\r\n\r\n".encode())
        assert read_all(other).startswith(b"HTTP/1.1 200")


def test_one_preview_has_only_so_many_connections(
    harness: PreviewHarness, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_PER_PREVIEW", 2)
    with open_stream(harness, host), open_stream(harness, host):
        answer, _ = harness.ask(host)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")


def test_denied_upload_gets_the_reason(harness: PreviewHarness, host: str) -> None:
    head = f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 500000\r\n\r\n"
    assert harness.raw(head.encode() + b"x" * 500_000).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_is_answered_or_cut_and_never_a_surprise(harness: PreviewHarness, host: str, seed: int) -> None:
    """Requests with bytes changed, added and removed; `harness` fails at its end on any unexpected error."""
    chance = random.Random(seed)
    token = f"X-Skerry-Preview-Token: {TOKEN}\r\n"
    whole = (
        f"GET /x?skerry_token={TOKEN} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"POST / HTTP/1.1\r\nHost: {host}\r\n{token}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        f"POST / HTTP/1.1\r\nHost: {host}\r\n{token}Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
        f"GET / HTTP/1.1\r\nHost: {host}\r\n{token}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nabc",
        f"HEAD /cookies HTTP/1.0\r\nHost: {host}\r\nCookie: a=b; skerry_preview={TOKEN}\r\n\r\n",
        f"GET /-/8000-{BOX}/moved HTTP/1.1\r\nHost: 127.0.0.1\r\n{token}\r\n",
    )
    extra = (b"\r\n", b"\n", b"\0", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: x\r\n")
    for _ in range(100):
        data = bytearray((chance.choice(whole) * chance.choice((1, 1, 2))).encode())
        for _ in range(chance.randrange(6)):
            at = chance.randrange(len(data))
            what = chance.choice((b"", chance.choice(extra), bytes([chance.randrange(256)])))
            data[at : at + chance.randrange(4)] = what
        answer = harness.raw(bytes(data), end=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert harness.ask(host)[0].status == 200


@pytest.mark.parametrize("seed", range(4))
def test_invalid_bytes_from_inside_become_an_error_page_or_a_reset(harness: PreviewHarness, seed: int) -> None:
    """A hostile program's responses: one request gets at most one response."""
    chance = random.Random(seed)
    whole = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nConnection: content-length\r\nContent-Length: 2\r\n\r\nhello",
    )

    def lie(connection: socket.socket) -> None:
        connection.recv(65536)
        data = bytearray(chance.choice(whole) * chance.choice((1, 1, 2)))
        for _ in range(chance.randrange(5)):
            at = chance.randrange(len(data))
            what = chance.choice((b"", b"\r\n", b"\0", b"Content-Length: 3\r\n", bytes([chance.randrange(256)])))
            data[at : at + chance.randrange(4)] = what
        connection.sendall(data)

    with serve_raw(lie) as port:
        host = harness.share(BOX, 8000, port)
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        for _ in range(60):
            more = chance.choice(("Connection: close\r\n", upgrade))
            request = f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Skerry-Preview-Token: {TOKEN}\r\n{more}\r\n"
            answer = harness.raw(request.encode(), end=more == upgrade)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")


def test_name_is_a_second_address_until_it_changes(harness: PreviewHarness, program: Any) -> None:
    by_name = harness.share(BOX, 8000, program.server_port, name="web")
    by_port = by_name.replace("web-", "8000-")
    assert [harness.ask(host)[0].status for host in (by_name, by_port)] == [200, 200]
    assert harness.ask("localhost", f"/-/web-{BOX}/deep")[0].status == 200
    renamed = harness.share(BOX, 8000, program.server_port, name="docs")
    assert [harness.ask(host)[0].status for host in (renamed, by_name, by_port)] == [200, 404, 200]
    harness.unshare(BOX, 8000)
    assert [harness.ask(host)[0].status for host in (renamed, by_port)] == [404, 404]


def test_attack_name_of_another_sandbox_opens_nothing(harness: PreviewHarness, program: Any) -> None:
    harness.share(OTHER, 8000, program.server_port, OTHER_TOKEN, name="web")
    assert harness.ask(f"web-{BOX}.localhost:{harness.port}", token=OTHER_TOKEN)[0].status == 404
    assert harness.ask(f"web-{OTHER}.localhost:{harness.port}")[0].status == 404  # the other's token is missing
    assert harness.ask(f"8000-{OTHER}-{BOX}.localhost:{harness.port}", token=OTHER_TOKEN)[0].status == 404
