"""The interface between the HTTP proxy and secret injection, masking and TLS interception: values and protocols without
I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from skerry.network.worker.streams import ByteStream

if TYPE_CHECKING:
    from skerry.network.worker.secrets.masking import SecretPatterns

Headers = tuple[tuple[bytes, bytes], ...]  # names in lower case, in order, repeated headers separately


@dataclass(frozen=True)
class RequestHead:
    """A request as it was judged. `target` is in origin form ("/path?query", or "*"). `headers` includes "host" and
    excludes framing and hop-by-hop headers, which the HTTP proxy writes itself."""

    method: bytes
    target: bytes
    headers: Headers
    body: bool = False  # whether one follows


@dataclass(frozen=True)
class ResponseHead:
    status: int
    reason: bytes
    headers: Headers


@dataclass(frozen=True)
class FilterDenial:
    """A request that must not be sent: answered with 403, `why` and `hint`, and recorded."""

    why: str
    hint: str | None = None
    rule: str | None = None
    status: int = 403


class BlockedByFilter(Exception):
    """Raised by a filter: these bytes and all after them must not pass. The connection ends on both sides."""

    def __init__(self, denial: FilterDenial) -> None:
        super().__init__(denial.why)
        self.denial = denial


class BodyFilter(Protocol):
    """Changes a body in transit. `same_length`: it never changes the body's length, so Content-Length may stay. After a
    101 it filters the following stream."""

    same_length: bool

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class ResponseStep(Protocol):
    """A step after the filters: it may wait for a decision about the response, and replace its body."""

    @property
    def needs_response_body(self) -> bool: ...

    async def on_response(self, head: ResponseHead, body: bytes | None) -> tuple[ResponseHead, bytes | None]:
        """Raise BlockedByFilter if the response must not pass."""
        ...


class ExchangeCopy(Protocol):
    """Copies an exchange in transit, as the client sends and receives it."""

    def request_filter(self, inner: BodyFilter | None) -> BodyFilter | None: ...

    def start(self, head: ResponseHead, length: int | None) -> None:
        """Copy the head of the response. `length`: of its body, if known."""
        ...

    def switched(self, head: ResponseHead) -> None:
        """A 101 has come: the exchange becomes a WebSocket."""
        ...

    def data(self, data: bytes) -> None:
        """Copy bytes of the response's body."""
        ...

    def finish(self, whole: bool) -> None:
        """`whole`: the whole request was sent before the response ended."""
        ...


class HttpFilters(Protocol):
    """The filters of one connection. Without a body filter a body passes unchanged, on the fast path."""

    def on_request(self, head: RequestHead) -> RequestHead | FilterDenial: ...

    def on_response(self, request: RequestHead, head: ResponseHead) -> ResponseHead | FilterDenial: ...

    def request_filter(self, head: RequestHead) -> BodyFilter | None: ...

    def response_filter(self, request: RequestHead, head: ResponseHead) -> BodyFilter | None: ...

    def secrets(self) -> tuple[str, ...]:
        """Return the names of the secrets in the last request."""
        ...


class Interceptor(Protocol):
    """Terminates TLS on both sides for hosts whose requests must be seen. One per sandbox. `host` is the name (or
    address) as `str(Host)` gives it; the SNI has been checked against it."""

    async def accept(self, client: ByteStream, host: str) -> ByteStream: ...

    async def connect(self, upstream: ByteStream, host: str, port: int) -> ByteStream:
        """Raise OSError (ssl.SSLError is one) if the peer has no valid certificate for `host`. `port`: for which it
        receives secrets, or not."""
        ...

    def filters(self, host: str, port: int, tls: bool) -> HttpFilters | None:
        """Return the filters for one HTTP connection, with or without TLS; None if it needs none."""
        ...

    def patterns(self) -> SecretPatterns | None:
        """Return the texts of all secrets, which no cassette may contain; None without secrets."""
        ...

    def raw_filter(self) -> BodyFilter | None:
        """Return a filter for outgoing bytes of a connection that is neither HTTP nor TLS."""
        ...
