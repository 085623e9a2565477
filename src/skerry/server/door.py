"""What each listener checks before anything else happens: the name it was called by, the page that called, who calls.

A listener knows its own transport from its making, not from the connection: the peer's address of a TCP connection
that was reset early can't be read, and would otherwise look like the unix socket's, which is admin.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skerry.errors import Denied
from skerry.server.answers import Unauthenticated, WrongHost
from skerry.server.call import Headers
from skerry.types import Caller, Scope

if TYPE_CHECKING:
    from skerry.engine.tokens import Tokens

LOCAL = Caller(owner="local", scope="admin")
RANKS: dict[Scope, int] = {"use": 0, "review": 1, "admin": 2}
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Door:
    """One listener. `hosts` None: a unix socket, where any one Host will do, since no web page can reach it."""

    tokens: Tokens
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = field(default_factory=frozenset)

    def check_source(self, headers: Headers, local_address: str | None) -> None:
        """Host and Origin, on every route and before any effect."""
        host = headers.get(b"host")
        if self.hosts is not None and not self._is_ours(host, local_address):
            raise WrongHost(
                f"this server is not called {(host or '')[:80]!r}",
                hint="add the name to listen.hosts in the server's settings" if host else "send a Host header",
            )
        origin = headers.get(b"origin")
        if origin is not None and origin not in self.origins:
            raise Denied(
                f"calls from the web origin {origin[:80]!r} are refused",
                hint="add it to listen.origins in the server's settings, if it is yours",
            )
        if origin is None and headers.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            raise Denied("calls from another web site are refused")

    def authenticate(self, headers: Headers) -> Caller | None:
        """Who calls. A token that is presented counts, also on the unix socket; without one only that is let in."""
        given = headers.get(b"authorization")
        if given is None:
            return LOCAL if self.hosts is None else None
        kind, _, secret = given.partition(" ")
        caller = self.tokens.authenticate(secret.strip()) if kind.lower() == "bearer" else None
        if caller is None:
            raise Unauthenticated("this token is not known", hint="`skerry token create` makes one")
        return caller

    def _is_ours(self, host: str | None, local_address: str | None) -> bool:
        match = _HOST.fullmatch(host or "")
        if match is None or self.hosts is None:
            return False
        name = canonical_host(match[1] or match[2])
        return name in self.hosts or ("*" in self.hosts and name == local_address)


def door_hosts(listen_host: str, names: Iterable[str]) -> frozenset[str]:
    """The names a TCP listener answers to. On a wildcard address: also the address a connection came in by."""
    listen_host = canonical_host(listen_host)
    wildcard = listen_host in ("0.0.0.0", "::", "")  # noqa: S104 -- compared with, not bound
    return LOOPBACK | {"*" if wildcard else listen_host} | {canonical_host(name) for name in names if name != "*"}


def canonical_host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower().removesuffix(".")


def check_scope(caller: Caller, needed: Scope) -> None:
    if RANKS[caller.scope] < RANKS[needed]:
        raise Denied(
            f"this needs a token with the scope {needed!r}; yours has {caller.scope!r}",
            hint=f"`skerry token create --scope {needed}`",
        )
