"""From what was asked for to a policy: nonsense refused, maxima held, peers found. Values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from skerry.config import Settings
from skerry.errors import InvalidRequest, QuotaExceeded
from skerry.types import Network, NetworkChange, format_size, parse_size


def settled(network: Network, settings: Settings, peer: Callable[[str], str]) -> Network:
    """As it is kept. `peer` gives the id of a sandbox of the same owner, or raises."""
    for preset in network.presets:
        if isinstance(preset, str):
            raise InvalidRequest(
                f"network.presets: {preset[:60]!r} has to be looked up where the caller is",
                hint="the SDK and the command line do; over HTTP send what the preset holds, or its hosts in `allow`",
            )
    check_rules(network)
    check_maxima(network, settings)
    return replace(network, peers={name: peer(ref) for name, ref in network.peers.items()})


def check_rules(network: Network) -> None:
    """Every rule can be read."""


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
    where = f"[{host}]" if ":" in host else host
    return where if port is None else f"{where}:{port}"
