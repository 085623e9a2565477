"""A sandbox's door: what stands in its network namespace so that every attempt to get out comes to the worker.

A listener and a socket for names on one fresh port, on routes that make every address local, and the rules that bring
TCP and DNS to it. The server holds them for as long as the sandbox lives: while no worker serves them, connections
wait in the backlog or are reset, and nobody inside can take the port."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from skerry.errors import SandboxUnavailable
from skerry.network import netlink
from skerry.network.netns import Kind, Namespaces

BACKLOG: Final = 512
# Above what the kernel gives out by itself, where no service has its place; and anywhere, if somebody sits there.
_PORTS: Final = ((32, 61000), (64, 1024))  # tries, and the lowest
_HIGHEST: Final = 65535


@dataclass(frozen=True)
class Door:
    """`tcp` takes IPv4 (as ::ffff:a.b.c.d) and IPv6 where the host has that; `udp` is IPv4's alone: a reply must come
    from the one address that was asked. `diag` asks who has which socket there. All are non-blocking."""

    tcp: socket.socket
    udp: socket.socket
    diag: socket.socket
    port: int

    @property
    def sockets(self) -> tuple[socket.socket, socket.socket, socket.socket]:
        return self.tcp, self.udp, self.diag

    def refuse(self) -> None:
        """Resets who waits at it: for when there has been no worker for too long."""
        with contextlib.suppress(OSError):  # nobody does, any more
            for _ in range(BACKLOG):
                taken, _ = self.tcp.accept()
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                taken.close()

    def close(self) -> None:
        """The rules stay, and lead nowhere."""
        for one in self.sockets:
            one.close()


async def make(namespaces: Namespaces, pidfd: int) -> Door:
    """A new door for the sandbox of that first process; it takes the place of one that an earlier server made."""
    return await namespaces.run(lambda: build(namespaces, pidfd))


class Maker(Protocol):
    """What makes sockets in the namespace of a process, and closes those that take their time for it."""

    def sockets(self, pidfd: int, kinds: Sequence[Kind]) -> list[socket.socket]: ...

    def let_go(self, one: socket.socket) -> None: ...


def build(namespaces: Maker, pidfd: int) -> Door:
    """On the namespaces' thread."""
    raw = socket.SOCK_RAW
    kinds = [(socket.AF_NETLINK, raw, kind) for kind in (netlink.ROUTE, netlink.NETFILTER, netlink.SOCK_DIAG)]
    family = _family()
    with contextlib.ExitStack() as stack:
        route, netfilter, diag = (stack.enter_context(one) for one in namespaces.sockets(pidfd, kinds))
        netlink.prepare(route, ipv6=family == socket.AF_INET6)
        tcp, udp = (stack.enter_context(one) for one in _pair(namespaces, pidfd, family))
        port: int = tcp.getsockname()[1]
        netlink.redirect(netfilter, port)
        for one in (diag, udp, tcp):
            one.setblocking(False)
        stack.pop_all()
    namespaces.let_go(route)
    namespaces.let_go(netfilter)
    return Door(tcp, udp, diag, port)


def _family() -> socket.AddressFamily:
    return socket.AF_INET6 if socket.has_ipv6 and _ipv6() else socket.AF_INET


def _ipv6() -> bool:
    """A host can be without it (ipv6.disable=1); then nothing inside has it either."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _pair(namespaces: Maker, pidfd: int, family: int) -> tuple[socket.socket, socket.socket]:
    """On one port that nobody inside holds, chosen at random: the inside may sit on those that it expects."""
    kinds = [(family, socket.SOCK_STREAM, 0), (socket.AF_INET, socket.SOCK_DGRAM, 0)]
    for lowest in (lowest for tries, lowest in _PORTS for _ in range(tries)):
        tcp, udp = namespaces.sockets(pidfd, kinds)
        try:
            _bind(tcp, udp, lowest + secrets.randbelow(_HIGHEST - lowest + 1))
        except BaseException as error:
            tcp.close()
            udp.close()
            if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
                raise
        else:
            return tcp, udp
    raise SandboxUnavailable("no port inside is free for its network")


def _bind(tcp: socket.socket, udp: socket.socket, port: int) -> None:
    """No SO_REUSEADDR: nobody inside can then bind beside it."""
    udp.bind(("127.0.0.1", port))
    if tcp.family == socket.AF_INET6:
        tcp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    tcp.bind(("::" if tcp.family == socket.AF_INET6 else "127.0.0.1", port))
    tcp.listen(BACKLOG)
