"""The smallest policy under which what was tried would have worked, and the change to skerry.toml that it is. Pure.

A person reviews it: so it holds no more than was tried, host by host and port by port, and never what only an attack
asks for (loopback, link-local, metadata), however often it was tried.
"""

from __future__ import annotations

import contextlib
import difflib
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from skerry.errors import InvalidRequest
from skerry.network.messages import Rules
from skerry.network.policy import Policy
from skerry.network.project_file import with_allowed
from skerry.network.rules import WEB, Rule, parse_rule, single
from skerry.types import Attempt, Network
from skerry.types.hosts import Address, BadHost, Host, Name, closed, parse_host, plain
from skerry.types.network import RULES_MOST

SIBLINGS: Final = 8  # names below one parent; with more of them, on the same ports, they become one `*.parent`
FILE: Final = "skerry.toml"
_SAID_BY: Final = ("peer ", "secret ")  # not rules: `peers` and `secrets` allow these anyway
_HINT: Final = "--allow "
_NAMEABLE: Final = ("private", "carrier-grade NAT")


def learned(attempts: Iterable[Attempt]) -> Network:
    """From what got through (`on_unknown="learn"`) and what was refused for want of a rule."""
    ports: dict[Host, set[int]] = defaultdict(set)
    named: dict[Host, set[Address]] = defaultdict(set)
    refused_names: set[Host] = set()
    kept: set[Rule] = set()
    attacks: set[tuple[Host, int]] = set()
    for attempt in attempts:
        host = _host_of(attempt)
        if host is None:
            continue
        if (rule := _narrower(attempt)) is not None:
            kept.add(rule)
            continue
        if attempt.port is None:
            refused_names |= {host} if attempt.decision == "denied" else set()
            continue
        kinds = {address: closed(address) for address in _addresses_of(attempt, host)}
        if any(kind not in (None, *_NAMEABLE) for kind in kinds.values()):
            attacks.add((host, attempt.port))
        ports[host].add(attempt.port)
        named[host] |= {address for address, kind in kinds.items() if kind in _NAMEABLE}
    for host, port in attacks:
        ports[host].discard(port)
    for host in refused_names - ports.keys():  # it never got to a port, since its name was refused
        ports[host] = {low for low, _ in WEB}
    rules = _gathered([_rule(host, ports[host], named[host]) for host in ports if ports[host]])
    return Network(allow=tuple(sorted(map(str, (*rules, *kept)), key=_by_domain))[:RULES_MOST])


def patch(network: Network, old: str) -> str:
    """A unified diff of skerry.toml that adds what the old text does not allow yet; "" if there is nothing to add."""
    new = with_allowed(
        old, lambda allowed: [(rule, _comment(rule)) for rule in _missing(tuple(network.allow), allowed)]
    )
    if new == old:
        return ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{FILE}" if old else "/dev/null", f"b/{FILE}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _host_of(attempt: Attempt) -> Host | None:
    """The host of an attempt that a rule could allow; the attempt was told by the worker and is not trusted."""
    if (attempt.rule or "").startswith(_SAID_BY):
        return None
    if attempt.decision == "denied" and (attempt.rule is not None or not (attempt.hint or "").startswith(_HINT)):
        return None
    try:
        return parse_host(f"[{attempt.host}]" if ":" in attempt.host.strip("[]") else attempt.host)
    except BadHost:
        return None


def _narrower(attempt: Attempt) -> Rule | None:
    """The rule that allowed it, if that looks at requests: host and port alone would allow more."""
    if attempt.rule is None or not (" " in attempt.rule or "/" in attempt.rule):
        return None
    with contextlib.suppress(InvalidRequest):
        rule = parse_rule(attempt.rule)
        return rule if rule.restricted else None
    return None


def _addresses_of(attempt: Attempt, host: Host) -> set[Address]:
    """Where it was, as far as that is told: as its address, or in the rule that would have allowed it."""
    if not isinstance(host, Name):
        return {host}
    found = set()
    with contextlib.suppress(ValueError):
        found |= {plain(attempt.address)} if attempt.address is not None else set()
    with contextlib.suppress(InvalidRequest):
        if (attempt.hint or "").startswith(_HINT):
            found |= {at.network_address for at in parse_rule((attempt.hint or "")[len(_HINT) :].strip('"')).at}
    return found


def _rule(host: Host, ports: set[int], at: set[Address]) -> Rule:
    numbers = tuple((port, port) for port in sorted(ports))
    given = None if numbers == WEB else numbers
    if not isinstance(host, Name):
        return Rule(range=single(host), ports=given)
    return Rule(host=host, ports=given, at=tuple(single(a) for a in sorted(at, key=lambda a: (a.version, int(a)))))


def _gathered(rules: list[Rule]) -> list[Rule]:
    """With more than SIBLINGS names below one parent on the same ports, one rule for all below it."""
    families: dict[tuple[str, object], list[Rule]] = defaultdict(list)
    for rule in rules:
        if rule.host is not None and not rule.at:
            families[rule.host.partition(".")[2], rule.ports].append(rule)
    taken = set()
    made = []
    for (parent, _), family in families.items():
        if len(family) > SIBLINGS and _is_one_owners(parent):
            taken |= set(family)
            made.append(Rule(host=Name(parent), below=True, ports=family[0].ports))
    return [rule for rule in rules if rule not in taken] + made


def _is_one_owners(parent: str) -> bool:
    """Not a top-level domain, and nothing like `co.uk`, below which everybody is."""
    labels = parent.split(".")
    return len(labels) > 2 or (len(labels) == 2 and not (len(labels[1]) == 2 and len(labels[0]) <= 3))


def _comment(rule: str) -> str | None:
    return f"stands for more than {SIBLINGS} names below it that were tried" if rule.startswith("*.") else None


def _by_domain(rule: str) -> tuple[list[str], str]:
    host = parse_rule(rule).host
    return ([] if host is None else host.split(".")[::-1]), rule


def _missing(rules: tuple[str, ...], allowed: tuple[str, ...]) -> list[str]:
    """Those of which anything is not allowed by what stands in the file."""
    try:
        policy = Policy.compile(Rules(allow=allowed))
    except InvalidRequest as error:
        raise InvalidRequest(f"{FILE}: {error.message}", hint=error.hint) from None
    there = frozenset(allowed)
    return [rule for rule in rules if rule not in there and not _covers(policy, parse_rule(rule))]


def _covers(policy: Policy, rule: Rule) -> bool:
    host = rule.host if rule.range is None else rule.range.network_address
    if host is None or rule.below:
        return False
    at = [range_.network_address for range_ in rule.at] if isinstance(host, Name) else [host]
    return all(
        policy.connect(host, port).allowed
        and not policy.requests_only(host, port)
        and all(policy.address(host, port, address).allowed for address in at)
        for port, _ in rule.ports or WEB
    )
