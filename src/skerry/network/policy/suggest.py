"""The smallest policy under which recorded attempts would have been allowed, and the patch of skerry.toml for it. Pure.

A person reviews it: it names only hosts and ports that were tried, and never a destination that only an attack asks for
(loopback, link-local, metadata), however often it was tried.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from skerry.errors import InvalidRequest
from skerry.network.messages import Rules
from skerry.network.policy.policy import Policy
from skerry.network.policy.rules import WEB_PORTS, Rule, parse_rule, single_address
from skerry.types import Network, NetworkAttempt
from skerry.types.hosts import Address, BadHost, Host, Name, closed, parse_host, plain
from skerry.types.network import MAX_RULES

MAX_SIBLINGS: Final = 8  # with more names below one parent, on the same ports, they become one `*.parent`
PROJECT_FILE: Final = "skerry.toml"
_OTHER_SOURCES: Final = ("peer ", "secret ")  # not rules: `peers` and `secrets` allow these anyway
_ALLOW_HINT: Final = "--allow "
_SUGGESTABLE: Final = ("private", "carrier-grade NAT")


def suggest_network(attempts: Iterable[NetworkAttempt]) -> Network:
    """Suggest a policy from attempts that were allowed (`on_unknown="learn"`) or denied because no rule allows them."""
    ports: dict[Host, set[int]] = defaultdict(set)
    named: dict[Host, set[Address]] = defaultdict(set)
    refused_names: set[Host] = set()
    kept: set[Rule] = set()
    attacks: set[tuple[Host, int]] = set()
    for attempt in attempts:
        host = _host_of(attempt)
        if host is None:
            continue
        if (rule := _request_rule(attempt)) is not None:
            kept.add(rule)
            continue
        if attempt.port is None:
            refused_names |= {host} if attempt.decision == "denied" else set()
            continue
        kinds = {address: closed(address) for address in _addresses_of(attempt, host)}
        if any(kind not in (None, *_SUGGESTABLE) for kind in kinds.values()):
            attacks.add((host, attempt.port))
        ports[host].add(attempt.port)
        named[host] |= {address for address, kind in kinds.items() if kind in _SUGGESTABLE}
    for host, port in attacks:
        ports[host].discard(port)
    for host in refused_names - ports.keys():  # it never reached a port, since its name was denied
        ports[host] = {low for low, _ in WEB_PORTS}
    rules = _merge_siblings([_rule(host, ports[host], named[host]) for host in ports if ports[host]])
    return Network(allow=tuple(sorted(map(str, (*rules, *kept)), key=_by_domain))[:MAX_RULES])


def project_file_patch(network: Network, old: str) -> str:
    """Return a unified diff of skerry.toml that adds the missing rules; "" if none is missing."""
    new = _add_rules(old, lambda allowed: [(rule, _comment(rule)) for rule in _missing(tuple(network.allow), allowed)])
    if new == old:
        return ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"a/{PROJECT_FILE}" if old else "/dev/null",
        f"b/{PROJECT_FILE}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _host_of(attempt: NetworkAttempt) -> Host | None:
    """Return the host of an attempt that a rule could allow. The attempt comes from the worker and is not trusted."""
    if (attempt.rule or "").startswith(_OTHER_SOURCES):
        return None
    if attempt.decision == "denied" and (attempt.rule is not None or not (attempt.hint or "").startswith(_ALLOW_HINT)):
        return None
    try:
        return parse_host(f"[{attempt.host}]" if ":" in attempt.host.strip("[]") else attempt.host)
    except BadHost:
        return None


def _request_rule(attempt: NetworkAttempt) -> Rule | None:
    """Return the rule that allowed it, if the rule looks at requests: host and port alone would allow more."""
    if attempt.rule is None or not (" " in attempt.rule or "/" in attempt.rule):
        return None
    with contextlib.suppress(InvalidRequest):
        rule = parse_rule(attempt.rule)
        return rule if rule.restricted else None
    return None


def _addresses_of(attempt: NetworkAttempt, host: Host) -> set[Address]:
    """Return the known addresses of an attempt: from its `address`, or from the rule in its hint."""
    if not isinstance(host, Name):
        return {host}
    found = set()
    with contextlib.suppress(ValueError):
        found |= {plain(attempt.address)} if attempt.address is not None else set()
    with contextlib.suppress(InvalidRequest):
        if (attempt.hint or "").startswith(_ALLOW_HINT):
            found |= {at.network_address for at in parse_rule((attempt.hint or "")[len(_ALLOW_HINT) :].strip('"')).at}
    return found


def _rule(host: Host, ports: set[int], at: set[Address]) -> Rule:
    numbers = tuple((port, port) for port in sorted(ports))
    given = None if numbers == WEB_PORTS else numbers
    if not isinstance(host, Name):
        return Rule(range=single_address(host), ports=given)
    return Rule(
        host=host, ports=given, at=tuple(single_address(a) for a in sorted(at, key=lambda a: (a.version, int(a))))
    )


def _merge_siblings(rules: list[Rule]) -> list[Rule]:
    """Replace more than MAX_SIBLINGS names below one parent on the same ports by one rule for the parent's
    subdomains."""
    families: dict[tuple[str, object], list[Rule]] = defaultdict(list)
    for rule in rules:
        if rule.host is not None and not rule.at:
            families[rule.host.partition(".")[2], rule.ports].append(rule)
    taken = set()
    made = []
    for (parent, _), family in families.items():
        if len(family) > MAX_SIBLINGS and _has_one_owner(parent):
            taken |= set(family)
            made.append(Rule(host=Name(parent), subdomains=True, ports=family[0].ports))
    return [rule for rule in rules if rule not in taken] + made


def _has_one_owner(parent: str) -> bool:
    """Return False for a top-level domain and for domains like `co.uk`, below which anyone can register."""
    labels = parent.split(".")
    return len(labels) > 2 or (len(labels) == 2 and not (len(labels[1]) == 2 and len(labels[0]) <= 3))


def _comment(rule: str) -> str | None:
    return f"replaces more than {MAX_SIBLINGS} names below it that were tried" if rule.startswith("*.") else None


def _by_domain(rule: str) -> tuple[list[str], str]:
    host = parse_rule(rule).host
    return ([] if host is None else host.split(".")[::-1]), rule


def _missing(rules: tuple[str, ...], allowed: tuple[str, ...]) -> list[str]:
    """Return the rules that the rules of the file do not allow completely."""
    try:
        policy = Policy.compile(Rules(allow=allowed))
    except InvalidRequest as error:
        raise InvalidRequest(f"{PROJECT_FILE}: {error.message}", hint=error.hint) from None
    there = frozenset(allowed)
    return [rule for rule in rules if rule not in there and not _covers(policy, parse_rule(rule))]


def _covers(policy: Policy, rule: Rule) -> bool:
    host = rule.host if rule.range is None else rule.range.network_address
    if host is None or rule.subdomains:
        return False
    at = [range_.network_address for range_ in rule.at] if isinstance(host, Name) else [host]
    return all(
        policy.connect(host, port).allowed
        and not policy.requests_only(host, port)
        and all(policy.address(host, port, address).allowed for address in at)
        for port, _ in rule.ports or WEB_PORTS
    )


_TABLE: Final = re.compile(r"^[ \t]*\[[ \t]*(?:network|\"network\"|'network')[ \t]*\][ \t\r]*(?:#.*)?$", re.MULTILINE)
_ANY_TABLE: Final = re.compile(r"^[ \t]*\[", re.MULTILINE)
_KEY: Final = re.compile(r"^[ \t]*allow[ \t]*=", re.MULTILINE)
_DOTTED_KEY: Final = re.compile(r"^[ \t]*network[ \t]*\.[ \t]*allow[ \t]*=", re.MULTILINE)
_EDIT_BY_HAND: Final = "put the rules into its [network] table by hand: `skerry network suggest` prints them"


def _add_rules(old: str, missing: Callable[[tuple[str, ...]], list[tuple[str, str | None]]]) -> str:
    """Return `old` with rules added. `missing` gets the existing rules and returns the new ones, each with an optional
    comment."""
    before = _parse_toml(old)
    allowed = before.get("network", {}).get("allow", []) if isinstance(before.get("network", {}), dict) else None
    if not isinstance(allowed, list) or not all(isinstance(rule, str) for rule in allowed):
        raise InvalidRequest(
            "skerry.toml: network.allow is not a list of rules", hint='like allow = ["api.example.com"]'
        )
    added = missing(tuple(allowed))
    if not added:
        return old
    new = _insert_rules(old, added)
    expected = {**before, "network": {**before.get("network", {}), "allow": [*allowed, *(rule for rule, _ in added)]}}
    if not _parses_to(new, expected):
        raise InvalidRequest(
            "skerry.toml: its network table cannot be changed without rewriting it", hint=_EDIT_BY_HAND
        )
    return new


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"skerry.toml: {error}") from None


def _parses_to(text: str, expected: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        return False


def _insert_rules(old: str, added: list[tuple[str, str | None]]) -> str:
    items = "".join(f"    {json.dumps(rule)},{f'  # {comment}' if comment else ''}\n" for rule, comment in added)
    table = _TABLE.search(old)
    if table is not None:
        following = _ANY_TABLE.search(old, table.end())
        key = _KEY.search(old, table.end(), following.start() if following else len(old))
        if key is None:
            return f"{old[: table.end()]}\nallow = [\n{items}]{old[table.end() :] or chr(10)}"
    else:
        key = _DOTTED_KEY.search(old)
    if key is not None:
        return _extend_array(old, key.end(), items)
    gap = "" if not old else "\n" if old.endswith("\n") else "\n\n"
    return f"{old}{gap}[network]\nallow = [\n{items}]\n"


def _extend_array(text: str, at: int, items: str) -> str:
    """Insert lines before the closing bracket of the array that begins at `at`."""
    bracket, mark = _array_end(text, at)
    comma = "" if text[mark] in ",[" else ","
    between = text[mark + 1 : bracket].rstrip(" \t")
    if not between.endswith("\n"):
        between += "\n"
    return f"{text[: mark + 1]}{comma}{between}{items}{text[bracket:]}"


def _array_end(text: str, at: int) -> tuple[int, int]:
    """Return the position of the bracket that closes the array, and of the last character before it that is neither
    blank nor comment. Text that only looks like the key, inside a longer string, may lead anywhere: the comparison
    afterwards detects that."""
    depth, mark = 0, at
    while at < len(text):
        if text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text[at] in "\"'":
            mark = at = _end_of_string(text, at)
        elif not text[at].isspace():
            depth += {"[": 1, "]": -1}.get(text[at], 0)
            if depth == 0:
                break
            mark = at
        at += 1
    return min(at, len(text) - 1), mark


def _end_of_string(text: str, at: int) -> int:
    quote = text[at]
    if text[at : at + 3] == quote * 3:
        return max(text.find(quote * 3, at + 3), at) + 2
    at += 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" and quote == '"' else 1
    return at
