"""Where brokering, masking and inspection plug into HTTP mode: values and protocols, no I/O of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from skerry.network.worker.streams import Stream

Headers = tuple[tuple[bytes, bytes], ...]  # names in lower case, each line on its own, in order


@dataclass(frozen=True)
class RequestHead:
    """A request as it was judged. `target` is in origin form ("/path?query", or "*"); what frames the body and what is
    hop-by-hop is not among the headers: HTTP mode writes that itself. `host` is in there as "host"."""

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
class Refusal:
    """A request that must not go on: 403 with `why` and `hint` in the body, and a record of it."""

    why: str
    hint: str | None = None
    rule: str | None = None
    status: int = 403


class Blocked(Exception):
    """Raised by a filter: what it was fed must not go on, nor anything after it. The connection ends on both sides."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal


class Filter(Protocol):
    """Changes a body on its way. `same_length`: it never changes how long the body is, so its length may stay told.
    After a 101 it is given the bytes of the stream that follows."""

    same_length: bool

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class Hooks(Protocol):
    """One for each connection. A filter that is None lets a body pass as it is, by the fast way."""

    def on_request(self, head: RequestHead) -> RequestHead | Refusal: ...

    def on_response(self, request: RequestHead, head: ResponseHead) -> ResponseHead | Refusal: ...

    def request_filter(self, head: RequestHead) -> Filter | None: ...

    def response_filter(self, request: RequestHead, head: ResponseHead) -> Filter | None: ...

    def secrets(self) -> tuple[str, ...]:
        """The names of the secrets that the last request was given."""
        ...


class Inspection(Protocol):
    """Ends TLS on both sides for hosts whose requests must be seen. One for each sandbox. `host` is the name (or
    address) as `str(Host)` gives it; SNI agreed with it already."""

    async def accept(self, client: Stream, host: str) -> Stream: ...

    async def connect(self, upstream: Stream, host: str) -> Stream:
        """Raises OSError (ssl.SSLError is one) if the other side can't show a certificate for `host`."""
        ...

    def hooks(self, host: str, port: int, tls: bool) -> Hooks | None:
        """For one connection in HTTP mode, also one that came without TLS; None: nothing to do there."""
        ...

    def wire(self) -> Filter | None:
        """For what leaves by a connection that is neither HTTP nor TLS."""
        ...
