"""Egress handlers: rules that change, redirect or answer the HTTP requests of a sandbox, and calls of a client's
handler."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import force_setattr, replace

from skerry.errors import InvalidRequest
from skerry.types.hosts import BadHost, Host, parse_authority
from skerry.types.values import Answer, Value, parse_span, readable_size

MAX_HANDLERS = 64
MAX_HANDLER_HEADERS = 32
MAX_HANDLER_TEXT = 32 << 10  # characters of the headers of one handler, or of one message
MAX_LOCAL_BODIES = 64 << 10  # bytes of all local answers of a policy: they are part of each description of the sandbox
MAX_HANDLER_BODY = 1 << 20  # bytes of a body that a client's handler receives or returns
MAX_HANDLER_TIMEOUT_S = 300.0
HANDLER_TIMEOUT_S = 30.0
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
_REASON = re.compile(r"[\x20-\x7e]{0,100}")
_TARGET = re.compile(r"(?:(http|https)://)?([^/?#@\s]+)/?")
_BODILESS = (204, 304)
# Headers that frame a message, that concern one connection, or that route a request: the proxy writes them itself, and
# two readers of a request with others could disagree about its end (request smuggling).
_FIXED = frozenset((
    "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
HttpHeaders = tuple[tuple[str, str], ...]
if TYPE_CHECKING:  # a list of names and a dictionary of headers are accepted, and stored as tuples
    Names = Sequence[str]
    GivenHeaders = Any
else:
    Names = tuple[str, ...]
    GivenHeaders = HttpHeaders | dict[str, str]


def check_headers(what: str, headers: HttpHeaders, max_headers: int = 500) -> None:
    """Raise InvalidRequest for a header that could change the framing or the route of a message."""
    if len(headers) > max_headers or sum(len(name) + len(value) for name, value in headers) > MAX_HANDLER_TEXT:
        raise InvalidRequest(f"{what}: too many headers, or too long", hint=f"at most {max_headers} headers")
    for name, value in headers:
        check_header_name(what, name)
        if not _VALUE.fullmatch(value):
            raise InvalidRequest(f"{what}: the value of {name} is not allowed", hint="one line, no blank at either end")


def is_fixed(name: str) -> bool:
    """Return whether a handler can neither see nor change this header. Some servers read an underscore as a dash."""
    return name.lower().replace("_", "-") in _FIXED


def check_header_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{what}: {name[:60]!r} is not the name of a header", hint='like "X-Team"')
    if is_fixed(name):
        raise InvalidRequest(
            f"{what}: {name} cannot be changed", hint="the proxy writes the headers that frame and route a message"
        )


class HttpResponse(Value, frozen=True, kw_only=True):
    """A response. `body`: None if the handler does not receive or change it. Content-Length is not a
    header here: it follows from the body."""

    status: int = 200
    headers: GivenHeaders = ()
    body: bytes | None = None

    def __post_init__(self) -> None:
        given = self.headers.items() if isinstance(self.headers, dict) else self.headers
        force_setattr(self, "headers", tuple((name, value) for name, value in given))
        if isinstance(self.body, str):
            force_setattr(self, "body", self.body.encode())
        if isinstance(self.status, bool) or not 200 <= self.status <= 599:
            raise InvalidRequest(f"status: {self.status!r} is not the status of a response", hint="200 to 599")
        if self.body is not None and len(self.body) > MAX_HANDLER_BODY:
            raise InvalidRequest(f"body: larger than {readable_size(MAX_HANDLER_BODY)}")
        if self.body and self.status in _BODILESS:
            raise InvalidRequest(f"status: a response with status {self.status} has no body")
        check_headers("headers", self.headers)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, status: int = 200) -> HttpResponse:
        """Return a response with the content of a file of this machine; its name determines the Content-Type."""
        with open(path, "rb") as file:
            body = file.read(MAX_HANDLER_BODY + 1)
        kind = mimetypes.guess_type(Path(path).name)[0] or "application/octet-stream"
        return cls(status=status, headers=(("Content-Type", kind),), body=body)

    def header(self, name: str) -> str | None:
        return find_header(self.headers, name)

    def with_header(self, name: str, value: str) -> HttpResponse:
        return replace(self, headers=with_header(self.headers, name, value))

    def without_header(self, name: str) -> HttpResponse:
        return replace(self, headers=without_header(self.headers, name))


class HttpRequest(Answer, frozen=True, kw_only=True):
    """A request of a program in a sandbox, before secrets are injected. `headers`: without Host and the headers that
    frame a message. `body`: only for a handler with `bodies=True`. `redirect`: its new destination."""

    method: str
    url: str
    headers: HttpHeaders = ()
    body: bytes | None = None
    process: str | None = None
    redirect: str | None = None

    def header(self, name: str) -> str | None:
        return find_header(self.headers, name)

    def with_header(self, name: str, value: str) -> HttpRequest:
        """Return the request with this header in place of all others of its name."""
        return replace(self, headers=with_header(self.headers, name, value))

    def without_header(self, name: str) -> HttpRequest:
        return replace(self, headers=without_header(self.headers, name))

    def redirect_to(self, target: str) -> HttpRequest:
        """Return the request for another host: "staging.example.com", "http://mock:8080"."""
        parse_redirect(target)
        return replace(self, redirect=target)


def find_header(headers: HttpHeaders, name: str) -> str | None:
    return next((value for key, value in headers if key.lower() == name.lower()), None)


def with_header(headers: HttpHeaders, name: str, value: str) -> HttpHeaders:
    check_headers("header", ((name, value),))
    return (*without_header(headers, name), (name, value))


def without_header(headers: HttpHeaders, name: str) -> HttpHeaders:
    return tuple((key, value) for key, value in headers if key.lower() != name.lower())


def parse_redirect(target: str) -> tuple[bool | None, Host, int | None]:
    """Return whether the new destination uses TLS (None: as before), its host, and its port (None: the default)."""
    match = _TARGET.fullmatch(target) if len(target) <= 300 else None
    try:
        if match is None:
            raise BadHost("it is not a host")
        host, port = parse_authority(match[2])
        if port == 0:
            raise BadHost("0 is no port")
    except BadHost as error:
        raise InvalidRequest(
            f"redirect: {target[:80]!r}: {error}", hint='like "staging.example.com" or "http://mock:8080"; no path'
        ) from None
    return None if match[1] is None else match[1] == "https", host, port


class Handler(Value, frozen=True, kw_only=True):
    """A rule that changes HTTP requests. It opens nothing: the policy must allow the host, and for a `redirect` the new
    host too. `host`: `[METHODS ]HOST[:PORTS][/PATH]`, like a rule of `Network.allow`; the first handler that covers a
    request handles it. `set_headers` replaces headers, `add_headers` adds them, `remove_headers` removes them; the
    fields with `response_` do so in the response. `redirect`: send the request to another host. `answer`: answer it
    without sending it. `callback`: a client decides about requests, responses or both, within `timeout` seconds;
    without the client, the requests fail. `bodies`: the client receives bodies of up to 1 MiB."""

    host: str
    set_headers: dict[str, str] = {}
    add_headers: dict[str, str] = {}
    remove_headers: Names = ()
    response_set_headers: dict[str, str] = {}
    response_add_headers: dict[str, str] = {}
    response_remove_headers: Names = ()
    redirect: str | None = None
    answer: HttpResponse | None = None
    callback: Literal["request", "response", "both"] | None = None
    timeout: str | int | float | None = None
    bodies: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not 0 < len(self.host) <= 2048:
            raise InvalidRequest("network.handlers: a handler without a host", hint='host="api.example.com"')
        what = f"network.handlers: {self.host[:80]}"
        for name in ("remove_headers", "response_remove_headers"):
            force_setattr(self, name, _names(f"{what}: {name}", getattr(self, name)))
        for name in ("set_headers", "add_headers", "response_set_headers", "response_add_headers"):
            check_headers(f"{what}: {name}", tuple(getattr(self, name).items()), MAX_HANDLER_HEADERS)
        self._check_effects(what)
        if self.redirect is not None:
            parse_redirect(self.redirect)
        if self.timeout is not None and parse_span(self.timeout, f"{what}: timeout") > MAX_HANDLER_TIMEOUT_S:
            raise InvalidRequest(f"{what}: timeout: {self.timeout} is more than {MAX_HANDLER_TIMEOUT_S:g} s")

    def _check_effects(self, what: str) -> None:
        if sum(effect is not None for effect in (self.redirect, self.answer, self.callback)) > 1:
            raise InvalidRequest(f"{what}: redirect, answer and callback exclude each other")
        if (self.answer is not None or self.callback is not None) and self.changes_headers:
            raise InvalidRequest(
                f"{what}: header changes cannot be combined with an answer or a callback",
                hint="an answer has its own headers, and a callback can change them",
            )
        if not (self.changes_headers or self.redirect or self.answer or self.callback):
            raise InvalidRequest(f"{what}: it has no effect", hint="set_headers, redirect, answer, …")
        if self.callback is None and (self.timeout is not None or self.bodies):
            raise InvalidRequest(f"{what}: timeout and bodies belong to a callback")

    @property
    def name(self) -> str:
        """Return its host and its redirect: what the audit log records."""
        return self.host if self.redirect is None else f"{self.host} redirect {self.redirect}"

    @property
    def changes_headers(self) -> bool:
        return bool(
            self.set_headers or self.add_headers or self.remove_headers
            or self.response_set_headers or self.response_add_headers or self.response_remove_headers
        )  # fmt: skip

    @property
    def timeout_s(self) -> float:
        return HANDLER_TIMEOUT_S if self.timeout is None else parse_span(self.timeout)

    @property
    def calls_for_requests(self) -> bool:
        return self.callback in ("request", "both")

    @property
    def calls_for_responses(self) -> bool:
        return self.callback in ("response", "both")


def _names(what: str, names: object) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, (tuple, list)) or len(names) > MAX_HANDLER_HEADERS:
        raise InvalidRequest(f"{what}: not a list of at most {MAX_HANDLER_HEADERS} names", hint='like ["X-Debug"]')
    for name in names:
        check_header_name(what, name if isinstance(name, str) else repr(name))
    return tuple(names)


def check_handlers(handlers: tuple[Handler, ...]) -> None:
    """Check the handlers of a policy together."""
    if len(handlers) > MAX_HANDLERS:
        raise InvalidRequest(f"network.handlers: more than {MAX_HANDLERS}")
    for handler in handlers:
        if not isinstance(handler, Handler):
            raise InvalidRequest(f"network.handlers: a {type(handler).__name__} is not a Handler")
    bodies = sum(len(handler.answer.body or b"") for handler in handlers if handler.answer is not None)
    if bodies > MAX_LOCAL_BODIES:
        raise InvalidRequest(
            f"network.handlers: the bodies of their answers are larger than {readable_size(MAX_LOCAL_BODIES)}",
            hint="sandbox.network.handle(host, callable) answers with larger bodies",
        )


class HandlerCall(Answer, frozen=True, kw_only=True):
    """A request, or with `response` a response, that waits for the decision of a client's handler."""

    id: str
    sandbox: str
    host: str
    request: HttpRequest
    ends_at: float
    response: HttpResponse | None = None


class HandlerDecision(Value, frozen=True, kw_only=True):
    """POST …/network/handlers/{call}. Without any field, the message passes unchanged. `headers`: all headers of the
    request. `redirect`: its new destination. `response`: the answer in place of the host's; for a response without a
    body, its headers only. `error`: the handler failed, and the request fails with it."""

    headers: HttpHeaders | None = None
    redirect: str | None = None
    response: HttpResponse | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.headers is not None:
            check_headers("headers", self.headers)
        if self.redirect is not None:
            parse_redirect(self.redirect)
        if self.response is not None and (self.headers is not None or self.redirect is not None):
            raise InvalidRequest("response: it excludes headers and redirect")
