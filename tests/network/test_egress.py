"""A denied destination is reported, reset at once, and never dialled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest
from support.egress import EgressHarness, echo, is_reset, random_loopback, serve_tcp

from skerry.network.messages import PROXY_IP, PROXY_PORT, RESOLVER_IP


@pytest.mark.parametrize(
    "address", ["203.0.113.7", "10.1.2.3", "169.254.169.254", "100.64.0.1", "2001:db8::1", "fd00::1", "::ffff:10.0.0.1"]
)
def test_raw_address_is_denied_and_reported(harness: EgressHarness, address: str) -> None:
    harness.open("api.example")
    assert harness.is_denied(address, 443)
    told = harness.denied_attempt(address.removeprefix("::ffff:"))
    assert (told.port, told.kind, told.ended) == (443, "connection", True)


def test_an_address_that_a_rule_names_is_dialled(harness: EgressHarness) -> None:
    with serve_tcp(echo, "127.0.0.9") as port:
        harness.open(f"127.0.0.9:{port}", "10.0.0.0/8:*")
        harness.server.hosts["far.example"] = ["127.0.0.9"]
        harness.open(f"far.example:{port}", f"127.0.0.9:{port}")
        with harness.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"


def test_attack_rules_without_the_operator_open_no_loopback_of_the_host(harness: EgressHarness) -> None:
    address = random_loopback()
    rules = (f"far.example:*@{address}", f"{address}:*", "127.0.0.0/8:*", "localhost:*@127.0.0.1")
    arrived = []

    def record(sock: socket.socket) -> None:
        arrived.append(sock)
        echo(sock)

    def through_proxy(place: str) -> bytes:
        with harness.connect(PROXY_IP, PROXY_PORT) as sock:
            sock.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
            return sock.recv(65536)

    with serve_tcp(record, address, 7777):
        harness.server.hosts["far.example"] = [address]
        harness.open(*rules, ceiling=("*",))
        assert harness.is_denied("far.example", 7777)
        assert "max.network" in (harness.denied_attempt("far.example", "max.network does not name").hint or "")
        for place in ("far.example:7777", f"{address}:7777", "localhost:7777", "0.0.0.0:7777", "[::1]:7777"):
            assert through_proxy(place).startswith(b"HTTP/1.1 403 "), place
        assert arrived == []
        harness.change(*rules, ceiling=("*", f"far.example:7777@{address}"))
        assert through_proxy(f"{address}:7777").startswith(b"HTTP/1.1 403 "), "an address of loopback is the sandbox"
        with harness.connect("far.example", 7777) as sock:
            sock.sendall(b"hi")
            assert sock.recv(10) == b"hi", "the control: the operator names it"
            harness.change(*rules, ceiling=("*",))
            assert is_reset(sock), "a narrower ceiling ends it"


def test_a_name_alone_opens_no_closed_address(harness: EgressHarness) -> None:
    reached = threading.Event()
    with serve_tcp(lambda sock: reached.set()) as port:
        harness.server.hosts |= {"far.example": ["127.0.0.1"], "mixed.example": ["203.0.113.1", "127.0.0.1"]}
        harness.open(f"*.example:{port}")
        for name in ("far.example", "mixed.example"):
            assert harness.is_denied(name, port)
            told = harness.denied_attempt(name, "closed address (loopback)", "127.0.0.1")
            assert told.address == "127.0.0.1"
    assert not reached.is_set()


def test_name_is_looked_up_for_each_connection_and_the_checked_address_is_dialled(harness: EgressHarness) -> None:
    """Rebinding: the second answer is checked too, before it is dialled."""
    canary = threading.Event()
    with serve_tcp(echo, "127.0.0.5") as port, socket.socket() as trap:
        trap.bind(("127.0.0.6", port))
        trap.listen()
        harness.open(f"far.example:{port}@127.0.0.5")
        for turn in range(40):
            harness.server.hosts["far.example"] = ["127.0.0.5" if turn % 2 == 0 else "127.0.0.6"]
            if turn % 2:
                assert harness.is_denied("far.example", port)
                continue
            with harness.connect("far.example", port) as sock:
                sock.sendall(b"\x01")
                assert sock.recv(1) == b"\x01"
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):
            trap.accept()
    assert not canary.is_set()


def test_another_port_of_an_allowed_host_is_refused(harness: EgressHarness) -> None:
    harness.open("far.example:5432")
    assert harness.is_denied("far.example", 5433)
    assert "5433" in harness.denied_attempt("far.example").why


def test_deny_wins(harness: EgressHarness) -> None:
    harness.open("*.example", deny=("bad.example:8080",))
    assert harness.is_denied("bad.example", 8080)
    assert harness.denied_attempt("bad.example").rule == "bad.example:8080"


def test_fake_ip_without_a_name_is_denied(harness: EgressHarness) -> None:
    harness.open("*")
    assert harness.is_denied("198.19.200.7", 443)
    assert harness.denied_attempt("198.19.200.7", "no name has this")


def test_gateways_port_accepts_no_direct_connections(harness: EgressHarness) -> None:
    harness.open("*", "127.0.0.0/8:*")
    for address in ("127.0.0.1", "::1"):
        assert harness.is_denied(address, harness.gateway.port)
    assert harness.denied_attempt("gateway's port").port == harness.gateway.port


@pytest.mark.parametrize(("address", "port"), [(RESOLVER_IP, 80), (PROXY_IP, 80), (PROXY_IP, 53), ("198.18.0.0", 443)])
def test_the_special_addresses_have_no_other_ports(harness: EgressHarness, address: str, port: int) -> None:
    harness.open("*")
    assert harness.is_denied(address, port)
    assert harness.denied_attempt(address)


def test_refused_connection_is_reported_as_allowed_with_its_error(harness: EgressHarness) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1")
        assert harness.is_denied("far.example", port)
    ended = harness.attempt(lambda a: a.ended)
    assert ended.decision == "allowed"
    assert "refused" in ended.why.lower()


def test_connections_above_the_limit_are_reset_and_reported_once(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"far.example:{port}@127.0.0.1", max_connections=3)
        held = [harness.connect("far.example", port) for _ in range(3)]
        for sock in held:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        for _ in range(5):
            assert harness.is_denied("far.example", port)
        assert harness.attempt(lambda a: "3 connections are open" in a.why)
        for sock in held:
            sock.close()
        harness.wait_idle()
        with harness.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"


def test_new_rules_close_connections_that_they_no_longer_allow(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.hosts |= {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]}
        harness.open(f"*.example:{port}@127.0.0.1")
        socks = {name: harness.connect(name, port) for name in ("a.example", "b.example")}
        for sock in socks.values():
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        harness.change(f"a.example:{port}@127.0.0.1")
        assert is_reset(socks["b.example"])
        socks["a.example"].sendall(b"\x02")
        assert socks["a.example"].recv(1) == b"\x02"
        assert harness.denied_attempt("b.example")
        for sock in socks.values():
            sock.close()


def test_approval_is_requested_once_and_holds_for_the_connection(harness: EgressHarness) -> None:
    async def yes(host: str, port: int | None) -> tuple[bool, str]:
        while host == "good.example" and harness.connections < 3:  # all of them wait for this answer
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        return host == "good.example", "the owner said so"

    harness.server.answer = yes
    with serve_tcp(echo, "127.0.0.1") as port:
        harness.server.hosts |= {"good.example": ["127.0.0.1"], "bad.example": ["127.0.0.1"]}
        harness.open(f"127.0.0.1:{port}", on_unknown="ask")
        socks = [harness.connect("good.example", port) for _ in range(3)]
        for sock in socks:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        assert harness.server.approvals == [("good.example", port)]
        assert harness.is_denied("bad.example", port)
        assert "the owner said so" in harness.denied_attempt("bad.example").why
        harness.change(f"127.0.0.1:{port}", on_unknown="ask")
        socks[0].sendall(b"\x02")
        assert socks[0].recv(1) == b"\x02"
        harness.change(f"127.0.0.1:{port}", deny=("good.example",), on_unknown="ask")
        assert is_reset(socks[0])
        for sock in socks:
            sock.close()


def test_rule_added_during_an_approval_decides(harness: EgressHarness) -> None:
    asked, answered = threading.Event(), threading.Event()

    async def late(host: str, port: int | None) -> tuple[bool, str]:
        asked.set()
        while not answered.is_set():
            await asyncio.sleep(0.005)
        return False, "nobody said yes"

    harness.server.answer = late
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"127.0.0.1:{port}", on_unknown="ask")
        with harness.connect("far.example", port) as sock:
            assert asked.wait(30)
            harness.change(f"127.0.0.1:{port}", f"far.example:{port}", on_unknown="ask")
            answered.set()
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
    assert harness.attempt(lambda a: a.host == "far.example").rule == f"far.example:{port}"


def test_learn_mode_allows_and_reports_it(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.hosts["far.example"] = ["127.0.0.1"]
        harness.open(f"127.0.0.1:{port}", on_unknown="learn")
        with harness.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
    assert "learn" in harness.attempt(lambda a: a.host == "far.example").why


def test_a_peer_is_reached_through_the_server(harness: EgressHarness) -> None:
    with serve_tcp(echo) as port:
        harness.server.peers["sb-bbbbbbbbbb"] = port
        harness.open(peers={"db": "sb-bbbbbbbbbb"})
        with harness.connect("db", 5432) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
    assert harness.attempt(lambda a: a.host == "db" and a.port == 5432).decision == "allowed"


def test_attempt_has_the_cgroup_from_the_kernel(harness: EgressHarness) -> None:
    harness.open()
    assert harness.is_denied("203.0.113.7", 443)
    harness.query("evil.example")
    harness.denied_attempt("evil.example")
    found = {tried.attempt.host: tried.cgroup for tried in harness.server.attempts}
    assert found["203.0.113.7"] is not None
    assert found["evil.example"] == found["203.0.113.7"]


def test_flood_is_reported_in_a_few_records(harness: EgressHarness) -> None:
    harness.open()
    for number in range(300):
        with harness.socket() as sock, contextlib.suppress(ConnectionResetError):
            sock.connect((f"203.0.113.{number % 200}", 1000 + number))
    harness.attempt(lambda a: a.host == "(many)" and a.count > 1)
    assert sum(t.attempt.count for t in harness.server.attempts) >= 300 - 1
    assert len(harness.server.attempts) < 200


def test_text_from_inside_is_made_printable(harness: EgressHarness) -> None:
    harness.open()
    harness.ask(b"\0\7\1\0\0\1\0\0\0\0\0\0\x0a\x1b[31m\ngo\x07\xff\0\0\1\0\1")
    told = harness.attempt(lambda a: a.kind == "name")
    assert f"{told.host}{told.why}{told.hint}".isprintable()
    assert f"{told.host}{told.why}".isascii()


def test_a_program_sees_an_ordinary_error_at_once(harness: EgressHarness) -> None:
    harness.open()
    code = (
        "import socket\n"
        "try: socket.create_connection(('203.0.113.7', 443), 5).recv(1)\n"
        "except OSError as e: print(e.errno)"
    )
    command = ["nsenter", "-t", str(harness._namespace.process.pid), "-n", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, timeout=20, text=True).stdout.strip() == "104"
    assert os.strerror(104) == "Connection reset by peer"


def test_upstream_proxy_is_used_but_not_reachable_itself(harness: EgressHarness) -> None:
    """A sandbox that could reach the proxy could ask it for anything."""
    asked: list[bytes] = []

    def proxy(sock: socket.socket) -> None:
        asked.append(sock.recv(4096).split(b"\r\n")[0])
        sock.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        echo(sock)

    with serve_tcp(proxy, "127.0.0.9") as port:
        harness.server.hosts |= {"proxy.internal": ["127.0.0.9"], "alias.internal": ["127.0.0.9"]}
        rule = f"proxy.internal:{port}@127.0.0.9"
        rules = ("far.example:7000", rule, f"alias.internal:{port}@127.0.0.0/8")
        harness.open(*rules, proxies=((("far.example:7000", rule), f"http://proxy.internal:{port}"),))
        with harness.connect("far.example", 7000) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        assert asked == [b"CONNECT far.example:7000 HTTP/1.1"]
        for name in ("proxy.internal", "alias.internal"):
            assert harness.is_denied(name, port)
            assert harness.denied_attempt(name, "is an upstream proxy").port == port
    assert len(asked) == 1
