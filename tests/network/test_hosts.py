"""The one parser of hosts: every attack spelling is rejected or is the host that it means."""

from __future__ import annotations

import random
import socket
from ipaddress import IPv4Address, IPv6Address

import pytest

from skerry.types.hosts import BadHost, Name, parse_authority, parse_host, plain, show_host


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("a-b.c--d.example", "a-b.c--d.example"),
        ("localhost", "localhost"),
        ("0.example", "0.example"),
        ("4.3.2.1.in-addr.arpa", "4.3.2.1.in-addr.arpa"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("1e3", "1e3"),
        ("0xg", "0xg"),
        (b"api.example.com", "api.example.com"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
    ],
)
def test_a_name_is_folded_to_one_spelling(text: str | bytes, name: str) -> None:
    host = parse_host(text)
    assert isinstance(host, Name)
    assert host == name
    assert parse_host(str(host)) == host


@pytest.mark.parametrize("text", ["evil\0.allowed.com", "allowed.com\0", "\0allowed.com", "allowed.com\0.evil.com"])
def test_attack_a_nul_byte_cuts_no_name_short(text: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(BadHost, match="NUL"):
            parse_host(form)
        with pytest.raises(BadHost):
            parse_authority(form + (":443" if isinstance(form, str) else b":443"))


def test_attack_every_byte_outside_the_alphabet_is_refused() -> None:
    alphabet = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-"
    for byte in set(range(256)) - set(alphabet):
        for text in (b"a%cb.example", b"%ca.example", b"a.example%c"):
            with pytest.raises(BadHost):
                parse_host(text % byte)


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a..b", ".a", "a.example..", "-a.example", "a-.example", "a.-b", "a_b.example", "*", "*.a",
        "a.example\n", "a.example\r\nHost: b", " a.example", "a.example ", "a@b.example", "a/b", "a%2eb", "%61.example",
        "a:b", "fd00::1", "::1", "[fd00::1", "fd00::1]", "[]", "[a.example]", "[10.0.0.1]", "[fe80::1%eth0]",
        "[fe80::1%25eth0]", "[::1]x", "[[::1]]", "[::g]", "[1:2:3:4:5:6:7:8:9]", "a" * 64 + ".example",
        "a." * 127 + "aa",
    ],
)  # fmt: skip
def test_invalid_host_is_rejected(text: str) -> None:
    with pytest.raises(BadHost):
        parse_host(text)
    with pytest.raises(BadHost):
        parse_host(text.encode())


@pytest.mark.parametrize(
    "text", ["а.example", "bücher.example", "ａ.example", "api。example", "ⓐ.example", "\u212a.example"]
)
def test_attack_idn_look_alikes_are_refused_and_their_xn_form_stays_so(text: str) -> None:
    """A Cyrillic а, full-width letters, an ideographic full stop, the Kelvin sign: none becomes ASCII by folding."""
    for form in (text, text.encode()):
        with pytest.raises(BadHost):
            parse_host(form)
    assert str(parse_host("XN--80AK6AA92E.com")) == "xn--80ak6aa92e.com"


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0x7f.1", "0X7F.0.0.0x1",
        "0177.0.0.1", "127.0.0.1.", "00177.1", "0x7f.0x0.0x0.0x1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
        "[::127.0.0.1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::FFFF:127.0.0.1]",
    ],
)  # fmt: skip
def test_attack_raw_addresses_of_every_spelling_are_the_address_that_they_mean(text: str) -> None:
    assert parse_host(text) == IPv4Address("127.0.0.1")
    assert parse_authority(f"{text}:80") == (IPv4Address("127.0.0.1"), 80)


@pytest.mark.parametrize(
    "text",
    ["1.2.3.4.5", "256.0.0.1", "1.2.3.256", "4294967296", "1.2.65536", "1.16777216", "08.0.0.1", "0x", "1.0x", "0x1g.1",
     "evil.1", "a.0x7f", "1..2", "099", "127.0.0.1..", "9" * 200, "allowed.com.127.1"],
)  # fmt: skip
def test_attack_a_number_at_the_end_is_an_address_or_nothing(text: str) -> None:
    with pytest.raises(BadHost):
        parse_host(text)


@pytest.mark.parametrize(
    "text", ["1.2.3.4", "1.2.3", "1.2", "1", "0x10.1", "010.010", "0x7f000001", "037777777777", "0"]
)
def test_numbers_mean_the_same_as_to_the_c_library(text: str) -> None:
    assert parse_host(text) == IPv4Address(socket.inet_aton(text))


def test_an_ipv6_address_is_bracketed_and_canonical() -> None:
    assert parse_host("[FD00:0:0::0001]") == IPv6Address("fd00::1")
    assert parse_host("[::1]") == IPv6Address("::1")
    assert parse_host("[::]") == IPv6Address("::")
    assert show_host(parse_host("[fd00::1]"), 22) == "[fd00::1]:22"
    assert show_host(parse_host("A.example"), 80) == "a.example:80"


def test_attack_a_longer_name_that_begins_with_an_allowed_one_stays_another() -> None:
    assert parse_host("allowed.com.evil.com") != parse_host("allowed.com")
    assert parse_host("allowed.com.") == parse_host("allowed.com")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a.example", "a.example", None), ("a.example:443", "a.example", 443), ("A.EXAMPLE.:8443", "a.example", 8443),
        ("[fd00::1]", "fd00::1", None), ("[fd00::1]:22", "fd00::1", 22), ("10.0.0.1:65535", "10.0.0.1", 65535),
    ],
)  # fmt: skip
def test_an_authority_is_a_host_and_perhaps_a_port(text: str, host: str, port: int | None) -> None:
    found, number = parse_authority(text)
    assert (str(found), number) == (host, port)
    assert parse_authority(text, 80)[1] == (port or 80)


@pytest.mark.parametrize(
    "text",
    ["a.example:", "a.example:0", "a.example:65536", "a.example:+80", "a.example:08", "a.example:8o", "a.example: 80",
     "a.example:80:80", "user@a.example:80", "user:pw@a.example", "fd00::1", "fd00::1:22", "[fd00::1]22", ":80", "",
     "a.example:80/", "http://a.example", "a.example:٨٠", "[fd00::1]:22:1"],
)  # fmt: skip
def test_invalid_authority_is_rejected(text: str) -> None:
    with pytest.raises(BadHost):
        parse_authority(text)


def test_an_address_from_the_kernel_loses_its_wrapping_and_its_zone() -> None:
    assert plain("::ffff:10.0.0.1") == IPv4Address("10.0.0.1")
    assert plain(b"\0" * 10 + b"\xff\xff\x0a\0\0\1") == IPv4Address("10.0.0.1")
    assert plain(b"\x0a\0\0\1") == IPv4Address("10.0.0.1")
    assert plain("fe80::1%eth0") == IPv6Address("fe80::1")
    assert plain("::1") == IPv6Address("::1")


def test_a_refusal_is_safe_to_print() -> None:
    with pytest.raises(BadHost) as caught:
        parse_host("\x1b[31mred\nallowed")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_attack_nothing_that_the_c_library_takes_for_an_address_is_taken_for_another_or_for_a_name() -> None:
    """Random spellings with a fixed seed: the dialled address must not differ from the judged one."""
    chance = random.Random(4)
    pieces = ["0", "1", "7", "8", "9", "10", "127", "255", "0x", "0X7f", "x", "f", "00", "017", "4294967295", ".",
              ".", ".", ":", "::", "ffff", "[", "]", "%", "-", "a", " "]  # fmt: skip
    numeric = 0
    for _ in range(20_000):
        text = "".join(chance.choices(pieces, k=chance.randint(1, 9)))
        try:
            meant = plain(str(socket.getaddrinfo(text, 1, flags=socket.AI_NUMERICHOST)[0][4][0]))
        except (OSError, UnicodeError):
            meant = None
        try:
            host = parse_host(f"[{text}]" if ":" in text and "[" not in text else text)
        except BadHost:
            continue
        assert parse_host(show_host(host)) == host
        if meant is not None:
            numeric += 1
            assert host == meant, text
    assert numeric > 500
