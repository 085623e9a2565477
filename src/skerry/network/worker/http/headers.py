"""Heads of requests and responses. A request that two servers could read in two ways is rejected here, before h11 sees
it: request smuggling depends on such differences. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from skerry.network.worker.http.filters import Headers
from skerry.types.hosts import BadHost, Host, parse_authority

MAX_HEAD: Final = 64 << 10
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE: Final = re.compile(rb"(%s) ([!-~]+) HTTP/1\.([01])" % _TOKEN)
# `*+` does not backtrack: backtracking over blanks would take quadratic time and block all sandboxes
_FIELD: Final = re.compile(rb"(%s):[ \t]*+((?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*" % _TOKEN)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_MAX_METHOD: Final = 32
_MAX_HEADERS: Final = 500
_MAX_TARGET: Final = 32 << 10
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"http2-settings")
)  # fmt: skip
_AT_MOST_ONCE: Final = (b"host", b"content-length", b"transfer-encoding", b"expect", b"authorization", b"content-type")
_OVERRIDING: Final = frozenset(
    (b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url")
)
_NEVER_TRAILING: Final = _HOP_BY_HOP | {
    b"host",
    b"authorization",
    b"cookie",
    b"set-cookie",
    b"expect",
    b"content-encoding",
}


class BadRequest(ValueError):
    """A malformed request, or one that cannot be judged."""


@dataclass(frozen=True)
class ParsedRequest:
    """`length`: of its body; None: chunked. `upgrade`: the requested protocol."""

    method: bytes
    target: bytes
    is_http_1_0: bool
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
        """The path for reports: without the query, which may hold private data, and without the host."""
        target = self.target.split(b"?", 1)[0].decode("latin-1")
        if target[:1] == "/" or "://" not in target:
            return target
        return "/" + target.partition("://")[2].partition("/")[2]


def parse_request(head: bytes) -> ParsedRequest:
    """Parse a request head, which ends with the empty line."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if re.search(rb"[\r\n\x00]", b"".join(lines)):
        raise BadRequest("it has a bare CR, LF or NUL")
    match = _LINE.fullmatch(lines[0])
    if match is None:
        if lines[0] == b"PRI * HTTP/2.0":
            raise BadRequest("HTTP/2 without TLS is not supported: use HTTP/1.1")
        raise BadRequest("its first line is not HTTP/1.1")
    method, target, is_http_1_0 = match[1], match[2], match[3] == b"0"
    if len(method) > _MAX_METHOD or len(target) > _MAX_TARGET or b"#" in target:
        raise BadRequest("its method or target is invalid")
    if len(lines) > _MAX_HEADERS:
        raise BadRequest(f"it has more than {_MAX_HEADERS} headers")
    headers = tuple(_field(line) for line in lines[1:])
    for name in _AT_MOST_ONCE:
        if sum(one == name for one, _ in headers) > 1:
            raise BadRequest(f"{name.decode()} occurs more than once")
    found = dict(headers)
    if b"host" not in found and not is_http_1_0:
        raise BadRequest("it has no Host")
    options = _options(headers)
    return ParsedRequest(
        method,
        target,
        is_http_1_0,
        headers,
        found.get(b"host"),
        _framing(found, is_http_1_0),
        is_http_1_0 or b"close" in options,
        found.get(b"upgrade") if b"upgrade" in options and not is_http_1_0 else None,
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


def _framing(found: dict[bytes, bytes], is_http_1_0: bool) -> int | None:
    coding, length = found.get(b"transfer-encoding"), found.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise BadRequest("it has both Transfer-Encoding and Content-Length")
        if is_http_1_0:
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
    """Return the headers without hop-by-hop and framing ones. Host stays, even if Connection names it."""
    named = _options(headers) - {b"host"}
    return tuple((name, value) for name, value in headers if name not in _HOP_BY_HOP and name not in named)


def override_header(headers: Headers) -> str | None:
    """Return a header that would make some servers use another method or path than the judged ones."""
    return next((name.decode() for name, _ in headers if name in _OVERRIDING), None)


def allowed_trailers(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if name not in _NEVER_TRAILING)


def request_authority(request: ParsedRequest) -> tuple[Host | None, int | None, bytes]:
    """Return the host and port that the request names, and its target in origin form. Raise BadRequest if it names
    two."""
    try:
        host, port = (None, None) if request.host is None else parse_authority(request.host)
        if request.target.startswith(b"/") or (request.target == b"*" and request.method == b"OPTIONS"):
            return host, port, request.target
        named, named_port, target = _absolute(request.target)
    except BadHost as error:
        raise BadRequest(f"its host is invalid: {error}") from None
    if host is not None and (host != named or port not in (None, named_port)):
        raise BadRequest("its target and its Host differ")
    return named, named_port, target


def _absolute(target: bytes) -> tuple[Host, int, bytes]:
    # a user (`http://allowed@127.0.0.1/`) or a backslash in the authority ends in BadHost: parsers differ on both
    match = re.fullmatch(rb"(?i:http)://([^/?#]+)([/?][^#]*)?", target)
    if match is None:
        raise BadRequest("its target is neither a path nor an http:// URL")
    host, port = parse_authority(match[1])
    rest = match[2] or b""
    return host, port or 80, rest if rest.startswith(b"/") else b"/" + rest
