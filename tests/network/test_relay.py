"""Allowed connections carry their bytes unchanged."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable

import pytest
from support.egress import EgressHarness, echo, is_reset, read_all, serve_tcp
from support.namespaces import FLOOD, NetworkNamespace

from skerry.network.gateway.netns import Namespaces
from skerry.network.worker.rate_limit import TrafficMeter
from skerry.network.worker.relay import PipePool, SpliceDirection
from skerry.network.worker.streams import SocketStream


def test_bytes_pass_both_ways(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.0/8")
        with harness.connect("far.example", port) as sock:
            sock.sendall(b"\x00hello")
            assert sock.recv(100) == b"\x00hello"
        harness.wait_idle()
        ended = harness.attempt(lambda a: a.ended and a.decision == "allowed")
        assert (ended.host, ended.port, ended.sent, ended.received) == ("far.example", port, 6, 6)
        assert ended.address == "127.0.0.1"
        assert ended.rule == f"far.example:{port}@127.0.0.0/8"


def test_last_bytes_of_a_client_are_delivered_and_answered(harness: EgressHarness) -> None:
    """Half-closed connections: the client's end does not end the server's stream."""

    def count(sock: socket.socket) -> None:
        sock.sendall(str(len(read_all(sock))).encode())

    with serve_tcp(count) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        with harness.connect("far.example", port) as sock:
            sock.sendall(b"\x01" * 3_000_000)
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b"3000000"


def test_a_server_may_speak_first(harness: EgressHarness) -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(b"220 ready\r\n")
        assert sock.recv(100) == b"EHLO me\r\n"
        sock.sendall(b"250 you\r\n")

    with serve_tcp(greet) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        with harness.connect("far.example", port) as sock:
            assert sock.recv(100) == b"220 ready\r\n"
            sock.sendall(b"EHLO me\r\n")
            assert sock.recv(100) == b"250 you\r\n"


def test_a_word_without_an_end_is_not_waited_for(harness: EgressHarness) -> None:
    """It could become a request; until then it passes, and the rest passes on the fast path."""
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        with harness.connect("far.example", port) as sock:
            for word in (b"ping", b"ping", b"\n", b"GET / HTTP/1.1\n", os.urandom(5000)):
                sock.sendall(word)
                got = b""
                while len(got) < len(word):
                    got += sock.recv(10_000)
                assert got == word


def test_much_passes_unchanged(harness: EgressHarness) -> None:
    data = os.urandom(1 << 20) * 24

    with serve_tcp(lambda sock: sock.sendall(data)) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        with harness.connect("far.example", port) as sock:
            assert hashlib.sha256(read_all(sock)).digest() == hashlib.sha256(data).digest()


def test_a_reset_on_one_side_is_a_reset_on_the_other(harness: EgressHarness) -> None:
    def slam(sock: socket.socket) -> None:
        sock.recv(1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    gone = threading.Event()

    def wait(sock: socket.socket) -> None:
        sock.sendall(b"x")
        if is_reset(sock):
            gone.set()

    with serve_tcp(slam) as port, serve_tcp(wait) as other:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port},{other}@127.0.0.1")
        with harness.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert is_reset(sock)
        with harness.connect("far.example", other) as sock:
            assert sock.recv(1) == b"x"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert gone.wait(30)
    harness.wait_idle()


def test_five_hundred_connections_are_served_at_once(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        address = harness.look_up("far.example")
        socks = [harness.socket() for _ in range(500)]
        for sock in socks:
            sock.connect((address, port))
        for number, sock in enumerate(socks):
            sock.sendall(b"\x00%d" % number)
        for number, sock in enumerate(socks):
            assert sock.recv(100) == b"\x00%d" % number
        for sock in socks:
            sock.close()
        harness.wait_idle()
    assert len(harness.server.attempts) < 100


def test_no_descriptor_is_left_behind(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        with harness.connect("far.example", port) as sock:
            sock.sendall(b"\x00")
            assert sock.recv(1)
        harness.wait_idle()
        harness.pipes.close()
        before = len(os.listdir("/proc/self/fd"))
        for number in range(50):
            with harness.connect("far.example", port) as sock:
                sock.sendall(b"\x00")
                assert sock.recv(1)
                if number % 2:
                    harness.socket().close()
        harness.wait_idle()
        harness.pipes.close()
        assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.parametrize("rounds", range(1, 10))
async def test_a_counted_piece_ends_with_its_last_byte(rounds: int) -> None:
    """Even if the last byte moves just before the loop's other work runs: no event would wake it then."""
    near, source = socket.socketpair()
    sink, far = socket.socketpair()
    pipes, passed = PipePool(), []
    wires = SocketStream(source), SocketStream(sink)
    meter = TrafficMeter(lambda: None, lambda: None)
    meter.allowance = lambda want: min(want, 10)  # type: ignore[method-assign]
    try:
        near.sendall(b"0123456789" * rounds)
        ended = await asyncio.wait_for(SpliceDirection(*wires, pipes, meter, passed.append, left=10 * rounds).run(), 30)
        assert (ended, sum(passed), far.recv(1000)) == (False, 10 * rounds, b"0123456789" * rounds)
    finally:
        pipes.close()
        for one in (near, far, *wires):
            one.close()


def test_a_peer_that_is_another_sandbox_now_is_not_kept(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.peers |= {"sb-bbbbbbbbbb": port, "sb-cccccccccc": port}
        harness.open(peers={"db": "sb-bbbbbbbbbb"})
        with harness.connect("db", 5432) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
            harness.change(peers={"db": "sb-bbbbbbbbbb"})
            sock.sendall(b"\x02")
            assert sock.recv(1) == b"\x02"
            harness.change(peers={"db": "sb-cccccccccc"})
            assert is_reset(sock)


def test_stalled_connections_slow_no_other(harness: EgressHarness) -> None:
    def pour(sock: socket.socket) -> None:
        while True:
            sock.sendall(b"x" * 65536)

    with serve_tcp(pour) as port, serve_tcp(echo) as other:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port},{other}@127.0.0.1")
        stalled = [harness.connect("far.example", port) for _ in range(40)]
        for sock in stalled:
            assert sock.recv(1) == b"x"
        data = os.urandom(2_000_000)
        with harness.connect("far.example", other) as sock:
            sending = threading.Thread(target=sock.sendall, args=(data,))
            sending.start()
            got = b""
            while len(got) < len(data):
                got += sock.recv(1 << 20)
            sending.join(30)
            assert got == data
        for sock in stalled:
            sock.close()
        harness.wait_idle()


def test_a_flood_from_one_sandbox_leaves_the_others_served(
    harness: EgressHarness, make_namespace: Callable[[], NetworkNamespace], namespaces: Namespaces
) -> None:
    namespace = make_namespace()
    hostile = EgressHarness(namespace, namespaces, harness._loop)
    hostile.open()
    with serve_tcp(echo) as port, namespace.running(FLOOD):
        hostile.denied_attempt("203.0.113.1")
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        for _ in range(20):
            with harness.connect("far.example", port) as sock:
                sock.sendall(b"\x01")
                assert sock.recv(1) == b"\x01"
    assert len(hostile.server.attempts) < 500
    hostile.end()
