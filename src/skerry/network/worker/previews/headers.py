"""The headers of a request on its way in, and of an answer on its way out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skerry.network.worker.previews.address import TOKEN_HEADER, Place, cookies_without, own_cookie

Headers = list[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
# What a client says of itself in these is not to be believed, so it is not passed on.
_CLAIMED = frozenset((b"forwarded", b"x-real-ip", b"x-original-host", b"x-original-url", b"x-rewrite-url"))
_TOKEN_IN_URL = b"skerry_token="
_ELSEWHERE = frozenset((b"alt-svc",))  # would lead a browser past us
# What speaks for a whole origin, which is no single preview's in the path form.
_OF_THE_ORIGIN = frozenset((b"set-cookie", b"service-worker-allowed", b"clear-site-data"))


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    found = values(headers, name)
    return found[0] if found else None


def tokens(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[str]:
    """The words of a header that is a list."""
    return {word.strip().lower() for line in values(headers, name) for word in line.split(",") if word.strip()}


def asks_for_websocket(headers: Headers) -> bool:
    return "upgrade" in tokens(headers, b"connection") and tokens(headers, b"upgrade") == {"websocket"}


def forwarded(headers: Headers, place: Place, peer: str, websocket: bool) -> Headers:
    """As the program inside gets them: without what is ours, what is this connection's, and what is only claimed."""
    found = [
        (name, line)
        for name, line in _end_to_end(headers)
        if name not in (b"host", b"expect", TOKEN_HEADER)
        and name not in _CLAIMED
        and not name.startswith(b"x-forwarded-")
        and not (name == b"referer" and _TOKEN_IN_URL in line)
    ]
    own = [
        (b"host", place.host.encode()), (b"x-forwarded-for", peer.encode()),
        (b"x-forwarded-proto", place.scheme.encode()), (b"x-forwarded-host", place.host.encode()),
    ]  # fmt: skip
    if place.prefix:
        own.append((b"x-forwarded-prefix", place.prefix.encode()))
    own += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")] if websocket else []
    return [*own, *_with_own_cookies(found, place)]


def _with_own_cookies(headers: Headers, place: Place) -> Iterator[tuple[bytes, bytes]]:
    for name, line in headers:
        if name != b"cookie":
            yield name, line
        elif not place.prefix:
            kept, _ = cookies_without(line.decode("latin-1"), place.cookie)
            if kept:
                yield name, kept.encode("latin-1")


def answered(headers: Headers, place: Place, websocket: bool = False) -> Headers:
    """As the client gets them."""
    found: Headers = []
    for name, line in _end_to_end(headers):
        if name in _ELSEWHERE or (place.prefix and name in _OF_THE_ORIGIN):
            continue
        if name == b"set-cookie":
            cookie = own_cookie(line.decode("latin-1"))
            if cookie is None:
                continue
            line = cookie.encode("latin-1")
        elif name == b"location" and place.prefix and line.startswith(b"/") and not line.startswith(b"//"):
            line = place.prefix.encode() + line
        found.append((name, line))
    return [*found, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")] if websocket else found


def _end_to_end(headers: Headers) -> Headers:
    """Without what is meant for this connection alone."""
    own = {word.encode("latin-1") for word in tokens(headers, b"connection")} - {b"content-length"}
    return [(name, line) for name, line in headers if name not in _HOP_BY_HOP and name not in own]
