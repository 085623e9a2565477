"""Headers of requests on their way in and of responses on their way out. Pure."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

from skerry.network.worker.previews.address import TOKEN_HEADER, PreviewAddress, cookies_without, host_only_cookie

Headers = list[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
# Claims of the client about itself: dropped, since they cannot be trusted.
_UNTRUSTED = frozenset((b"forwarded", b"x-real-ip", b"x-original-host", b"x-original-url", b"x-rewrite-url"))
_TOKEN_IN_URL = b"skerry_token="
_API_TOKEN: Final = re.compile(rb"skt_[a-z2-7]{40}|e2b_[0-9a-f]{50}")  # of `engine/tokens.py`, `codecs/api_keys.py`
# Dropped from responses. `alt-svc` would lead a browser past this server. `clear-site-data` clears the cookies of the
# whole registrable domain, and so of every preview below it. The others command a web server in front of the listener
# (nginx, Apache, lighttpd, LiteSpeed, H2O): it would send one of its files or internal locations to the client.
_NEVER_OUT: Final = frozenset(
    (b"alt-svc", b"clear-site-data", b"x-sendfile", b"x-sendfile2", b"x-sendfile-temporary", b"x-send-file",
     b"x-litespeed-location", b"x-reproxy-url", b"x-reproxy-file")
)  # fmt: skip
_NEVER_OUT_PREFIXES: Final = (b"x-accel-", b"x-lighttpd-")
_HARMLESS: Final = b"x-accel-buffering"  # programs that stream events send it
# Headers for a whole origin, which all previews share in the path form.
_ORIGIN_WIDE = frozenset((b"set-cookie", b"service-worker-allowed"))


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    found = values(headers, name)
    return found[0] if found else None


def tokens(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[str]:
    """Return the items of a list header."""
    return {word.strip().lower() for line in values(headers, name) for word in line.split(",") if word.strip()}


def asks_for_websocket(headers: Headers) -> bool:
    return "upgrade" in tokens(headers, b"connection") and tokens(headers, b"upgrade") == {"websocket"}


def request_headers(headers: Headers, address: PreviewAddress, peer: str, websocket: bool) -> Headers:
    """Return the headers for the program inside: without our tokens, hop-by-hop headers and untrusted claims."""
    found = [
        (name, line)
        for name, line in _end_to_end(headers)
        if name not in (b"host", b"expect", TOKEN_HEADER)
        and name not in _UNTRUSTED
        and not name.startswith(b"x-forwarded-")
        and not (name == b"referer" and _TOKEN_IN_URL in line)
        and not _has_api_token(line)
    ]
    own = [
        (b"host", address.host.encode()), (b"x-forwarded-for", peer.encode()),
        (b"x-forwarded-proto", address.scheme.encode()), (b"x-forwarded-host", address.host.encode()),
    ]  # fmt: skip
    if address.prefix:
        own.append((b"x-forwarded-prefix", address.prefix.encode()))
    own += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")] if websocket else []
    return [*own, *_with_own_cookies(found, address)]


def _has_api_token(line: bytes) -> bool:
    """Return whether a header has a token of the API, plain or in a basic login. A client that sends its token with
    every request must not hand it to the program inside."""
    if _API_TOKEN.search(line):
        return True
    scheme, _, login = line.partition(b" ")
    if scheme.lower() != b"basic":
        return False
    with contextlib.suppress(binascii.Error):
        return _API_TOKEN.search(base64.b64decode(login.strip())) is not None
    return False


def _with_own_cookies(headers: Headers, address: PreviewAddress) -> Iterator[tuple[bytes, bytes]]:
    for name, line in headers:
        if name != b"cookie":
            yield name, line
        elif not address.prefix:
            kept, _ = cookies_without(line.decode("latin-1"), address.cookie)
            if kept:
                yield name, kept.encode("latin-1")


def response_headers(headers: Headers, address: PreviewAddress, websocket: bool = False) -> Headers:
    """Return the headers for the client."""
    found: Headers = []
    for name, line in _end_to_end(headers):
        if _never_out(name) or (address.prefix and name in _ORIGIN_WIDE):
            continue
        if name == b"set-cookie":
            cookie = host_only_cookie(line.decode("latin-1"))
            if cookie is None:
                continue
            line = cookie.encode("latin-1")
        elif name == b"location" and address.prefix and line.startswith(b"/") and not line.startswith(b"//"):
            line = address.prefix.encode() + line
        found.append((name, line))
    return [*found, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")] if websocket else found


def _never_out(name: bytes) -> bool:
    return name in _NEVER_OUT or (name.startswith(_NEVER_OUT_PREFIXES) and name != _HARMLESS)


def _end_to_end(headers: Headers) -> Headers:
    """Return the headers without hop-by-hop ones."""
    own = {word.encode("latin-1") for word in tokens(headers, b"connection")} - {b"content-length"}
    return [(name, line) for name, line in headers if name not in _HOP_BY_HOP and name not in own]
