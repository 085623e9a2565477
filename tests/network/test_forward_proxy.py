"""The proxy that the proxy variables name is as strict as the transparent path, and explains its denials."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest
from network.test_client_hello import greeting
from network.test_http_proxy import AMBIGUOUS, Far
from support.egress import EgressHarness, echo, is_reset, random_loopback, read_all, serve_tcp

from skerry.network.messages import PROXY_IP, PROXY_PORT


@contextlib.contextmanager
def far(harness: EgressHarness, server: object, *rules: str, port: int = 80) -> Iterator[None]:
    address = random_loopback()
    with serve_tcp(server, address, port):  # type: ignore[arg-type]
        harness.server.hosts |= {"far.example": [address], "other.example": [address]}
        harness.open(*(f"{rule}@{address}" for rule in rules or ("far.example",)))
        yield


def talk(harness: EgressHarness, data: bytes) -> bytes:
    with harness.connect(PROXY_IP, PROXY_PORT) as sock:
        sock.sendall(data)
        return read_all(sock)


def tunnel(harness: EgressHarness, place: str) -> tuple[socket.socket, bytes]:
    sock = harness.connect(PROXY_IP, PROXY_PORT)
    sock.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    reply = b""
    while b"\r\n\r\n" not in reply:
        more = sock.recv(65536)
        if not more:
            break
        reply += more
    return sock, reply


def test_connect_leads_to_an_allowed_host(harness: EgressHarness) -> None:
    with far(harness, echo, "far.example:7777", port=7777):
        sock, reply = tunnel(harness, "far.example:7777")
        with sock:
            assert reply.startswith(b"HTTP/1.1 200 ")
            sock.sendall(b"\x01hi")
            assert sock.recv(10) == b"\x01hi"
    ended = harness.attempt(lambda a: a.ended and a.decision == "allowed")
    assert (ended.host, ended.port, ended.sent) == ("far.example", 7777, 3)


@pytest.mark.parametrize("target", ["evil.example:443", "10.0.0.1:22", "169.254.169.254:80", "[::1]:80", "127.1:80",
                                    "0x7f000001:80", "2130706433:80", "[::ffff:127.0.0.1]:80"])  # fmt: skip
def test_connect_elsewhere_is_refused_with_a_reason(harness: EgressHarness, target: str) -> None:
    harness.open("far.example")
    sock, reply = tunnel(harness, target)
    with sock:
        assert reply.startswith(b"HTTP/1.1 403 Forbidden by Skerry\r\n")
        assert b"skerry: " in reply + read_all(sock)
    assert harness.attempt(lambda a: a.decision == "denied").port == int(target.rpartition(":")[2])


@pytest.mark.parametrize("target", ["far.example", "far.example:", "far.example:0", "far.example:99999", ":443",
                                    "evil\0.far.example:80", "u@far.example:443", "far.example:443/"])  # fmt: skip
def test_connect_to_an_invalid_destination_is_rejected(harness: EgressHarness, target: str) -> None:
    harness.open("far.example")
    sock, reply = tunnel(harness, target)
    with sock:
        assert reply.startswith(b"HTTP/1.1 400 ")


def test_tls_inside_connect_must_be_for_the_same_host(harness: EgressHarness) -> None:
    seen = []

    def take(sock: socket.socket) -> None:
        seen.append(sock.recv(65536))

    with far(harness, take, "far.example", "other.example", port=443):
        sock, reply = tunnel(harness, "far.example:443")
        with sock:
            assert b" 200 " in reply
            sock.sendall(greeting("other.example"))
            assert is_reset(sock)
        harness.wait_idle()
        assert not any(seen)
    assert harness.denied_attempt("far.example", "TLS for other.example")


def test_a_request_inside_connect_must_be_for_the_same_host(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server, "far.example", "other.example"):
        sock, _ = tunnel(harness, "far.example:80")
        with sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n")
            assert b" 403 " in read_all(sock)
    assert server.requests == []


def test_requests_with_absolute_targets_may_go_to_different_hosts(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server, "far.example", "other.example"), harness.connect(PROXY_IP, PROXY_PORT) as sock:
        for host in (b"far.example", b"other.example", b"far.example"):
            sock.sendall(b"GET http://%b/x HTTP/1.1\r\nHost: %b\r\nProxy-Connection: keep-alive\r\n\r\n" % (host, host))
            reply = b""
            while not reply.endswith(b"ok"):
                reply += sock.recv(1000)
        sock.sendall(b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        reply = read_all(sock)
        assert b" 403 Forbidden by Skerry" in reply
        assert b"--allow evil.example" in reply
    assert [re.search(rb"Host: (\S+)", request)[1] for request in server.requests] == [  # type: ignore[index]
        b"far.example", b"other.example", b"far.example",
    ]  # fmt: skip
    assert all(request.startswith(b"GET /x HTTP/1.1\r\n") for request in server.requests)


def test_target_and_host_must_name_one_place(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server, "far.example", "other.example"):
        assert b" 400 " in talk(harness, b"GET http://far.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n")
        assert b" 400 " in talk(harness, b"GET / HTTP/1.1\r\nHost: far.example\r\n\r\n")
        assert b" 400 " in talk(harness, b"GET https://far.example/ HTTP/1.1\r\nHost: far.example\r\n\r\n")
    assert server.requests == []


@pytest.mark.parametrize(
    "url", ["http://far.example@127.0.0.1/", "http://far.example@other.example/", "http://far.example:80@other.example/",
            "http://far.example\\@other.example/", "http://user:word@far.example/", "http://@far.example/",
            "http://far.example@"],
)  # fmt: skip
def test_attack_user_in_a_proxy_url_is_refused(harness: EgressHarness, url: str) -> None:
    """Two parsers could take another part of such a URL for the host."""
    server = Far()
    with far(harness, server):
        for host in ("far.example", "127.0.0.1", "other.example"):
            reply = talk(harness, f"GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert reply.startswith(b"HTTP/1.1 400 "), reply
    assert server.requests == []


@pytest.mark.parametrize("name", ["CL.TE", "TE.CL", "TE.TE", "two CL", "bare LF", "folded header", "HTTP/2 preface"])
def test_nothing_is_smuggled_through_it(harness: EgressHarness, name: str) -> None:
    server = Far()
    data = re.sub(rb"^(GET|POST) /", rb"\1 http://far.example/", AMBIGUOUS[name])
    with far(harness, server):
        assert talk(harness, data).startswith(b"HTTP/1.1 400 ")
    assert server.requests == []


@pytest.mark.parametrize("data", [b"\x05\x01\x00", b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", greeting("far.example")])
def test_socks_and_tls_are_not_spoken_there(harness: EgressHarness, data: bytes) -> None:
    harness.open("far.example")
    with harness.connect(PROXY_IP, PROXY_PORT) as sock:
        sock.sendall(data)
        assert not re.match(rb"HTTP/1.1 2|\x05\x00|\x00\x5a|\x16", sock.recv(1000))
    assert harness.attempt(lambda a: a.decision == "denied")


def test_new_rules_close_a_tunnel(harness: EgressHarness) -> None:
    with far(harness, echo, "far.example:7777", port=7777):
        sock, _ = tunnel(harness, "far.example:7777")
        with sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
            harness.change("else.example")
            assert is_reset(sock)


def test_curl_shows_the_reason(harness: EgressHarness) -> None:
    harness.open("far.example")
    pid = str(harness._namespace.process.pid)
    done = subprocess.run(
        ["nsenter", "-t", pid, "-n", "curl", "-sS", "-x", f"http://{PROXY_IP}:{PROXY_PORT}", "https://evil.example/"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert "403" in done.stderr


# -- an upstream proxy ------------


class Corporate:
    """The operator's proxy: accepts CONNECT and leads to one server."""

    def __init__(self, to: tuple[str, int], status: bytes = b"200 OK") -> None:
        self.heads: list[bytes] = []
        self._to, self._status = to, status

    def __call__(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        self.heads.append(head)
        sock.sendall(b"HTTP/1.1 %b\r\n\r\n" % self._status)
        if self._status.startswith(b"2"):
            with socket.create_connection(self._to, 10) as far:
                threading.Thread(target=_pour, args=(far, sock), daemon=True).start()
                _pour(sock, far)


def _pour(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def test_hosts_of_an_upstream_proxy_are_reached_through_it(harness: EgressHarness) -> None:
    address = random_loopback()
    with serve_tcp(echo, address) as port:
        corporate = Corporate((address, port))
        with serve_tcp(corporate, address) as via:
            proxies = ((("far.example:7777",), f"http://{address}:{via}"),)
            harness.open("far.example:7777", f"{address}:{via}", proxies=proxies)
            with harness.connect("far.example", 7777) as sock:
                sock.sendall(b"\x01hi")
                assert sock.recv(10) == b"\x01hi"
            assert corporate.heads[0].startswith(b"CONNECT far.example:7777 HTTP/1.1\r\n")
            sock, reply = tunnel(harness, f"{address}:{via}")  # only the worker may use it
            sock.close()
            assert b" 403 " in reply


def test_refusal_of_an_upstream_proxy_is_reported(harness: EgressHarness) -> None:
    address = random_loopback()
    with serve_tcp(Corporate((address, 1), b"407 Proxy Authentication Required"), address) as via:
        proxies = ((("far.example:7777",), f"http://{address}:{via}"),)
        harness.open("far.example:7777", f"{address}:{via}", proxies=proxies)
        assert harness.is_denied("far.example", 7777)
    ended = harness.attempt(lambda a: a.ended)
    assert "upstream proxy answered 407" in ended.why


def test_an_upstream_proxy_is_given_plain_requests_and_no_tunnel_to_port_80(harness: EgressHarness) -> None:
    """Squid and similar proxies open tunnels to 443 only, and caches need to see the requests."""
    heads: list[bytes] = []

    def cache(sock: socket.socket) -> None:
        while head := sock.recv(4096):
            heads.append(head)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    address = random_loopback()
    with serve_tcp(cache, address) as via:
        proxies = ((("far.example:80,8080",), f"http://{address}:{via}"),)
        harness.open("far.example:80,8080", f"{address}:{via}", proxies=proxies)
        with harness.connect("far.example", 80) as sock:
            for _ in range(2):
                sock.sendall(b"GET /a?b HTTP/1.1\r\nHost: far.example\r\n\r\n")
                assert b"hi" in sock.recv(4096)
            sock.sendall(b"OPTIONS * HTTP/1.1\r\nHost: far.example\r\n\r\n")
            assert b"hi" in sock.recv(4096)
        with harness.connect(PROXY_IP, PROXY_PORT) as sock:
            sock.sendall(b"GET http://far.example:8080/c HTTP/1.1\r\nHost: far.example:8080\r\n\r\n")
            assert b"hi" in sock.recv(4096)
    assert [head.split(b"\r\n")[0] for head in heads] == [
        b"GET http://far.example/a?b HTTP/1.1",
        b"GET http://far.example/a?b HTTP/1.1",
        b"OPTIONS http://far.example HTTP/1.1",
        b"GET http://far.example:8080/c HTTP/1.1",
    ]
    assert all(b"host: far.example" in head.lower() for head in heads)
