"""The network checks of `skerry doctor`: build a gateway in a temporary namespace and test it; compare settings that an
older kernel has for the whole host."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from skerry.errors import SkerryError
from skerry.network.gateway import gateway
from skerry.network.gateway.gateway import SYSCTLS
from skerry.network.gateway.netns import CLONE_NEWNET, SocketKind, write_sysctls
from skerry.types import Check

T = TypeVar("T")
_FIX = "modprobe nf_tables nft_chain_nat nft_redir nft_connlimit; a kernel without one of these cannot"
_TEST_DESTINATION = ("203.0.113.1", 80)  # a documentation address (RFC 5737); this namespace has no uplink anyway
_SO_ORIGINAL_DST = 80
_LATER_NAMESPACED = ("core/tstamp_allow_data", "core/optmem_max")  # of the whole host on older kernels


def checks() -> list[Check]:
    return [_in_thread(_egress), _socket_memory()]


def _in_thread(function: Callable[[], T]) -> T:
    """Run it on a separate thread: the namespace that it makes ends with it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def judge_host_wide(names: Sequence[str], host: Path) -> Check:
    """Compare the values of the whole host with those that sandboxes need. host: the host's /proc/sys/net."""
    values = {name: (host / name).read_text().strip() for name in names if (host / name).exists()}
    wrong = [name for name, value in values.items() if int(value) > int(SYSCTLS[name])]
    if not wrong:
        return Check("socket memory", True, "limited in each sandbox")
    dotted = {f"net.{name.replace('/', '.')}": name for name in wrong}
    found = ", ".join(f"{key} is {values[name]}" for key, name in dotted.items())
    fix = "; ".join(f"sysctl -w {key}={SYSCTLS[name]}" for key, name in dotted.items())
    detail = f"{found} for the whole host on this kernel: a sandbox can take kernel memory beyond its limit"
    return Check("socket memory", None, detail, f"{fix}; and the same in a file of /etc/sysctl.d")


class _CurrentNamespace:
    """Makes sockets in the namespace of the current thread."""

    def sockets(self, pidfd: int, kinds: Sequence[SocketKind]) -> list[socket.socket]:
        return [socket.socket(*kind) for kind in kinds]

    def set_sysctls(self, pidfd: int, values: Mapping[str, str]) -> None:
        write_sysctls(values)

    def close_in_background(self, one: socket.socket) -> None:
        one.close()


def _socket_memory() -> Check:
    if os.geteuid() != 0:
        return Check("socket memory", None, "requires root", "sudo skerry doctor")
    return judge_host_wide(_in_thread(_host_wide), Path("/proc/sys/net"))


def _host_wide() -> list[str]:
    """Return the settings that a new network namespace does not have."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return list(_LATER_NAMESPACED)
    return [name for name in _LATER_NAMESPACED if not os.access(f"/proc/sys/net/{name}", os.W_OK)]


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
