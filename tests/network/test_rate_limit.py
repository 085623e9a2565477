"""A sandbox's traffic limits, for all its connections together."""

from __future__ import annotations

import contextlib
import socket
import time

from support.egress import EgressHarness, echo, is_reset, random_loopback, read_all, serve_tcp

from skerry.network.worker.rate_limit import TrafficMeter


def _pour(sock: socket.socket) -> None:
    while True:
        sock.sendall(b"x" * 65536)


def test_byte_limit_ends_all_connections_and_is_reported(harness: EgressHarness) -> None:
    with serve_tcp(_pour) as port, serve_tcp(echo) as other:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port},{other}@127.0.0.1", max_bytes=1_000_000)
        with harness.connect("far.example", other) as idle:
            idle.sendall(b"\x01")
            assert idle.recv(1) == b"\x01"
            got = 0
            with contextlib.suppress(ConnectionResetError), harness.connect("far.example", port) as sock:
                while data := sock.recv(65536):
                    got += len(data)
            assert got <= 1_000_000
            assert harness.denied_attempt("limit of 976K of traffic is used up")
            idle.sendall(b"\x01")
            assert is_reset(idle)
        assert harness.is_denied("far.example", other)
        moved = harness.server.traffic
        end = time.monotonic() + 10
        while sum(c.sent + c.received for c in moved) < 1_000_000 and time.monotonic() < end:
            time.sleep(0.01)
        assert sum(c.sent + c.received for c in moved) == 1_000_000
        harness.change(f"far.example:{port},{other}@127.0.0.1", max_bytes=2_000_000)
        with harness.connect("far.example", other) as again:
            again.sendall(b"\x02")
            assert again.recv(1) == b"\x02"


def test_bandwidth_is_shared_by_all_connections(harness: EgressHarness) -> None:
    """Counted over a span, not timed: in the span, at most the bandwidth and one burst pass."""
    with serve_tcp(_pour) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1", bytes_per_second=1 << 20)
        socks = [harness.connect("far.example", port) for _ in range(4)]
        began = time.monotonic()
        got = [0] * 4
        for sock in socks:
            sock.settimeout(0.05)
        while time.monotonic() - began < 1.5:
            for number, sock in enumerate(socks):
                try:
                    got[number] += len(sock.recv(65536))
                except TimeoutError:
                    continue
        spent = time.monotonic() - began
        assert sum(got) <= (1 << 20) * (spent + 0.3)
        assert sum(got) > 200_000
        for sock in socks:
            sock.close()


def test_bandwidth_holds_for_requests_too(harness: EgressHarness) -> None:
    def give(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n" + b"x" * 600_000)

    address = random_loopback()
    with serve_tcp(give, address, 80):
        harness.server.hosts["far.example"] = [address]
        harness.open(f"far.example@{address}", bytes_per_second=1_000_000)
        with harness.connect("far.example", 80) as sock:
            began = time.monotonic()
            sock.sendall(b"GET / HTTP/1.1\r\nHost: far.example\r\nConnection: close\r\n\r\n")
            assert len(read_all(sock)) > 600_000
            assert time.monotonic() - began > 0.3  # 600 kB are a burst of 250 kB and at least a third of a second


def test_a_meter_without_limits_lets_everything_pass() -> None:
    meter = TrafficMeter(lambda: None, lambda: None)
    assert meter.allowance(1 << 30) == 1 << 30
    meter.limit(None, 100)
    meter.add(60, 30)
    assert meter.allowance(1000) == 10
    meter.add(0, 10)
    assert meter.exhausted
    assert meter.allowance(1000) == 0
