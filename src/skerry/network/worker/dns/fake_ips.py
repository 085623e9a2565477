"""The table of fake IPs. Kept in a file that outlives the worker, so that an address that a program inside looked up
yesterday still leads to the same name."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from skerry.network.messages import FAKE_IP_RANGE
from skerry.types.hosts import BadHost, Name, parse_host

MAX_FAKE_IPS: Final = 16_384
_MAX_FILE: Final = 8 << 20
_RANGE: Final = IPv4Network(FAKE_IP_RANGE)
_FIRST: Final = int(_RANGE.network_address) + 256  # the lowest 256 are reserved for the resolver and the proxy
_LAST: Final = int(_RANGE.broadcast_address)


def is_fake_ip(address: object) -> bool:
    return isinstance(address, IPv4Address) and address in _RANGE


class FakeIpTable:
    """`hold` and `release` count the connections to an address: an address in use is never given to another name."""

    def __init__(self, file: int, capacity: int = MAX_FAKE_IPS) -> None:
        self._file, self._capacity = file, capacity
        self._names: dict[IPv4Address, Name] = {}  # in order of last use, the oldest first
        self._addresses: dict[Name, IPv4Address] = {}
        self._in_use: Counter[IPv4Address] = Counter()
        self._next = _FIRST
        self._lines = 0  # in the file; many may be of names that lost their address
        self._size = self._read()

    def name(self, address: IPv4Address) -> Name | None:
        return self._names.get(address)

    def address(self, name: Name) -> IPv4Address | None:
        """Return the name's address: its current one, a new one, or the address of the least recently used name. None
        if every address is in use."""
        address = self._addresses.get(name)
        if address is not None:
            self._names[address] = self._names.pop(address)
            return address
        address = self._unused() if len(self._names) < self._capacity else self._evict()
        if address is not None:
            self._assign(address, name)
            self._append(f"{address} {name}\n".encode())
        return address

    def hold(self, address: IPv4Address) -> None:
        self._in_use[address] += 1

    def release(self, address: IPv4Address) -> None:
        self._in_use[address] -= 1
        if self._in_use[address] <= 0:
            del self._in_use[address]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _unused(self) -> IPv4Address | None:
        while self._next < _LAST:
            number, self._next = self._next, self._next + 1
            address = IPv4Address(number)
            if number & 0xFF not in (0, 255) and address not in self._names:  # some programs reject such addresses
                return address
        return self._evict()

    def _evict(self) -> IPv4Address | None:
        address = next((one for one in self._names if one not in self._in_use), None)
        if address is not None:
            del self._addresses[self._names.pop(address)]
        return address

    def _assign(self, address: IPv4Address, name: Name) -> None:
        earlier = self._names.pop(address, None)
        if earlier is not None:
            del self._addresses[earlier]
        moved = self._addresses.pop(name, None)
        if moved is not None:
            del self._names[moved]
        self._names[address], self._addresses[name] = name, address

    def _read(self) -> int:
        """Read the file. Ignore invalid lines: cut off by a crash, or not written by a worker."""
        data = os.pread(self._file, _MAX_FILE + 1, 0)
        whole, _, torn = data.rpartition(b"\n")
        lines = whole.split(b"\n")
        self._lines = len(lines)
        for line in lines:
            with contextlib.suppress(ValueError, BadHost):
                left, right = line.decode("ascii").split(" ")
                address, name = IPv4Address(left), parse_host(right)
                if isinstance(name, Name) and _FIRST <= int(address) < _LAST:
                    self._assign(address, name)
                    self._next = max(self._next, int(address) + 1)
        while len(self._names) > self._capacity and self._evict() is not None:
            pass
        if torn or len(data) > _MAX_FILE:
            self._rewrite()
            return os.fstat(self._file).st_size
        return len(data)

    def _append(self, line: bytes) -> None:
        """Append a line. On a full disk only the persistence is lost, not the table."""
        with contextlib.suppress(OSError):
            if self._size + len(line) > _MAX_FILE or self._lines >= 2 * self._capacity:
                self._rewrite()
                self._size = os.fstat(self._file).st_size
            else:
                self._size += os.pwrite(self._file, line, self._size)
                self._lines += 1

    def _rewrite(self) -> None:
        """Overwrite the file, then truncate it. After a crash in between, old lines follow the new ones; the last line
        about an address or a name counts, as always."""
        text = "".join(f"{address} {name}\n" for address, name in self._names.items()).encode()
        self._lines = len(self._names)
        with contextlib.suppress(OSError):
            if os.pwrite(self._file, text, 0) == len(text):
                os.ftruncate(self._file, len(text))
