"""Checks of a listener before any effect: the Host name, the origin of the calling web page, the token.

A listener gets its transport at construction, not from the connection: the peer address of a TCP connection that was
reset early cannot be read and would look like the unix socket's, whose user is admin.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skerry.errors import PermissionDenied
from skerry.server.http.call import Headers
from skerry.server.http.responses import MisdirectedRequest, Unauthenticated
from skerry.types import Caller, Scope

if TYPE_CHECKING:
    from skerry.engine.tokens import Tokens

LOCAL = Caller(owner="local", scope="admin")
# The scopes of routes that a token's scope includes. The figures of all owners are not for `use` and `review`.
GRANTS: dict[Scope, frozenset[Scope]] = {
    "metrics": frozenset(("metrics",)),
    "use": frozenset(("use",)),
    "review": frozenset(("use", "review")),
    "admin": frozenset(("metrics", "use", "review", "admin")),
}
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_TERMINAL = re.compile(r"/v1/sandboxes/([^/]+)/processes/[^/]+/terminal")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Authenticator:
    """The checks of one listener. `hosts` None: a unix socket, which accepts any Host, since no web page can reach
    it."""

    tokens: Tokens
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = field(default_factory=frozenset)
    domain: str | None = None  # names below it are allowed too
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    def client_of(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the address of the client: the peer, or, behind trusted proxies, the last address of X-Forwarded-For
        that is not a trusted proxy's. Each proxy appends its peer: everything before the first untrusted address from
        the end, or before text that is no address, is a claim of the client."""
        client = _address(peer)
        hops = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1").split(",")
        while client is not None and hops and any(client in network for network in self.proxies):
            peer, client = str(client), _address(hops.pop().strip(" \t"))
        return peer if client is None else str(client)

    def check_source(self, headers: Headers, local_address: str | None) -> None:
        """Check Host and Origin, on every route and before any effect."""
        host = headers.get(b"host")
        if self.hosts is not None and not self._is_allowed(host, local_address):
            raise MisdirectedRequest(
                f"the Host {(host or '')[:80]!r} is not allowed",
                hint="add the name to server.allowed_hosts in the server's settings" if host else "send a Host header",
            )
        origin = headers.get(b"origin")
        if origin is not None and origin not in self.origins:
            raise PermissionDenied(
                f"permission denied for the web origin {origin[:80]!r}",
                hint="add your own origins to server.allowed_origins in the server's settings",
            )
        if origin is None and headers.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            raise PermissionDenied("permission denied for requests from another web site")

    def page(self, headers: Headers) -> str | None:
        """Return the origin of the web page that calls, if it may use the API."""
        origin = headers.get(b"origin")
        return origin if origin in self.origins else None

    def authenticate(self, headers: Headers, path: str) -> Caller | None:
        """Return the caller. A token counts on every transport; without a token only the unix socket has a caller. A
        browser cannot set headers of a WebSocket except its protocols: they may have a token, or a ticket."""
        given = headers.get(b"authorization")
        if given is None:
            return self._by_protocol(headers, path) or (LOCAL if self.hosts is None else None)
        kind, _, secret = given.partition(" ")
        caller = self.tokens.authenticate(secret.strip()) if kind.lower() == "bearer" else None
        if caller is None:
            raise Unauthenticated("unknown token", hint="create one with `skerry token create`")
        return caller

    def _by_protocol(self, headers: Headers, path: str) -> Caller | None:
        for word in (headers.get(b"sec-websocket-protocol") or "").split(","):
            kind, dot, secret = word.strip().removeprefix("skerry.").partition(".")
            if not dot or kind not in ("token", "ticket"):
                continue
            terminal = _TERMINAL.fullmatch(path)
            sandbox = terminal[1] if terminal is not None else ""  # elsewhere a ticket is used up without effect
            caller = self.tokens.authenticate(secret) if kind == "token" else self.tokens.redeem(secret, sandbox)
            if caller is None:
                raise Unauthenticated(f"unknown {kind}", hint="a ticket is valid once, for a minute and one sandbox")
            return caller
        return None

    def _is_allowed(self, host: str | None, local_address: str | None) -> bool:
        match = _HOST.fullmatch(host or "")
        if match is None or self.hosts is None:
            return False
        name = canonical_host(match[1] or match[2])
        below = self.domain is not None and name.endswith(f".{self.domain}")
        return name in self.hosts or ("*" in self.hosts and name == local_address) or below


def allowed_hosts(listen_host: str, names: Iterable[str]) -> frozenset[str]:
    """Return the Host names of a TCP listener. A wildcard address also allows the local address of a connection."""
    listen_host = canonical_host(listen_host)
    wildcard = listen_host in ("0.0.0.0", "::", "")  # noqa: S104 -- a comparison, not a bind
    return LOOPBACK | {"*" if wildcard else listen_host} | {canonical_host(name) for name in names if name != "*"}


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address; IPv4 within IPv6 is IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or (address if address.scope_id is None else None)
    return address


def canonical_host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower().removesuffix(".")


def check_scope(caller: Caller, needed: Scope) -> None:
    if needed not in GRANTS[caller.scope]:
        raise PermissionDenied(
            f"permission denied: the scope {needed!r} is required; this token has {caller.scope!r}",
            hint=f"`skerry token create --scope {needed}`",
        )
