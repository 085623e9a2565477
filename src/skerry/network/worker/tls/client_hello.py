"""A strict parser of the TLS client hello, for its server name. No TLS is done here.

A client with encrypted client hello (ECH) shows an outer name: that name is judged, and the inner one cannot be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_HELLO: Final = 64 << 10
_MAX_RECORD: Final = 1 << 14
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ALPN, _ECH, _ESNI = 0, 16, 0xFE0D, 0xFFCE


class InvalidClientHello(ValueError):
    """A client hello that cannot be judged."""


@dataclass(frozen=True)
class ClientHello:
    name: bytes | None  # SNI, as sent
    alpn: tuple[bytes, ...] = ()
    encrypted: bool = False  # ECH or ESNI: there may be another name that only the server can read


class _ByteReader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise InvalidClientHello("a length in it points beyond its end")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int, min_length: int = 0) -> bytes:
        count = self.number(size)
        if count < min_length:
            raise InvalidClientHello("a list in it is too short")
        return self.take(count)

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at


def looks_like_tls(first: bytes) -> bool:
    """Return whether these first bytes can only begin a TLS record. One byte is enough."""
    return first[:1] == b"\x16"


class ClientHelloParser:
    """Assembles the first handshake message from records and pieces, and looks at each byte once: a client that sends
    byte by byte costs no more than any other."""

    def __init__(self) -> None:
        self._data, self._at = bytearray(), 0
        self._message = bytearray()

    def feed(self, data: bytes) -> ClientHello | None:
        """Return the client hello once it is complete; raise InvalidClientHello as soon as it cannot become one."""
        self._data += data
        while True:
            head = self._data[self._at : self._at + 5]
            if head and head[0] != _HANDSHAKE:
                raise InvalidClientHello("a record in it is not a handshake record")
            if len(head) > 1 and head[1] != 3:
                raise InvalidClientHello("its version is not a TLS version")
            if len(head) < 5:
                break
            length = int.from_bytes(head[3:5], "big")
            if not 0 < length <= _MAX_RECORD:
                raise InvalidClientHello("a record in it has an impossible length")
            if len(self._data) < self._at + 5 + length:
                break
            self._message += self._data[self._at + 5 : self._at + 5 + length]
            self._at += 5 + length
            if self._whole():
                return _parse_body(bytes(self._message[4:]))
        if len(self._data) > MAX_HELLO:
            raise InvalidClientHello("it is too long")
        return None

    def _whole(self) -> bool:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise InvalidClientHello("it does not begin with a ClientHello")
        if len(message) < 4:
            return False
        whole = 4 + int.from_bytes(message[1:4], "big")
        if whole > MAX_HELLO:
            raise InvalidClientHello("it is too long")
        if len(message) > whole:
            raise InvalidClientHello("extra bytes follow in the same record")
        return len(message) == whole


def parse_client_hello(data: bytes) -> ClientHello | None:
    """Parse the client hello at the start of `data`. None if more is needed; raise InvalidClientHello if it is
    invalid."""
    return ClientHelloParser().feed(data)


def _parse_body(message: bytes) -> ClientHello:
    reader = _ByteReader(message)
    if reader.number(2) >> 8 != 3:
        raise InvalidClientHello("its version is not a TLS version")
    reader.take(32)
    if len(reader.vector(1)) > 32:
        raise InvalidClientHello("its session id is too long")
    if len(reader.vector(2, 2)) % 2:
        raise InvalidClientHello("its cipher suites are cut off")
    reader.vector(1, 1)
    if not reader.remaining:
        return ClientHello(None)
    extensions = _ByteReader(reader.vector(2))
    if reader.remaining:
        raise InvalidClientHello("extra bytes follow its extensions")
    found: dict[int, bytes] = {}
    while extensions.remaining:
        kind = extensions.number(2)
        if kind in found:
            raise InvalidClientHello("an extension occurs twice")
        found[kind] = extensions.vector(2)
    name = _server_name(found[_SERVER_NAME]) if _SERVER_NAME in found else None
    return ClientHello(name, _alpn(found.get(_ALPN)), _ECH in found or _ESNI in found)


def _server_name(data: bytes) -> bytes:
    outer = _ByteReader(data)
    names = _ByteReader(outer.vector(2, 1))
    if outer.remaining:
        raise InvalidClientHello("extra bytes follow its server name")
    if names.number(1) != 0:
        raise InvalidClientHello("its server name is of an unknown type")
    name = names.vector(2, 1)
    if names.remaining:
        raise InvalidClientHello("it has more than one server name")
    return name


def _alpn(data: bytes | None) -> tuple[bytes, ...]:
    if data is None:
        return ()
    outer = _ByteReader(data)
    inner = _ByteReader(outer.vector(2, 2))
    if outer.remaining:
        raise InvalidClientHello("extra bytes follow its protocols")
    found = []
    while inner.remaining:
        found.append(inner.vector(1, 1))
    return tuple(found)
