"""The compiled egress policy of a sandbox. Pure: a decision takes a few dictionary look-ups.

The order: `deny`, peers, `allow` (and the hosts of secrets), then `on_unknown`; then the operator's ceiling; and once
an address is known, whether it is closed and, if so, whether a rule names it. An address that leads to this host
(loopback, its own addresses, link-local, metadata) must also be named by the ceiling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from skerry.network.messages import Rules
from skerry.network.policy.handlers import handled_places
from skerry.network.policy.paths import plain_path
from skerry.network.policy.rules import (
    ALL_PORTS,
    METHODS,
    WEB_PORTS,
    Ports,
    Range,
    narrowest_rule,
    parse_proxy,
    parse_rule,
    parse_secret_host,
    show_ports,
)
from skerry.network.policy.tables import RuleEntry, RuleTable, make_entry, opens_closed
from skerry.types.hosts import (
    Address,
    Host,
    Name,
    carried,
    closed,
    is_sandbox_itself,
    leads_to_host,
    show_host,
)

_TLS: Final[Ports] = ((443, 443),)
_ABOVE_CEILING: Final = "the operator's max.network does not cover it"
_CEILING_HINT: Final = "max.network in the server's settings must name it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rule`: the deciding rule. `unknown`: no rule names the destination and `on_unknown` is not "deny": it is either
    allowed in order to learn, or denied unless an approval allows it."""

    allowed: bool
    why: str
    rule: str | None = None
    hint: str | None = None
    unknown: bool = False


class Policy:
    def __init__(
        self, *, allow: RuleTable, deny: RuleTable, ceiling: RuleTable, inspect: RuleTable, secret: RuleTable,
        mirror: RuleTable, peers: dict[str, str], proxies: tuple[tuple[RuleTable, str], ...],
        on_unknown: Literal["deny", "ask", "learn"],
    ) -> None:  # fmt: skip
        self._allow, self._deny, self._ceiling = allow, deny, ceiling
        self._inspect, self._secret, self._mirror = inspect, secret, mirror
        self._peers, self._proxies, self._on_unknown = peers, proxies, on_unknown
        self._proxy_hosts = tuple(dict.fromkeys(parse_proxy(proxy) for _, proxy in proxies))
        self._upstreams = frozenset(_proxy_endpoints(self._proxy_hosts, allow))

    @classmethod
    def compile(cls, rules: Rules, ceiling: tuple[str, ...] = ("*",)) -> Policy:
        """Compile the rules. Raise InvalidRequest for an invalid rule: half a policy is never in force."""
        secret = [
            make_entry(parse_secret_host(host), _TLS, f"secret {secret.name}")
            for secret in rules.secrets
            for host in secret.hosts
        ]
        allow = RuleTable.parse(rules.allow, "network.allow", WEB_PORTS)
        for entry in secret:
            allow.add(entry)
        inspect = RuleTable.parse(rules.inspect, "network.inspect", _TLS)
        for entry in handled_places(rules.handlers, rules.mirror):
            inspect.add(entry)
        return cls(
            allow=allow,
            deny=RuleTable.parse(rules.deny, "network.deny", ALL_PORTS),
            ceiling=RuleTable.parse(ceiling, "max.network", WEB_PORTS),
            inspect=inspect,
            secret=RuleTable.of(secret),
            mirror=RuleTable.parse(rules.mirror, "network.mirror", WEB_PORTS),
            peers=dict(rules.peers),
            proxies=tuple((RuleTable.parse(these, "proxies", WEB_PORTS), proxy) for these, proxy in rules.proxies),
            on_unknown=rules.on_unknown,
        )

    # -- before an address is known ----------------------------------------------------------------------------------

    def name(self, host: Host) -> Verdict:
        """Decide whether this name may be looked up, for any port."""
        if not isinstance(host, Name):
            return Verdict(False, "addresses are not looked up")
        for entry in self._deny.matching(host):
            if entry.ports == ALL_PORTS and not entry.rule.restricted:
                return _denied_by(entry, host, None)
        if host in self._peers:
            return Verdict(True, f"the sandbox's peer {host}", f"peer {host}")
        entry_or_none = next(self._allow.matching(host), None)
        if entry_or_none is not None:
            verdict = Verdict(True, f"allowed by {entry_or_none.text}", entry_or_none.text)
        elif self._on_unknown == "ask":
            verdict = Verdict(True, "no rule names it: connecting needs an approval", unknown=True)
        else:
            verdict = self._unknown(host, None)
        if verdict.allowed and next(self._ceiling.matching(host), None) is None:
            return Verdict(False, _ABOVE_CEILING, None, _CEILING_HINT)
        return verdict

    def connect(self, host: Host, port: int) -> Verdict:
        """Decide whether anything may be sent to this host and port, before its address is known. Rules that look at
        requests count as allowing. Two are always denied, even if a rule names them: the sandbox itself, for which the
        proxy would dial this host's loopback, and an upstream proxy, which would lead anywhere."""
        if is_sandbox_itself(host):
            return Verdict(False, f"{show_host(host)} is the sandbox itself", None, "connect to it without the proxy")
        return proxy_denied(host, port) if (host, port) in self._upstreams else self.upstream(host, port)

    def upstream(self, host: Host, port: int) -> Verdict:
        """Decide like `connect`, for the worker itself, which reaches hosts through an upstream proxy."""
        for entry in self._deny.matching(host):
            if not entry.rule.restricted and entry.covers_port(port):
                return _denied_by(entry, host, port)
        if self.peer(host) is not None:
            return Verdict(True, f"the sandbox's peer {host}", f"peer {host}")
        other_ports: RuleEntry | None = None
        verdict: Verdict | None = None
        for entry in self._allow.matching(host):
            if entry.covers_port(port):
                verdict = Verdict(True, f"allowed by {entry.text}", entry.text)
                break
            other_ports = other_ports or entry
        if verdict is None:
            verdict = self._unknown(host, port, other_ports)
        if (verdict.allowed or verdict.unknown) and not any(e.covers_port(port) for e in self._ceiling.matching(host)):
            return Verdict(False, _ABOVE_CEILING, None, _CEILING_HINT)
        return verdict

    def peer(self, host: Host) -> str | None:
        """Return the id of the sandbox that has this name as a peer."""
        return self._peers.get(host) if isinstance(host, Name) else None

    def _unknown(self, host: Host, port: int | None, other_ports: RuleEntry | None = None) -> Verdict:
        place = show_host(host, port)
        if not isinstance(host, Name) and (kind := closed(host)) is not None:
            # do not ask for approval: it could not open a closed address
            return self._denied_as_closed(host, port, host, kind)
        if self._on_unknown == "learn":
            return Verdict(True, f"no rule allows {place}: allowed in order to learn", unknown=True)
        why = f"no rule allows {place}"
        if other_ports is not None:
            why = f"{other_ports.text} allows port {show_ports(other_ports.ports)}, not {port}"
        return Verdict(False, why, None, f"--allow {narrowest_rule(host, port)}", unknown=self._on_unknown == "ask")

    # -- addresses -----------------------------------------------------------------------------------------------------

    def address(self, host: Host, port: int, address: Address, own: bool = False) -> Verdict:
        """Decide whether `host`, allowed by `connect` or by an approval, may be dialled at this address. `own`: it is
        an address of this host."""
        if (address, port) in self._upstreams and (host, port) not in self._upstreams:
            return proxy_denied(host, port)
        for one in (address, *carried(address)):  # a NAT64 or 6to4 gateway would lead there
            for entry in self._deny.containing(one):
                if not entry.rule.restricted and entry.covers_port(port):
                    return _denied_by(entry, host, port)
        kind = closed(address) or ("this host's own" if own else None)
        if kind is None:
            return Verdict(True, f"{address} is not a closed address")
        named = next(_entries_opening(self._allow, host, port, address), None)
        if named is None:
            return self._denied_as_closed(host, port, address, kind, own)
        if not self._ceiling_opens(host, port, address, own):
            if own or leads_to_host(address):
                return _denied_as_hosts(host, port, address, kind)
            return Verdict(False, _ABOVE_CEILING, None, _CEILING_HINT)
        return Verdict(True, f"{address} ({kind}) is named by {named.text}", named.text)

    def _ceiling_opens(self, host: Host, port: int, address: Address, own: bool) -> bool:
        """Return whether the ceiling permits this closed address. The ceiling must name an address that leads to this
        host, and this host's own addresses alone, never as part of a range. For other closed addresses, a ceiling
        without `@` leaves them to the policies below it; a ceiling with `@` lists them."""
        if own or leads_to_host(address):
            return any(_entries_opening(self._ceiling, host, port, address, alone=not leads_to_host(address)))
        matching = [entry for entry in self._ceiling.matching(host) if entry.covers_port(port)]
        return any(not entry.rule.at for entry in matching) or any(_entries_opening(self._ceiling, host, port, address))

    def _denied_as_closed(
        self, host: Host, port: int | None, address: Address, kind: str, own: bool = False
    ) -> Verdict:
        if (own or leads_to_host(address)) and (port is None or not self._ceiling_opens(host, port, address, own)):
            return _denied_as_hosts(host, port, address, kind)
        why = f"{_at(host, port, address)} a closed address ({kind})"
        if isinstance(host, Name):
            why += ": a name alone does not open it"
        return Verdict(False, why, None, f"--allow {narrowest_rule(host, port, address)}")

    # -- requests ------------------------------------------------------------------------------------------------------

    def request(self, host: Host, port: int, method: str, path: str, tls: bool = False) -> Verdict:
        """Decide whether this request may be sent to a host that `connect` allowed. A request that no rule names is
        decided like the connection."""
        if (host, port) in self._upstreams:
            return proxy_denied(host, port)
        plain = plain_path(path)
        for entry in self._deny.matching(host):
            if entry.covers_port(port) and entry.may_match_request(method, plain):
                return _denied_by(entry, host, port)
        if self.peer(host) is not None:
            return Verdict(True, f"the sandbox's peer {host}", f"peer {host}")
        limited: RuleEntry | None = None
        for entry in self._allow.matching(host):
            if entry.covers_port(port):
                if entry.matches_request(method, plain):
                    return self._under_ceiling(entry, host, port, method, plain)
                limited = limited or entry
        if limited is None:
            return self._unnamed(host, port, method, plain)
        odd = ", and its path is not plain" if plain is None else ""
        methods = (method,) if method in METHODS else ()  # a rule cannot name other methods
        at = limited.rule.at if isinstance(host, Name) else ()
        more = parse_rule(narrowest_rule(host, port))._replace(methods=methods, at=at)
        return Verdict(False, f"{limited.text} does not allow this request{odd}", limited.text, f'--allow "{more}"')

    def _under_ceiling(self, entry: RuleEntry, host: Host, port: int, method: str, path: str | None) -> Verdict:
        if self._ceiling_matches(host, port, method, path):
            return Verdict(True, f"allowed by {entry.text}", entry.text)
        return Verdict(False, _ABOVE_CEILING, None, _CEILING_HINT)

    def _unnamed(self, host: Host, port: int, method: str, path: str | None) -> Verdict:
        """Decide a request that no rule names. The operator's ceiling also limits requests that are allowed in order to
        learn, or by an approval."""
        verdict = self.connect(host, port)
        if (verdict.allowed or verdict.unknown) and not self._ceiling_matches(host, port, method, path):
            return Verdict(False, _ABOVE_CEILING, None, _CEILING_HINT)
        return verdict

    def _ceiling_matches(self, host: Host, port: int, method: str, path: str | None) -> bool:
        return any(
            entry.covers_port(port) and entry.matches_request(method, path) for entry in self._ceiling.matching(host)
        )

    def requests_only(self, host: Host, port: int) -> bool:
        """Return whether rules look at this host's requests. Then only readable requests may pass, and TLS must be
        intercepted."""
        if any(e.rule.restricted and e.covers_port(port) for e in self._deny.matching(host)):
            return True
        return _all_restricted(self._allow, host, port) or _all_restricted(self._ceiling, host, port)

    def intercepts_tls(self, host: Host, port: int) -> bool:
        """Return whether the host's TLS is intercepted: for a secret, because of `inspect`, a handler or `mirror`, or
        because rules look at its requests."""
        if any(e.covers_port(port) for table in (self._secret, self._inspect) for e in table.matching(host)):
            return True
        return self.requests_only(host, port)

    def mirrors(self, host: Host, port: int) -> bool:
        """Return whether the exchanges with this host are written to the trace."""
        return any(entry.covers_port(port) for entry in self._mirror.matching(host))

    def proxies_on(self, port: int) -> tuple[Host, ...]:
        """Return the upstream proxies that listen on this port: a connection to this port must reach none of them."""
        return tuple(host for host, number in self._proxy_hosts if number == port)

    def proxy_for(self, host: Host, port: int) -> str | None:
        """Return the upstream proxy for this host. The proxy is subject to the same rules: `upstream`, then
        `address`."""
        for table, proxy in self._proxies:
            if any(entry.covers_port(port) for entry in table.matching(host)):
                return proxy
        return None


def _all_restricted(table: RuleTable, host: Host, port: int) -> bool:
    matching = [entry for entry in table.matching(host) if entry.covers_port(port)]
    return bool(matching) and all(entry.rule.restricted for entry in matching)


def _entries_opening(
    table: RuleTable, host: Host, port: int, address: Address, alone: bool = False
) -> Iterator[RuleEntry]:
    """Yield the entries that name this closed address for this host and port. `alone`: not as part of a range."""

    def opens(range_: Range) -> bool:
        return opens_closed(range_, address) and (not alone or range_.num_addresses == 1)

    if isinstance(host, Name):
        for entry in table.matching(host):
            if entry.covers_port(port) and any(map(opens, entry.rule.at)):
                yield entry
    for entry in table.containing(address):
        if entry.covers_port(port) and entry.rule.range is not None and opens(entry.rule.range):
            yield entry


def _proxy_endpoints(proxies: Sequence[tuple[Host, int]], allow: RuleTable) -> Iterator[tuple[Host, int]]:
    """Yield the upstream proxies and the addresses that rules name for them, so that no other name leads there
    either."""
    for host, port in proxies:
        yield host, port
        for entry in allow.matching(host):
            if entry.covers_port(port):
                yield from ((at.network_address, port) for at in entry.rule.at if at.num_addresses == 1)


def proxy_denied(host: Host, port: int) -> Verdict:
    return Verdict(False, f"{show_host(host, port)} is an upstream proxy, which sandboxes may not use")


def _denied_as_hosts(host: Host, port: int | None, address: Address, kind: str) -> Verdict:
    """Deny a closed address that leads to this host: a rule of the sandbox alone does not open it."""
    why = f"{_at(host, port, address)} a closed address ({kind}) that the operator's max.network does not name"
    return Verdict(False, why, None, f"{_CEILING_HINT}: {narrowest_rule(host, port, address)}")


def _at(host: Host, port: int | None, address: Address) -> str:
    return f"{show_host(host, port)} is at {address}," if isinstance(host, Name) else f"{show_host(host, port)} is"


def _denied_by(entry: RuleEntry, host: Host, port: int | None) -> Verdict:
    return Verdict(False, f"{show_host(host, port)} is denied by {entry.text}", entry.text,
                   f"deny wins: take {entry.text} out of deny")  # fmt: skip
