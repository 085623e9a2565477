"""Requests that lie, flood or dribble: refused in one shape, and the server goes on."""

from __future__ import annotations

import json
import resource
import socket

import pytest
from starlette.types import Message
from support.listening_server import Listening

from skerry.errors import NotFound
from skerry.server.app import make_app
from skerry.server.control import Control
from skerry.server.http.auth import Authenticator, allowed_hosts
from skerry.server.http.call import MAX_VALUES
from skerry.server.http.responses import error_body

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    inner = json.loads(body)["error"]
    assert set(inner) == {"code", "message", "hint", "details"}
    return dict(inner)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_invalid_http_gets_a_json_error(listening: Listening, request_bytes: bytes) -> None:
    for tcp in (True, False):
        answer = listening.raw(request_bytes, tcp=tcp)
        assert status(answer) == 400
        assert error(answer)["code"] == "invalid_request"


@pytest.mark.parametrize(
    "name", ["Host", "Authorization", "Origin", "Content-Type", "Range", "Accept", "Idempotency-Key"]
)
def test_security_relevant_header_may_occur_only_once(listening: Listening, name: str) -> None:
    twice = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + 2 * f"{name}: localhost\r\n".encode()
    answer = listening.raw(twice + b"\r\n", tcp=False)
    assert status(answer) == 400
    assert name.lower() in str(error(answer)["message"])


def test_http_1_0_without_a_host_is_rejected_on_tcp(listening: Listening) -> None:
    assert status(listening.raw(b"GET /healthz HTTP/1.0\r\n\r\n")) == 421


@pytest.mark.parametrize("tcp", [True, False])
def test_endless_headers_end_the_connection(listening: Listening, tcp: bool) -> None:
    answer = listening.raw(GET + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(2000)), tcp=tcp)
    assert answer == b"" or status(answer) == 431


def test_single_endless_header_ends_the_connection(listening: Listening) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = listening.raw(GET + b"X: " + b"a" * (64 << 20))
    assert answer == b"" or status(answer) == 431
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 << 10


def test_head_over_its_limit_in_one_piece_ends_the_connection(listening: Listening) -> None:
    fields = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(70))
    assert status(listening.raw(GET + fields + b"\r\n", tcp=False)) == 431
    assert status(listening.raw(GET.replace(b"healthz", b"a" * 70_000) + b"\r\n", tcp=False)) == 431


def test_head_below_its_limit_is_accepted(listening: Listening) -> None:
    assert status(listening.raw(GET + b"X: " + b"a" * 60_000 + b"\r\n\r\n", tcp=False)) == 200


def test_endless_trailers_end_the_connection(listening: Listening) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"X: " + b"a" * (8 << 20)
    assert listening.raw(POST + body, tcp=False)[:12] in (b"", b"HTTP/1.1 431", b"HTTP/1.1 404")


def test_trailer_does_not_become_a_header(listening: Listening) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = listening.raw(head + b"2\r\n{}\r\n0\r\nContent-Type: application/json\r\n\r\n", tcp=False)
    assert status(answer) == 415


def test_body_announced_too_large_is_rejected_unread(listening: Listening) -> None:
    answer = listening.raw(POST + b"Content-Length: 99999999999\r\n\r\n{", tcp=False)
    assert status(answer) == 413
    assert error(answer)["code"] == "invalid_request"


def test_chunked_body_is_bounded(listening: Listening) -> None:
    with listening.unix() as http:
        answer = http.post(
            "/v1/sandboxes", content=iter([b" " * 65536] * 40), headers={"Content-Type": "application/json"}
        )
    assert answer.status_code == 413


def test_json_body_has_a_maximum_number_of_values(listening: Listening) -> None:
    with listening.unix() as http:
        for count, wanted in ((MAX_VALUES - 100, 400), (MAX_VALUES + 100, 413)):
            answer = http.post("/v1/sandboxes/a/processes?wait=true", json={"cmd": ['a,\\"['] * count})
            assert answer.status_code == wanted


def test_run_input_is_limited_to_sixteen_mib(listening: Listening) -> None:
    with listening.unix() as http:
        for size, wanted in ((15 << 20, 404), (17 << 20, 413)):
            body = {"cmd": "cat", "stdin": "x" * size}
            assert http.post("/v1/sandboxes/a/processes?wait=true", json=body).status_code == wanted


@pytest.mark.parametrize(
    "kind",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp"],
)
def test_json_body_needs_the_json_content_type(listening: Listening, kind: str | None) -> None:
    before = list(listening.engine.calls)
    headers = {"Content-Type": kind} if kind else {}
    with listening.unix() as http:
        answer = http.post("/v1/sandboxes", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert listening.engine.calls == before


def test_json_may_name_its_charset(listening: Listening) -> None:
    with listening.unix() as http:
        answer = http.post("/v1/sandboxes", content=b"{}", headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert answer.json()["error"]["details"] == {"image": "base"}


def test_unexpected_body_is_rejected(listening: Listening) -> None:
    with listening.unix() as http:
        assert http.post("/v1/sandboxes/a/stop", json={}).status_code == 400
        assert http.request("GET", "/v1/sandboxes", content=b"x").status_code == 400
        assert http.request("DELETE", "/v1/sandboxes/a", content=iter([b"x"])).status_code == 400


@pytest.mark.parametrize(
    "ref",
    [
        "..",
        "%2e%2e",
        "..%2f..%2fv1%2ftokens",
        "a%2fb",
        "%00",
        "a%0d%0ab",
        "A",
        "*",
        "a" * 5000,
        "%ff",
        "sb-",
        "-a",
        "a%20",
    ],
)
def test_path_traversal_finds_nothing(listening: Listening, ref: str) -> None:
    before = list(listening.engine.calls)
    answer = listening.raw(
        f"GET /v1/sandboxes/{ref} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), tcp=False
    )
    assert status(answer) == 404
    assert error(answer)["code"] == "not_found"
    assert listening.engine.calls == before


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "POST"])
def test_unknown_method_error_lists_the_allowed_ones(listening: Listening, method: str) -> None:
    target = "localhost:80" if method == "CONNECT" else "/healthz"
    answer = listening.raw(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert status(answer) == (400 if method == "CONNECT" else 401)
    answer = listening.raw(
        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), tcp=False
    )
    if method != "CONNECT":
        assert status(answer) == 405
        assert b"allow: GET, HEAD" in answer


def test_head_answers_like_get_without_a_body(listening: Listening) -> None:
    with listening.unix() as http:
        answer = http.head("/v1/sandboxes")
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["Content-Length"]) == len(http.get("/v1/sandboxes").content)


def test_unexpected_error_reveals_only_its_id(listening: Listening) -> None:
    with listening.unix() as http:
        answer = http.post("/v1/sandboxes/a/stop")
    assert answer.status_code == 500
    said = answer.json()["error"]
    assert said["code"] == "internal"
    assert said["details"]["request_id"] == answer.headers["X-Request-Id"]
    assert "secret of the inside" not in answer.text
    assert "ZeroDivision" not in answer.text


@pytest.mark.parametrize("key", ["", "a b", "a" * 201, "\x7f"])
def test_invalid_idempotency_key_is_rejected(listening: Listening, key: str) -> None:
    with listening.unix() as http:
        answer = http.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key})
    assert answer.status_code == 400


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"skerry-frames"])
def test_upgrade_is_ignored(listening: Listening, protocol: bytes) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
    answer = listening.raw(ask + b"GET /openapi.json HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b'{"ok":true}')


def test_disconnect_during_a_body_leaves_nothing_behind(listening: Listening) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(listening.socket))
        connection.sendall(POST + b"Content-Length: 100\r\n\r\n{")
    with listening.unix() as http:
        assert http.get("/healthz").status_code == 200
    assert "create" not in listening.engine.calls[-1:]


def test_many_requests_on_one_connection_are_answered_in_order(listening: Listening) -> None:
    more = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = listening.raw(more * 500 + GET + b"\r\n", tcp=False)
    assert answer.count(b"HTTP/1.1 200 OK") == 501


@pytest.mark.parametrize(
    "process", ["..", "p-", "p-aaaaaaaaa%0d", "1", "p-AAAAAAAAAA", "%0d%0aX:%20y", "p-aaaaaaaaaa%00"]
)
def test_path_traversal_in_a_process_id_finds_nothing(listening: Listening, process: str) -> None:
    before = list(listening.engine.calls)
    ask = f"POST /v1/sandboxes/a/processes/{process}/stdin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    answer = listening.raw(ask.encode() + b"Connection: close\r\n\r\nx", tcp=False)
    assert status(answer) == 404
    assert listening.engine.calls == before


def test_error_with_a_non_utf8_name_is_reported() -> None:
    body = json.loads(error_body(NotFound("no \udcff here", details={"path": "\udcff"})))
    assert body["error"]["code"] == "not_found"
    assert "udcff" in body["error"]["message"]


def test_rejected_upload_is_not_waited_for(listening: Listening) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\n"
    answer = listening.raw(head + b"Content-Type: text/plain\r\nContent-Length: 1000\r\n\r\n", tcp=False)
    assert status(answer) == 415


async def test_connection_without_an_address_is_not_treated_as_the_unix_socket(listening: Listening) -> None:
    """The peer of a TCP connection that was reset at once can't be named, and looks like a unix socket's."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    door = Authenticator(listening.engine.tokens, allowed_hosts("127.0.0.1", ()))
    scope = {
        "type": "http", "method": "GET", "path": "/v1/tokens", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "client": None, "server": None,
    }  # fmt: skip
    await make_app(listening.engine, Control()).app_for(door)(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 401
