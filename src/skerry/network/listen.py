"""Parse listen addresses, bind TCP listeners, and name the sources of connections."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

from skerry.errors import Conflict, InvalidRequest

BACKLOG = 2048
# The client of a stream may be silent for hours: keep-alive detects a dead machine within two minutes.
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)  # fmt: skip
_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]*)):([0-9]{1,5})")


def parse_listen(text: str, what: str = "listen") -> tuple[str, int]:
    """Parse 127.0.0.1:7070, [::1]:7070, localhost:7070 or :7070 (all addresses). Other names are rejected: a listen
    address should not depend on a resolver."""
    match = _LISTEN.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        raise InvalidRequest(f"{what}: {text[:80]!r} is not an address", hint="like 127.0.0.1:7070 or [::1]:7070")
    host = match[1] or match[2] or "0.0.0.0"  # noqa: S104 -- an empty host means all addresses; TCP needs tokens anyway
    host = "127.0.0.1" if host == "localhost" else host
    try:
        return str(ipaddress.ip_address(host)), int(match[3])
    except ValueError as error:
        raise InvalidRequest(f"{what}: {host[:80]!r} is not an IP address", hint="like 127.0.0.1:7070") from error


def bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for level, option, value in KEEP_ALIVE:  # accepted sockets inherit these
            listener.setsockopt(level, option, value)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"listen: {host} port {port} is in use", hint="take another port") from error
        raise InvalidRequest(f"listen: {host} port {port}: {error.strerror}") from error
    return listener


def source_of(address: str) -> str:
    """Return the source that a connection from that address counts for. The addresses of an IPv6 /64 network are one
    source: a single machine usually has all of them."""
    found = ipaddress.ip_address(address.partition("%")[0])
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
