"""Requests and responses without their bodies. A request that two servers could read in two ways is refused here,
before h11 sees it: that is what smuggling lives on. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from skerry.network.hosts import BadHost, Host, parse_authority
from skerry.network.worker.hooks import Headers

HEAD_MOST: Final = 64 << 10
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE: Final = re.compile(rb"(%s) ([!-~]+) HTTP/1\.([01])" % _TOKEN)
# `*+`: blanks that are given back one by one cost a quadratic time, which all sandboxes wait for
_FIELD: Final = re.compile(rb"(%s):[ \t]*+((?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*" % _TOKEN)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_METHOD_MOST: Final = 32
_HEADERS_MOST: Final = 500
_TARGET_MOST: Final = 32 << 10
_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"http2-settings")
)  # fmt: skip
_ONCE: Final = (b"host", b"content-length", b"transfer-encoding", b"expect", b"authorization", b"content-type")
_OVERRIDING: Final = frozenset(
    (b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url")
)
_NEVER_TRAILING: Final = _HOP | {b"host", b"authorization", b"cookie", b"set-cookie", b"expect", b"content-encoding"}


class BadRequest(ValueError):
    """A request that is not one, or not one that can be judged."""


@dataclass(frozen=True)
class Request:
    """`length`: of its body; None: in chunks. `upgrade`: what it wants the connection to become."""

    method: bytes
    target: bytes
    old: bool  # HTTP/1.0
    headers: Headers
    host: bytes | None
    length: int | None
    closes: bool
    upgrade: bytes | None

    @property
    def body(self) -> bool:
        return self.length != 0

    @property
    def path(self) -> str:
        """For people: what may be in a query is nobody's business, and where it goes stands elsewhere."""
        target = self.target.split(b"?", 1)[0].decode("latin-1")
        if target[:1] == "/" or "://" not in target:
            return target
        return "/" + target.partition("://")[2].partition("/")[2]


def parse_request(head: bytes) -> Request:
    """`head` ends with the empty line."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if re.search(rb"[\r\n\x00]", b"".join(lines)):
        raise BadRequest("it has a bare CR, LF or NUL")
    match = _LINE.fullmatch(lines[0])
    if match is None:
        if lines[0] == b"PRI * HTTP/2.0":
            raise BadRequest("HTTP/2 without TLS is not spoken here: use HTTP/1.1")
        raise BadRequest("its first line is not one of HTTP/1.1")
    method, target, old = match[1], match[2], match[3] == b"0"
    if len(method) > _METHOD_MOST or len(target) > _TARGET_MOST or b"#" in target:
        raise BadRequest("its method or target can't be")
    if len(lines) > _HEADERS_MOST:
        raise BadRequest(f"it has more than {_HEADERS_MOST} headers")
    headers = tuple(_field(line) for line in lines[1:])
    for name in _ONCE:
        if sum(one == name for one, _ in headers) > 1:
            raise BadRequest(f"{name.decode()} stands in it more than once")
    found = dict(headers)
    if b"host" not in found and not old:
        raise BadRequest("it has no Host")
    options = _options(headers)
    return Request(
        method,
        target,
        old,
        headers,
        found.get(b"host"),
        _framing(found, old),
        old or b"close" in options,
        found.get(b"upgrade") if b"upgrade" in options and not old else None,
    )


def _field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        if line[:1] in (b" ", b"\t"):
            raise BadRequest("a header in it is folded over two lines")
        raise BadRequest("a header in it is malformed")
    return match[1].lower(), match[2]


def _options(headers: Headers) -> set[bytes]:
    return {
        option.strip().lower()
        for name, value in headers
        if name in (b"connection", b"proxy-connection")
        for option in value.split(b",")
    }


def _framing(found: dict[bytes, bytes], old: bool) -> int | None:
    coding, length = found.get(b"transfer-encoding"), found.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise BadRequest("it has both Transfer-Encoding and Content-Length")
        if old:
            raise BadRequest("it has Transfer-Encoding in HTTP/1.0")
        if coding.lower() != b"chunked":
            raise BadRequest("its Transfer-Encoding is not just chunked")
        return None
    if length is None:
        return 0
    if not _LENGTH.fullmatch(length):
        raise BadRequest("its Content-Length is not a number")
    return int(length)


def end_to_end(headers: Headers) -> Headers:
    """Without what is for one hop only, and what frames the body. Host stays, whatever Connection names."""
    named = _options(headers) - {b"host"}
    return tuple((name, value) for name, value in headers if name not in _HOP and name not in named)


def overriding(headers: Headers) -> str | None:
    """A header by which a client has many a server take another method or path than the ones that were judged."""
    return next((name.decode() for name, _ in headers if name in _OVERRIDING), None)


def trailing(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if name not in _NEVER_TRAILING)


def authority(request: Request) -> tuple[Host | None, int | None, bytes]:
    """The host and port that the request itself names, and its target in origin form. BadRequest if it names two."""
    try:
        host, port = (None, None) if request.host is None else parse_authority(request.host)
        if request.target.startswith(b"/") or (request.target == b"*" and request.method == b"OPTIONS"):
            return host, port, request.target
        named, named_port, target = _absolute(request.target)
    except BadHost as error:
        raise BadRequest(f"its host is none: {error}") from None
    if host is not None and (host != named or port not in (None, named_port)):
        raise BadRequest("its target and its Host name two places")
    return named, named_port, target


def _absolute(target: bytes) -> tuple[Host, int, bytes]:
    match = re.fullmatch(rb"(?i:http)://([^/?#@\\]+)(/?[^#]*)", target)
    if match is None:
        raise BadRequest("its target is neither a path nor an http:// address")
    host, port = parse_authority(match[1])
    rest = match[2]
    return host, port or 80, rest if rest.startswith(b"/") else b"/" + rest
