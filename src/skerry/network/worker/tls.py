"""The greeting with which a TLS client begins: read strictly, for the one name in it. No TLS is done here.

A client that encrypts its greeting (ECH) shows an outer name: that one is judged, and what stands inside can't be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HELLO_MOST: Final = 64 << 10
_RECORD_MOST: Final = 1 << 14
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ALPN, _ECH, _ESNI = 0, 16, 0xFE0D, 0xFFCE


class BadHello(ValueError):
    """Not a greeting that can be judged."""


@dataclass(frozen=True)
class Hello:
    name: bytes | None  # SNI, as it was written
    alpn: tuple[bytes, ...] = ()
    encrypted: bool = False  # ECH or ESNI: there may be another name that only the server can read


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise BadHello("a length in it points beyond its end")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int, least: int = 0) -> bytes:
        count = self.number(size)
        if count < least:
            raise BadHello("a list in it is too short")
        return self.take(count)

    @property
    def left(self) -> int:
        return len(self._data) - self._at


def looks_like_tls(first: bytes) -> bool:
    """Whether these first bytes can only be the start of TLS's records. One byte is enough to be sent here."""
    return first[:1] == b"\x16"


class Greeting:
    """Puts the first handshake message together from the records and pieces that it comes in, and looks at each once:
    a client that sends byte by byte costs no more than one that does not."""

    def __init__(self) -> None:
        self._data, self._at = bytearray(), 0
        self._message = bytearray()

    def feed(self, data: bytes) -> Hello | None:
        """The greeting, once it is whole; BadHello as soon as it can't become one."""
        self._data += data
        while True:
            head = self._data[self._at : self._at + 5]
            if head and head[0] != _HANDSHAKE:
                raise BadHello("a record in it is not of a handshake")
            if len(head) > 1 and head[1] != 3:
                raise BadHello("its version is not one of TLS")
            if len(head) < 5:
                break
            length = int.from_bytes(head[3:5], "big")
            if not 0 < length <= _RECORD_MOST:
                raise BadHello("a record in it has an impossible length")
            if len(self._data) < self._at + 5 + length:
                break
            self._message += self._data[self._at + 5 : self._at + 5 + length]
            self._at += 5 + length
            if self._whole():
                return _hello(bytes(self._message[4:]))
        if len(self._data) > HELLO_MOST:
            raise BadHello("it is too long")
        return None

    def _whole(self) -> bool:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise BadHello("it does not begin with a ClientHello")
        if len(message) < 4:
            return False
        whole = 4 + int.from_bytes(message[1:4], "big")
        if whole > HELLO_MOST:
            raise BadHello("it is too long")
        if len(message) > whole:
            raise BadHello("something follows in the same record")
        return len(message) == whole


def parse_hello(data: bytes) -> Hello | None:
    """The greeting at the start of `data`; None if more is needed; else BadHello."""
    return Greeting().feed(data)


def _hello(message: bytes) -> Hello:
    reader = _Reader(message)
    if reader.number(2) >> 8 != 3:
        raise BadHello("its version is not one of TLS")
    reader.take(32)
    if len(reader.vector(1)) > 32:
        raise BadHello("its session id is too long")
    if len(reader.vector(2, 2)) % 2:
        raise BadHello("its cipher suites are cut off")
    reader.vector(1, 1)
    if not reader.left:
        return Hello(None)
    extensions = _Reader(reader.vector(2))
    if reader.left:
        raise BadHello("something follows its extensions")
    found: dict[int, bytes] = {}
    while extensions.left:
        kind = extensions.number(2)
        if kind in found:
            raise BadHello("an extension stands in it twice")
        found[kind] = extensions.vector(2)
    name = _server_name(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    return Hello(name, _alpn(found.get(_ALPN)), _ECH in found or _ESNI in found)


def _server_name(data: bytes) -> bytes:
    outer = _Reader(data)
    names = _Reader(outer.vector(2, 1))
    if outer.left:
        raise BadHello("something follows its server name")
    if names.number(1) != 0:
        raise BadHello("its server name is of an unknown type")
    name = names.vector(2, 1)
    if names.left:
        raise BadHello("it has more than one server name")
    return name


def _alpn(data: bytes | None) -> tuple[bytes, ...]:
    if data is None:
        return ()
    outer = _Reader(data)
    inner = _Reader(outer.vector(2, 2))
    if outer.left:
        raise BadHello("something follows its protocols")
    found = []
    while inner.left:
        found.append(inner.vector(1, 1))
    return tuple(found)
