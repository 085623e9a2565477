"""Find the owner of a socket with sock_diag, through a socket of the sandbox's network namespace."""

from __future__ import annotations

import contextlib
import socket
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final

_BY_FAMILY, _REQUEST, _ERROR = 20, 1, 2
_CGROUP_ID: Final = 21
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST_HEAD: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH")
_ANY: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
_MESSAGE: Final = 72
_ATTRIBUTE: Final = struct.Struct("=HH")
_MAX_REPLY: Final = 16 << 10

Endpoint = tuple[IPv4Address | IPv6Address, int]


class SocketOwner:
    """Queries and reads the answer at once: the kernel queues it before `send` returns."""

    def __init__(self, diag: socket.socket) -> None:
        diag.setblocking(False)
        self._diag = diag
        self._number = 0

    def tcp(self, local: Endpoint, remote: Endpoint) -> int | None:
        """Return the cgroup id of the socket connected from `local` to `remote`, as seen from inside; or None."""
        return self._query(socket.IPPROTO_TCP, local, remote)

    def udp(self, local: Endpoint, remote: Endpoint) -> int | None:
        return self._query(socket.IPPROTO_UDP, remote, local)  # the kernel swaps them for UDP

    def _query(self, protocol: int, source: Endpoint, destination: Endpoint) -> int | None:
        if source[0].version != destination[0].version:
            return None
        family = socket.AF_INET if source[0].version == 4 else socket.AF_INET6
        self._number = (self._number + 1) & 0xFFFFFFFF
        body = (
            _REQUEST_HEAD.pack(family, protocol, 0, 0, 0xFFFFFFFF)
            + _PORTS.pack(source[1], destination[1])
            + source[0].packed.ljust(16, b"\0")
            + destination[0].packed.ljust(16, b"\0")
            + _ANY
        )
        with contextlib.suppress(OSError, struct.error):
            self._diag.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, self._number, 0) + body)
            for _ in range(8):  # skip a stale answer
                data, _, flags, sender = self._diag.recvmsg(_MAX_REPLY)
                if sender[0] == 0 and not flags & socket.MSG_TRUNC:
                    length, kind, _, number, _ = _HEADER.unpack_from(data)
                    if number == self._number and length <= len(data):
                        return _cgroup(data[_HEADER.size : length]) if kind == _BY_FAMILY else None
        return None


def _cgroup(data: bytes) -> int | None:
    at = _MESSAGE
    while at + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, at)
        if size < _ATTRIBUTE.size or at + size > len(data):
            return None
        if kind == _CGROUP_ID:
            return int.from_bytes(data[at + 4 : at + size], "little") if size == 12 else None
        at += size + 3 & ~3
    return None
