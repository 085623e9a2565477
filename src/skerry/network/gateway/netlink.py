"""Routes and nftables rules by netlink, with hand-written messages: no program is started, no library needed.

The sockets come from the sandbox's namespace; every exchange sends all requests and reads all replies. Any reply other
than the acknowledgement of a request is an error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

from skerry.network.messages import SANDBOX_IP

ROUTE, NETFILTER, SOCK_DIAG = 0, 12, 4  # the netlink protocols in use
TIMEOUT_S: Final = 5.0
_MAX_REPLY: Final = 64 << 10

_REQUEST, _ACK, _REPLACE, _CREATE, _APPEND = 0x1, 0x4, 0x100, 0x400, 0x800
_NLMSG_ERROR: Final = 2
_HEADER: Final = struct.Struct("=IHHII")

_RTM_NEWLINK, _RTM_NEWADDR, _RTM_NEWROUTE = 16, 20, 24
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF: Final = 4
_TABLE_LOCAL, _PROTOCOL_STATIC, _TYPE_LOCAL = 255, 4, 2
_SCOPE_HOST, _SCOPE_UNIVERSE = 254, 0
_IFF_UP: Final = 1
_LO: Final = 1  # the index in every namespace

_NFNL_BATCH_BEGIN, _NFNL_BATCH_END = 16, 17
_CTNETLINK, _NFTABLES = 1, 10
_CT_DELETE: Final = 2
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE = 0, 2, 3, 6
_NESTED: Final = 0x8000
_NFPROTO_IPV4, _NFPROTO_IPV6 = 2, 10
_HOOK_LOCAL_OUT: Final = 3
_PRIORITY_RAW, _PRIORITY_DSTNAT = -300, -100  # before connection tracking, and where connections are redirected
_SOURCE, _DESTINATION = 0, 2  # offset of the port in a TCP or UDP header
_TCP, _UDP = 6, 17
_RETURN, _DROP = -5, 0
# Entries of the connection table, about 400 bytes each, which no memory cgroup counts
_MAX_TRACKED: Final = 8192
_REG_VERDICT, _REG_1 = 0, 1
_OVER: Final = 1  # flag of connlimit: match above the limit, not below
TABLE: Final = "skerry"


class NetlinkError(OSError):
    """The kernel rejected a request, or sent an unexpected reply."""


def set_up_routes(route: socket.socket, *, ipv6: bool) -> None:
    """Bring lo up, give it an address beside loopback's, and make every IPv4 and IPv6 address local to this namespace.
    Idempotent. The routes set no source address: a connection then comes from the address that it goes to, so that two
    redirected connections never have the same addresses and ports."""
    link = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, _LO, _IFF_UP, _IFF_UP)
    own = socket.inet_aton(SANDBOX_IP)
    address = struct.pack("=BBBBI", socket.AF_INET, 32, 0, _SCOPE_UNIVERSE, _LO)
    address += _attribute(_IFA_LOCAL, own) + _attribute(_IFA_ADDRESS, own)
    requests = [(_RTM_NEWLINK, 0, link), (_RTM_NEWADDR, _CREATE | _REPLACE, address)]
    families = [(socket.AF_INET, _SCOPE_HOST)] + ([(socket.AF_INET6, _SCOPE_UNIVERSE)] if ipv6 else [])
    for family, scope in families:
        body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_STATIC, scope, _TYPE_LOCAL, 0)
        requests.append((_RTM_NEWROUTE, _CREATE | _REPLACE, body + _attribute(_RTA_OIF, struct.pack("=I", _LO))))
    _exchange(
        route, [_message(kind, _REQUEST | _ACK | flags, n, body) for n, (kind, flags, body) in _numbered(requests)]
    )


def set_up_redirect(netfilter: socket.socket, port: int) -> None:
    """Redirect all TCP except to loopback, and IPv4 UDP to port 53, to `port` on loopback. One transaction, which also
    replaces the rules of an earlier server: at no moment are both or neither in force.

    Only redirected traffic is tracked, and its replies, which come from `port`: 2,000 connections a second between
    programs inside would fill the conntrack table and be dropped, and a table full of datagrams would take 60 MB of the
    host. Other IPv6 traffic than TCP is dropped unless it goes to loopback: each destination would become an entry of
    the neighbour table, of which the host has one for all sandboxes.
    """
    requests: list[tuple[int, int, bytes]] = []
    for family in (_NFPROTO_IPV4, _NFPROTO_IPV6):
        table = _string(1, TABLE)
        requests += [
            (_NEWTABLE, _CREATE, _family(family) + table),  # so that the delete finds one
            (_DELTABLE, 0, _family(family) + table),
            (_NEWTABLE, _CREATE, _family(family) + table),
            (_NEWCHAIN, _CREATE, _family(family) + _chain("raw", "filter", _PRIORITY_RAW)),
            (_NEWCHAIN, _CREATE, _family(family) + _chain("output", "nat", _PRIORITY_DSTNAT)),
        ]
        tracking = [
            (*_transport(_SOURCE, port), _verdict(_RETURN)),
            (*_loopback(family), _expression("notrack"), _verdict(_RETURN)),
            (*_protocol(_TCP), _verdict(_RETURN)),
        ]
        leading = [
            (*_loopback(family), _verdict(_RETURN)),
            (_expression("connlimit", _number(1, _MAX_TRACKED), _number(2, _OVER)), _verdict(_DROP)),
            _redirected(_TCP, port),
        ]
        if family == _NFPROTO_IPV4:
            tracking.append((*_protocol(_UDP), *_transport(_DESTINATION, 53), _verdict(_RETURN)))
            tracking.append((_expression("notrack"),))
            leading.append(_redirected(_UDP, port, 53))
        else:
            tracking.append((_verdict(_DROP),))
        for chain, rules in (("raw", tracking), ("output", leading)):
            requests += [(_NEWRULE, _CREATE | _APPEND, _family(family) + _rule(chain, *rule)) for rule in rules]
    batch = struct.pack("=BBH", 0, 0, socket.htons(_NFTABLES))
    messages = [_message(_NFNL_BATCH_BEGIN, _REQUEST, 0, batch)]
    for number, (kind, flags, body) in _numbered(requests):
        messages.append(_message(_NFTABLES << 8 | kind, _REQUEST | _ACK | flags, number, body))
    messages.append(_message(_NFNL_BATCH_END, _REQUEST, len(requests) + 1, batch))
    _exchange(netfilter, messages, len(requests))


def forget_connections(netfilter: socket.socket) -> None:
    """Empty the connection table, after the rules of an earlier server were replaced. An entry redirects later packets
    with the same addresses and ports to the earlier port: a query from a port that was used seconds ago would be
    refused, and a resolver does not repeat it then. A kernel without this interface keeps the entries for 10 s."""
    body = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0)
    with contextlib.suppress(NetlinkError):
        _exchange(netfilter, [_message(_CTNETLINK << 8 | _CT_DELETE, _REQUEST | _ACK, 1, body)])


# -- nftables expressions ---------------------------------------------------------------------------------------------


def _family(family: int) -> bytes:
    return struct.pack("=BBH", family, 0, 0)


@cache
def _chain(name: str, kind: str, priority: int) -> bytes:
    hook = _attribute(1, struct.pack(">I", _HOOK_LOCAL_OUT)) + _attribute(2, struct.pack(">i", priority))
    return _string(1, TABLE) + _string(3, name) + _nest(4, hook) + _string(7, kind)


def _rule(chain: str, *expressions: bytes) -> bytes:
    return _string(1, TABLE) + _string(2, chain) + _nest(4, b"".join(_nest(1, one) for one in expressions))


def _expression(name: str, *attributes: bytes) -> bytes:
    return _string(1, name) + _nest(2, b"".join(attributes))


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">I", value))


def _equals(value: bytes) -> bytes:
    return _expression("cmp", _number(1, _REG_1), _number(2, 0), _nest(3, _attribute(1, value)))


@cache
def _verdict(code: int) -> bytes:
    value = _nest(2, _nest(2, _attribute(1, struct.pack(">i", code))))
    return _expression("immediate", _number(1, _REG_VERDICT), value)


@cache
def _loopback(family: int) -> tuple[bytes, ...]:
    """Match traffic to loopback. The destination is at offset 16 in an IPv4 header, at 24 in an IPv6 header."""
    offset, length, address = (16, 1, b"\x7f") if family == _NFPROTO_IPV4 else (24, 16, bytes(15) + b"\x01")
    load = _expression("payload", _number(1, _REG_1), _number(2, 1), _number(3, offset), _number(4, length))
    return load, _equals(address)


def _transport(offset: int, port: int) -> tuple[bytes, ...]:
    """Match the source or destination port."""
    load = _expression("payload", _number(1, _REG_1), _number(2, 2), _number(3, offset), _number(4, 2))
    return load, _equals(struct.pack(">H", port))


@cache
def _protocol(number: int) -> tuple[bytes, ...]:
    return _expression("meta", _number(2, 16), _number(1, _REG_1)), _equals(bytes([number]))


def _redirected(protocol: int, port: int, of_port: int | None = None) -> tuple[bytes, ...]:
    expressions = list(_protocol(protocol))
    if of_port is not None:
        expressions += _transport(_DESTINATION, of_port)
    target = _nest(2, _attribute(1, struct.pack(">H", port)))
    expressions.append(_expression("immediate", _number(1, _REG_1), target))
    return (*expressions, _expression("redir", _number(1, _REG_1)))


# -- netlink messages -------------------------------------------------------------------------------------------------


def _attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def _nest(kind: int, value: bytes) -> bytes:
    return _attribute(kind | _NESTED, value)


def _string(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, number, 0) + body


def _numbered(requests: Sequence[tuple[int, int, bytes]]) -> list[tuple[int, tuple[int, int, bytes]]]:
    return list(enumerate(requests, 1))


def _exchange(one: socket.socket, messages: Sequence[bytes], expected: int | None = None) -> None:
    """Send all messages as one datagram and require exactly one acknowledgement for each of the requests 1 to
    `expected`."""
    one.settimeout(TIMEOUT_S)
    one.sendto(b"".join(messages), (0, 0))
    waiting = set(range(1, (len(messages) if expected is None else expected) + 1))
    failed: NetlinkError | None = None
    while waiting:
        data, sender = one.recvfrom(_MAX_REPLY)
        if sender[0] != 0:  # another process, not the kernel
            continue
        for number, error in _acknowledged(data):
            if number not in waiting and failed is None:
                raise NetlinkError(0, f"netlink: an unexpected reply ({number})")
            waiting.discard(number)
            if error:
                failed = failed or NetlinkError(error, f"netlink: request {number}: {os.strerror(error)}")
        if failed is not None:
            raise failed


def _acknowledged(data: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(data):
        if len(data) - at < _HEADER.size + 4:
            raise NetlinkError(0, "netlink: a truncated reply")
        length, kind, _, number, _ = _HEADER.unpack_from(data, at)
        if kind != _NLMSG_ERROR or not _HEADER.size + 4 <= length <= len(data) - at:
            raise NetlinkError(0, f"netlink: a reply of an unexpected type ({kind})")
        (error,) = struct.unpack_from("=i", data, at + _HEADER.size)
        found.append((number, -error))
        at += (length + 3) & ~3
    return found
