"""TLS without interception: the server name in the client hello must match the connection."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
from support.egress import EgressHarness, is_reset, random_loopback, read_all, serve_tcp

from skerry.network.worker.tls.client_hello import ClientHello, InvalidClientHello, parse_client_hello


def greeting(name: str | None, versions: bool = True) -> bytes:
    """The client hello of OpenSSL itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def records(message: bytes, size: int) -> bytes:
    """The same handshake, cut into records of that size."""
    body = message[5:]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def hello(extensions: bytes, session: bytes = b"") -> bytes:
    body = b"\x03\x03" + b"r" * 32 + bytes([len(session)]) + session + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data


def names(*entries: bytes) -> bytes:
    listed = b"".join(b"\0" + len(entry).to_bytes(2, "big") + entry for entry in entries)
    return extension(0, len(listed).to_bytes(2, "big") + listed)


def test_the_name_is_found() -> None:
    assert parse_client_hello(greeting("far.example")) == ClientHello(b"far.example", (b"h2", b"http/1.1"))
    assert parse_client_hello(greeting(None)) == ClientHello(None, (b"h2", b"http/1.1"))


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_the_name_is_found_in_pieces(size: int) -> None:
    data = records(greeting("far.example"), size)
    assert parse_client_hello(data) == ClientHello(b"far.example", (b"h2", b"http/1.1"))
    for end in range(0, len(data), 7):
        assert parse_client_hello(data[:end]) is None


def test_encrypted_client_hello_is_detected() -> None:
    found = parse_client_hello(hello(names(b"outer.example") + extension(0xFE0D, b"\0" * 40)))
    assert found == ClientHello(b"outer.example", (), True)


@pytest.mark.parametrize(
    "data",
    [
        hello(names(b"a.example", b"b.example")),
        hello(names(b"a.example") + names(b"b.example")),
        hello(extension(0, b"\0\4\1\0\1a")),
        hello(extension(0, b"\0\0")),
        hello(extension(0, b"\0\3\0\0\0")),
        hello(extension(0, b"\0\5\0\0\2ab!")),
        hello(b"\0\0\0\xff\0"),
        hello(names(b"a.example"), session=b"s" * 33),
        b"\x16\x02\x00\x00\x05\x01\0\0\1\0",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x50\x00",
        b"\x16\x03\x01\x00\x04\x02\0\0\0",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x02\x01\x00\x17\x03\x03\x00\x01x",
    ],
)
def test_ambiguous_client_hello_is_invalid(data: bytes) -> None:
    with pytest.raises(InvalidClientHello):
        parse_client_hello(data)


def test_random_damage_never_makes_another_error() -> None:
    dice = random.Random(3)
    good = records(greeting("far.example"), 100)
    for _ in range(20_000):
        bad = bytearray(good)
        for _ in range(dice.randrange(1, 4)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        with contextlib.suppress(InvalidClientHello):
            parse_client_hello(bytes(bad[: dice.randrange(1, len(bad) + 1)]))


# -- on the wire ------------


class Far:
    """Accept anything and answer with a name."""

    def __init__(self) -> None:
        self.seen = b""
        self.came = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        self.came.set()
        self.seen += sock.recv(65536)
        sock.sendall(b"far")


@contextlib.contextmanager
def far(harness: EgressHarness, port: int, *rules: str) -> Iterator[Far]:
    address, server = random_loopback(), Far()
    with serve_tcp(server, address, port):
        harness.server.hosts |= {"far.example": [address], "other.example": [address]}
        harness.open(*(f"{rule}@{address}" for rule in rules or (f"far.example:{port}", f"other.example:{port}")))
        yield server


@pytest.mark.parametrize("size", [10_000, 40])
def test_tls_for_the_hosts_own_name_passes(harness: EgressHarness, size: int) -> None:
    data = records(greeting("far.example"), size)
    with far(harness, 443) as server, harness.connect("far.example", 443) as sock:
        for at in range(0, len(data), 100):
            sock.sendall(data[at : at + 100])
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b"far"
        assert server.seen[:5] == data[:5]


@pytest.mark.parametrize("name", ["other.example", "far.example.evil.example", "evil.example"])
@pytest.mark.parametrize("port", [443, 8443])
def test_tls_for_another_name_is_refused(harness: EgressHarness, name: str, port: int) -> None:
    with far(harness, port) as server:
        with harness.connect("far.example", port) as sock:
            sock.sendall(greeting(name))
            assert is_reset(sock)
        told = harness.denied_attempt("far.example", f"TLS for {name}")
        assert told.port == port
        assert server.seen == b""
        assert port != 443 or not server.came.is_set()


def test_tls_without_a_name_is_refused_on_443_and_passes_elsewhere(harness: EgressHarness) -> None:
    with far(harness, 443) as server, harness.connect("far.example", 443) as sock:
        sock.sendall(greeting(None))
        assert is_reset(sock)
        assert not server.came.is_set()
    with far(harness, 8443), harness.connect("far.example", 8443) as sock:
        sock.sendall(greeting(None))
        assert sock.recv(10) == b"far"


@pytest.mark.parametrize(
    "data",
    [
        hello(names(b"far.example", b"other.example")),
        hello(names(b"far.example\0.evil.example")),
        hello(names(b"far.example\0")),
        hello(names("fär.example".encode())),
        hello(names(b"127.0.0.1")),
        b"\x80\x2e\x01\x03\x01" + b"\0" * 60,
        b"SOMETHING else\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    ],
)
def test_odd_client_hello_never_reaches_the_server(harness: EgressHarness, data: bytes) -> None:
    with far(harness, 443) as server:
        with harness.connect("far.example", 443) as sock:
            sock.sendall(data)
            with contextlib.suppress(OSError):  # it may be reset by now
                sock.shutdown(socket.SHUT_WR)
            assert is_reset(sock)
        assert harness.denied_attempt("far.example")
        assert not server.came.is_set()


def test_ssh_is_spoken_on_443_where_the_host_is_allowed(harness: EgressHarness) -> None:
    with far(harness, 443), harness.connect("far.example", 443) as sock:
        sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        assert sock.recv(10) == b"far"


def test_tls_to_an_address_must_have_no_server_name(harness: EgressHarness) -> None:
    harness.open("203.0.113.7:443")
    with harness.connect("203.0.113.7", 443) as sock:
        sock.sendall(greeting("other.example"))
        assert is_reset(sock)
    assert harness.denied_attempt("203.0.113.7", "TLS for other.example")


def test_requests_that_must_be_inspected_are_never_relayed_blindly(harness: EgressHarness) -> None:
    """A rule with methods or paths on a port where the bytes cannot be read as requests."""
    with far(harness, 8443, "GET far.example:8443/a") as server:
        for data in (greeting("far.example"), b"\x00\x01\x02\x03\r\n", b"SSH-2.0-x\r\n"):
            with harness.connect("far.example", 8443) as sock:
                sock.sendall(data)
                assert is_reset(sock)
        assert not server.came.is_set()
