"""The effects of handlers on requests and responses. Pure.

A handler sees a request before secrets are injected, and a response after they were masked. Its output is judged like a
request of the program: by the policy and the rules of secrets, for the host that it really goes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from skerry.network.worker.http.filters import FilterDenial, Headers, RequestHead, ResponseHead
from skerry.network.worker.http.headers import MAX_HEAD
from skerry.types import Handler
from skerry.types.handlers import HttpHeaders, is_fixed, parse_redirect
from skerry.types.hosts import Host, show_host

_DEFAULT_PORTS: Final = {True: 443, False: 80}


@dataclass(frozen=True)
class Destination:
    """The place that a request is sent to."""

    host: Host
    port: int
    tls: bool

    @property
    def place(self) -> tuple[Host, int]:
        return self.host, self.port

    @property
    def authority(self) -> bytes:
        """The value of Host."""
        return show_host(self.host, None if self.port == _DEFAULT_PORTS[self.tls] else self.port).encode()

    def redirected(self, target: str) -> Destination:
        tls, host, port = parse_redirect(target)
        tls = self.tls if tls is None else tls
        return Destination(host, port or _DEFAULT_PORTS[tls], tls)


def change_headers(headers: Headers, changed: dict[str, str], added: dict[str, str], removed: Iterable[str]) -> Headers:
    """Remove, then replace, then add headers."""
    gone = {_name(name) for name in (*removed, *changed)}
    kept = tuple((name, value) for name, value in headers if name not in gone)
    return (*kept, *encode_headers((*changed.items(), *added.items())))


def encode_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    return tuple((_name(name), value.encode("latin-1")) for name, value in headers)


def decode_headers(headers: Headers) -> HttpHeaders:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def shown_headers(headers: Headers) -> Headers:
    """Return the headers that a client's handler sees and may change."""
    return tuple((name, value) for name, value in headers if not is_fixed(name.decode("latin-1")))


def _name(name: str) -> bytes:
    return name.lower().encode()


def with_request_changes(handler: Handler, head: RequestHead) -> RequestHead:
    headers = change_headers(head.headers, handler.set_headers, handler.add_headers, handler.remove_headers)
    return replace(head, headers=headers)


def with_response_changes(handler: Handler, head: ResponseHead) -> ResponseHead:
    headers = change_headers(
        head.headers, handler.response_set_headers, handler.response_add_headers, handler.response_remove_headers
    )
    return replace(head, headers=headers)


def routed(head: RequestHead, destination: Destination) -> RequestHead:
    """Return the head with the Host of its new destination, first as servers expect it."""
    return replace(head, headers=((b"host", destination.authority), *((n, v) for n, v in head.headers if n != b"host")))


def size_denial(headers: Headers) -> FilterDenial | None:
    """Return a denial for a head that a handler made too long."""
    if sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD - 1024:
        return FilterDenial(why="its handler made the head too long", status=502)
    return None
