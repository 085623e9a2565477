"""Cassettes: recorded HTTP exchanges, as lines of JSON with the bytes of bodies between them. Pure and bounded.

A cassette is a journal: the pieces of exchanges that ran at the same time alternate. An exchange counts once its `End`
is there, so that a cassette is usable after a crash at any byte. `export` orders it, one exchange after another."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

MAGIC: Final = b'{"skerry":"cassette","version":1}\n'
MAX_SIZE: Final = 64 << 20  # bytes of a cassette
MAX_BODY: Final = 32 << 20  # bytes of one response's body
MAX_EXCHANGES: Final = 10_000
MAX_LINES: Final = 50_000
MAX_LINE: Final = 1 << 20  # a head of 64 KiB with every character escaped fits
MAX_LISTED: Final = 1_000  # exchanges that were not recorded and are listed
_READ_SIZE: Final = 64 << 10
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD: Final = re.compile(r"[\t -~\x80-\xff]*")
Read = Callable[[int, int], bytes]  # (offset, size) → at most so many bytes; fewer only at the end


class DamagedCassette(ValueError):
    """The bytes are not a cassette, or exceed its bounds."""


class CassetteLine(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="line", omit_defaults=True, forbid_unknown_fields=True
):
    pass


class ExchangeHead(CassetteLine, frozen=True, kw_only=True, tag="exchange"):
    """The request of an exchange and the head of its response. `url` and headers are Latin-1, as HTTP has them.
    `accept` and `range`: the headers of the request that belong to its key."""

    number: int
    method: str
    url: str
    status: int
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    accept: str = ""
    range: str = ""


class Data(CassetteLine, frozen=True, kw_only=True, tag="data"):
    """Bytes of a response's body, and a line end, follow."""

    number: int
    length: int


class End(CassetteLine, frozen=True, kw_only=True, tag="end"):
    """The exchange is complete. `body`: SHA-256 of the request's body in hex; "" without one."""

    number: int
    body: str = ""


class Omitted(CassetteLine, frozen=True, kw_only=True, tag="omitted"):
    """An exchange that was not recorded, and the reason."""

    url: str
    why: str
    method: str = ""


class Used(CassetteLine, frozen=True, kw_only=True, tag="used"):
    """A replay has served this exchange."""

    number: int


class Full(CassetteLine, frozen=True, kw_only=True, tag="full"):
    """The recording ended here, and the reason."""

    why: str


_decode = msgspec.json.Decoder(ExchangeHead | Data | End | Omitted | Used | Full).decode
_encode = msgspec.json.Encoder().encode


def encode(line: CassetteLine) -> bytes:
    return _encode(line) + b"\n"


def encode_data(number: int, data: bytes) -> bytes:
    return encode(Data(number=number, length=len(data))) + data + b"\n"


def place_key(method: str, url: str) -> bytes:
    return hashlib.sha256(_encode([method, url])).digest()


def request_key(method: str, url: str, accept: str, range_: str, body: str) -> bytes:
    """Return the key by which a request finds its response."""
    return hashlib.sha256(_encode([method, url, accept, range_, body])).digest()


def text(data: bytes) -> str:
    return data.decode("latin-1")


@dataclass(eq=False)
class RecordedExchange:
    """The positions of one exchange in a cassette: of its head, and of the pieces of its body."""

    number: int
    head: tuple[int, int]
    pieces: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0
    body: str = ""  # hash of the request's
    complete: bool = False


@dataclass(eq=False)
class CassetteContent:
    """The content of a cassette. `end`: the position after the last whole line. `full`: why the recording ended."""

    exchanges: dict[int, RecordedExchange] = field(default_factory=dict)
    omitted: list[Omitted] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    lines: int = 0
    end: int = 0
    full: str | None = None

    def complete(self) -> list[RecordedExchange]:
        """Return the complete exchanges in the order of their requests."""
        return [one for _, one in sorted(self.exchanges.items()) if one.complete]


def scan(read: Read) -> CassetteContent:
    """Read a cassette without the content of its bodies. An incomplete last line is left out. Raise DamagedCassette for
    anything that a recorder does not write."""
    journal, reader = CassetteContent(), _LineReader(read)
    first = reader.line()
    if first is None:
        return journal
    if first != MAGIC:
        raise DamagedCassette("it is not a cassette")
    journal.end = reader.at
    while (line := reader.line()) is not None:
        journal.lines += 1
        if journal.lines > MAX_LINES or reader.at > MAX_SIZE:
            raise DamagedCassette("it is too large")
        if not _add(journal, line, reader):
            break
        journal.end = reader.at
    return journal


def _add(journal: CassetteContent, line: bytes, reader: _LineReader) -> bool:
    """Add a line; return False if the following bytes are incomplete."""
    try:
        value = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise DamagedCassette("a line cannot be decoded") from None
    match value:
        case ExchangeHead():
            _check_head(journal, value)
            journal.exchanges[value.number] = RecordedExchange(value.number, (reader.at - len(line), len(line)))
        case Data():
            exchange = _open(journal, value.number)
            if not 0 < value.length <= MAX_BODY - exchange.length:
                raise DamagedCassette("a body is too large")
            start = reader.at
            if not reader.skip(value.length):
                return False
            exchange.pieces.append((start, value.length))
            exchange.length += value.length
        case End():
            exchange = _open(journal, value.number)
            exchange.complete, exchange.body = True, value.body
        case Omitted():
            journal.omitted.append(value)
            if len(journal.omitted) > MAX_LISTED:
                raise DamagedCassette("it lists too many exchanges")
        case Used():
            journal.used.add(value.number)
        case Full():
            journal.full = value.why[:200]
    return True


def _check_head(journal: CassetteContent, head: ExchangeHead) -> None:
    if head.number in journal.exchanges or len(journal.exchanges) >= MAX_EXCHANGES or head.number < 1:
        raise DamagedCassette("it has too many exchanges, or two of one number")
    if not 200 <= head.status <= 599 or not head.method.isascii():
        raise DamagedCassette("a status is invalid")
    # a line end in a value would begin another header
    if not _FIELD.fullmatch(head.reason) or not all(
        _NAME.fullmatch(name) and _FIELD.fullmatch(value) for name, value in head.headers
    ):
        raise DamagedCassette("a header is invalid")


def _open(journal: CassetteContent, number: int) -> RecordedExchange:
    exchange = journal.exchanges.get(number)
    if exchange is None or exchange.complete:
        raise DamagedCassette("a piece belongs to no exchange")
    return exchange


def read_head(read: Read, exchange: RecordedExchange) -> ExchangeHead:
    """Return the head of an exchange, read again. Raise DamagedCassette if the bytes have changed."""
    try:
        value = _decode(read(*exchange.head))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise DamagedCassette("a line cannot be decoded") from None
    if not isinstance(value, ExchangeHead):
        raise DamagedCassette("a line has changed")
    _check_head(CassetteContent(), value)
    return value


def read_body(read: Read, exchange: RecordedExchange, most: int = 256 << 10) -> Iterator[bytes]:
    """Yield the body of a response."""
    for start, length in exchange.pieces:
        while length:
            data = read(start, min(length, most))
            if not data:
                raise DamagedCassette("it ends early")
            yield data
            start, length = start + len(data), length - len(data)


def export(read: Read, journal: CassetteContent) -> Iterator[bytes]:
    """Yield the same cassette in order: whole exchanges, numbered from 1, and none that is marked as used."""
    yield MAGIC
    for number, exchange in enumerate(journal.complete(), 1):
        yield encode(msgspec.structs.replace(read_head(read, exchange), number=number))
        for data in read_body(read, exchange):
            yield encode_data(number, data)
        yield encode(End(number=number, body=exchange.body))
    yield from map(encode, journal.omitted)
    if journal.full is not None:
        yield encode(Full(why=journal.full))


class _LineReader:
    """Lines from a position on."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._buffer, self._start, self._used = b"", 0, 0  # bytes from position `_start` on, and how many are consumed

    @property
    def at(self) -> int:
        return self._start + self._used

    def line(self) -> bytes | None:
        """Return the next line with its end; None if it is incomplete."""
        while (end := self._buffer.find(b"\n", self._used)) < 0:
            if len(self._buffer) - self._used > MAX_LINE:
                raise DamagedCassette("a line is too long")
            if not self._fill():
                return None
        line = self._buffer[self._used : end + 1]
        self._used = end + 1
        return line

    def skip(self, length: int) -> bool:
        """Skip bytes and the line end after them; return whether they are there."""
        self._used += length
        if self._used >= len(self._buffer) and not self._fill():
            return False
        if self._buffer[self._used : self._used + 1] != b"\n":
            raise DamagedCassette("a body has no end")
        self._used += 1
        return True

    def _fill(self) -> bool:
        """Read on, from the consumed position at least."""
        self._buffer, self._start, self._used = self._buffer[self._used :], self.at, 0
        data = self._read(self._start + len(self._buffer), _READ_SIZE)
        self._buffer += data
        return bool(data)
