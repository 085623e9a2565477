"""Connections that are allowed carry their bytes as if nobody stood between."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable

import pytest
from network.leaving import Leaving, echo, is_reset, read_all, serving
from network.namespacing import FLOOD, Place

from skerry.network.netns import Namespaces
from skerry.network.worker.limits import Meter
from skerry.network.worker.relay import Pipes, Way
from skerry.network.worker.streams import Wire


def test_bytes_pass_both_ways(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.0/8")
        with leaving.connect("far.example", port) as sock:
            sock.sendall(b"\x00hello")
            assert sock.recv(100) == b"\x00hello"
        leaving.quiet()
        ended = leaving.told(lambda a: a.ended and a.decision == "allowed")
        assert (ended.host, ended.port, ended.sent, ended.received) == ("far.example", port, 6, 6)
        assert ended.address == "127.0.0.1"
        assert ended.rule == f"far.example:{port}@127.0.0.0/8"


def test_what_a_client_says_last_is_heard_and_answered(leaving: Leaving) -> None:
    """Half-closed connections: the client's end does not end what the server still has to say."""

    def count(sock: socket.socket) -> None:
        sock.sendall(str(len(read_all(sock))).encode())

    with serving(count) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        with leaving.connect("far.example", port) as sock:
            sock.sendall(b"\x01" * 3_000_000)
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b"3000000"


def test_a_server_may_speak_first(leaving: Leaving) -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(b"220 ready\r\n")
        assert sock.recv(100) == b"EHLO me\r\n"
        sock.sendall(b"250 you\r\n")

    with serving(greet) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        with leaving.connect("far.example", port) as sock:
            assert sock.recv(100) == b"220 ready\r\n"
            sock.sendall(b"EHLO me\r\n")
            assert sock.recv(100) == b"250 you\r\n"


def test_a_word_without_an_end_is_not_waited_for(leaving: Leaving) -> None:
    """It could become a request; until it does, it passes, and what follows passes by the fast way."""
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        with leaving.connect("far.example", port) as sock:
            for word in (b"ping", b"ping", b"\n", b"GET / HTTP/1.1\n", os.urandom(5000)):
                sock.sendall(word)
                got = b""
                while len(got) < len(word):
                    got += sock.recv(10_000)
                assert got == word


def test_much_passes_unchanged(leaving: Leaving) -> None:
    data = os.urandom(1 << 20) * 24

    with serving(lambda sock: sock.sendall(data)) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        with leaving.connect("far.example", port) as sock:
            assert hashlib.sha256(read_all(sock)).digest() == hashlib.sha256(data).digest()


def test_a_reset_on_one_side_is_a_reset_on_the_other(leaving: Leaving) -> None:
    def slam(sock: socket.socket) -> None:
        sock.recv(1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    gone = threading.Event()

    def wait(sock: socket.socket) -> None:
        sock.sendall(b"x")
        if is_reset(sock):
            gone.set()

    with serving(slam) as port, serving(wait) as other:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port},{other}@127.0.0.1")
        with leaving.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert is_reset(sock)
        with leaving.connect("far.example", other) as sock:
            assert sock.recv(1) == b"x"
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert gone.wait(10)
    leaving.quiet()


def test_five_hundred_connections_are_served_at_once(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        address = leaving.look_up("far.example")
        socks = [leaving.socket() for _ in range(500)]
        for sock in socks:
            sock.connect((address, port))
        for number, sock in enumerate(socks):
            sock.sendall(b"\x00%d" % number)
        for number, sock in enumerate(socks):
            assert sock.recv(100) == b"\x00%d" % number
        for sock in socks:
            sock.close()
        leaving.quiet()
    assert len(leaving.world.tried) < 100


def test_no_descriptor_is_left_behind(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        with leaving.connect("far.example", port) as sock:
            sock.sendall(b"\x00")
            assert sock.recv(1)
        leaving.quiet()
        leaving.pipes.close()
        before = len(os.listdir("/proc/self/fd"))
        for number in range(50):
            with leaving.connect("far.example", port) as sock:
                sock.sendall(b"\x00")
                assert sock.recv(1)
                if number % 2:
                    leaving.socket().close()
        leaving.quiet()
        leaving.pipes.close()
        assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.parametrize("rounds", range(1, 10))
async def test_a_counted_piece_ends_with_its_last_byte(rounds: int) -> None:
    """Whenever that falls: when the loop's other work has its turn, nothing more is to come that would wake it."""
    near, source = socket.socketpair()
    sink, far = socket.socketpair()
    pipes, passed = Pipes(), []
    wires = Wire(source), Wire(sink)
    meter = Meter(lambda: None, lambda: None)
    meter.allowance = lambda want: min(want, 10)  # type: ignore[method-assign]
    try:
        near.sendall(b"0123456789" * rounds)
        ended = await asyncio.wait_for(Way(*wires, pipes, meter, passed.append, left=10 * rounds).run(), 5)
        assert (ended, sum(passed), far.recv(1000)) == (False, 10 * rounds, b"0123456789" * rounds)
    finally:
        pipes.close()
        for one in (near, far, *wires):
            one.close()


def test_a_peer_that_is_another_sandbox_now_is_not_kept(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.peers |= {"sb-bbbbbbbbbb": port, "sb-cccccccccc": port}
        leaving.open(peers={"db": "sb-bbbbbbbbbb"})
        with leaving.connect("db", 5432) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
            leaving.change(peers={"db": "sb-bbbbbbbbbb"})
            sock.sendall(b"\x02")
            assert sock.recv(1) == b"\x02"
            leaving.change(peers={"db": "sb-cccccccccc"})
            assert is_reset(sock)


def test_connections_that_stall_full_slow_nobody_but_themselves(leaving: Leaving) -> None:
    def pour(sock: socket.socket) -> None:
        while True:
            sock.sendall(b"x" * 65536)

    with serving(pour) as port, serving(echo) as other:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port},{other}@127.0.0.1")
        stalled = [leaving.connect("far.example", port) for _ in range(40)]
        for sock in stalled:
            assert sock.recv(1) == b"x"
        data = os.urandom(2_000_000)
        with leaving.connect("far.example", other) as sock:
            sending = threading.Thread(target=sock.sendall, args=(data,))
            sending.start()
            got = b""
            while len(got) < len(data):
                got += sock.recv(1 << 20)
            sending.join(10)
            assert got == data
        for sock in stalled:
            sock.close()
        leaving.quiet()


def test_a_flood_from_one_sandbox_leaves_the_others_served(
    leaving: Leaving, make_place: Callable[[], Place], namespaces: Namespaces
) -> None:
    place = make_place()
    hostile = Leaving(place, namespaces, leaving._loop)
    hostile.open()
    with serving(echo) as port, place.running(FLOOD):
        hostile.denied("203.0.113.1")
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        for _ in range(20):
            with leaving.connect("far.example", port) as sock:
                sock.sendall(b"\x01")
                assert sock.recv(1) == b"\x01"
    assert len(hostile.world.tried) < 500
    hostile.end()
