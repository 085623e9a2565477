"""What may leave a sandbox, decided. Pure and compiled: a decision takes a few dictionary look-ups.

The order: `deny`, peers, `allow` (and the hosts of secrets), then `on_unknown`; then the operator's ceiling; and once
an address is known, whether it is closed and, if so, whether anything names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from skerry.network.messages import Rules
from skerry.network.paths import plain_path
from skerry.network.rules import (
    EVERY,
    METHODS,
    WEB,
    Ports,
    parse_proxy,
    parse_rule,
    parse_secret_host,
    rule_for,
    show_ports,
)
from skerry.network.tables import Entry, Table, make_entry, names_it
from skerry.types.hosts import Address, Host, Name, carried, closed, show_host

_TLS: Final[Ports] = ((443, 443),)
_OPERATOR: Final = "the operator's max.network does not cover it"
_ASK_OPERATOR: Final = "max.network in the server's settings must name it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rule`: the one that decided. `unknown`: no rule says anything about it, and `on_unknown` is not "deny": it is
    either let through to be learned, or refused unless somebody who is asked says yes."""

    allowed: bool
    why: str
    rule: str | None = None
    hint: str | None = None
    unknown: bool = False


class Policy:
    def __init__(
        self, *, allow: Table, deny: Table, ceiling: Table, inspect: Table, secret: Table, peers: dict[str, str],
        proxies: tuple[tuple[Table, str], ...], on_unknown: Literal["deny", "ask", "learn"],
    ) -> None:  # fmt: skip
        self._allow, self._deny, self._ceiling = allow, deny, ceiling
        self._inspect, self._secret = inspect, secret
        self._peers, self._proxies, self._on_unknown = peers, proxies, on_unknown
        self._via = tuple(dict.fromkeys(parse_proxy(proxy) for _, proxy in proxies))
        self._upstreams = frozenset(_places_of(self._via, allow))

    @classmethod
    def compile(cls, rules: Rules, ceiling: tuple[str, ...] = ("*",)) -> Policy:
        """Raises InvalidRequest for a rule that is none: half a policy is never in force."""
        secret = [
            make_entry(parse_secret_host(host), _TLS, f"secret {secret.name}")
            for secret in rules.secrets
            for host in secret.hosts
        ]
        allow = Table.parse(rules.allow, "network.allow", WEB)
        for entry in secret:
            allow.add(entry)
        return cls(
            allow=allow,
            deny=Table.parse(rules.deny, "network.deny", EVERY),
            ceiling=Table.parse(ceiling, "max.network", WEB),
            inspect=Table.parse(rules.inspect, "network.inspect", _TLS),
            secret=Table.of(secret),
            peers=dict(rules.peers),
            proxies=tuple((Table.parse(these, "proxies", WEB), proxy) for these, proxy in rules.proxies),
            on_unknown=rules.on_unknown,
        )

    # -- before any address is known ---------------------------------------------------------------------------------

    def name(self, host: Host) -> Verdict:
        """May this name be looked up at all, whatever port it is for?"""
        if not isinstance(host, Name):
            return Verdict(False, "an address is not looked up")
        for entry in self._deny.about(host):
            if entry.ports == EVERY and not entry.rule.restricted:
                return _denied_by(entry, host, None)
        if host in self._peers:
            return Verdict(True, f"the sandbox's peer {host}", f"peer {host}")
        entry_or_none = next(self._allow.about(host), None)
        if entry_or_none is not None:
            verdict = Verdict(True, f"allowed by {entry_or_none.text}", entry_or_none.text)
        elif self._on_unknown == "ask":
            verdict = Verdict(True, "no rule names it: asked when it is connected to", unknown=True)
        else:
            verdict = self._unknown(host, None)
        if verdict.allowed and next(self._ceiling.about(host), None) is None:
            return Verdict(False, _OPERATOR, None, _ASK_OPERATOR)
        return verdict

    def connect(self, host: Host, port: int) -> Verdict:
        """May anything be sent there? Before its address is known; rules that look at requests count as yes. An
        upstream proxy never is, whatever rule names it: it would lead anywhere."""
        return for_the_worker(host, port) if (host, port) in self._upstreams else self.upstream(host, port)

    def upstream(self, host: Host, port: int) -> Verdict:
        """As `connect`, for the worker itself, which reaches hosts through an upstream proxy."""
        for entry in self._deny.about(host):
            if not entry.rule.restricted and entry.on(port):
                return _denied_by(entry, host, port)
        if self.peer(host) is not None:
            return Verdict(True, f"the sandbox's peer {host}", f"peer {host}")
        elsewhere: Entry | None = None
        verdict: Verdict | None = None
        for entry in self._allow.about(host):
            if entry.on(port):
                verdict = Verdict(True, f"allowed by {entry.text}", entry.text)
                break
            elsewhere = elsewhere or entry
        if verdict is None:
            verdict = self._unknown(host, port, elsewhere)
        if (verdict.allowed or verdict.unknown) and not any(e.on(port) for e in self._ceiling.about(host)):
            return Verdict(False, _OPERATOR, None, _ASK_OPERATOR)
        return verdict

    def peer(self, host: Host) -> str | None:
        """The id of the sandbox that this name is inside."""
        return self._peers.get(host) if isinstance(host, Name) else None

    def _unknown(self, host: Host, port: int | None, elsewhere: Entry | None = None) -> Verdict:
        place = show_host(host, port)
        if not isinstance(host, Name) and (kind := closed(host)) is not None:
            return _closed(host, port, host, kind)  # nobody is asked about it: a yes would not open it
        if self._on_unknown == "learn":
            return Verdict(True, f"no rule allows {place}: let through to learn", unknown=True)
        why = f"no rule allows {place}"
        if elsewhere is not None:
            why = f"{elsewhere.text} allows port {show_ports(elsewhere.ports)}, not {port}"
        return Verdict(False, why, None, f"--allow {rule_for(host, port)}", unknown=self._on_unknown == "ask")

    # -- an address ----------------------------------------------------------------------------------------------------

    def address(self, host: Host, port: int, address: Address, own: bool = False) -> Verdict:
        """May `host`, which `connect` allowed or somebody who was asked, be dialled at this address? `own`: it is an
        address of this host."""
        if (address, port) in self._upstreams and (host, port) not in self._upstreams:
            return for_the_worker(host, port)
        for one in (address, *carried(address)):  # a gateway would lead there
            for entry in self._deny.containing(one):
                if not entry.rule.restricted and entry.on(port):
                    return _denied_by(entry, host, port)
        kind = closed(address) or ("this host's own" if own else None)
        if kind is None:
            return Verdict(True, f"{address} is no closed address")
        named = next(_naming(self._allow, host, port, address), None)
        if named is None:
            return _closed(host, port, address, kind)
        if not self._ceiling_has(host, port, address):
            return Verdict(False, _OPERATOR, None, _ASK_OPERATOR)
        return Verdict(True, f"{address} ({kind}) is named by {named.text}", named.text)

    def _ceiling_has(self, host: Host, port: int, address: Address) -> bool:
        """A ceiling without `@` leaves closed addresses to the policies below it; one with `@` counts them up."""
        about = [entry for entry in self._ceiling.about(host) if entry.on(port)]
        return any(not entry.rule.at for entry in about) or any(_naming(self._ceiling, host, port, address))

    # -- a request -----------------------------------------------------------------------------------------------------

    def request(self, host: Host, port: int, method: str, path: str, tls: bool = False) -> Verdict:
        """May this request be sent to a host that `connect` allowed? What no rule names is as `connect` says."""
        if (host, port) in self._upstreams:
            return for_the_worker(host, port)
        plain = plain_path(path)
        for entry in self._deny.about(host):
            if entry.on(port) and entry.may_take(method, plain):
                return _denied_by(entry, host, port)
        if self.peer(host) is not None:
            return Verdict(True, f"the sandbox's peer {host}", f"peer {host}")
        limited: Entry | None = None
        for entry in self._allow.about(host):
            if entry.on(port):
                if entry.takes(method, plain):
                    return self._under_ceiling(entry, host, port, method, plain)
                limited = limited or entry
        if limited is None:
            return self._unnamed(host, port, method, plain)
        odd = ", and its path is not a plain one" if plain is None else ""
        methods = (method,) if method in METHODS else ()  # a rule can't name others
        at = limited.rule.at if isinstance(host, Name) else ()
        more = parse_rule(rule_for(host, port))._replace(methods=methods, at=at)
        return Verdict(False, f"{limited.text} does not allow this request{odd}", limited.text, f'--allow "{more}"')

    def _under_ceiling(self, entry: Entry, host: Host, port: int, method: str, path: str | None) -> Verdict:
        if self._ceiling_takes(host, port, method, path):
            return Verdict(True, f"allowed by {entry.text}", entry.text)
        return Verdict(False, _OPERATOR, None, _ASK_OPERATOR)

    def _unnamed(self, host: Host, port: int, method: str, path: str | None) -> Verdict:
        """What no rule names: also what is let through to be learned, or by a yes, the operator may limit."""
        verdict = self.connect(host, port)
        if (verdict.allowed or verdict.unknown) and not self._ceiling_takes(host, port, method, path):
            return Verdict(False, _OPERATOR, None, _ASK_OPERATOR)
        return verdict

    def _ceiling_takes(self, host: Host, port: int, method: str, path: str | None) -> bool:
        return any(entry.on(port) and entry.takes(method, path) for entry in self._ceiling.about(host))

    def requests_only(self, host: Host, port: int) -> bool:
        """Do rules look at its requests? Then nothing may pass that can't be read as requests, unopened TLS too."""
        if any(e.rule.restricted and e.on(port) for e in self._deny.about(host)):
            return True
        return _all_restricted(self._allow, host, port) or _all_restricted(self._ceiling, host, port)

    def inspects(self, host: Host, port: int) -> bool:
        """Is its TLS opened: for a secret, because `inspect` says so, or because rules look at its requests?"""
        if any(e.on(port) for table in (self._secret, self._inspect) for e in table.about(host)):
            return True
        return self.requests_only(host, port)

    def proxies_on(self, port: int) -> tuple[Host, ...]:
        """The upstream proxies that listen on this port: whatever is dialled on it must be none of them."""
        return tuple(host for host, number in self._via if number == port)

    def proxy_for(self, host: Host, port: int) -> str | None:
        """The upstream proxy that leads there, itself under the same rules: `upstream`, then `address`."""
        for table, proxy in self._proxies:
            if any(entry.on(port) for entry in table.about(host)):
                return proxy
        return None


def _all_restricted(table: Table, host: Host, port: int) -> bool:
    about = [entry for entry in table.about(host) if entry.on(port)]
    return bool(about) and all(entry.rule.restricted for entry in about)


def _naming(table: Table, host: Host, port: int, address: Address) -> Iterator[Entry]:
    """The entries that name this closed address for this host and port."""
    if isinstance(host, Name):
        for entry in table.about(host):
            if entry.on(port) and any(names_it(at, address) for at in entry.rule.at):
                yield entry
    for entry in table.containing(address):
        range_ = entry.rule.range
        if entry.on(port) and range_ is not None and names_it(range_, address):
            yield entry


def _places_of(proxies: Sequence[tuple[Host, int]], allow: Table) -> Iterator[tuple[Host, int]]:
    """Upstream proxies, and the addresses that rules name for them, so that no other name leads there either."""
    for host, port in proxies:
        yield host, port
        for entry in allow.about(host):
            if entry.on(port):
                yield from ((at.network_address, port) for at in entry.rule.at if at.num_addresses == 1)


def for_the_worker(host: Host, port: int) -> Verdict:
    return Verdict(False, f"{show_host(host, port)} is an upstream proxy, which is not for what is inside")


def _closed(host: Host, port: int | None, address: Address, kind: str) -> Verdict:
    why = f"{show_host(host, port)} is a closed address ({kind})"
    if isinstance(host, Name):
        why = f"{show_host(host, port)} is at {address}, a closed address ({kind}): a name alone opens none"
    return Verdict(False, why, None, f"--allow {rule_for(host, port, address)}")


def _denied_by(entry: Entry, host: Host, port: int | None) -> Verdict:
    return Verdict(False, f"{show_host(host, port)} is denied by {entry.text}", entry.text,
                   f"deny wins: take {entry.text} out of deny")  # fmt: skip
