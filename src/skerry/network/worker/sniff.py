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
from skerry.network.worker.tls import HELLO_MOST, BadHello, Hello, looks_like_tls, parse_hello

_LINE_MOST: Final = 16 << 10
# More than strict HTTP, on purpose: what any server could take for a request must come into HTTP mode, which refuses it
# there if it is not a proper one.
_LINE: Final = re.compile(rb"[\r\n]*[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}[ \t\x0b\x0c]+[^\n]*HTTP/", re.IGNORECASE)
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
    """Reads until it is clear what it is, and puts everything back. Bounded in bytes; the caller bounds the time.
    `patience`: seconds for which the rest of what may be a request's first line is waited for; then it is "unclear", as
    is at once a word that has nothing behind it."""
    data = b""
    while True:
        try:
            async with asyncio.timeout(patience if data else None):
                more = await client.read(16 << 10)
        except TimeoutError:
            client.unread(data)
            return Seen("unclear", first=data[:64])
        data += more
        seen = _decide(data, bool(more))
        if seen is None and patience is not None and not looks_like_tls(data) and not _SPACED.search(data):
            seen = Seen("unclear", first=data[:64])
        if seen is not None:
            client.unread(data)
            return seen


class FirstLine:
    """Lets pass what is unclear so far, and blocks it the moment it turns out to be a request or TLS: by then no header
    has been sent."""

    same_length = True

    def __init__(self, beyond: Filter | None = None) -> None:
        self._seen: bytes | None = b""
        self._beyond = beyond

    def feed(self, data: bytes) -> bytes:
        if self._seen is not None:
            self._seen += data
            seen = _decide(self._seen, True)
            if seen is not None and seen.kind != "other":
                raise Blocked(Refusal("a request or TLS greeting that came in pieces, over too long a time"))
            if seen is not None:
                self._seen = None
        return data if self._beyond is None else self._beyond.feed(data)

    @property
    def settled(self) -> bool:
        """Whether nothing that follows has to be looked at."""
        return self._seen is None and self._beyond is None

    def end(self) -> bytes:
        return b"" if self._beyond is None else self._beyond.end()


def _decide(data: bytes, more: bool) -> Seen | None:
    if not data:
        return Seen("nothing")
    if looks_like_tls(data):
        try:
            hello = parse_hello(data)
        except BadHello as error:
            return Seen("tls", None, data[:8], str(error))
        if hello is not None:
            return Seen("tls", hello, data[:8])
        if len(data) > HELLO_MOST or not more:
            return Seen("tls", None, data[:8], "it is not whole")
        return None
    if _LINE.match(data):
        return Seen("http", first=data[:64])
    if more and b"\n" not in data.lstrip() and len(data) < _LINE_MOST and _MAYBE_LINE.fullmatch(data):
        return None
    return Seen("other", first=data[:64])


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
