"""A malicious sandbox or server: its cost for others, and races with changes of rules."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import h11
import pytest
from network.test_http_proxy import GET, Far, far, talk
from support.egress import EgressHarness, echo, is_reset, read_all, serve_tcp

from skerry.network import ca
from skerry.network.ca import LeafIssuer
from skerry.network.messages import PROXY_IP, PROXY_PORT, InjectedSecret, Rules
from skerry.network.worker.dns.resolver import Resolver, connect_any
from skerry.network.worker.previews.upstream import MAX_HEAD
from skerry.network.worker.rate_limit import TokenBucket
from skerry.network.worker.tls.interception import TlsInterceptor
from skerry.types.hosts import Address, Name

BLANKS = b" " * 60_000  # with a quadratic pattern, half a minute in which no other connection is served


@pytest.mark.parametrize("line", [b"GET " + BLANKS[:16_000], b"GET \t" + b"\t " * 8_000])
def test_first_line_of_blanks_blocks_no_other(harness: EgressHarness, line: bytes) -> None:
    with far(harness, Far()), harness.connect("far.example", 80) as sock:
        sock.sendall(line)
        sock.sendall(b"x" * 2_000)
        assert is_reset(sock)


def test_header_of_blanks_blocks_no_other(harness: EgressHarness) -> None:
    with far(harness, Far()):
        assert talk(harness, GET[:-2] + b"X:" + BLANKS + b"\x01\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_response_header_of_blanks_blocks_no_other(harness: EgressHarness) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX:" + BLANKS + b"\0\r\n\r\n"
    with far(harness, Far(lambda request, sock: sock.sendall(answer))):
        assert talk(harness, GET).startswith(b"HTTP/1.1 502 ")


def test_h11_takes_headers_as_before() -> None:
    def read(line: bytes) -> object:
        reader = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        reader.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n")
        event = reader.next_event()
        assert isinstance(event, h11.Request)
        return list(event.headers)[1:]

    for blanks in (b"", b" ", b" \t "):
        assert read(b"X:" + blanks + b"a b" + blanks) == [(b"x", b"a b")]
        assert read(b"X:" + blanks) == [(b"x", b"")]
    for bad in (b"X : a", b"X:a\0", b": a", b"X"):
        with pytest.raises(h11.RemoteProtocolError):
            read(bad)


# -- rules that change while a connection is being made ---------------------------------------------------------------


@pytest.fixture
def slow_names(harness: EgressHarness) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Look-ups that wait: the first event is set when one begins, the second lets them go on."""
    asked, go = threading.Event(), threading.Event()

    def look_up(name: Name) -> list[Address]:
        asked.set()
        assert go.wait(30)
        return harness.server.look_up(name)

    harness.resolver.close()
    harness.resolver = Resolver(look_up)
    yield asked, go
    go.set()


Slow = tuple[threading.Event, threading.Event]


def test_a_tunnel_that_is_refused_while_it_is_made_is_not_opened(harness: EgressHarness, slow_names: Slow) -> None:
    asked, go = slow_names
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        with harness.connect(PROXY_IP, PROXY_PORT) as sock:
            sock.sendall(f"CONNECT far.example:{port} HTTP/1.1\r\nHost: far.example:{port}\r\n\r\n".encode())
            assert asked.wait(30)
            harness.change(f"far.example:{port}@127.0.0.1", deny=("far.example",))
            go.set()
            with contextlib.suppress(ConnectionResetError):
                assert not read_all(sock).startswith(b"HTTP/1.1 200 ")
    assert harness.denied_attempt("far.example", "denied by")


@pytest.mark.parametrize("data", [b"\x01", b"GET / HTTP/1.1\r\nHost: far.example\r\n\r\n"])
def test_an_address_that_is_denied_while_it_is_dialled_is_not_used(
    harness: EgressHarness, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    dialled, go = threading.Event(), threading.Event()

    async def slowly(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address]:
        found = await connect_any(addresses, port)
        dialled.set()
        await asyncio.to_thread(go.wait, 10)
        return found

    monkeypatch.setattr("skerry.network.worker.dial.connect_any", slowly)
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        with harness.connect("far.example", port) as sock:
            sock.sendall(data)
            assert dialled.wait(30)
            harness.change(f"far.example:{port}@127.0.0.1", deny=("127.0.0.0/8",))
            go.set()
            assert is_reset(sock)
    assert harness.denied_attempt("denied by 127.0.0.0/8")


def test_a_yes_holds_for_requests_too(harness: EgressHarness) -> None:
    async def yes(host: str, port: int | None) -> tuple[bool, str]:
        return True, "the owner said so"

    harness.server.answer = yes
    server = Far()
    with far(harness, server):
        address = harness.server.hosts["far.example"][0]
        harness.open(f"{address}:80", on_unknown="ask")
        assert talk(harness, GET).startswith(b"HTTP/1.1 200 ")
        client = http.client.HTTPConnection("far.example")
        client.sock = harness.connect("far.example", 80)
        for _ in range(2):
            client.request("GET", "/")
            assert client.getresponse().read() == b"ok"
        harness.change(f"{address}:80", deny=("far.example",), on_unknown="ask")
        assert is_reset(client.sock)
        client.close()


# -- limits and repeats -----------------------------------------------------------------------------------------------


def test_byte_limit_holds_for_requests_on_a_kept_connection(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server):
        address = harness.server.hosts["far.example"][0]
        harness.open(f"far.example@{address}", max_bytes=20_000)
        with contextlib.suppress(ConnectionError):
            talk(harness, GET.replace(b"Connection: close", b"X-Out: " + b"x" * 5_000) * 20)
        assert sum(map(len, server.requests)) < 30_000
        assert harness.denied_attempt("limit of 19.5K of traffic is used up")


def test_a_request_that_must_not_happen_twice_is_not_repeated(harness: EgressHarness) -> None:
    def once(request: bytes, sock: socket.socket) -> None:
        if b"/second" in request:
            sock.close()
        else:
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    server = Far(once)
    with far(harness, server):
        client = http.client.HTTPConnection("far.example")
        client.sock = harness.connect("far.example", 80)
        client.request("GET", "/first")
        assert client.getresponse().read() == b"ok"
        client.request("POST", "/second")
        assert client.getresponse().status == 502
        client.close()
    assert len([one for one in server.requests if b"/second" in one]) == 1


def test_a_request_goes_by_the_secrets_of_the_moment_it_leaves(harness: EgressHarness, slow_names: Slow) -> None:
    """Not the secrets of the moment the request came: changes during the look-up count."""
    asked, go = slow_names
    server = Far()
    with far(harness, server):
        address = harness.server.hosts["far.example"][0]
        secret = InjectedSecret(
            name="TOKEN", hosts=("api.example",), placeholder="skerry-secret-TOKEN-abc", value="v" * 20
        )
        with harness.connect("far.example", 80) as sock:
            sock.sendall(GET.replace(b"Connection: close", b"X: skerry-secret-TOKEN-abc"))
            assert asked.wait(30)
            harness.interceptor = TlsInterceptor(Rules(secrets=(secret,)))
            harness.change(f"far.example@{address}", secrets=(secret,))
            go.set()
            assert read_all(sock).startswith(b"HTTP/1.1 403 ")
    assert server.requests == []
    assert harness.denied_attempt("placeholder of secret TOKEN")


def test_attack_connection_kept_from_before_a_secret_does_not_receive_it(
    harness: EgressHarness, tmp_path: Path
) -> None:
    """Its certificate was verified with the certificates of a preset, which do not count for a host of secrets."""
    inside, outside = (ca.create_ca(name, 3600) for name in ("sb-aaaaaaaaaa", "of the caller"))
    (tmp_path / "leaf").write_bytes(LeafIssuer(outside).leaf("far.example").pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "leaf")
    server = Far()
    secret = InjectedSecret(
        name="TOKEN", hosts=("far.example",), header="Authorization: Bearer {}", placeholder="p" * 20, value="v" * 20
    )

    def serve(sock: socket.socket) -> None:
        with serving.wrap_socket(sock, server_side=True) as secured:
            server(secured)

    with far(harness, serve, port=443):
        rules = (f"far.example@{harness.server.hosts['far.example'][0]}",)
        harness.interceptor = TlsInterceptor(Rules(ca=inside, certificates=outside.certificate))
        harness.change(*rules, inspect=("far.example",))
        trusting = ssl.create_default_context(cadata=inside.certificate)
        client = http.client.HTTPConnection("far.example")
        client.sock = trusting.wrap_socket(harness.connect("far.example", 443), server_hostname="far.example")
        client.request("GET", "/first")
        assert client.getresponse().read() == b"ok", "the control: without a secret the preset's certificates count"
        harness.interceptor = TlsInterceptor(Rules(ca=inside, certificates=outside.certificate, secrets=(secret,)))
        harness.change(*rules, inspect=("far.example",))
        client.request("GET", "/second")
        answer = client.getresponse()
        assert (answer.status, b"server's machine" in answer.read()) == (502, True)
        client.close()
    assert len(server.requests) == 1
    assert b"v" * 20 not in b"".join(server.requests)


def test_intercepted_handshakes_are_rate_limited(harness: EgressHarness) -> None:
    """Each is work for a loop that all sandboxes share."""
    inside = ca.create_ca("sb-aaaaaaaaaa", 3600)
    harness.interceptor = TlsInterceptor(Rules(ca=inside))
    harness.open("far.example", inspect=("far.example",))
    assert harness.egress is not None
    sandbox = harness.egress._context
    context = ssl.create_default_context(cadata=inside.certificate)

    def greet(limit_s: float) -> None:
        with harness.connect("far.example", 443) as sock:
            sock.settimeout(limit_s)
            context.wrap_socket(sock, server_hostname="far.example").close()

    sandbox.handshakes = TokenBucket(0, 1)
    greet(10)
    with pytest.raises(TimeoutError):
        greet(0.5)
    sandbox.handshakes = TokenBucket(100, 100)
    greet(10)


def test_an_upstream_proxy_is_not_reached_by_another_name_or_its_address(harness: EgressHarness) -> None:
    """Even if no rule names the proxy's address."""
    asked: list[bytes] = []

    def proxy(sock: socket.socket) -> None:
        asked.append(sock.recv(4096).split(b"\r\n")[0])
        sock.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        echo(sock)

    with serve_tcp(proxy, "127.0.0.9") as port:
        harness.server.hosts |= {"proxy.internal": ["127.0.0.9"], "alias.internal": ["127.0.0.9"]}
        harness.open(
            "far.example:7000", f"proxy.internal:{port}", f"alias.internal:{port}", f"127.0.0.0/8:{port}",
            proxies=((("far.example:7000",), f"http://proxy.internal:{port}"),),
        )  # fmt: skip
        with harness.connect("far.example", 7000) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        for way in ("alias.internal", "proxy.internal"):
            assert harness.is_denied(way, port)
        with harness.connect(PROXY_IP, PROXY_PORT) as sock:
            sock.sendall(f"CONNECT 127.0.0.9:{port} HTTP/1.1\r\nHost: 127.0.0.9:{port}\r\n\r\n".encode())
            assert read_all(sock).startswith(b"HTTP/1.1 403 ")
    assert asked == [b"CONNECT far.example:7000 HTTP/1.1"]
    assert harness.denied_attempt("upstream proxy")
