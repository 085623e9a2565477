"""From what was asked for to a policy: nonsense refused, maxima held, peers found. Values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine import furnishing
from skerry.errors import NotFound, QuotaExceeded
from skerry.network.rules import check_rules, rule_for
from skerry.types import Network, NetworkChange, format_size, parse_size
from skerry.types.hosts import parse_host

Peer = Callable[[str], str]


def no_peer(ref: str) -> str:
    raise NotFound(f"network.peers: there is no sandbox {ref[:80]!r}", details={"sandbox": ref[:80]})


def of_new(asked: Network | None, settings: Settings, peer: Peer) -> Network:
    """Of a new sandbox: what the operator lets it reach where nothing was said; what they deny in any case."""
    wish = asked if asked is not None else Network(allow=settings["network.allow"])
    return settled(replace(wish, deny=_joined(wish.deny, settings["network.deny"])), settings, peer)


def settled(network: Network, settings: Settings, peer: Peer) -> Network:
    """As it is kept. `peer` gives the id of a sandbox of the same owner, or raises."""
    check_rules(network)
    furnishing.check(network)
    check_maxima(network, settings)
    return replace(network, peers={name: peer(ref) for name, ref in network.peers.items()})


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
    allow = _joined((rule for rule in network.allow if rule not in change.deny), change.allow)
    deny = _joined((rule for rule in network.deny if rule not in change.allow), change.deny)
    return replace(network, allow=allow, deny=deny)


def _joined(there: Iterable[str], new: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*there, *new)))


def rule_of(host: str, port: int | None) -> str:
    """The rule that names just this."""
    return rule_for(parse_host(f"[{host}]" if ":" in host and not host.startswith("[") else host), port)
