"""What a client begins to say: TLS, HTTP or something else. Looked at before it is forwarded; nothing is taken away."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Literal

from skerry.network.hosts import BadHost, Host, Name, parse_host, show_host
from skerry.network.worker.attempts import safe
from skerry.network.worker.hooks import Blocked, Filter, Refusal
from skerry.network.worker.streams import Wire
from skerry.network.worker.tls import BadHello, Greeting, Hello, looks_like_tls

_LINE_MOST: Final = 16 << 10
_PIECES_MOST: Final = 256
# More than strict HTTP, on purpose: what any server could take for a request must come into HTTP mode, which refuses it
# there if it is not a proper one.
_LINE: Final = re.compile(rb"[\r\n]*[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}[ \t\x0b\x0c][^\n]*HTTP/", re.IGNORECASE)
_MAYBE_LINE: Final = re.compile(rb"[\r\n]*[!#$%&'*+.^_`|~0-9A-Za-z-]{0,64}([ \t\x0b\x0c][^\n]*)?")
_SPACED: Final = re.compile(rb"\S[ \t\x0b\x0c]")
TUNNELLED: Final = b"SSH-"


@dataclass(frozen=True)
class Seen:
    kind: Literal["tls", "http", "other", "unclear", "nothing"]
    hello: Hello | None = None
    first: bytes = b""
    bad: str | None = None  # TLS that can't be judged, and why


async def sniff(client: Wire, patience: float | None = None) -> Seen:
    """Reads until it is clear what it is, and puts everything back. Bounded in bytes and pieces; the caller bounds the
    time. `patience`: seconds for which the rest of what may be a request's first line is waited for; then it is
    "unclear", as is at once a word that has nothing behind it."""
    data = bytearray()
    look = _Look()
    while True:
        try:
            async with asyncio.timeout(patience if data else None):
                more = await client.read(16 << 10)
        except TimeoutError:
            seen: Seen | None = Seen("unclear", first=bytes(data[:64]))
        else:
            data += more
            seen = look.feed(more)
            if seen is None and patience is not None and look.word:
                seen = Seen("unclear", first=bytes(data[:64]))
        if seen is not None:
            client.unread(bytes(data))
            return seen


class _Look:
    """Decides what the bytes are that it is fed."""

    def __init__(self) -> None:
        self._data = b""
        self._pieces = 0
        self._greeting: Greeting | None = None

    @property
    def word(self) -> bool:
        """Whether there is one word so far, and nothing behind it."""
        return self._greeting is None and not _SPACED.search(self._data)

    def feed(self, data: bytes) -> Seen | None:
        """None: it is not clear yet. No data: there is no more."""
        if self._greeting is None and not self._data:
            if not data:
                return Seen("nothing")
            if looks_like_tls(data):
                self._greeting = Greeting()
        return self._line(data) if self._greeting is None else self._tls(self._greeting, data)

    def _tls(self, greeting: Greeting, data: bytes) -> Seen | None:
        try:
            hello = greeting.feed(data)
        except BadHello as error:
            return Seen("tls", None, bad=str(error))
        if hello is not None:
            return Seen("tls", hello)
        return None if data else Seen("tls", None, bad="it is not whole")

    def _line(self, data: bytes) -> Seen | None:
        self._data += data
        self._pieces += 1
        if _LINE.match(self._data):
            return Seen("http", first=self._data[:64])
        goes_on = data and self._pieces < _PIECES_MOST and len(self._data) < _LINE_MOST
        if goes_on and b"\n" not in self._data.lstrip() and _MAYBE_LINE.fullmatch(self._data):
            return None
        return Seen("other", first=self._data[:64])


class FirstLine:
    """Lets pass what is unclear so far, and blocks it the moment it turns out to be a request: by then no header has
    been sent."""

    same_length = True

    def __init__(self, beyond: Filter | None = None) -> None:
        self._look: _Look | None = _Look()
        self._beyond = beyond

    def feed(self, data: bytes) -> bytes:
        seen = self._look.feed(data) if self._look is not None else None
        if seen is not None and seen.kind != "other":
            raise Blocked(Refusal("a request that came in pieces, over too long a time"))
        if seen is not None:
            self._look = None
        return data if self._beyond is None else self._beyond.feed(data)

    @property
    def settled(self) -> bool:
        """Whether nothing that follows has to be looked at."""
        return self._look is None and self._beyond is None

    def end(self) -> bytes:
        return b"" if self._beyond is None else self._beyond.end()


def disagreement(seen: Seen, host: Host, port: int) -> str | None:
    """Why a TLS greeting does not suit the host that the connection is for; None if it does."""
    if seen.bad is not None or seen.hello is None:
        return f"its TLS greeting can't be read: {seen.bad}"
    if seen.hello.name is None:
        if isinstance(host, Name) and port == 443:
            return f"TLS without a server name can't be told to be for {host}"
        return None
    try:
        name = parse_host(seen.hello.name)
    except BadHost as error:
        return f"TLS for a server name that is none: {error}"
    if name != host:
        return f"TLS for {safe(str(name))} on a connection to {show_host(host)}"
    return None
