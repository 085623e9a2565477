"""Handlers change, redirect and answer requests; they open nothing, frame nothing, and fail closed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import random
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from network.test_http_proxy import ACCEPT, ASK, KEY, WEBSOCKET, Far
from support.egress import EgressHarness, echo, is_reset, random_loopback, read_all, serve_tcp
from support.server import wait_until

from skerry.errors import InvalidRequest
from skerry.network import ca
from skerry.network.ca import LeafIssuer
from skerry.network.messages import PROXY_IP, PROXY_PORT, HandlerNeeded, HandlerResult, InjectedSecret, Rules
from skerry.network.policy.handlers import HandlerTable
from skerry.network.worker.sandbox_context import MAX_HELD_BODIES
from skerry.network.worker.tls import interception
from skerry.network.worker.tls.interception import TlsInterceptor
from skerry.types import Handler, HandlerDecision, HttpResponse, Network
from skerry.types.hosts import parse_host

GET = b"GET /a?b=c HTTP/1.1\r\nHost: far.example\r\nX-Old: 1\r\nConnection: close\r\n\r\n"
FRAMING = [
    "Content-Length", "content-length", "Transfer-Encoding", "Transfer_Encoding", "Connection", "Upgrade", "Host", "TE",
    "Trailer", "Expect", "Keep-Alive", "Proxy-Authorization", "HTTP2-Settings",
]  # fmt: skip
HOSTS = ("far.example", "other.example")
SECRET = InjectedSecret(
    name="TOKEN", hosts=("api.example",), header="Authorization: Bearer {}",
    placeholder="skerry-secret-TOKEN-" + "a" * 32, value="v4lue" * 5,
)  # fmt: skip


class Lab:
    """Two hosts that record their requests: `far` and `other`."""

    def __init__(self, harness: EgressHarness, address: str, far: Far) -> None:
        self.harness, self.address, self.far = harness, address, far

    def open(
        self, *handlers: Handler, allow: tuple[str, ...] = ("far.example", "other.example"), **more: object
    ) -> None:
        rules = (f"{rule}@{self.address}" for rule in allow)
        self.harness.open(*rules, handlers=handlers, **more)

    def talk(self, data: bytes = GET, host: str = "far.example") -> bytes:
        with self.harness.connect(host, 80) as sock:
            sock.sendall(data)
            return read_all(sock)

    def decide(self, decision: HandlerDecision | None = None, error: str | None = None) -> None:
        """Answer every call in the same way; without an answer, never."""

        async def answer(call: HandlerNeeded, body: bytes | None) -> HandlerResult:
            if decision is None and error is None:
                await asyncio.Event().wait()
            return HandlerResult(call_id=call.call_id, decision=decision or HandlerDecision(), error=error)

        self.harness.server.decide = answer


@pytest.fixture
def lab(harness: EgressHarness) -> Iterator[Lab]:
    address, far = random_loopback(), Far()
    with serve_tcp(far, address, 80):
        harness.server.hosts |= {name: [address] for name in ("far.example", "other.example", "api.example")}
        yield Lab(harness, address, far)


# -- headers ----------------------------------------------------------------------------------------------------------


def test_headers_are_removed_replaced_and_added_in_both_directions(lab: Lab) -> None:
    lab.open(
        Handler(
            host="far.example", remove_headers=("x-old",), set_headers={"X-Team": "blue"}, add_headers={"X-Add": "2"},
            response_remove_headers=("X-Far",), response_set_headers={"Cache-Control": "no-store"},
        )
    )  # fmt: skip
    reply = lab.talk()
    (seen,) = lab.far.requests
    assert b"X-Old" not in seen
    assert b"\r\nX-Team: blue\r\n" in seen
    assert b"\r\nX-Add: 2\r\n" in seen
    assert b"X-Far" not in reply
    assert b"\r\nCache-Control: no-store\r\n" in reply
    assert reply.endswith(b"\r\n\r\nok")
    ended = lab.harness.attempt(lambda a: a.kind == "request" and a.ended)
    assert "handled by far.example" in ended.why


def test_handler_changes_the_request_of_a_websocket_and_its_frames_pass_unchanged(lab: Lab) -> None:
    heads: list[bytes] = []

    def switch(sock: socket.socket) -> None:
        heads.append(sock.recv(65536))
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\n" + WEBSOCKET + ACCEPT + b"\r\n")
        while data := sock.recv(1000):
            sock.sendall(data[::-1])

    handler = Handler(host="far.example", set_headers={"X-Team": "blue"})
    frame = bytes(range(128, 192)) + b"X-Team: red"
    address = random_loopback()
    lab.harness.server.hosts["far.example"] = [address]
    with serve_tcp(switch, address, 80):
        lab.harness.open(f"far.example@{address}", handlers=(handler,))
        with lab.harness.connect("far.example", 80) as sock:
            sock.sendall(ASK % b"/ws" + KEY + b"X-Team: red\r\n\r\n")
            got = b""
            while not got.endswith(b"\r\n\r\n"):
                got += sock.recv(1)
            assert got.startswith(b"HTTP/1.1 101 ")
            sock.sendall(frame)
            assert sock.recv(len(frame), socket.MSG_WAITALL) == frame[::-1]
    assert b"\r\nX-Team: blue\r\n" in heads[0]
    assert b"red" not in heads[0]


def test_callback_denies_a_websocket_before_it_reaches_its_host(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="request"))
    lab.decide(error="RuntimeError")
    assert b" 502 " in lab.talk(ASK % b"/ws" + KEY + b"\r\n")
    assert lab.far.requests == []


def test_only_covered_requests_are_changed_and_the_first_handler_counts(lab: Lab) -> None:
    lab.open(
        Handler(host="GET far.example/one", set_headers={"X-H": "1"}),
        Handler(host="far.example", set_headers={"X-H": "2"}),
    )
    lab.talk(GET.replace(b"/a?b=c", b"/one/x"))
    lab.talk(GET.replace(b"/a?b=c", b"/one").replace(b"GET", b"HEAD"))
    lab.talk(GET.replace(b"far.example", b"other.example"), "other.example")
    assert [re.findall(rb"X-H: (\d)", seen) for seen in lab.far.requests] == [[b"1"], [b"2"], []]


def test_ambiguous_path_is_covered_by_a_handler_of_a_path() -> None:
    table = HandlerTable([Handler(host="far.example/admin", set_headers={"X": "y"})])
    host = parse_host("far.example")
    for path in ("/admin", "/x/../admin", "/x/%2e%2e/admin", "/%61dmin", "/admin;x"):
        assert table.find(host, 80, "GET", path) is not None, path
    assert table.find(host, 80, "GET", "/other") is None
    assert table.find(host, 8080, "GET", "/admin") is None


@pytest.mark.parametrize("name", FRAMING)
def test_attack_framing_header_cannot_be_set_added_or_removed(name: str) -> None:
    """A request with two readings of its end would smuggle another one past the policy."""
    for field in ("set_headers", "add_headers", "response_set_headers", "response_add_headers"):
        with pytest.raises(InvalidRequest, match="cannot be changed"):
            Handler(host="far.example", **{field: {name: "5"}})
    for field in ("remove_headers", "response_remove_headers"):
        with pytest.raises(InvalidRequest, match="cannot be changed"):
            Handler(host="far.example", **{field: (name,)})
    for given in ({"headers": ((name, "5"),)}, {"response": {"headers": ((name, "5"),)}}):
        with pytest.raises(InvalidRequest, match="cannot be changed"):
            HandlerDecision(headers=((name, "5"),)) if "headers" in given else HttpResponse(headers=((name, "5"),))


@pytest.mark.parametrize(
    ("name", "value"),
    [("X", "a\r\nContent-Length: 5"), ("X", "a\nb: c"), ("X", "a\0b"), ("X\r\nY", "1"), ("X:", "1"), ("X ", "1"),
     ("", "1"), (" X", "1"), ("X", " a"), ("X", "a "), ("X", "\x7f"), ("X", "\u0100")],
)  # fmt: skip
def test_attack_header_cannot_contain_a_line_end_or_begin_another(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest):
        Handler(host="far.example", set_headers={name: value})
    with pytest.raises(InvalidRequest):
        HttpResponse(headers=((name, value),))
    with pytest.raises(InvalidRequest):
        HandlerDecision(headers=((name, value),))


def test_attack_handler_cannot_change_the_method_where_rules_look_at_requests(lab: Lab) -> None:
    lab.open(Handler(host="far.example", set_headers={"X-HTTP-Method-Override": "DELETE"}), allow=("GET far.example",))
    assert lab.talk().startswith(b"HTTP/1.1 403 ")
    assert lab.far.requests == []
    assert lab.harness.denied_attempt("x-http-method-override")


def test_attack_accepted_header_never_changes_the_framing_of_a_request(lab: Lab) -> None:
    """Whatever name and value a handler may have, the host reads one request with the body that the program sent."""
    rng = random.Random(21)
    names = [
        "Content-Length",
        "content_length",
        "Transfer-Encoding",
        "TE",
        "X",
        "X-HTTP2",
        "Cookie",
        "Range",
        "host",
        "_",
    ]
    values = ["0", "5", "identity", "a, b", "GET / HTTP/1.1", "\t", "\r\n\r\nGET /smuggled HTTP/1.1", "\xff", "", "x:y"]
    post = b"POST /one HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    lab.open()
    accepted = 0
    for _ in range(200):
        name = rng.choice(names) + rng.choice(["", "", " ", "\t", "\n", ":", "-A", "\0"])
        value = rng.choice(values) + rng.choice(["", "", " ", "\n", "\r", "z"])
        try:
            handler = Handler(host="far.example", add_headers={name: value}, response_add_headers={name: value})
        except InvalidRequest:
            continue
        accepted += 1
        lab.harness.change(f"far.example@{lab.address}", handlers=(handler,))
        lab.far.requests.clear()
        reply = lab.talk(post)
        (seen,) = lab.far.requests
        head, _, body = seen.partition(b"\r\n\r\n")
        assert (seen[:9], body, len(head.split(b"\r\n"))) == (b"POST /one", b"hello", 4), (name, value)
        assert reply.endswith(b"\r\n\r\nok"), (name, value)
    assert accepted > 10


def test_attack_connection_without_http_does_not_pass_a_handled_host(lab: Lab) -> None:
    lab.open(Handler(host="far.example:*", set_headers={"X": "y"}), allow=("far.example:*",))
    with lab.harness.connect("far.example", 80) as sock:
        sock.sendall(b"\0\1\2\3 not HTTP\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            read_all(sock)
    assert lab.far.requests == []


def test_opaque_connection_ends_when_a_handler_comes(harness: EgressHarness) -> None:
    address = random_loopback()
    with serve_tcp(echo, address, 7000):
        harness.server.hosts["far.example"] = [address]
        harness.open(f"far.example:7000@{address}")
        with harness.connect("far.example", 7000) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
            handler = Handler(host="far.example:7000", set_headers={"X": "y"})
            harness.change(f"far.example:7000@{address}", handlers=(handler,))
            assert is_reset(sock)


# -- redirects --------------------------------------------------------------------------------------------------------


def test_redirected_request_reaches_the_new_host_under_its_name(lab: Lab) -> None:
    lab.open(Handler(host="far.example", redirect="other.example", set_headers={"X-From": "far"}))
    assert b" 200 " in lab.talk()
    (seen,) = lab.far.requests
    assert seen.startswith(b"GET /a?b=c HTTP/1.1\r\nHost: other.example\r\n")
    assert b"\r\nX-From: far\r\n" in seen
    ended = lab.harness.attempt(lambda a: a.kind == "request" and a.ended)
    assert (ended.host, ended.port, ended.rule) == ("other.example", 80, f"other.example@{lab.address}")
    assert "redirected from far.example:80" in ended.why


@pytest.mark.parametrize("target", ["other.example", "other.example:81", "http://[::1]", "http://127.0.0.1:80"])
def test_attack_redirect_does_not_open_a_host_that_the_policy_denies(lab: Lab, target: str) -> None:
    lab.open(Handler(host="far.example", redirect=target), allow=("far.example",))
    assert lab.talk().startswith(b"HTTP/1.1 403 ")
    assert lab.far.requests == []
    assert "redirected from far.example:80" in lab.harness.denied_attempt("redirected").why


def test_attack_redirect_does_not_open_a_closed_address(lab: Lab) -> None:
    lab.harness.server.hosts["inner.example"] = ["10.0.0.5"]
    lab.harness.open(
        f"far.example@{lab.address}", "inner.example", handlers=(Handler(host="far.example", redirect="inner.example"),)
    )
    assert lab.talk().startswith(b"HTTP/1.1 403 ")
    assert lab.harness.denied_attempt("inner.example", "closed address").address == "10.0.0.5"


def test_redirected_request_is_judged_by_the_requests_rules_of_the_new_host(lab: Lab) -> None:
    lab.open(Handler(host="far.example", redirect="other.example"), allow=("far.example", "GET other.example/pub"))
    assert b" 403 " in lab.talk()
    assert b" 200 " in lab.talk(GET.replace(b"/a?b=c", b"/pub/x"))
    assert b" 403 " in lab.talk(GET.replace(b"GET /a?b=c", b"DELETE /pub"))
    assert len(lab.far.requests) == 1


def test_redirect_asks_for_the_approval_of_the_new_host(lab: Lab) -> None:
    async def no(host: str, port: int | None) -> tuple[bool, str]:
        return False, "not that one"

    lab.harness.server.answer = no
    lab.open(Handler(host="far.example", redirect="other.example:8080"), allow=("far.example",), on_unknown="ask")
    assert b"not that one" in lab.talk()
    assert lab.harness.server.approvals == [("other.example", 8080)]


def test_redirects_do_not_chain(lab: Lab) -> None:
    lab.open(
        Handler(host="far.example", redirect="other.example"), Handler(host="other.example", redirect="far.example")
    )
    assert b" 200 " in lab.talk()
    assert b"Host: other.example" in lab.far.requests[0]


def test_kept_connection_does_not_carry_requests_of_the_other_host(lab: Lab) -> None:
    """One connection of the client, two upstreams in turn."""
    lab.open(Handler(host="far.example/moved", redirect="other.example"))
    client = http.client.HTTPConnection("far.example")
    client.sock = lab.harness.connect("far.example", 80)
    for path in ("/stay", "/moved", "/stay", "/moved"):
        client.request("GET", path)
        assert client.getresponse().read() == b"ok"
    client.close()
    hosts = [re.findall(rb"Host: (\S+)", seen)[0] for seen in lab.far.requests]
    assert hosts == [b"far.example", b"other.example"] * 2


def test_narrower_policy_ends_a_redirected_exchange(lab: Lab) -> None:
    asked, go = threading.Event(), threading.Event()

    def slow(request: bytes, sock: object) -> None:
        asked.set()
        go.wait(30)

    lab.far._answer = slow
    lab.open(Handler(host="far.example", redirect="other.example"))
    with lab.harness.connect("far.example", 80) as sock:
        sock.sendall(GET)
        assert asked.wait(30)
        lab.harness.change(
            f"far.example@{lab.address}", handlers=(Handler(host="far.example", redirect="other.example"),)
        )
        with pytest.raises(ConnectionResetError):
            read_all(sock)
    go.set()


@pytest.mark.parametrize(
    "target", ["", "other.example/path", "ftp://other.example", "u@other.example", "other.example:0", "other example",
               "http://", "other.example?x", "other.example:99999", "a\r\nb"]
)  # fmt: skip
def test_redirect_target_must_be_a_host(target: str) -> None:
    with pytest.raises(InvalidRequest, match="redirect"):
        Handler(host="far.example", redirect=target)


# -- secrets ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def secured(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Lab, ssl.SSLContext]]:
    """The same server behind TLS that the worker trusts; `api.example` receives a secret."""
    inside, outside = (ca.create_ca(name, 3600) for name in ("sb-aaaaaaaaaa", "outside"))
    contexts = {}
    for name in ("far.example", "api.example"):
        (tmp_path / name).write_bytes(LeafIssuer(outside).leaf(name).pem)
        contexts[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contexts[name].load_cert_chain(tmp_path / name)

    def choose(sock: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        sock.context = contexts[name or "far.example"]

    contexts["far.example"].sni_callback = choose  # type: ignore[assignment]

    def serve(sock: object) -> None:
        with contexts["far.example"].wrap_socket(sock, server_side=True) as made:  # type: ignore[arg-type]
            lab.far(made)

    (tmp_path / "bundle").write_text(outside.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bundle"))  # what the server's machine trusts
    interception._client_context.cache_clear()
    lab.harness.interceptor = TlsInterceptor(Rules(ca=inside, secrets=(SECRET,)))
    with serve_tcp(serve, lab.address, 443):
        yield lab, ssl.create_default_context(cadata=inside.certificate)
    interception._client_context.cache_clear()


def fetch(lab: Lab, trusting: ssl.SSLContext, host: str, **headers: str) -> tuple[int, bytes]:
    client = http.client.HTTPConnection(host)
    client.sock = trusting.wrap_socket(lab.harness.connect(host, 443), server_hostname=host)
    client.request("GET", "/", headers=headers)
    answer = client.getresponse()
    found = answer.status, answer.read()
    client.close()
    return found


def test_attack_redirect_does_not_carry_a_secret_to_another_host(secured: tuple[Lab, ssl.SSLContext]) -> None:
    lab, trusting = secured
    lab.open(
        Handler(host="api.example", redirect="far.example"), allow=("api.example", "far.example"), secrets=(SECRET,)
    )
    assert fetch(lab, trusting, "api.example")[0] == 200
    assert fetch(lab, trusting, "api.example", X=SECRET.placeholder)[0] == 403
    (seen,) = lab.far.requests
    assert SECRET.value.encode() not in seen
    assert b"Authorization" not in seen


def test_attack_redirect_to_plain_http_does_not_carry_a_secret(secured: tuple[Lab, ssl.SSLContext]) -> None:
    lab, trusting = secured
    lab.open(Handler(host="api.example", redirect="http://api.example"), allow=("api.example",), secrets=(SECRET,))
    assert fetch(lab, trusting, "api.example")[0] == 200
    assert fetch(lab, trusting, "api.example", X=SECRET.placeholder)[0] == 403
    (seen,) = lab.far.requests
    assert SECRET.value.encode() not in seen


def test_redirect_to_a_host_of_a_secret_injects_it_and_masks_the_response(
    secured: tuple[Lab, ssl.SSLContext],
) -> None:
    lab, trusting = secured
    lab.far._answer = lambda request, sock: sock.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\nX-Echo: %b\r\n\r\n%b" % ((SECRET.value.encode(),) * 2)
    )
    lab.open(
        Handler(host="far.example", redirect="api.example"), allow=("api.example", "far.example"), secrets=(SECRET,)
    )
    assert fetch(lab, trusting, "far.example") == (200, b"*" * 25)
    assert f"Authorization: Bearer {SECRET.value}".encode() in lab.far.requests[0]


def test_attack_secret_never_reaches_a_callback_or_the_mirror(secured: tuple[Lab, ssl.SSLContext]) -> None:
    """Neither the injected value, nor one that a host echoes which may not receive it."""
    lab, trusting = secured
    value = SECRET.value.encode()
    lab.far._answer = lambda request, sock: sock.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\nX-Echo: %b\r\n\r\n%b" % (value, value)
    )
    seen: list[bytes] = []

    async def note(call: HandlerNeeded, body: bytes | None) -> HandlerResult:
        seen.append(repr(call).encode() + (body or b""))
        return HandlerResult(call_id=call.call_id)

    lab.harness.server.decide = note
    lab.open(
        Handler(host="api.example", callback="both", bodies=True),
        Handler(host="far.example", callback="both", bodies=True),
        allow=("api.example", "far.example"), secrets=(SECRET,), mirror=("api.example", "far.example"),
    )  # fmt: skip
    for host in ("api.example", "far.example"):
        assert fetch(lab, trusting, host)[0] == 200
    assert b"Authorization: Bearer " + value in lab.far.requests[0]
    assert len(seen) == 4
    assert value not in b"".join(seen)
    wait_until(lambda: len(lab.harness.server.exchanges) == 2, "two mirrored exchanges")
    assert value not in repr(lab.harness.server.exchanges).encode()


# -- answers ----------------------------------------------------------------------------------------------------------


def test_local_answer_needs_no_host_and_keeps_the_connection(lab: Lab) -> None:
    answer = HttpResponse(status=418, headers=(("X-Local", "yes"),), body=b"local")
    lab.harness.open("nowhere.example", handlers=(Handler(host="nowhere.example", answer=answer),))
    client = http.client.HTTPConnection("nowhere.example")
    client.sock = lab.harness.connect("nowhere.example", 80)
    for method, body in (("GET", None), ("POST", b"x" * 100_000), ("HEAD", None)):
        client.request(method, "/", body=body, headers={"Expect": "100-continue"} if body else {})
        reply = client.getresponse()
        assert (reply.status, reply.headers["X-Local"], reply.headers["Content-Length"]) == (418, "yes", "5")
        assert reply.read() == (b"" if method == "HEAD" else b"local")
    client.close()
    ended = lab.harness.attempt(lambda a: a.kind == "request" and a.ended)
    assert (ended.host, ended.decision) == ("nowhere.example", "allowed")


def test_local_answer_works_through_the_forward_proxy_and_a_tunnel(lab: Lab) -> None:
    """The tunnel is not dialled: the host may not exist."""
    inside = ca.create_ca("sb-aaaaaaaaaa", 3600)
    lab.harness.interceptor = TlsInterceptor(Rules(ca=inside))
    lab.harness.open("nowhere.example", handlers=(Handler(host="nowhere.example", answer=HttpResponse(body=b"local")),))
    with lab.harness.connect(PROXY_IP, PROXY_PORT) as sock:
        sock.sendall(b"GET http://nowhere.example/ HTTP/1.1\r\nHost: nowhere.example\r\nConnection: close\r\n\r\n")
        assert read_all(sock).endswith(b"\r\n\r\nlocal")
    with lab.harness.connect(PROXY_IP, PROXY_PORT) as sock:
        sock.sendall(b"CONNECT nowhere.example:443 HTTP/1.1\r\nHost: nowhere.example:443\r\n\r\n")
        assert b" 200 " in sock.recv(4096)
        trusting = ssl.create_default_context(cadata=inside.certificate)
        with trusting.wrap_socket(sock, server_hostname="nowhere.example") as made:
            made.sendall(b"GET / HTTP/1.1\r\nHost: nowhere.example\r\nConnection: close\r\n\r\n")
            assert read_all(made).endswith(b"\r\n\r\nlocal")


def test_answer_does_not_open_a_host_that_no_rule_names(lab: Lab) -> None:
    lab.harness.open("far.example", handlers=(Handler(host="nowhere.example", answer=HttpResponse(body=b"local")),))
    assert lab.harness.is_denied("198.51.100.7", 80)
    with lab.harness.connect(PROXY_IP, PROXY_PORT) as sock:
        sock.sendall(b"GET http://nowhere.example/ HTTP/1.1\r\nHost: nowhere.example\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("status", [204, 304])
def test_answer_without_a_body_frames_none(lab: Lab, status: int) -> None:
    lab.open(Handler(host="far.example", answer=HttpResponse(status=status)))
    reply = lab.talk()
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Length" not in reply
    assert reply.endswith(b"\r\n\r\n")
    with pytest.raises(InvalidRequest, match="no body"):
        HttpResponse(status=status, body=b"x")


def test_local_answers_count_as_traffic(lab: Lab) -> None:
    lab.open(Handler(host="far.example", answer=HttpResponse(body=b"x" * 2000)), max_bytes=5000)
    assert [lab.talk()[9:12] for _ in range(3)] == [b"200", b"200", b"200"]
    with pytest.raises(ConnectionResetError):
        lab.talk()


# -- callbacks --------------------------------------------------------------------------------------------------------


def test_callback_sees_the_request_and_can_change_answer_or_redirect_it(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="request"))
    lab.decide(HandlerDecision(headers=(("X-New", "1"),)))
    assert b" 200 " in lab.talk()
    (call,) = lab.harness.server.calls
    assert (call.method, call.url, call.headers) == ("GET", "http://far.example/a?b=c", (("x-old", "1"),))
    assert (call.response, call.body) == (None, False)
    lab.decide(HandlerDecision(response=HttpResponse(status=202, body=b"mine")))
    assert lab.talk().endswith(b"\r\n\r\nmine")
    lab.decide(HandlerDecision(redirect="other.example"))
    assert b" 200 " in lab.talk()
    first, second = lab.far.requests
    assert (b"X-New: 1" in first, b"X-Old" in first) == (True, False)
    assert b"Host: other.example" in second


def test_attack_callback_cannot_redirect_to_a_host_that_the_policy_denies(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="request"), allow=("far.example",))
    lab.decide(HandlerDecision(redirect="other.example"))
    assert lab.talk().startswith(b"HTTP/1.1 403 ")
    assert lab.far.requests == []


def test_callback_with_bodies_sees_them_and_the_request_arrives_whole(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="request", bodies=True))
    bodies: list[bytes | None] = []

    async def note(call: HandlerNeeded, body: bytes | None) -> HandlerResult:
        bodies.append(body)
        return HandlerResult(call_id=call.call_id)

    lab.harness.server.decide = note
    post = b"POST / HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\n"
    lab.talk(post + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
    lab.talk(post + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
    lab.talk(post + b"Content-Length: 0\r\n\r\n")
    assert bodies == [b"x" * 100_000, b"abcdefg", b""]
    plain, chunked, empty = (seen.partition(b"\r\n\r\n")[2] for seen in lab.far.requests)
    assert (plain, chunked, empty) == (b"x" * 100_000, b"7\r\nabcdefg\r\n0\r\n\r\n", b"")


def test_body_that_is_too_large_for_a_callback_fails_the_request(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="request", bodies=True))
    lab.decide(HandlerDecision())
    large = b"POST / HTTP/1.1\r\nHost: far.example\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_200_000
    with lab.harness.connect("far.example", 80) as sock:
        sock.sendall(large)
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert lab.far.requests == []
    assert lab.harness.denied_attempt("its handler failed", "larger than 1M")


def test_callback_can_change_and_replace_a_response(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="response"))
    lab.decide(HandlerDecision(response=HttpResponse(status=200, headers=(("X-Seen", "1"),))))
    reply = lab.talk()
    assert (b"X-Seen: 1" in reply, b"X-Far" in reply, reply.endswith(b"\r\n\r\nok")) == (True, False, True)
    assert lab.harness.server.calls[0].response == (200, (("x-far", "yes"),))
    lab.decide(HandlerDecision(response=HttpResponse(status=503, body=b"replaced")))
    reply = lab.talk()
    assert reply.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert reply.endswith(b"\r\n\r\nreplaced")


def test_callback_with_bodies_sees_the_body_of_a_response(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="response", bodies=True))

    async def shout(call: HandlerNeeded, body: bytes | None) -> HandlerResult:
        changed = HttpResponse(status=200, body=(body or b"").upper())
        return HandlerResult(call_id=call.call_id, decision=HandlerDecision(response=changed))

    lab.harness.server.decide = shout
    assert lab.talk().endswith(b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK")
    lab.far._answer = lambda request, sock: sock.sendall(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
    )
    assert lab.talk().endswith(b"\r\nContent-Length: 6\r\nConnection: close\r\n\r\nABCDEF")


@pytest.mark.parametrize(
    ("decision", "error", "status", "why"),
    [
        (None, "ValueError('broken')", b"502", "broken"),
        (HandlerDecision(error="it is gone"), None, b"502", "it is gone"),
        (None, None, b"502", "no answer within 0.2 s"),
    ],
)
@pytest.mark.parametrize("phase", ["request", "response"])
def test_failed_callback_fails_the_request_and_is_logged(
    lab: Lab, decision: HandlerDecision | None, error: str | None, status: bytes, why: str, phase: str
) -> None:
    lab.open(Handler(host="far.example", callback=phase, timeout=0.2))  # type: ignore[arg-type]
    lab.decide(decision, error)
    reply = lab.talk()
    assert reply[9:12] == status
    assert b"X-Far" not in reply
    assert len(lab.far.requests) == (phase == "response")
    denied = lab.harness.denied_attempt("its handler failed", why)
    assert "network unhandle" in (denied.hint or "")


@pytest.mark.parametrize(
    "decision",
    [
        HandlerDecision(headers=(("X", "y"),)),
        HandlerDecision(redirect="other.example"),
        HandlerDecision(response=HttpResponse(status=500)),
        HandlerDecision(response=HttpResponse(status=204)),
        HandlerDecision(response=HttpResponse(headers=(("X", "y" * 32_000),) * 1)),
    ],
)
def test_attack_callback_cannot_break_the_framing_of_a_response(lab: Lab, decision: HandlerDecision) -> None:
    """A status without a body before a body would make the rest of it the next response."""
    lab.open(Handler(host="far.example", callback="response"))
    lab.decide(decision)
    reply = lab.talk()
    if decision.response is not None and decision.response.status == 200:
        assert reply.startswith(b"HTTP/1.1 200 ")
    else:
        assert reply.startswith(b"HTTP/1.1 502 ")


def test_informational_heads_and_trailers_do_not_pass_a_handler(lab: Lab) -> None:
    lab.far._answer = lambda request, sock: sock.sendall(
        b"HTTP/1.1 103 Early\r\nX-Hidden: 1\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Hidden: 1\r\n\r\n2\r\nok\r\n0\r\nX-Hidden: 1\r\n\r\n"
    )
    lab.open(Handler(host="far.example", response_remove_headers=("X-Hidden",)))
    reply = lab.talk()
    assert b"Hidden" not in reply
    assert b"\r\n2\r\nok\r\n0\r\n" in reply


def test_removed_handler_no_longer_applies_to_a_kept_connection(lab: Lab) -> None:
    lab.open(Handler(host="far.example", set_headers={"X-H": "1"}))
    client = http.client.HTTPConnection("far.example")
    client.sock = lab.harness.connect("far.example", 80)
    for _ in range(2):
        client.request("GET", "/")
        assert client.getresponse().read() == b"ok"
        lab.harness.change(f"far.example@{lab.address}")
    client.close()
    assert [b"X-H: 1" in seen for seen in lab.far.requests] == [True, False]


# -- the mirror -------------------------------------------------------------------------------------------------------


def test_mirror_copies_heads_and_the_beginnings_of_bodies(lab: Lab) -> None:
    lab.far._answer = lambda request, sock: sock.sendall(
        b"HTTP/1.1 201 Made\r\nX-Far: yes\r\nContent-Length: 20000\r\n\r\n" + b"r" * 20_000
    )
    lab.open(mirror=("far.example",))
    post = (
        b"POST /p?q=1 HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\nContent-Length: 9000\r\n\r\n" + b"q" * 9000
    )
    assert lab.talk(post).endswith(b"r" * 20_000)
    lab.talk(GET.replace(b"far.example", b"other.example"), "other.example")
    wait_until(lambda: bool(lab.harness.server.exchanges), "the mirrored exchange")
    (one,) = lab.harness.server.exchanges
    assert (one.method, one.url, one.status, one.note) == ("POST", "http://far.example/p?q=1", 201, None)
    assert ("x-far", "yes") in one.response_headers
    assert (one.request_size, one.response_size) == (9000, 20_000)
    assert (one.request_body, one.response_body) == (b"q" * 8192, b"r" * 8192)


def test_mirror_reports_answers_and_failed_exchanges(lab: Lab) -> None:
    lab.open(
        Handler(host="far.example/local", answer=HttpResponse(body=b"local")),
        mirror=("far.example", "gone.example"), allow=("far.example", "gone.example"),
    )  # fmt: skip
    lab.talk(GET.replace(b"/a?b=c", b"/local"))
    lab.talk(GET.replace(b"far.example", b"gone.example"), "gone.example")
    wait_until(lambda: len(lab.harness.server.exchanges) == 2, "two mirrored exchanges")
    local, failed = lab.harness.server.exchanges
    assert (local.status, local.response_body) == (200, b"local")
    assert (failed.status, failed.note) == (0, "it did not complete")


def test_body_of_an_answered_request_is_mirrored_and_recorded(lab: Lab) -> None:
    """Also if the handler has received it."""
    lab.decide(HandlerDecision(response=HttpResponse(body=b"mine")))
    lab.open(Handler(host="far.example", callback="request", bodies=True), mirror=("far.example",), cassette="record")
    post = b"POST / HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    assert lab.talk(post).endswith(b"\r\n\r\nmine")
    wait_until(lambda: bool(lab.harness.server.exchanges), "the mirrored exchange")
    (one,) = lab.harness.server.exchanges
    assert (one.request_body, one.request_size, one.response_body) == (b"hello", 5, b"mine")
    with open(lab.harness.cassette_file.name, "rb") as file:
        assert hashlib.sha256(b"hello").hexdigest().encode() in file.read()


def test_bodies_for_a_handler_are_held_for_few_exchanges_at_once(lab: Lab) -> None:
    lab.open(Handler(host="far.example", callback="request", bodies=True))
    lab.decide(HandlerDecision())
    assert lab.harness.egress is not None
    bodies = lab.harness.egress._context.bodies
    post = b"POST / HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(lab.harness.connect("far.example", 80)) for _ in range(MAX_HELD_BODIES + 1)]
        for sock in slow:
            sock.sendall(post + b"o")
        wait_until(bodies.locked, "all places to be taken")
        assert lab.harness.server.calls == []
        for sock in slow:
            sock.sendall(b"k")
        for sock in slow:
            assert b" 200 " in read_all(sock)
    assert not bodies.locked()


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"redirect": "a.b", "answer": HttpResponse()},
        {"callback": "request", "set_headers": {"X": "y"}},
        {"answer": HttpResponse(), "set_headers": {"X": "y"}},
        {"set_headers": {"X": "y"}, "timeout": 5},
        {"callback": "request", "timeout": 301},
        {"callback": "request", "timeout": -1},
        {"set_headers": {f"X-{n}": "y" for n in range(33)}},
        {"set_headers": {"X": "y" * 40_000}},
        {"remove_headers": "X-Old"},
    ],
)
def test_invalid_handler_is_rejected(given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Handler(host="far.example", **given)  # type: ignore[arg-type]


def test_policy_bounds_its_handlers() -> None:
    one = Handler(host="far.example", set_headers={"X": "y"})
    with pytest.raises(InvalidRequest, match="more than 64"):
        Network(handlers=(one,) * 65)
    answer = Handler(host="far.example", answer=HttpResponse(body=b"x" * 40_000))
    with pytest.raises(InvalidRequest, match="larger than 64K"):
        Network(handlers=(answer,) * 2)
    with pytest.raises(InvalidRequest, match="is not a Handler"):
        Network(handlers=("far.example",))  # type: ignore[arg-type]
