"""The name server inside: asks nobody, answers strictly, remembers."""

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
from network.leaving import Leaving

from skerry.network.hosts import Name
from skerry.network.messages import NAMES, RESOLVER
from skerry.network.worker.book import Book

RANGE = IPv4Network(NAMES)


def test_an_allowed_name_has_a_made_up_address_and_keeps_it(leaving: Leaving) -> None:
    leaving.open("api.example", "*.files.example")
    first = leaving.look_up("api.example")
    assert IPv4Address(first) in RANGE
    assert leaving.look_up("API.example.") == first
    assert leaving.look_up("a.files.example") not in (first, RESOLVER)


def test_a_name_that_no_rule_allows_does_not_exist_and_is_told(leaving: Leaving) -> None:
    leaving.open("api.example")
    assert leaving.query("api.example.evil.example").rcode() == dns.rcode.NXDOMAIN
    told = leaving.denied("api.example.evil.example")
    assert told.kind == "name"
    assert told.hint is not None
    assert "api.example.evil.example" in told.hint


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "SRV"])
def test_an_allowed_name_has_nothing_but_one_address(leaving: Leaving, kind: str) -> None:
    leaving.open("api.example")
    reply = leaving.query("api.example", kind)
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])


def test_any_server_that_is_asked_is_this_one(leaving: Leaving) -> None:
    leaving.open("api.example")
    assert leaving.query("api.example", server="203.0.113.9").answer


def test_the_same_is_answered_over_tcp(leaving: Leaving) -> None:
    leaving.open("api.example")
    address = leaving.look_up("api.example")
    with leaving.socket() as sock:
        sock.connect((RESOLVER, 53))
        for _ in range(3):
            query = dns.message.make_query("api.example", "A").to_wire()
            sock.sendall(struct.pack("!H", len(query)) + query)
            size = struct.unpack("!H", sock.recv(2))[0]
            assert str(dns.message.from_wire(sock.recv(size)).answer[0][0]) == address


def test_a_made_up_address_is_called_by_its_name(leaving: Leaving) -> None:
    leaving.open("api.example")
    address = leaving.look_up("api.example")
    back = leaving.query(".".join(reversed(address.split("."))) + ".in-addr.arpa", "PTR")
    assert str(back.answer[0][0]) == "api.example."
    assert leaving.query("9.113.0.203.in-addr.arpa", "PTR").rcode() == dns.rcode.NXDOMAIN


def test_localhost_is_inside(leaving: Leaving) -> None:
    leaving.open()
    assert leaving.look_up("localhost") == "127.0.0.1"


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
def test_what_is_no_proper_question_gets_no_address(leaving: Leaving, query: bytes, code: int) -> None:
    leaving.open("api.example")
    reply = leaving.ask(query)
    assert reply[:2] == query[:2]
    assert reply[3] & 15 == code
    assert struct.unpack("!H", reply[6:8])[0] == 0


def test_a_label_with_a_dot_in_it_is_not_the_name_that_it_spells(leaving: Leaving) -> None:
    leaving.open("api.example")
    query = struct.pack("!HH4H", 7, 0x100, 1, 0, 0, 0) + b"\x0bapi.example\0" + struct.pack("!HH", 1, 1)
    assert leaving.ask(query)[3] & 15 == dns.rcode.NXDOMAIN


def test_answers_are_not_answered(leaving: Leaving) -> None:
    leaving.open("api.example")
    with leaving.socket(kind=socket.SOCK_DGRAM) as sock:
        sock.sendto(_query(b"api.example", flags=0x8100), (RESOLVER, 53))
        sock.sendto(b"short", (RESOLVER, 53))
        sock.sendto(_query(b"api.example"), (RESOLVER, 53))
        assert struct.unpack("!H", sock.recv(1000)[6:8])[0] == 1


def test_garbage_never_stops_it(leaving: Leaving) -> None:
    leaving.open("api.example")
    dice = random.Random(4)
    good = _query(b"api.example")
    with leaving.socket(kind=socket.SOCK_DGRAM) as sock:
        for _ in range(400):
            bad = bytearray(good + bytes(dice.randbytes(dice.randrange(12))))
            for _ in range(dice.randrange(1, 6)):
                bad[dice.randrange(len(bad))] = dice.randrange(256)
            sock.sendto(bytes(bad[: dice.randrange(1, len(bad) + 1)]), (RESOLVER, 53))
    assert leaving.look_up("api.example")


def test_tunnelling_by_names_tells_nobody_anything_and_costs_little(leaving: Leaving) -> None:
    leaving.open("api.example")
    with leaving.socket(kind=socket.SOCK_DGRAM) as sock:
        for number in range(3000):
            sock.sendto(_query(b"%d.secret.evil.example" % number), (RESOLVER, 53))
            if number % 50 == 49:
                sock.recv(1000)
    assert leaving.denied("(many)").count >= 1
    assert len(leaving.world.tried) < 300


def test_names_survive_the_worker(leaving: Leaving) -> None:
    leaving.open("*.example")
    addresses = [leaving.look_up(f"n{number}.example") for number in range(20)]
    leaving.open("*.example")
    assert leaving.look_up("new.example") not in addresses
    assert [leaving.look_up(f"n{number}.example") for number in range(20)] == addresses


def test_a_line_that_was_cut_off_costs_that_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(b"198.18.1.1 a.example\nnonsense\n10.0.0.1 b.example\n198.18.1.2 c.exa\xff\n198.18.1.3 d.exam")
    book = Book(os.open(path, os.O_RDWR))
    assert book.name(IPv4Address("198.18.1.1")) == "a.example"
    assert book.name(IPv4Address("10.0.0.1")) is None
    assert book.name(IPv4Address("198.18.1.3")) is None
    fresh = book.address(Name("e.example"))
    book.close()
    again = Book(os.open(path, os.O_RDWR))
    assert again.address(Name("e.example")) == fresh
    assert again.address(Name("a.example")) == IPv4Address("198.18.1.1")
    again.close()


def test_a_full_book_gives_the_longest_unused_address_anew_but_none_in_use(tmp_path: Path) -> None:
    book = Book(os.open(tmp_path / "book", os.O_RDWR | os.O_CREAT), most=3)
    addresses = [book.address(Name(f"{letter}.example")) for letter in "abc"]
    assert addresses[0] is not None
    assert addresses[2] is not None
    book.address(Name("b.example"))
    book.hold(addresses[0])
    assert book.address(Name("d.example")) == addresses[2]
    assert book.name(addresses[2]) == "d.example"
    for address in (addresses[1], addresses[2]):
        assert address is not None
        book.hold(address)
    assert book.address(Name("e.example")) is None
    book.release(addresses[0])
    assert book.address(Name("e.example")) == addresses[0]
    book.close()


def test_a_worker_killed_while_it_shortens_its_book_loses_no_name(tmp_path: Path) -> None:
    path = tmp_path / "book"
    code = """
import os, signal, sys
from skerry.network.hosts import Name
from skerry.network.worker import book
book.os = type("Os", (), {**vars(os), sys.argv[2]: lambda *_: os.kill(os.getpid(), signal.SIGKILL)})
kept = book.Book(os.open(sys.argv[1], os.O_RDWR), most=100)
kept._rewrite()
"""
    for call in ("pwrite", "ftruncate"):  # killed in the place of each
        book = Book(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), most=100)
        for number in range(150):
            book.address(Name(f"n{number}.example"))
        known = {n: book.address(Name(f"n{n}.example")) for n in range(60, 150)}
        book.close()
        done = subprocess.run([sys.executable, "-c", code, str(path), call], timeout=30)
        assert done.returncode == -signal.SIGKILL
        again = Book(os.open(path, os.O_RDWR), most=100)
        assert {n: again.address(Name(f"n{n}.example")) for n in known} == known, call
        again.close()


def test_a_flood_of_names_leaves_a_book_that_is_soon_read(tmp_path: Path) -> None:
    """A new worker reads every sandbox's before it serves any."""
    path = tmp_path / "book"
    book = Book(os.open(path, os.O_RDWR | os.O_CREAT), most=100)
    for number in range(5_000):
        book.address(Name(f"n{number}.example"))
    last = book.address(Name("n4999.example"))
    book.close()
    assert len(path.read_bytes().splitlines()) <= 200
    again = Book(os.open(path, os.O_RDWR), most=100)
    assert again.address(Name("n4999.example")) == last
    again.close()
