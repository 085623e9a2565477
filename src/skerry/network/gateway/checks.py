"""The network check of `skerry doctor`: build a gateway in a temporary namespace and test it."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from skerry.errors import SkerryError
from skerry.network.gateway import gateway
from skerry.network.gateway.netns import CLONE_NEWNET, SocketKind, write_sysctls
from skerry.types import Check

_FIX = "modprobe nf_tables nft_chain_nat nft_redir nft_connlimit; a kernel without one of these cannot"
_TEST_DESTINATION = ("203.0.113.1", 80)  # a documentation address (RFC 5737); this namespace has no uplink anyway
_SO_ORIGINAL_DST = 80


def checks() -> list[Check]:
    with ThreadPoolExecutor(1) as thread:  # a separate thread: its namespace ends with it
        return [thread.submit(_egress).result()]


class _CurrentNamespace:
    """Makes sockets in the namespace of the current thread."""

    def sockets(self, pidfd: int, kinds: Sequence[SocketKind]) -> list[socket.socket]:
        return [socket.socket(*kind) for kind in kinds]

    def set_sysctls(self, pidfd: int, values: Mapping[str, str]) -> None:
        write_sysctls(values)

    def close_in_background(self, one: socket.socket) -> None:
        one.close()


def _egress() -> Check:
    if os.geteuid() != 0:
        return Check("egress", None, "requires root", "sudo skerry doctor")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return Check("egress", None, f"no network namespace: {os.strerror(ctypes.get_errno())}")
    try:
        made = gateway.build_gateway(_CurrentNamespace(), -1)
    except (OSError, SkerryError) as error:
        return Check("egress", None, f"no sandbox can have a network: {error}", _FIX)
    try:
        reached = _redirected_destination(made.tcp)
    except OSError as error:
        return Check("egress", None, f"no sandbox can have a network: {error}", _FIX)
    finally:
        made.close()
    if reached != _TEST_DESTINATION:
        return Check("egress", None, f"no sandbox can have a network: redirected as {reached}", _FIX)
    ipv6 = "IPv4 and IPv6" if made.tcp.family == socket.AF_INET6 else "IPv4, the host has no IPv6"
    return Check("egress", True, f"every connection comes to the worker ({ipv6})")


def _redirected_destination(listener: socket.socket) -> tuple[str, int]:
    listener.settimeout(2.0)
    with socket.create_connection(_TEST_DESTINATION, 2.0):
        taken, _ = listener.accept()
        with taken:
            found = taken.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16)
    return socket.inet_ntoa(found[4:8]), struct.unpack_from(">H", found, 2)[0]
