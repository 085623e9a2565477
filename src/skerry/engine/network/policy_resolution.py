"""From a requested network to a policy: invalid requests are rejected, maxima enforced, peers found. Values in, values
out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine.sandboxes import guest_files
from skerry.errors import InvalidRequest, NotFound, PermissionDenied, QuotaExceeded
from skerry.network.policy.handlers import check_mirror, parse_handled
from skerry.network.policy.rules import canonical, check_rules, narrowest_rule
from skerry.types import Caller, Handler, Network, NetworkChange, parse_size, readable_size
from skerry.types.hosts import parse_host

Peer = Callable[[str], str]


def no_peer(ref: str) -> str:
    raise NotFound(f"network.peers: sandbox {ref[:80]!r} not found", details={"sandbox": ref[:80]})


def check_settings(settings: Settings) -> None:
    """Check that the operator's rules can be parsed: otherwise no sandbox would get its gateway."""
    check_rules(Network(allow=settings["network.allow"], deny=settings["network.deny"]))
    canonical(settings["max.network"], "max.network")


def resolve_new(asked: Network | None, settings: Settings, peer: Peer) -> Network:
    """Return the policy of a new sandbox: the operator's default if none was requested, with the operator's denials in
    any case."""
    requested = asked if asked is not None else Network(allow=settings["network.allow"])
    return resolve(replace(requested, deny=_joined(requested.deny, settings["network.deny"])), settings, peer)


def resolve(network: Network, settings: Settings, peer: Peer) -> Network:
    """Return the stored form of the policy. `peer` returns the id of a sandbox of the same owner, or raises."""
    check_rules(network)
    check_handled(network)
    guest_files.check(network)
    check_maxima(network, settings)
    rules = {name: canonical(getattr(network, name)) for name in ("allow", "deny", "inspect", "mirror")}
    peers = {name: peer(ref) for name, ref in network.peers.items()}
    return replace(network, **rules, handlers=_handlers(network.handlers), peers=peers)


def check_handled(network: Network) -> None:
    """Raise InvalidRequest for an invalid host of a handler or of the mirror."""
    for handler in network.handlers:
        parse_handled(handler.host)
    for host in network.mirror:
        check_mirror(host)


def _handlers(handlers: Iterable[Handler]) -> tuple[Handler, ...]:
    """Return the handlers with canonical hosts. Raise InvalidRequest if one would never be used."""
    named = [replace(handler, host=str(parse_handled(handler.host))) for handler in handlers]
    for host, count in Counter(handler.host for handler in named).items():
        if count > 1:
            raise InvalidRequest(f"network.handlers: {host} has {count} handlers", hint="put them together into one")
    return tuple(named)


def check_maxima(network: Network, settings: Settings) -> None:
    """Check requested bounds against the operator's maxima, which also apply to bounds that were left out."""
    for field, name in (
        ("bytes_per_second", "max.bandwidth"),
        ("max_bytes", "max.network_bytes"),
        ("max_connections", "max.connections"),
    ):
        requested, most = getattr(network, field), settings[name]
        if requested is None or most is None:
            continue
        number, ceiling = (parse_size(value) if field != "max_connections" else value for value in (requested, most))
        if number > ceiling:
            shown = readable_size(ceiling) if field != "max_connections" else str(ceiling)
            raise QuotaExceeded(
                f"network.{field}: {requested} is more than {name} allows ({shown})",
                hint=f"ask for at most {shown}",
                details={"limit": field, "maximum": most},
            )


def apply_change(network: Network, change: NetworkChange) -> Network:
    """A rule that is allowed leaves `deny`, and the other way; one that is there already stays where it is."""
    more, less = dict.fromkeys(canonical(change.allow)), dict.fromkeys(canonical(change.deny))  # thousands, perhaps
    allow = _joined((rule for rule in network.allow if rule not in less), more)
    deny = _joined((rule for rule in network.deny if rule not in more), less)
    presets = {p.name: p for p in (*guest_files.presets(network), *change.presets)}
    added = {one.host: one for one in _handlers(change.handlers)}  # they come first: an earlier one could cover all
    handlers = added | {one.host: one for one in network.handlers if one.host not in added}
    for host in change.remove_handlers:
        handlers.pop(str(parse_handled(host)), None)
    mirror = network.mirror if change.mirror is None else canonical(change.mirror)
    made = replace(
        network, allow=allow, deny=deny, presets=tuple(presets.values()), handlers=tuple(handlers.values()),
        mirror=mirror,
    )  # fmt: skip
    if change.presets:
        guest_files.check(made)
    return made


def check_routes(caller: Caller, before: Network, after: Network) -> None:
    """Raise PermissionDenied if a caller other than an admin adds a proxy or certificates on the way to the hosts of
    secrets. A caller that knows the values can pass them again after the change."""
    if caller.scope != "admin" and not _routes(after) <= _routes(before):
        raise PermissionDenied(
            "permission denied: for a sandbox with secrets, a preset with a proxy or certificates needs scope 'admin'",
            hint="create the sandbox with the preset, or remove its secrets first and pass them again afterwards",
        )


def _routes(network: Network) -> set[tuple[str, ...]]:
    presets = guest_files.presets(network)
    proxies = {(preset.proxy, *preset.allow) for preset in presets if preset.proxy is not None}
    return proxies | {(preset.certificates,) for preset in presets if preset.certificates}


def _joined(there: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*there, *new)))


def rule_of(host: str, port: int | None) -> str:
    """The rule that names just this."""
    return narrowest_rule(parse_host(f"[{host}]" if ":" in host and not host.startswith("[") else host), port)
