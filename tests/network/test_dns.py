"""The DNS server inside: sends no queries, answers strictly, keeps its table."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import pytest
from support.egress import EgressHarness

from skerry.network.messages import FAKE_IP_RANGE, RESOLVER_IP
from skerry.network.worker.dns.fake_ips import FakeIpTable
from skerry.types.hosts import Name

RANGE = IPv4Network(FAKE_IP_RANGE)


def test_allowed_name_gets_a_fake_ip_and_keeps_it(harness: EgressHarness) -> None:
    harness.open("api.example", "*.files.example")
    first = harness.look_up("api.example")
    assert IPv4Address(first) in RANGE
    assert harness.look_up("API.example.") == first
    assert harness.look_up("a.files.example") not in (first, RESOLVER_IP)


def test_denied_name_does_not_exist_and_is_reported(harness: EgressHarness) -> None:
    harness.open("api.example")
    assert harness.query("api.example.evil.example").rcode() == dns.rcode.NXDOMAIN
    told = harness.denied_attempt("api.example.evil.example")
    assert told.kind == "name"
    assert told.hint is not None
    assert "api.example.evil.example" in told.hint


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "SRV"])
def test_an_allowed_name_has_nothing_but_one_address(harness: EgressHarness, kind: str) -> None:
    harness.open("api.example")
    reply = harness.query("api.example", kind)
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])


def test_any_server_that_is_asked_is_this_one(harness: EgressHarness) -> None:
    harness.open("api.example")
    assert harness.query("api.example", server="203.0.113.9").answer


def test_the_same_is_answered_over_tcp(harness: EgressHarness) -> None:
    harness.open("api.example")
    address = harness.look_up("api.example")
    with harness.socket() as sock:
        sock.connect((RESOLVER_IP, 53))
        for _ in range(3):
            query = dns.message.make_query("api.example", "A").to_wire()
            sock.sendall(struct.pack("!H", len(query)) + query)
            size = struct.unpack("!H", sock.recv(2))[0]
            assert str(dns.message.from_wire(sock.recv(size)).answer[0][0]) == address


def test_reverse_lookup_of_a_fake_ip_returns_its_name(harness: EgressHarness) -> None:
    harness.open("api.example")
    address = harness.look_up("api.example")
    back = harness.query(".".join(reversed(address.split("."))) + ".in-addr.arpa", "PTR")
    assert str(back.answer[0][0]) == "api.example."
    assert harness.query("9.113.0.203.in-addr.arpa", "PTR").rcode() == dns.rcode.NXDOMAIN


def test_localhost_is_inside(harness: EgressHarness) -> None:
    harness.open()
    assert harness.look_up("localhost") == "127.0.0.1"


def _query(
    name: bytes, kind: int = 1, rdclass: int = 1, flags: int = 0x0100, counts: tuple[int, ...] = (1, 0, 0, 0)
) -> bytes:
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b".") if label)
    return struct.pack("!HH4H", 7, flags, *counts) + labels + b"\0" + struct.pack("!HH", 1, rdclass)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (_query(b"api.example", counts=(2, 0, 0, 0)), dns.rcode.FORMERR),
        (_query(b"api.example", counts=(0, 0, 0, 0)), dns.rcode.FORMERR),
        (_query(b"api.example", counts=(1, 1, 0, 0)), dns.rcode.FORMERR),
        (_query(b"api.example") + b"junk", dns.rcode.FORMERR),
        (_query(b"api.example")[:-3], dns.rcode.FORMERR),
        (_query(b"api.example", rdclass=3), dns.rcode.REFUSED),
        (_query(b"api.example", flags=0x2900), dns.rcode.NOTIMP),
        (_query(b"api.example") + b"x" * 2000, dns.rcode.FORMERR),
        (_query(b"evil\0.api.example"), dns.rcode.NXDOMAIN),
        (_query(b"api.example\0"), dns.rcode.NXDOMAIN),
        (_query(b"_http._tcp.api.example"), dns.rcode.NXDOMAIN),
        (_query("äpi.example".encode()), dns.rcode.NXDOMAIN),
        (b"\0\7\1\0\0\1\0\0\0\0\0\0\xc0\x0c\0\1\0\1", dns.rcode.FORMERR),
    ],
)  # fmt: skip
def test_malformed_query_gets_no_address(harness: EgressHarness, query: bytes, code: int) -> None:
    harness.open("api.example")
    reply = harness.ask(query)
    assert reply[:2] == query[:2]
    assert reply[3] & 15 == code
    assert struct.unpack("!H", reply[6:8])[0] == 0


def test_a_label_with_a_dot_in_it_is_not_the_name_that_it_spells(harness: EgressHarness) -> None:
    harness.open("api.example")
    query = struct.pack("!HH4H", 7, 0x100, 1, 0, 0, 0) + b"\x0bapi.example\0" + struct.pack("!HH", 1, 1)
    assert harness.ask(query)[3] & 15 == dns.rcode.NXDOMAIN


def test_answers_are_not_answered(harness: EgressHarness) -> None:
    harness.open("api.example")
    with harness.socket(kind=socket.SOCK_DGRAM) as sock:
        sock.sendto(_query(b"api.example", flags=0x8100), (RESOLVER_IP, 53))
        sock.sendto(b"short", (RESOLVER_IP, 53))
        sock.sendto(_query(b"api.example"), (RESOLVER_IP, 53))
        assert struct.unpack("!H", sock.recv(1000)[6:8])[0] == 1


def test_garbage_never_stops_it(harness: EgressHarness) -> None:
    harness.open("api.example")
    dice = random.Random(4)
    good = _query(b"api.example")
    with harness.socket(kind=socket.SOCK_DGRAM) as sock:
        for _ in range(400):
            bad = bytearray(good + bytes(dice.randbytes(dice.randrange(12))))
            for _ in range(dice.randrange(1, 6)):
                bad[dice.randrange(len(bad))] = dice.randrange(256)
            sock.sendto(bytes(bad[: dice.randrange(1, len(bad) + 1)]), (RESOLVER_IP, 53))
    assert harness.look_up("api.example")


def test_dns_tunnelling_sends_nothing_out_and_costs_little(harness: EgressHarness) -> None:
    harness.open("api.example")
    with harness.socket(kind=socket.SOCK_DGRAM) as sock:
        for number in range(3000):
            sock.sendto(_query(b"%d.secret.evil.example" % number), (RESOLVER_IP, 53))
            if number % 50 == 49:
                sock.recv(1000)
    assert harness.denied_attempt("(many)").count >= 1
    assert len(harness.server.attempts) < 300


def test_names_survive_the_worker(harness: EgressHarness) -> None:
    harness.open("*.example")
    addresses = [harness.look_up(f"n{number}.example") for number in range(20)]
    harness.open("*.example")
    assert harness.look_up("new.example") not in addresses
    assert [harness.look_up(f"n{number}.example") for number in range(20)] == addresses


def test_a_line_that_was_cut_off_costs_that_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(b"198.18.1.1 a.example\nnonsense\n10.0.0.1 b.example\n198.18.1.2 c.exa\xff\n198.18.1.3 d.exam")
    table = FakeIpTable(os.open(path, os.O_RDWR))
    assert table.name(IPv4Address("198.18.1.1")) == "a.example"
    assert table.name(IPv4Address("10.0.0.1")) is None
    assert table.name(IPv4Address("198.18.1.3")) is None
    fresh = table.address(Name("e.example"))
    table.close()
    again = FakeIpTable(os.open(path, os.O_RDWR))
    assert again.address(Name("e.example")) == fresh
    assert again.address(Name("a.example")) == IPv4Address("198.18.1.1")
    again.close()


def test_full_table_reuses_the_least_recently_used_address_but_none_in_use(tmp_path: Path) -> None:
    table = FakeIpTable(os.open(tmp_path / "book", os.O_RDWR | os.O_CREAT), capacity=3)
    addresses = [table.address(Name(f"{letter}.example")) for letter in "abc"]
    assert addresses[0] is not None
    assert addresses[2] is not None
    table.address(Name("b.example"))
    table.hold(addresses[0])
    assert table.address(Name("d.example")) == addresses[2]
    assert table.name(addresses[2]) == "d.example"
    for address in (addresses[1], addresses[2]):
        assert address is not None
        table.hold(address)
    assert table.address(Name("e.example")) is None
    table.release(addresses[0])
    assert table.address(Name("e.example")) == addresses[0]
    table.close()


def test_worker_killed_during_a_rewrite_loses_no_name(tmp_path: Path) -> None:
    path = tmp_path / "book"
    code = """
import os, signal, sys
from skerry.types.hosts import Name
from skerry.network.worker.dns import fake_ips
fake_ips.os = type("Os", (), {**vars(os), sys.argv[2]: lambda *_: os.kill(os.getpid(), signal.SIGKILL)})
kept = fake_ips.FakeIpTable(os.open(sys.argv[1], os.O_RDWR), capacity=100)
kept._rewrite()
"""
    for call in ("pwrite", "ftruncate"):  # killed instead of each call
        table = FakeIpTable(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), capacity=100)
        for number in range(150):
            table.address(Name(f"n{number}.example"))
        known = {n: table.address(Name(f"n{n}.example")) for n in range(60, 150)}
        table.close()
        done = subprocess.run([sys.executable, "-c", code, str(path), call], timeout=30)
        assert done.returncode == -signal.SIGKILL
        again = FakeIpTable(os.open(path, os.O_RDWR), capacity=100)
        assert {n: again.address(Name(f"n{n}.example")) for n in known} == known, call
        again.close()


def test_flood_of_names_leaves_a_short_file(tmp_path: Path) -> None:
    """A new worker reads the files of all sandboxes before it serves any."""
    path = tmp_path / "book"
    table = FakeIpTable(os.open(path, os.O_RDWR | os.O_CREAT), capacity=100)
    for number in range(5_000):
        table.address(Name(f"n{number}.example"))
    last = table.address(Name("n4999.example"))
    table.close()
    assert len(path.read_bytes().splitlines()) <= 200
    again = FakeIpTable(os.open(path, os.O_RDWR), capacity=100)
    assert again.address(Name("n4999.example")) == last
    again.close()
