"""What `skerry doctor` asks of this host's network: whether a door can be made here, tried in a namespace that is gone
again afterwards."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from skerry.errors import SkerryError
from skerry.network import door
from skerry.network.netns import CLONE_NEWNET, Kind
from skerry.types import Check

_FIX = "modprobe nf_tables nft_chain_nat nft_redir; a kernel without CONFIG_NFT_REDIR can't"
_SOMEWHERE = ("203.0.113.1", 80)  # for documentation: nobody's, and this namespace has no way out anyway
_ORIGINAL = 80  # SO_ORIGINAL_DST


def checks() -> list[Check]:
    with ThreadPoolExecutor(1) as thread:  # which ends with the namespace that it made
        return [thread.submit(_egress).result()]


class _Here:
    """Makes sockets in the namespace of the thread itself."""

    def sockets(self, pidfd: int, kinds: Sequence[Kind]) -> list[socket.socket]:
        return [socket.socket(*kind) for kind in kinds]

    def let_go(self, one: socket.socket) -> None:
        one.close()


def _egress() -> Check:
    if os.geteuid() != 0:
        return Check("egress", None, "only root can tell", "sudo skerry doctor")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return Check("egress", None, f"no network namespace: {os.strerror(ctypes.get_errno())}")
    try:
        made = door.build(_Here(), -1)
    except (OSError, SkerryError) as error:
        return Check("egress", None, f"sandboxes can have no network at all: {error}", _FIX)
    try:
        reached = _reached(made.tcp)
    except OSError as error:
        return Check("egress", None, f"sandboxes can have no network at all: {error}", _FIX)
    finally:
        made.close()
    if reached != _SOMEWHERE:
        return Check("egress", None, f"sandboxes can have no network at all: redirected as {reached}", _FIX)
    ipv6 = "IPv4 and IPv6" if made.tcp.family == socket.AF_INET6 else "IPv4, the host has no IPv6"
    return Check("egress", True, f"every connection comes to the worker ({ipv6})")


def _reached(listener: socket.socket) -> tuple[str, int]:
    listener.settimeout(2.0)
    with socket.create_connection(_SOMEWHERE, 2.0):
        taken, _ = listener.accept()
        with taken:
            found = taken.getsockopt(socket.IPPROTO_IP, _ORIGINAL, 16)
    return socket.inet_ntoa(found[4:8]), struct.unpack_from(">H", found, 2)[0]
