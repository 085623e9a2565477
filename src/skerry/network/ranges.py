"""Which addresses stay closed unless they are named: ranges that are never the Internet, and this host's own."""

from __future__ import annotations

import errno
import socket

from skerry.types.hosts import Address, closed, closed_range, plain

__all__ = ["closed", "closed_range", "is_own"]


def is_own(address: Address) -> bool:
    """Does a connection to it end on this host? A socket can be bound to just those addresses. It is asked anew each
    time, since addresses come and go. Whatever the kernel answers but "no such address here" counts as yes; so does
    everything on a host whose `ip_nonlocal_bind` is set."""
    address = plain(address)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
