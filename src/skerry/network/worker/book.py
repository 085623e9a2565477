"""Which name has which made-up address. Kept in a file that outlives the worker, so that what a program inside looked
up yesterday still leads to the same name."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from skerry.network.hosts import BadHost, Name, parse_host
from skerry.network.messages import NAMES

BOOK_MOST: Final = 16_384
_FILE_MOST: Final = 8 << 20
_RANGE: Final = IPv4Network(NAMES)
_FIRST: Final = int(_RANGE.network_address) + 256  # the lowest 256 hold the resolver and the proxy
_LAST: Final = int(_RANGE.broadcast_address)


def is_made_up(address: object) -> bool:
    return isinstance(address, IPv4Address) and address in _RANGE


class Book:
    """`hold` and `release` count the connections to an address: one that has any is never given to another name."""

    def __init__(self, file: int, most: int = BOOK_MOST) -> None:
        self._file, self._most = file, most
        self._names: dict[IPv4Address, Name] = {}  # in order of last use, the oldest first
        self._addresses: dict[Name, IPv4Address] = {}
        self._held: Counter[IPv4Address] = Counter()
        self._next = _FIRST
        self._lines = 0  # in the file; many may be of names that have no address any more
        self._size = self._read()

    def name(self, address: IPv4Address) -> Name | None:
        return self._names.get(address)

    def address(self, name: Name) -> IPv4Address | None:
        """The name's address: the one it has, a new one, or that of the name that nobody used for longest. None if
        every address is in use at this moment."""
        address = self._addresses.get(name)
        if address is not None:
            self._names[address] = self._names.pop(address)
            return address
        address = self._fresh() if len(self._names) < self._most else self._oldest()
        if address is not None:
            self._enter(address, name)
            self._append(f"{address} {name}\n".encode())
        return address

    def hold(self, address: IPv4Address) -> None:
        self._held[address] += 1

    def release(self, address: IPv4Address) -> None:
        self._held[address] -= 1
        if self._held[address] <= 0:
            del self._held[address]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _fresh(self) -> IPv4Address | None:
        while self._next < _LAST:
            number, self._next = self._next, self._next + 1
            address = IPv4Address(number)
            if number & 0xFF not in (0, 255) and address not in self._names:  # some programs refuse such endings
                return address
        return self._oldest()

    def _oldest(self) -> IPv4Address | None:
        address = next((one for one in self._names if one not in self._held), None)
        if address is not None:
            del self._addresses[self._names.pop(address)]
        return address

    def _enter(self, address: IPv4Address, name: Name) -> None:
        earlier = self._names.pop(address, None)
        if earlier is not None:
            del self._addresses[earlier]
        moved = self._addresses.pop(name, None)
        if moved is not None:
            del self._names[moved]
        self._names[address], self._addresses[name] = name, address

    def _read(self) -> int:
        """What can be read counts: a line that was cut off by a crash, or was not written by us, does not."""
        data = os.pread(self._file, _FILE_MOST + 1, 0)
        whole, _, torn = data.rpartition(b"\n")
        lines = whole.split(b"\n")
        self._lines = len(lines)
        for line in lines:
            with contextlib.suppress(ValueError, BadHost):
                left, right = line.decode("ascii").split(" ")
                address, name = IPv4Address(left), parse_host(right)
                if isinstance(name, Name) and _FIRST <= int(address) < _LAST:
                    self._enter(address, name)
                    self._next = max(self._next, int(address) + 1)
        while len(self._names) > self._most and self._oldest() is not None:
            pass
        if torn or len(data) > _FILE_MOST:
            self._rewrite()
            return os.fstat(self._file).st_size
        return len(data)

    def _append(self, line: bytes) -> None:
        """A full disk costs the names' survival, not the names."""
        with contextlib.suppress(OSError):
            if self._size + len(line) > _FILE_MOST or self._lines >= 2 * self._most:
                self._rewrite()
                self._size = os.fstat(self._file).st_size
            else:
                self._size += os.pwrite(self._file, line, self._size)
                self._lines += 1

    def _rewrite(self) -> None:
        """Over what is there, and cut off after: who is killed in between finds old lines behind the new ones, of which
        the last one about an address or a name counts, as ever."""
        text = "".join(f"{address} {name}\n" for address, name in self._names.items()).encode()
        self._lines = len(self._names)
        with contextlib.suppress(OSError):
            if os.pwrite(self._file, text, 0) == len(text):
                os.ftruncate(self._file, len(text))
