"""From what was asked for to a policy: nonsense refused, maxima held, peers found. Values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine import furnishing
from skerry.errors import NotFound, QuotaExceeded
from skerry.network.rules import canonical, check_rules, rule_for
from skerry.types import Network, NetworkChange, format_size, parse_size
from skerry.types.hosts import parse_host

Peer = Callable[[str], str]


def no_peer(ref: str) -> str:
    raise NotFound(f"network.peers: there is no sandbox {ref[:80]!r}", details={"sandbox": ref[:80]})


def check_settings(settings: Settings) -> None:
    """The operator's own rules can be read: else no sandbox would get its door."""
    check_rules(Network(allow=settings["network.allow"], deny=settings["network.deny"]))
    canonical(settings["max.network"], "max.network")


def of_new(asked: Network | None, settings: Settings, peer: Peer) -> Network:
    """Of a new sandbox: what the operator lets it reach where nothing was said; what they deny in any case."""
    wish = asked if asked is not None else Network(allow=settings["network.allow"])
    return settled(replace(wish, deny=_joined(wish.deny, settings["network.deny"])), settings, peer)


def settled(network: Network, settings: Settings, peer: Peer) -> Network:
    """As it is kept. `peer` gives the id of a sandbox of the same owner, or raises."""
    check_rules(network)
    furnishing.check(network)
    check_maxima(network, settings)
    rules = {"allow": canonical(network.allow), "deny": canonical(network.deny), "inspect": canonical(network.inspect)}
    return replace(network, **rules, peers={name: peer(ref) for name, ref in network.peers.items()})


def check_maxima(network: Network, settings: Settings) -> None:
    """What is left out is the operator's to say; what is asked for is held against it."""
    for field, name in (("bandwidth", "max.bandwidth"), ("total", "max.traffic"), ("connections", "max.connections")):
        wish, most = getattr(network, field), settings[name]
        if wish is None or most is None:
            continue
        number, ceiling = (parse_size(value) if field != "connections" else value for value in (wish, most))
        if number > ceiling:
            shown = format_size(ceiling) if field != "connections" else str(ceiling)
            raise QuotaExceeded(
                f"network.{field}: {wish} is more than {name} allows ({shown})",
                hint=f"ask for at most {shown}",
                details={"limit": field, "maximum": most},
            )


def changed(network: Network, change: NetworkChange) -> Network:
    """A rule that is allowed leaves `deny`, and the other way; one that is there already stays where it is."""
    more, less = dict.fromkeys(canonical(change.allow)), dict.fromkeys(canonical(change.deny))  # thousands, perhaps
    allow = _joined((rule for rule in network.allow if rule not in less), more)
    deny = _joined((rule for rule in network.deny if rule not in more), less)
    presets = {p.name: p for p in (*furnishing.presets(network), *change.presets)}
    made = replace(network, allow=allow, deny=deny, presets=tuple(presets.values()))
    if change.presets:
        furnishing.check(made)
    return made


def _joined(there: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*there, *new)))


def rule_of(host: str, port: int | None) -> str:
    """The rule that names just this."""
    return rule_for(parse_host(f"[{host}]" if ":" in host and not host.startswith("[") else host), port)
