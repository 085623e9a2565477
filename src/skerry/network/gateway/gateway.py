"""A sandbox's gateway: sockets and rules in its network namespace that bring every outgoing connection to the worker.

It has a TCP listener and a DNS socket on one random port, routes that make every address local, and rules that redirect
TCP and DNS to the port. The server holds the sockets for as long as the sandbox lives: while no worker serves them,
connections wait in the backlog or are reset, and no program inside can take the port.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from skerry.errors import SandboxUnavailable
from skerry.network.gateway import netlink
from skerry.network.gateway.netns import Namespaces, SocketKind

BACKLOG: Final = 512
# First above the kernel's ephemeral ports, where services rarely listen; then anywhere, if those are taken.
_PORT_RANGES: Final = ((32, 61000), (64, 1024))  # attempts, and the lowest port
_MAX_PORT: Final = 65535
# Bounds of the memory that the kernel takes for the sandbox's network and charges to no memory cgroup
SYSCTLS: Final = {
    "core/tstamp_allow_data": "0",  # else a program can fill error queues with timestamps of its packets
    "core/optmem_max": "20480",  # options of a socket
    "core/somaxconn": "128",  # connections that wait to be accepted, which are charged only then
    "ipv4/tcp_rmem": "4096 16384 4194304",  # the data of each of those; it grows as soon as a program reads
    "ipv4/tcp_max_tw_buckets": "4096",
    "ipv4/ipfrag_low_thresh": "196608",  # datagrams that miss a part
    "ipv4/ipfrag_high_thresh": "262144",
    "ipv6/ip6frag_low_thresh": "196608",
    "ipv6/ip6frag_high_thresh": "262144",
}
_TRACKING_SYSCTLS: Final = {  # they exist as soon as connections are tracked
    "netfilter/nf_conntrack_frag6_low_thresh": "196608",
    "netfilter/nf_conntrack_frag6_high_thresh": "262144",
    # The connection table has a maximum: ended connections leave it soon. No packet is late on loopback.
    "netfilter/nf_conntrack_tcp_timeout_time_wait": "5",
    "netfilter/nf_conntrack_tcp_timeout_close": "2",
    "netfilter/nf_conntrack_udp_timeout": "10",
    "netfilter/nf_conntrack_udp_timeout_stream": "10",
}


@dataclass(frozen=True)
class Gateway:
    """`tcp` takes IPv4 (as ::ffff:a.b.c.d) and IPv6 if the host has it. `udp` is IPv4 only: a reply must come from the
    address that was queried. `diag` finds the owner of a socket there. All are non-blocking."""

    tcp: socket.socket
    udp: socket.socket
    diag: socket.socket
    port: int

    @property
    def sockets(self) -> tuple[socket.socket, socket.socket, socket.socket]:
        return self.tcp, self.udp, self.diag

    def reset_waiting(self) -> None:
        """Reset the waiting connections: for when no worker has run for too long."""
        with contextlib.suppress(OSError):  # no connection waits any more
            for _ in range(BACKLOG):
                taken, _ = self.tcp.accept()
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                taken.close()

    def close(self) -> None:
        """Close the sockets. The rules stay and lead nowhere."""
        for one in self.sockets:
            one.close()


async def open_gateway(namespaces: Namespaces, pidfd: int) -> Gateway:
    """Open a gateway for the sandbox of that first process; it replaces one that an earlier server made."""
    return await namespaces.run(lambda: build_gateway(namespaces, pidfd))


class SocketFactory(Protocol):
    """Makes sockets and sets values in the namespace of a process, and closes sockets that take long to close."""

    def sockets(self, pidfd: int, kinds: Sequence[SocketKind]) -> list[socket.socket]: ...

    def set_sysctls(self, pidfd: int, values: Mapping[str, str]) -> None: ...

    def close_in_background(self, one: socket.socket) -> None: ...


def build_gateway(namespaces: SocketFactory, pidfd: int) -> Gateway:
    """Build a gateway; runs on the namespaces' thread."""
    raw = socket.SOCK_RAW
    kinds = [(socket.AF_NETLINK, raw, kind) for kind in (netlink.ROUTE, netlink.NETFILTER, netlink.SOCK_DIAG)]
    family = _family()
    namespaces.set_sysctls(pidfd, SYSCTLS)
    with contextlib.ExitStack() as stack:
        route, netfilter, diag = (stack.enter_context(one) for one in namespaces.sockets(pidfd, kinds))
        netlink.set_up_routes(route, ipv6=family == socket.AF_INET6)
        tcp, udp = (stack.enter_context(one) for one in _bound_pair(namespaces, pidfd, family))
        port: int = tcp.getsockname()[1]
        netlink.set_up_redirect(netfilter, port)
        netlink.forget_connections(netfilter)
        namespaces.set_sysctls(pidfd, _TRACKING_SYSCTLS)
        for one in (diag, udp, tcp):
            one.setblocking(False)
        stack.pop_all()
    namespaces.close_in_background(route)
    namespaces.close_in_background(netfilter)
    return Gateway(tcp, udp, diag, port)


def _family() -> socket.AddressFamily:
    return socket.AF_INET6 if socket.has_ipv6 and _host_has_ipv6() else socket.AF_INET


def _host_has_ipv6() -> bool:
    """Return whether the host has IPv6 (ipv6.disable=1 removes it); without it, sandboxes have none either."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _bound_pair(namespaces: SocketFactory, pidfd: int, family: int) -> tuple[socket.socket, socket.socket]:
    """Bind both sockets to one free port, chosen at random: a program inside may occupy the ports that it expects."""
    kinds = [(family, socket.SOCK_STREAM, 0), (socket.AF_INET, socket.SOCK_DGRAM, 0)]
    for lowest in (lowest for tries, lowest in _PORT_RANGES for _ in range(tries)):
        tcp, udp = namespaces.sockets(pidfd, kinds)
        try:
            _bind(tcp, udp, lowest + secrets.randbelow(_MAX_PORT - lowest + 1))
        except BaseException as error:
            tcp.close()
            udp.close()
            if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
                raise
        else:
            return tcp, udp
    raise SandboxUnavailable("no port inside is free for the gateway")


def _bind(tcp: socket.socket, udp: socket.socket, port: int) -> None:
    """Bind without SO_REUSEADDR, so that no program inside can bind the same port."""
    udp.bind(("127.0.0.1", port))
    if tcp.family == socket.AF_INET6:
        tcp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    tcp.bind(("::" if tcp.family == socket.AF_INET6 else "127.0.0.1", port))
    tcp.listen(BACKLOG)
