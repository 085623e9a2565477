"""What is not allowed is told, reset at once, and never dialled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest
from network.leaving import Leaving, echo, is_reset, serving

from skerry.network.messages import PROXY, RESOLVER


@pytest.mark.parametrize(
    "address", ["203.0.113.7", "10.1.2.3", "169.254.169.254", "100.64.0.1", "2001:db8::1", "fd00::1", "::ffff:10.0.0.1"]
)
def test_a_raw_address_is_refused_and_told(leaving: Leaving, address: str) -> None:
    leaving.open("api.example")
    assert leaving.refused(address, 443)
    told = leaving.denied(address.removeprefix("::ffff:"))
    assert (told.port, told.kind, told.ended) == (443, "connection", True)


def test_an_address_that_a_rule_names_is_dialled(leaving: Leaving) -> None:
    with serving(echo, "127.0.0.9") as port:
        leaving.open(f"127.0.0.9:{port}", "10.0.0.0/8:*")
        leaving.world.names["far.example"] = ["127.0.0.9"]
        leaving.open(f"far.example:{port}", f"127.0.0.9:{port}")
        with leaving.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"


def test_a_name_alone_opens_no_closed_address(leaving: Leaving) -> None:
    reached = threading.Event()
    with serving(lambda sock: reached.set()) as port:
        leaving.world.names |= {"far.example": ["127.0.0.1"], "mixed.example": ["203.0.113.1", "127.0.0.1"]}
        leaving.open(f"*.example:{port}")
        for name in ("far.example", "mixed.example"):
            assert leaving.refused(name, port)
            told = leaving.denied(name, "closed address (loopback)", "127.0.0.1")
            assert told.address == "127.0.0.1"
    assert not reached.is_set()


def test_a_name_is_looked_up_anew_for_each_connection_and_the_checked_address_is_dialled(leaving: Leaving) -> None:
    """Rebinding: whatever the second answer is, it is checked before it is dialled."""
    canary = threading.Event()
    with serving(echo, "127.0.0.5") as port, socket.socket() as trap:
        trap.bind(("127.0.0.6", port))
        trap.listen()
        leaving.open(f"far.example:{port}@127.0.0.5")
        for turn in range(40):
            leaving.world.names["far.example"] = ["127.0.0.5" if turn % 2 == 0 else "127.0.0.6"]
            if turn % 2:
                assert leaving.refused("far.example", port)
                continue
            with leaving.connect("far.example", port) as sock:
                sock.sendall(b"\x01")
                assert sock.recv(1) == b"\x01"
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):
            trap.accept()
    assert not canary.is_set()


def test_another_port_of_an_allowed_host_is_refused(leaving: Leaving) -> None:
    leaving.open("far.example:5432")
    assert leaving.refused("far.example", 5433)
    assert "5433" in leaving.denied("far.example").why


def test_deny_wins(leaving: Leaving) -> None:
    leaving.open("*.example", deny=("bad.example:8080",))
    assert leaving.refused("bad.example", 8080)
    assert leaving.denied("bad.example").rule == "bad.example:8080"


def test_a_made_up_address_without_a_name_leads_nowhere(leaving: Leaving) -> None:
    leaving.open("*")
    assert leaving.refused("198.19.200.7", 443)
    assert leaving.denied("198.19.200.7", "no name has this")


def test_the_workers_own_port_is_for_nobody(leaving: Leaving) -> None:
    leaving.open("*", "127.0.0.0/8:*")
    for address in ("127.0.0.1", "::1"):
        assert leaving.refused(address, leaving.door.port)
    assert leaving.denied("own port").port == leaving.door.port


@pytest.mark.parametrize(("address", "port"), [(RESOLVER, 80), (PROXY, 80), (PROXY, 53), ("198.18.0.0", 443)])
def test_the_special_addresses_have_no_other_ports(leaving: Leaving, address: str, port: int) -> None:
    leaving.open("*")
    assert leaving.refused(address, port)
    assert leaving.denied(address)


def test_a_server_that_refuses_is_told_as_allowed_and_why_it_failed(leaving: Leaving) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        assert leaving.refused("far.example", port)
    ended = leaving.told(lambda a: a.ended)
    assert ended.decision == "allowed"
    assert "refused" in ended.why.lower()


def test_more_connections_than_allowed_are_reset_and_told_once(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1", connections=3)
        held = [leaving.connect("far.example", port) for _ in range(3)]
        for sock in held:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        for _ in range(5):
            assert leaving.refused("far.example", port)
        assert leaving.told(lambda a: "3 connections are open" in a.why)
        for sock in held:
            sock.close()
        leaving.quiet()
        with leaving.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"


def test_new_rules_close_what_they_no_longer_allow(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.names |= {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.1"]}
        leaving.open(f"*.example:{port}@127.0.0.1")
        socks = {name: leaving.connect(name, port) for name in ("a.example", "b.example")}
        for sock in socks.values():
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        leaving.change(f"a.example:{port}@127.0.0.1")
        assert is_reset(socks["b.example"])
        socks["a.example"].sendall(b"\x02")
        assert socks["a.example"].recv(1) == b"\x02"
        assert leaving.denied("b.example")
        for sock in socks.values():
            sock.close()


def test_somebody_is_asked_once_and_the_answer_holds_for_the_connection(leaving: Leaving) -> None:
    async def yes(host: str, port: int | None) -> tuple[bool, str]:
        while host == "good.example" and leaving.connections < 3:  # all of them wait for this answer
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        return host == "good.example", "the owner said so"

    leaving.world.answer = yes
    with serving(echo, "127.0.0.1") as port:
        leaving.world.names |= {"good.example": ["127.0.0.1"], "bad.example": ["127.0.0.1"]}
        leaving.open(f"127.0.0.1:{port}", on_unknown="ask")
        socks = [leaving.connect("good.example", port) for _ in range(3)]
        for sock in socks:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        assert leaving.world.asked == [("good.example", port)]
        assert leaving.refused("bad.example", port)
        assert "the owner said so" in leaving.denied("bad.example").why
        leaving.change(f"127.0.0.1:{port}", on_unknown="ask")
        socks[0].sendall(b"\x02")
        assert socks[0].recv(1) == b"\x02"
        leaving.change(f"127.0.0.1:{port}", deny=("good.example",), on_unknown="ask")
        assert is_reset(socks[0])
        for sock in socks:
            sock.close()


def test_a_rule_that_comes_while_somebody_is_asked_is_what_counts(leaving: Leaving) -> None:
    asked, answered = threading.Event(), threading.Event()

    async def late(host: str, port: int | None) -> tuple[bool, str]:
        asked.set()
        while not answered.is_set():
            await asyncio.sleep(0.005)
        return False, "nobody said yes"

    leaving.world.answer = late
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"127.0.0.1:{port}", on_unknown="ask")
        with leaving.connect("far.example", port) as sock:
            assert asked.wait(10)
            leaving.change(f"127.0.0.1:{port}", f"far.example:{port}", on_unknown="ask")
            answered.set()
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
    assert leaving.told(lambda a: a.host == "far.example").rule == f"far.example:{port}"


def test_learning_lets_through_and_says_so(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"127.0.0.1:{port}", on_unknown="learn")
        with leaving.connect("far.example", port) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
    assert "learn" in leaving.told(lambda a: a.host == "far.example").why


def test_a_peer_is_reached_through_the_server(leaving: Leaving) -> None:
    with serving(echo) as port:
        leaving.world.peers["sb-bbbbbbbbbb"] = port
        leaving.open(peers={"db": "sb-bbbbbbbbbb"})
        with leaving.connect("db", 5432) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
    assert leaving.told(lambda a: a.host == "db" and a.port == 5432).decision == "allowed"


def test_the_kernel_says_whose_it_was(leaving: Leaving) -> None:
    leaving.open()
    assert leaving.refused("203.0.113.7", 443)
    leaving.query("evil.example")
    leaving.denied("evil.example")
    found = {tried.attempt.host: tried.cgroup for tried in leaving.world.tried}
    assert found["203.0.113.7"] is not None
    assert found["evil.example"] == found["203.0.113.7"]


def test_a_flood_is_told_in_a_few_records(leaving: Leaving) -> None:
    leaving.open()
    for number in range(300):
        with leaving.socket() as sock, contextlib.suppress(ConnectionResetError):
            sock.connect((f"203.0.113.{number % 200}", 1000 + number))
    leaving.told(lambda a: a.host == "(many)" and a.count > 1)
    assert sum(t.attempt.count for t in leaving.world.tried) >= 300 - 1
    assert len(leaving.world.tried) < 200


def test_text_from_inside_is_made_safe(leaving: Leaving) -> None:
    leaving.open()
    leaving.ask(b"\0\7\1\0\0\1\0\0\0\0\0\0\x0a\x1b[31m\ngo\x07\xff\0\0\1\0\1")
    told = leaving.told(lambda a: a.kind == "name")
    assert f"{told.host}{told.why}{told.hint}".isprintable()
    assert f"{told.host}{told.why}".isascii()


def test_a_program_sees_an_ordinary_error_at_once(leaving: Leaving) -> None:
    leaving.open()
    code = (
        "import socket\n"
        "try: socket.create_connection(('203.0.113.7', 443), 5).recv(1)\n"
        "except OSError as e: print(e.errno)"
    )
    command = ["nsenter", "-t", str(leaving._place.process.pid), "-n", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, timeout=20, text=True).stdout.strip() == "104"
    assert os.strerror(104) == "Connection reset by peer"


def test_a_host_behind_an_upstream_proxy_is_reached_through_it_and_the_proxy_itself_is_not(leaving: Leaving) -> None:
    """A sandbox that could speak with the proxy could ask it for anything."""
    asked: list[bytes] = []

    def proxy(sock: socket.socket) -> None:
        asked.append(sock.recv(4096).split(b"\r\n")[0])
        sock.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        echo(sock)

    with serving(proxy, "127.0.0.9") as port:
        leaving.world.names |= {"proxy.internal": ["127.0.0.9"], "alias.internal": ["127.0.0.9"]}
        rule = f"proxy.internal:{port}@127.0.0.9"
        rules = ("far.example:7000", rule, f"alias.internal:{port}@127.0.0.0/8")
        leaving.open(*rules, proxies=((("far.example:7000", rule), f"http://proxy.internal:{port}"),))
        with leaving.connect("far.example", 7000) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        assert asked == [b"CONNECT far.example:7000 HTTP/1.1"]
        for name in ("proxy.internal", "alias.internal"):
            assert leaving.refused(name, port)
            assert leaving.denied(name, "is an upstream proxy").port == port
    assert len(asked) == 1
