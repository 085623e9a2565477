"""HTTP is judged request by request, and no two readers can read one request in two ways."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import random
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from support.egress import EgressHarness, is_reset, random_loopback, read_all, serve_tcp

from skerry.network.worker.http.headers import BadRequest, parse_request


class Far:
    """An HTTP server that records its input byte for byte."""

    def __init__(self, answer: Callable[[bytes, socket.socket], None] | None = None) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answer = answer

    def __call__(self, sock: socket.socket) -> None:
        self.connections += 1
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                more = sock.recv(65536)
                if not more:
                    return
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            while length and len(data) < int(length[1]):
                data += sock.recv(65536)
            size = int(length[1]) if length else 0
            body, data = data[:size], data[size:]
            if b"chunked" in head.lower():
                while not re.search(rb"(^|\n)0\r\n([^\n]+\n)*\r\n$", data):
                    data += sock.recv(65536)
                body, data = data, b""
            self.requests.append(head + b"\r\n\r\n" + body)
            if self._answer is not None:
                self._answer(self.requests[-1], sock)
            else:
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Far: yes\r\n\r\nok")


@contextlib.contextmanager
def far(harness: EgressHarness, server: Callable[[socket.socket], None], *rules: str, port: int = 80) -> Iterator[None]:
    address = random_loopback()
    with serve_tcp(server, address, port):
        harness.server.hosts |= {"far.example": [address], "other.example": [address]}
        harness.open(*(f"{rule}@{address}" for rule in rules or ("far.example",)))
        yield


def talk(harness: EgressHarness, data: bytes, host: str = "far.example", port: int = 80) -> bytes:
    with harness.connect(host, port) as sock:
        sock.sendall(data)
        return read_all(sock)


GET = b"GET / HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\n\r\n"


def test_ordinary_request_is_answered_and_reported(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server):
        reply = talk(harness, GET.replace(b"GET /", b"GET /a/b?token=hidden"))
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        assert reply.endswith(b"\r\n\r\nok")
        assert server.requests[0].startswith(b"GET /a/b?token=hidden HTTP/1.1\r\nHost: far.example\r\n")
        ended = harness.attempt(lambda a: a.kind == "request" and a.ended)
        assert (ended.method, ended.path, ended.host, ended.port) == ("GET", "/a/b", "far.example", 80)
        assert ended.sent > 0
        assert ended.received > 0


def test_many_requests_use_one_connection(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server):
        client = http.client.HTTPConnection("far.example")
        client.sock = harness.connect("far.example", 80)
        for number in range(20):
            client.request("POST", f"/{number}", body=b"x" * number)
            assert client.getresponse().read() == b"ok"
        client.close()
    assert server.connections == 1
    assert [len(r.partition(b"\r\n\r\n")[2]) for r in server.requests] == list(range(20))


def test_pipelined_requests_are_each_judged(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server, "GET far.example:80/ok"):
        good = b"GET /ok HTTP/1.1\r\nHost: far.example\r\n\r\n"
        reply = talk(harness, good + good + b"GET /secret HTTP/1.1\r\nHost: far.example\r\n\r\n" + good)
    assert [line.split()[1] for line in re.findall(rb"HTTP/1.1 \d+", reply)] == [b"200", b"200", b"403"]
    assert len(server.requests) == 2


def test_methods_and_paths_are_held_to(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server, "GET,HEAD far.example:80/pub"):
        assert b" 200 " in talk(harness, GET.replace(b" / ", b" /pub/x "))
        for bad in (b" /private ", b" /pub/../private ", b" /pub/%2e%2e/private ", b" /pub/..;/private ", b" /pubx "):
            reply = talk(harness, GET.replace(b" / ", bad))
            assert reply.startswith(b"HTTP/1.1 403 Forbidden by Skerry\r\n"), bad
        assert b" 403 " in talk(harness, GET.replace(b"GET / ", b"DELETE /pub/x "))
    assert len(server.requests) == 1
    assert harness.attempt(lambda a: a.method == "DELETE" and a.decision == "denied").path == "/pub/x"


@pytest.mark.parametrize("header", [b"X-HTTP-Method-Override: DELETE", b"x-original-url: /admin"])
def test_method_override_header_is_denied_where_rules_look_at_requests(harness: EgressHarness, header: bytes) -> None:
    server = Far()
    asked = GET.replace(b"Connection: close", header + b"\r\nConnection: close")
    with far(harness, server, "GET,POST far.example"):
        assert talk(harness, asked).startswith(b"HTTP/1.1 403 ")
        assert talk(harness, GET).startswith(b"HTTP/1.1 200 ")
    assert len(server.requests) == 1
    with far(harness, server):
        assert talk(harness, asked).startswith(b"HTTP/1.1 200 ")


def test_denial_hints_at_the_rule_that_would_allow_it(harness: EgressHarness) -> None:
    with far(harness, Far(), "GET far.example:80/pub"):
        reply = talk(harness, GET.replace(b"GET / ", b"DELETE /pub "))
    assert b"hint: --allow" in reply
    assert b"far.example" in reply


@pytest.mark.parametrize("host", [b"other.example", b"far.example:81", b"far.example.evil.example", b"127.0.0.1",
                                  b"far.example\0", b"far.example@evil.example", b"[::1]", b""])  # fmt: skip
def test_host_must_be_where_the_connection_leads(harness: EgressHarness, host: bytes) -> None:
    server = Far()
    with far(harness, server, "far.example", "other.example"):
        reply = talk(harness, b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
        assert reply[9:12] in (b"400", b"403")
    assert server.requests == []


@pytest.mark.parametrize("host", [b"far.example", b"FAR.example", b"far.example.", b"far.example:80"])
def test_host_may_be_spelled_in_every_way_that_means_the_same(harness: EgressHarness, host: bytes) -> None:
    server = Far()
    with far(harness, server):
        assert b" 200 " in talk(harness, b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % host)


def test_an_absolute_target_goes_only_where_the_connection_leads(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server, "far.example", "other.example"):
        for target, status in (
            (b"http://far.example/x", b"200"),
            (b"http://other.example/x", b"400"),
            (b"https://far.example/x", b"400"),
            (b"http://u@far.example/x", b"400"),
            (b"far.example:80", b"400"),
            (b"http://far.example:81/x", b"403"),
        ):
            reply = talk(harness, b"GET %b HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\n\r\n" % target)
            assert reply[9:12] == status, (target, reply)
        reply = talk(harness, b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n")
        assert reply[9:12] == b"403"
    assert [r.split(b" ")[1] for r in server.requests] == [b"/x"]


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: far.example\r\n\r\n"
P = b"POST / HTTP/1.1\r\nHost: far.example\r\n"
AMBIGUOUS = {
    "CL.TE": P + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE.CL": P + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + SMUGGLED + b"0\r\n\r\n",
    "TE.TE": P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE: xchunked": P + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE: chunked, identity": P + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE: gzip, chunked": P + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE with a vertical tab": P + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE folded": P + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE after a space": P + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE after a tab": P + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE hidden by LF": P + b"X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE hidden by CR": P + b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "TE in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: far.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two CL": P + b"Content-Length: 0\r\nContent-Length: 46\r\n\r\n" + SMUGGLED,
    "two equal CL": P + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "CL list": P + b"Content-Length: 5, 5\r\n\r\nhello",
    "CL +5": P + b"Content-Length: +5\r\n\r\nhello",
    "CL -1": P + b"Content-Length: -1\r\n\r\nhello",
    "CL 0x5": P + b"Content-Length: 0x5\r\n\r\nhello",
    "CL 5 5": P + b"Content-Length: 5 5\r\n\r\nhello",
    "CL with underscore": P + b"Content-Length: 1_0\r\n\r\n0123456789",
    "CL empty": P + b"Content-Length:\r\n\r\n" + SMUGGLED,
    "CL huge": P + b"Content-Length: 99999999999999999999\r\n\r\n",
    "CL of other digits": P + "Content-Length: ٥\r\n\r\nhello".encode(),
    "bare LF": b"GET / HTTP/1.1\nHost: far.example\n\n",
    "bare LF in the middle": b"GET / HTTP/1.1\r\nHost: far.example\nX: y\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\rHost: far.example\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: far.example\r\nX: a\0b\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: far.example\r\nX: a\r\n b\r\n\r\n",
    "folded first": b"GET / HTTP/1.1\r\n Host: other.example\r\nHost: far.example\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost : far.example\r\n\r\n",
    "empty name": b"GET / HTTP/1.1\r\nHost: far.example\r\n: x\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: far.example\r\nnonsense\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: far.example\r\nHost: other.example\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "leading blank line": b"\r\nGET / HTTP/1.1\r\nHost: far.example\r\n\r\n",
    "leading space": b" GET / HTTP/1.1\r\nHost: far.example\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: far.example\r\n\r\n",
    "tab": b"GET\t/\tHTTP/1.1\r\nHost: far.example\r\n\r\n",
    "space in target": b"GET /a b HTTP/1.1\r\nHost: far.example\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\nHost: far.example\r\n\r\n",
    "lower-case version": b"GET / http/1.1\r\nHost: far.example\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: far.example\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: far.example\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "CONNECT": b"CONNECT far.example:80 HTTP/1.1\r\nHost: far.example\r\n\r\n",
    "asterisk": b"GET * HTTP/1.1\r\nHost: far.example\r\n\r\n",
    "a first line of spaces": b"GET" + b" " * 15_000 + b"/\r\n\r\n",
    "headers without end": b"GET / HTTP/1.1\r\nHost: far.example\r\n" + b"a:\r\n" * 10_000 + b"\r\n",
    "head without end": b"GET / HTTP/1.1\r\nHost: far.example\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_no_request_is_smuggled(harness: EgressHarness, data: bytes) -> None:
    server = Far()
    with far(harness, server), harness.connect("far.example", 80) as sock, contextlib.suppress(OSError):
        sock.sendall(data)
        reply = sock.recv(65536)
        assert reply[:12] in (b"HTTP/1.1 400", b""), reply
    assert server.requests == []
    assert harness.attempt(lambda a: a.decision == "denied")


def test_http2_without_tls_is_refused_with_a_reason(harness: EgressHarness) -> None:
    with far(harness, Far()):
        assert b"HTTP/2 without TLS is not supported" in talk(harness, AMBIGUOUS["HTTP/2 preface"])


def test_chunked_body_is_reframed(harness: EgressHarness) -> None:
    server = Far()
    chunks = b"5;ext=1\r\nhello\r\n006\r\n world\r\n0\r\nX-Trail: t\r\nContent-Length: 3\r\n\r\n"
    with far(harness, server):
        reply = talk(harness, P + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        assert b" 200 " in reply
    body = server.requests[0].partition(b"\r\n\r\n")[2]
    assert b";ext" not in body
    assert b"X-Trail: t" in body
    assert b"ontent-" not in body
    assert b"content-length" not in server.requests[0].lower()
    assert b"".join(re.findall(rb"[0-9a-f]+\r\n([^\r]+)\r\n", body.partition(b"0\r\n")[0])) == b"hello world"


@pytest.mark.parametrize(
    "bad",
    [
        b"g\r\nx\r\n0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"-1\r\n\r\n",
        b"5 5\r\nhello\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFFFFFF\r\n",
    ],
)
def test_bad_chunks_end_the_connection(harness: EgressHarness, bad: bytes) -> None:
    with far(harness, Far()), harness.connect("far.example", 80) as sock:
        sock.sendall(P + b"Transfer-Encoding: chunked\r\n\r\n" + bad)
        assert is_reset(sock)
    harness.wait_idle()


def test_one_byte_chunks_pass_both_ways_without_blocking_others(harness: EgressHarness) -> None:
    body = os.urandom(100_000)
    crumbs = b"".join(b"1\r\n%b\r\n" % bytes([byte]) for byte in body) + b"0\r\n\r\n"
    seen = []

    def answer(sock: socket.socket) -> None:
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += sock.recv(65536)
        seen.append(data.partition(b"\r\n\r\n")[2])
        sock.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + crumbs)

    with far(harness, answer):
        client = http.client.HTTPConnection("far.example")
        client.sock = harness.connect("far.example", 80)
        client.putrequest("POST", "/")
        client.putheader("Transfer-Encoding", "chunked")
        client.endheaders(crumbs)
        assert client.getresponse().read() == body
        client.close()
    assert len(seen[0]) < len(body) * 2


def test_hop_by_hop_headers_are_dropped(harness: EgressHarness) -> None:
    server = Far(
        lambda request, sock: sock.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nKeep-Alive: timeout=5\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
            b"X-End: 2\r\n\r\n"
        )
    )
    with far(harness, server):
        reply = talk(
            harness,
            b"GET / HTTP/1.1\r\nHost: far.example\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nX-Yours: 2\r\n"
            b"Proxy-Authorization: Basic eA==\r\nTE: trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
        )
    seen = server.requests[0].lower()
    assert b"x-yours: 2" in seen
    for gone in (b"x-mine", b"proxy-authorization", b"\r\nte:", b"upgrade", b"http2-settings"):
        assert gone not in seen
    assert b"X-End: 2" in reply
    assert b"x-hop" not in reply.lower()
    assert b"keep-alive" not in reply.lower()


@pytest.mark.parametrize(
    ("response", "method", "expected"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"GET", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"GET", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"HEAD", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"GET", b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"GET", b"to the end"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"GET", b"to the end"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", b"GET", b""),
    ],
)
def test_every_kind_of_response_ends_where_it_should(
    harness: EgressHarness, response: bytes, method: bytes, expected: bytes
) -> None:
    def answer(request: bytes, sock: socket.socket) -> None:
        sock.sendall(response)
        if b"\r\n\r\nto the end" in response:
            sock.shutdown(socket.SHUT_RDWR)

    with far(harness, Far(answer)):
        client = http.client.HTTPConnection("far.example")
        client.sock = harness.connect("far.example", 80)
        client.request(method.decode(), "/")
        got = client.getresponse()
        assert got.read() == expected
        client.close()


def test_hints_go_before_the_response(harness: EgressHarness) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    server = Far(lambda request, sock: sock.sendall(early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    with far(harness, server):
        reply = talk(harness, GET)
    assert reply.startswith(early + b"HTTP/1.1 200 OK\r\n")


def test_an_old_client_gets_no_chunks(harness: EgressHarness) -> None:
    server = Far(
        lambda request, sock: sock.sendall(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        )
    )
    with far(harness, server):
        reply = talk(harness, b"GET / HTTP/1.0\r\n\r\n")
    assert reply.endswith(b"\r\n\r\nabc")
    assert b"chunked" not in reply.lower()
    assert b"Host: far.example\r\n" in server.requests[0]


def test_incomplete_response_is_not_taken_for_a_complete_one(harness: EgressHarness) -> None:
    def half(request: bytes, sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        sock.shutdown(socket.SHUT_RDWR)

    with far(harness, Far(half)), harness.connect("far.example", 80) as sock:
        sock.sendall(GET)
        assert is_reset(sock)


def test_a_server_that_speaks_no_http_is_a_bad_gateway(harness: EgressHarness) -> None:
    with far(harness, Far(lambda request, sock: sock.sendall(b"\x15\x03\x01\x00\x02\x02\x46"))):
        assert talk(harness, GET).startswith(b"HTTP/1.1 502 ")


def test_unreachable_allowed_host_is_reported_as_such(harness: EgressHarness) -> None:
    with far(harness, Far(lambda request, sock: None)):
        pass  # the listener is closed
    assert b"could not be reached" in talk(harness, GET)
    told = harness.attempt(lambda a: a.host == "far.example" and a.ended)
    assert (told.decision, told.hint) == ("allowed", "it is allowed, but could not be reached: Connection refused")


def test_kept_connection_that_the_server_closed_is_replaced(harness: EgressHarness) -> None:
    def once(request: bytes, sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    server = Far(once)
    with far(harness, server):
        client = http.client.HTTPConnection("far.example")
        client.sock = harness.connect("far.example", 80)
        for _ in range(5):
            client.request("GET", "/")
            assert client.getresponse().read() == b"ok"
        client.close()
    assert server.connections == 5


def test_expect_continue_is_answered_by_the_server(harness: EgressHarness) -> None:
    def patient(sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        assert b"100-continue" in head
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert sock.recv(100) == b"hello"
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with far(harness, patient), harness.connect("far.example", 80) as sock:
        sock.sendall(P + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hello")
        assert b" 200 " in sock.recv(1000)


def test_an_early_refusal_of_a_long_upload_reaches_the_client(harness: EgressHarness) -> None:
    def stop(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 413 Too Much\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while sock.recv(65536):
                pass

    with far(harness, stop), harness.connect("far.example", 80) as sock:
        sock.sendall(P + b"Content-Length: 100000000\r\n\r\n" + b"x" * 100_000)
        assert b" 413 " in sock.recv(1000)


def test_long_bodies_pass_unchanged_both_ways(harness: EgressHarness) -> None:
    data = os.urandom(1 << 20) * 8
    digest = hashlib.sha256(data).hexdigest().encode()

    def answer(request: bytes, sock: socket.socket) -> None:
        body = request.partition(b"\r\n\r\n")[2]
        sock.sendall(b"HTTP/1.1 200 OK\r\nX-Digest: %b\r\nContent-Length: %d\r\n\r\n" % (
            hashlib.sha256(body).hexdigest().encode(), len(data)) + data)  # fmt: skip

    with far(harness, Far(answer)):
        client = http.client.HTTPConnection("far.example")
        client.sock = harness.connect("far.example", 80)
        for _ in range(2):
            client.request("POST", "/", body=data)
            got = client.getresponse()
            assert got.read() == data
            assert got.headers["X-Digest"].encode() == digest
        client.close()


# The example of RFC 6455.
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
ASK = b"GET %b HTTP/1.1\r\nHost: far.example\r\n" + WEBSOCKET + b"Sec-WebSocket-Version: 13\r\n"
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
ACCEPT = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"


def test_a_websocket_is_judged_as_its_request_and_then_passes(harness: EgressHarness) -> None:
    def switch(sock: socket.socket) -> None:
        head = sock.recv(65536)
        assert b"Upgrade: websocket" in head
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\n" + WEBSOCKET + ACCEPT + b"X-A: b\r\n\r\nfirst")
        while data := sock.recv(1000):
            sock.sendall(data.upper())

    ask = ASK + KEY + b"\r\n"
    with far(harness, switch, "GET far.example:80/ws"):
        with harness.connect("far.example", 80) as sock:
            sock.sendall(ask % b"/ws")
            got = b""
            while not got.endswith(b"first"):
                got += sock.recv(1000)
            assert got.startswith(b"HTTP/1.1 101 ")
            assert b"X-A: b" in got
            sock.sendall(b"hello")
            assert sock.recv(100) == b"HELLO"
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b""
        assert b" 403 " in talk(harness, ask % b"/elsewhere")


@pytest.mark.parametrize("accept", [b"", b"Sec-WebSocket-Accept: x\r\n"])
def test_a_101_of_no_websockets_server_opens_nothing(harness: EgressHarness, accept: bytes) -> None:
    """Like a server that was made to send 101 and goes on reading requests, which would not be judged any more."""

    def fooled(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\n" + WEBSOCKET + accept + b"\r\n")
        with contextlib.suppress(OSError):
            assert sock.recv(1000) == b""

    with far(harness, fooled, "GET far.example:80/ws"):
        assert b" 502 " in talk(harness, ASK % b"/ws" + KEY + b"\r\nGET /elsewhere HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("key", [b"", b"Sec-WebSocket-Key: short\r\n"])
def test_an_upgrade_without_a_key_is_an_ordinary_request(harness: EgressHarness, key: bytes) -> None:
    heads = []

    def answer(request: bytes, sock: socket.socket) -> None:
        heads.append(request)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with far(harness, Far(answer), "GET far.example:80/ws"):
        asked = (ASK % b"/ws").replace(b"Connection: Upgrade", b"Connection: Upgrade, close")
        assert b" 200 " in talk(harness, asked + key + b"\r\n")
    assert b"Upgrade" not in heads[0]


def test_new_rules_stop_the_request_that_is_under_way(harness: EgressHarness) -> None:
    stuck = threading.Event()

    def drip(request: bytes, sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx")
        stuck.wait(30)

    with far(harness, Far(drip), "far.example:80/a"):
        address = harness.server.hosts["far.example"][0]
        with harness.connect("far.example", 80) as sock:
            sock.sendall(GET.replace(b" / ", b" /a "))
            got = b""
            while not got.endswith(b"\r\n\r\nx"):
                got += sock.recv(1000)
            harness.change(f"far.example:80/b@{address}")
            assert is_reset(sock)
        stuck.set()
    assert harness.attempt(lambda a: a.decision == "denied" and a.path == "/a")


def test_silent_client_on_port_80_is_reset(harness: EgressHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.network.worker.connection.FIRST_BYTES_TIMEOUT_S", 0.2)
    monkeypatch.setattr("skerry.network.worker.http.proxy.FIRST_HEAD_TIMEOUT_S", 0.2)
    server = Far()
    with far(harness, server):
        with harness.connect("far.example", 80) as sock:
            assert is_reset(sock)
        assert harness.denied_attempt("first bytes")
        with harness.connect("far.example", 80) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: far")
            with contextlib.suppress(ConnectionResetError):
                assert read_all(sock) == b""
    assert server.connections == 0
    harness.wait_idle()


def test_bytes_that_are_no_http_are_refused_on_port_80(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server), harness.connect("far.example", 80) as sock:
        sock.sendall(b"\x05\x01\x00\r\n\r\n")
        assert is_reset(sock)
    assert harness.denied_attempt("neither HTTP nor TLS")
    assert server.connections == 0


def test_a_request_in_pieces_on_another_port_is_still_a_request(harness: EgressHarness) -> None:
    """Too slow to wait for the whole first line: it is cut before a header has passed."""
    server = Far()
    with far(harness, server, "far.example:8080", "other.example:8080", port=8080):
        assert b" 200 " in talk(harness, GET.replace(b"far.example", b"far.example:8080"), port=8080)
        assert b" 403 " in talk(harness, GET.replace(b"far.example", b"other.example"), port=8080)
        with harness.connect("far.example", 8080) as sock:
            sock.sendall(b"GET ")
            harness.attempt(lambda a: a.kind == "connection" and a.decision == "allowed")
            threading.Event().wait(0.6)
            sock.sendall(b"/ HTTP/1.1\r\nHost: other.example\r\n\r\n")
            assert is_reset(sock)
    assert len(server.requests) == 1


def test_random_damage_to_a_request_never_makes_two_of_it() -> None:
    """An accepted request has one method, one target and one length, and no byte that frames anything."""
    dice = random.Random(7)
    base = P + b"Content-Length: 5\r\nX-A: b\r\nConnection: close\r\n\r\n"
    alphabet = b"\r\n\t :;,\0\x0b\x0c\x85\xa0GETPOSThttp/1.0chunked-_+5"
    accepted = 0
    for _ in range(20_000):
        bad = bytearray(base)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(bad) - 4)
            bad[at : at + dice.randrange(2)] = bytes([dice.choice(alphabet)])
        head = bytes(bad)
        end = head.find(b"\r\n\r\n")
        try:
            request = parse_request(head[: end + 4])
        except BadRequest:
            continue
        accepted += 1
        for name, value in request.headers:
            assert re.fullmatch(rb"[!#$%&'*+.^_`|~0-9a-z-]+", name)
            assert not re.search(rb"[\r\n\0]", value)
        assert not re.search(rb"[\s\0]", request.method + request.target)
        assert sum(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers) <= 1
    assert accepted
