"""From E2B's network options to a policy, and back. Pure.

There, an allowed destination is reachable although a rule denies it; here, `deny` wins. So the denied ranges become
ranges without the allowed addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network, summarize_address_range
from typing import Any, Final

from skerry.errors import InvalidRequest
from skerry.server.wire.e2b.values import NetworkOptions
from skerry.types import Network

ALL_TRAFFIC: Final = ("0.0.0.0/0", "::/0")
MAX_RULES: Final = 1000  # of one list
MAX_RANGES: Final = 1500  # of the resulting denial: a policy holds 2,000 rules with ranges
Range = IPv4Network | IPv6Network


def network_of(options: NetworkOptions, internet: bool) -> Network:
    """Return the network policy."""
    for name, value in (("egressProxy", options.egress_proxy), ("rules", options.rules)):
        if value:
            raise InvalidRequest(f"network.{name}: not supported by this server")
    for name, rules in (("allowOut", options.allow_out), ("denyOut", options.deny_out)):
        if len(rules) > MAX_RULES:
            raise InvalidRequest(f"network.{name}: more than {MAX_RULES} rules")
    if options.allow_internet_access is not None:
        internet = options.allow_internet_access
    ranges, names = _split("allowOut", options.allow_out)
    if not internet or any(rule in ALL_TRAFFIC for rule in options.deny_out):
        return Network(allow=tuple(map(_rule, (*ranges, *names))))
    if names:  # an address may belong to several names, so no address can be taken out for one
        raise InvalidRequest(
            f"network.allowOut: {names[0][:80]!r} is a name, which needs a denial of all other traffic",
            hint=f"add {ALL_TRAFFIC[0]} to denyOut",
        )
    denied, denied_names = _split("denyOut", options.deny_out)
    kept = (*_without(denied, ranges), *denied_names)
    return Network(allow=("*:*", *map(_rule, ranges)), deny=tuple(map(_rule, kept)))


def _split(where: str, rules: Iterable[str]) -> tuple[list[Range], list[str]]:
    """Return the ranges and the names of a list, without all traffic."""
    ranges: list[Range] = []
    names = []
    for rule in rules:
        if rule in ALL_TRAFFIC:
            continue
        try:
            ranges.append(ip_network(rule, strict=False))
        except ValueError:
            if not rule.strip(".:*") or any(mark in rule for mark in "/:@ ,[]"):
                raise InvalidRequest(f"network.{where}: {rule[:80]!r} is neither an address nor a name") from None
            names.append(rule)
    return ranges, names


def _without(denied: list[Range], allowed: list[Range]) -> list[Range]:
    """Return the denied ranges without the allowed addresses."""
    found: list[Range] = []
    holes = sorted((one.version, int(one.network_address), int(one.broadcast_address)) for one in allowed)
    for one in denied:
        start, end = int(one.network_address), int(one.broadcast_address)
        for version, first, last in holes:
            if version != one.version or last < start or first > end:
                continue
            if first > start:
                found += _ranges(one.version, start, first - 1)
            start = last + 1
        if start <= end:
            found += _ranges(one.version, start, end)
        if len(found) > MAX_RANGES:
            raise InvalidRequest("network: allowOut divides denyOut into too many ranges", hint="use fewer rules")
    return found


def _ranges(version: int, first: int, last: int) -> Iterable[Range]:
    if version == 4:
        return summarize_address_range(IPv4Address(first), IPv4Address(last))
    return summarize_address_range(IPv6Address(first), IPv6Address(last))


def _rule(place: Range | str) -> str:
    """Return the rule for all ports of a place."""
    text = str(place)
    if not isinstance(place, str) and place.prefixlen == place.max_prefixlen:
        text = str(place.network_address)
    return f"[{text}]:*" if ":" in text else f"{text}:*"


def shown(network: Network) -> dict[str, Any]:
    """Return the options that a policy stands for."""
    closed = "*:*" not in network.allow
    return {
        "allowOut": [_place(rule) for rule in network.allow if rule != "*:*"],
        "denyOut": [*([ALL_TRAFFIC[0]] if closed else []), *map(_place, network.deny)],
    }


def _place(rule: str) -> str:
    return rule.removesuffix(":*").removeprefix("[").removesuffix("]")
