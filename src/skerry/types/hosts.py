"""The strict parser of host names, and the address ranges that stay closed. Pure, except `is_own`.

Every host, inside or outside, in a rule, a CONNECT line, a Host header, a TLS greeting or a look-up, is parsed by
`parse_host`: two parsers that differ in one byte are a way out. Every spelling that a program inside accepts as an
address (decimal, octal, hexadecimal, short, IPv4 inside IPv6) is parsed as that address before any decision.
"""

from __future__ import annotations

import errno
import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final, TypeAlias

MAX_HOST: Final = 253
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")
_ALPHABET: Final = re.compile(r"[A-Za-z0-9.-]+")
_SIX: Final = re.compile(r"[0-9A-Fa-f:.]{2,45}")
_NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")


class BadHost(ValueError):
    """Not a host. The text has the reason, and the input only as `repr`, which is safe to print."""


class Name(str):
    """A DNS name: lower case, labels of letters, digits and hyphens, no trailing dot. An international name is kept and
    shown only in its xn-- form, so that names that look alike are distinguishable."""

    __slots__ = ()


Address: TypeAlias = IPv4Address | IPv6Address
Host: TypeAlias = Name | IPv4Address | IPv6Address


def parse_host(text: str | bytes) -> Host:
    """Parse a name, or any spelling of an address. Raise BadHost for other text."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")  # other bytes than ASCII fail below, with their position for the message
    if not text:
        raise BadHost("a host can't be empty")
    if len(text) > MAX_HOST + 1:
        raise BadHost(f"{text[:40]!r}… is longer than {MAX_HOST} characters")
    if text[0] == "[":
        return _bracketed(text)
    if not _ALPHABET.fullmatch(text):
        raise BadHost(_stray(text))
    lower = text.removesuffix(".").lower()
    if _NUMERIC.fullmatch(lower):
        return _counted(lower)
    if len(lower) > MAX_HOST or not _NAME.fullmatch(lower):
        raise BadHost(_bad_label(text, lower))
    return Name(lower)


def parse_authority(text: str | bytes, default_port: int | None = None) -> tuple[Host, int | None]:
    """Parse `host`, `host:port` or `[address]:port`, as in a CONNECT line or a Host header. No user, no empty port."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        return parse_host(text), default_port
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise BadHost(f"{port[:20]!r} is no port: 1 to 65535")
    return parse_host(host), int(port)


def plain(address: Address | str | bytes) -> Address:
    """Return an address from the kernel or a resolver (text, or 4 or 16 bytes), with IPv4 inside IPv6 unwrapped."""
    if isinstance(address, bytes):
        address = IPv4Address(address) if len(address) == 4 else IPv6Address(address)
    elif isinstance(address, str):
        address = IPv6Address(address.partition("%")[0]) if ":" in address else IPv4Address(address)
    if isinstance(address, IPv6Address):
        number = int(address)
        # ::ffff:a.b.c.d, and the old ::a.b.c.d, except :: and ::1, which have another meaning
        if number >> 32 == 0xFFFF or (number >> 32 == 0 and number > 1):
            return IPv4Address(number & 0xFFFFFFFF)
    return address


def show_host(host: Host, port: int | None = None) -> str:
    """Format a host for `parse_authority`: an IPv6 address in brackets."""
    text = f"[{host}]" if isinstance(host, IPv6Address) else str(host)
    return text if port is None else f"{text}:{port}"


def _bracketed(text: str) -> Address:
    inner = text[1:-1]
    if text[-1] != "]" or ":" not in inner or not _SIX.fullmatch(inner):
        zone = "; an address with a zone is none" if "%" in inner else ""
        raise BadHost(f"{text[:60]!r} is not an IPv6 address in brackets{zone}")
    try:
        return plain(IPv6Address(inner))
    except ValueError:
        raise BadHost(f"{text[:60]!r} is not an IPv6 address in brackets") from None


def _counted(text: str) -> IPv4Address:
    """Parse an address as inet_aton, and so every C program, does: up to four numbers, the last fills the rest. A name
    with a numeric last label cannot be in the DNS: it is an address or invalid."""
    parts = text.split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        raise BadHost(f"{text[:60]!r} ends in a number and is not an IPv4 address")
    numbers = [int(p, 16 if p.startswith("0x") else 8 if p.startswith("0") else 10) for p in parts]
    if any(n > 255 for n in numbers[:-1]) or numbers[-1] >= 1 << 8 * (5 - len(numbers)):
        raise BadHost(f"{text[:60]!r} is not an IPv4 address: a number is too large")
    return IPv4Address(sum(n << 8 * (3 - i) for i, n in enumerate(numbers[:-1])) + numbers[-1])


def _stray(text: str) -> str:
    stray = next(c for c in text if not _ALPHABET.fullmatch(c))
    reason = {
        "\0": "a NUL byte", "_": "an underscore", "%": "a percent sign: nothing is decoded", ":": "a colon",
        "@": "a user", "*": "a star", "/": "a slash", " ": "a space",
    }.get(stray, "a letter that is not ASCII: write its xn-- form" if stray > "\x7f" else f"{stray!r}")  # fmt: skip
    return f"{text[:60]!r} is not a host: it contains {reason}"


def _bad_label(text: str, lower: str) -> str:
    if len(lower) > MAX_HOST:
        return f"{text[:40]!r}… is longer than {MAX_HOST} characters"
    for label in lower.split("."):
        if not label:
            return f"{text[:60]!r} is not a host: a label is empty"
        if len(label) > 63:
            return f"{text[:60]!r} is not a host: a label is longer than 63 characters"
    return f"{text[:60]!r} is not a host: a label begins or ends with a hyphen"


# -- closed unless a rule names the address itself --------------------------------------------------------------------
# Not `ipaddress.is_global`: it follows IANA's tables, which change with Python, and closes documentation ranges, where
# whole companies keep their mirrors.

_METADATA: Final = {
    "169.254.169.254", "169.254.169.253", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16",
    "192.0.0.192", "fd00:ec2::254", "fd00:ec2::253", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe",
}  # fmt: skip
_CLOSED: Final = (
    ("0.0.0.0/8", "unspecified"), ("10.0.0.0/8", "private"), ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"), ("169.254.0.0/16", "link-local"), ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments"), ("192.88.99.0/24", "6to4 relay"), ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"), ("224.0.0.0/4", "multicast"), ("255.255.255.255/32", "broadcast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"), ("::1/128", "loopback"), ("fe80::/10", "link-local"), ("fec0::/10", "site-local"),
    ("fc00::/7", "private"), ("ff00::/8", "multicast"), ("100::/64", "discard-only"), ("64:ff9b:1::/48", "local NAT64"),
)  # fmt: skip
# Rules of a sandbox open the other kinds; these need the operator. A local NAT64 gateway may lead to any of them.
_HOST_KINDS: Final = frozenset(("loopback", "unspecified", "link-local", "metadata", "local NAT64"))
_METADATA_ADDRESSES: Final = frozenset(plain(text) for text in _METADATA)
_RANGES: Final[tuple[tuple[int, int, int, str], ...]] = tuple(
    (network.version, int(network.network_address), int(network.netmask), what)
    for text, what in _CLOSED
    for network in (ip_network(text),)
)


def closed(address: Address) -> str | None:
    """Return the kind of closed range that contains the address ("private", "loopback", "metadata" …), also if the
    address is only embedded (NAT64, 6to4, Teredo, ::ffff:0:a.b.c.d); None if the address is open."""
    address = plain(address)
    if address in _METADATA_ADDRESSES:
        return "metadata"
    found = closed_range(address)
    if found is not None:
        return found[1]
    for inner in carried(address):
        kind = closed(inner)
        if kind is not None:
            return f"{kind}, as it carries {inner}"
    return None


def is_sandbox_itself(host: Host) -> bool:
    """Return whether a program inside means its own sandbox by this host: loopback, and the unspecified address, which
    the kernel treats as loopback. The proxy must not take it for loopback of the server's machine."""
    if isinstance(host, Name):
        return host == "localhost" or host.endswith(".localhost")
    found = closed_range(plain(host))
    return found is not None and found[1] in ("loopback", "unspecified")


def leads_to_host(address: Address) -> bool:
    """Return whether a closed address leads to this host or to its network link: loopback, unspecified, link-local and
    metadata addresses, also if they are only carried. Addresses of this host's interfaces: see `is_own`."""
    kind = closed(address)
    return kind is not None and kind.partition(",")[0] in _HOST_KINDS


def closed_range(address: Address) -> tuple[int, str] | None:
    """Return the prefix length of the closed range that contains the address itself, and its kind."""
    version, number = address.version, int(address)
    for kind, network, mask, what in _RANGES:
        if kind == version and number & mask == network:
            return mask.bit_count(), what
    return None


def carried(address: Address) -> tuple[IPv4Address, ...]:
    """Return the IPv4 addresses that a gateway would extract from an IPv6 address."""
    if isinstance(address, IPv4Address):
        return ()
    number = int(address)
    low = IPv4Address(number & 0xFFFFFFFF)
    if number >> 32 in (0x0064FF9B << 64, 0xFFFF << 16):  # 64:ff9b::/96; ::ffff:0:a.b.c.d
        return (low,)
    if number >> 112 == 0x2002:  # 6to4
        return (IPv4Address(number >> 80 & 0xFFFFFFFF),)
    if number >> 96 == 0x20010000:  # Teredo: the server, and the client with its bits turned
        return (IPv4Address(number >> 64 & 0xFFFFFFFF), IPv4Address(~number & 0xFFFFFFFF))
    return ()


def is_own(address: Address) -> bool:
    """Return whether a connection to the address ends on this host. A socket can be bound to exactly those addresses.
    Addresses change, so each call asks the kernel again. Every answer except "no such address" counts as yes; so does
    every address if the host sets `ip_nonlocal_bind`."""
    address = plain(address)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
