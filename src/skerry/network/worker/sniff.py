"""Detect a client's protocol from its first bytes: TLS, HTTP or another. The bytes are read ahead and put back."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Literal

from skerry.network.worker.audit import printable
from skerry.network.worker.http.filters import BlockedByFilter, BodyFilter, FilterDenial
from skerry.network.worker.streams import SocketStream
from skerry.network.worker.tls.client_hello import ClientHello, ClientHelloParser, InvalidClientHello, looks_like_tls
from skerry.types.hosts import BadHost, Host, Name, parse_host, show_host

_MAX_LINE: Final = 16 << 10
_MAX_PIECES: Final = 256
# Deliberately wider than HTTP: any text that a server could take for a request must go to the HTTP proxy, which rejects
# it if it is malformed.
_LINE: Final = re.compile(rb"[\r\n]*[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}[ \t\x0b\x0c][^\n]*HTTP/", re.IGNORECASE)
_MAYBE_LINE: Final = re.compile(rb"[\r\n]*[!#$%&'*+.^_`|~0-9A-Za-z-]{0,64}([ \t\x0b\x0c][^\n]*)?")
_SPACED: Final = re.compile(rb"\S[ \t\x0b\x0c]")
SSH_BANNER: Final = b"SSH-"


@dataclass(frozen=True)
class SniffResult:
    kind: Literal["tls", "http", "other", "unclear", "nothing"]
    hello: ClientHello | None = None
    first: bytes = b""
    problem: str | None = None  # the reason why this TLS cannot be judged


async def sniff(client: SocketStream, timeout_s: float | None = None) -> SniffResult:
    """Read until the protocol is clear, and put everything back. Bounded in bytes and pieces; the caller bounds the
    time. `timeout_s`: how long to wait for the rest of a possible request line; then it is "unclear", as is a single
    word at once."""
    data = bytearray()
    sniffer = _Sniffer()
    while True:
        try:
            async with asyncio.timeout(timeout_s if data else None):
                more = await client.read(16 << 10)
        except TimeoutError:
            result: SniffResult | None = SniffResult("unclear", first=bytes(data[:64]))
        else:
            data += more
            result = sniffer.feed(more)
            if result is None and timeout_s is not None and sniffer.is_single_word:
                result = SniffResult("unclear", first=bytes(data[:64]))
        if result is not None:
            client.unread(bytes(data))
            return result


class _Sniffer:
    """Detects the protocol of the bytes that it is fed."""

    def __init__(self) -> None:
        self._data = b""
        self._pieces = 0
        self._hello: ClientHelloParser | None = None

    @property
    def is_single_word(self) -> bool:
        """Whether the bytes so far are one word with nothing after it."""
        return self._hello is None and not _SPACED.search(self._data)

    def feed(self, data: bytes) -> SniffResult | None:
        """Return None while it is not clear. Empty data means the end."""
        if self._hello is None and not self._data:
            if not data:
                return SniffResult("nothing")
            if looks_like_tls(data):
                self._hello = ClientHelloParser()
        return self._line(data) if self._hello is None else self._tls(self._hello, data)

    def _tls(self, parser: ClientHelloParser, data: bytes) -> SniffResult | None:
        try:
            hello = parser.feed(data)
        except InvalidClientHello as error:
            return SniffResult("tls", None, problem=str(error))
        if hello is not None:
            return SniffResult("tls", hello)
        return None if data else SniffResult("tls", None, problem="it is incomplete")

    def _line(self, data: bytes) -> SniffResult | None:
        self._data += data
        self._pieces += 1
        if _LINE.match(self._data):
            return SniffResult("http", first=self._data[:64])
        may_continue = data and self._pieces < _MAX_PIECES and len(self._data) < _MAX_LINE
        if may_continue and b"\n" not in self._data.lstrip() and _MAYBE_LINE.fullmatch(self._data):
            return None
        return SniffResult("other", first=self._data[:64])


class FirstLineFilter:
    """Passes unclear bytes on, and blocks them as soon as they turn out to be a request: no header has been sent by
    then."""

    same_length = True

    def __init__(self, next_filter: BodyFilter | None = None) -> None:
        self._sniffer: _Sniffer | None = _Sniffer()
        self._next_filter = next_filter

    def feed(self, data: bytes) -> bytes:
        result = self._sniffer.feed(data) if self._sniffer is not None else None
        if result is not None and result.kind != "other":
            raise BlockedByFilter(FilterDenial("a request that came in pieces, over too long a time"))
        if result is not None:
            self._sniffer = None
        return data if self._next_filter is None else self._next_filter.feed(data)

    @property
    def settled(self) -> bool:
        """Whether the following bytes need no filtering."""
        return self._sniffer is None and self._next_filter is None

    def end(self) -> bytes:
        return b"" if self._next_filter is None else self._next_filter.end()


def sni_mismatch(result: SniffResult, host: Host, port: int) -> str | None:
    """Return the reason why a TLS client hello does not match the connection's host; None if it does."""
    if result.problem is not None or result.hello is None:
        return f"its TLS client hello is invalid: {result.problem}"
    if result.hello.name is None:
        if isinstance(host, Name) and port == 443:
            return f"TLS without a server name cannot be shown to be for {host}"
        return None
    try:
        name = parse_host(result.hello.name)
    except BadHost as error:
        return f"TLS for an invalid server name: {error}"
    if name != host:
        return f"TLS for {printable(str(name))} on a connection to {show_host(host)}"
    return None
