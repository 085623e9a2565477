"""Rules in dictionaries: finding the rules for a host takes as many look-ups as the host has labels, or as there are
prefix lengths in use, however many rules there are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from skerry.network.policy.paths import is_within, plain_path, possible_readings
from skerry.network.policy.rules import ALL_PORTS, Ports, Range, Rule, is_plain, parse_rule
from skerry.types.hosts import Address, Host, Name, closed, closed_range


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """A rule with its ports resolved. `text` is its name in verdicts."""

    rule: Rule
    ports: Ports
    text: str
    prefix: str | None = None

    def covers_port(self, port: int) -> bool:
        return any(low <= port <= high for low, high in self.ports)

    def matches_request(self, method: str, path: str | None) -> bool:
        """Return whether the rule matches this request. `path` is plain, or None if it is ambiguous."""
        if self.rule.methods and method not in self.rule.methods:
            return False
        return self.prefix is None or (path is not None and is_within(path, self.prefix))

    def may_match_request(self, method: str, path: str | None) -> bool:
        """Return whether some server could read this request so that the rule matches. An ambiguous path counts as
        yes."""
        if self.rule.methods and method.upper() not in self.rule.methods:
            return False
        if self.prefix is None or path is None:
            return True
        prefix = self.prefix.lower()
        return any(
            is_within(one, each) for one in possible_readings(path.lower()) for each in possible_readings(prefix)
        )


def make_entry(rule: Rule, default: Ports, text: str | None = None) -> RuleEntry:
    ports = rule.ports if rule.ports is not None else ALL_PORTS if rule.matches_all else default
    return RuleEntry(rule, ports, text or str(rule), plain_path(rule.path) if rule.path else None)


@dataclass(slots=True)
class RuleTable:
    """`plain`: canonical names on the default ports; their entries are created on demand."""

    default: Ports = ALL_PORTS
    plain: set[str] = field(default_factory=set)
    names: dict[str, list[RuleEntry]] = field(default_factory=dict)
    subdomains: dict[str, list[RuleEntry]] = field(default_factory=dict)
    ranges: dict[tuple[int, int], dict[int, list[RuleEntry]]] = field(default_factory=dict)
    matches_all: list[RuleEntry] = field(default_factory=list)

    @classmethod
    def of(cls, entries: Iterable[RuleEntry]) -> RuleTable:
        table = cls()
        for entry in entries:
            table.add(entry)
        return table

    @classmethod
    def parse(cls, rules: Iterable[str], where: str, default: Ports) -> RuleTable:
        """Parse rules into a table. Raise InvalidRequest for an invalid one."""
        table = cls(default)
        for text in rules:
            if is_plain(text):
                table.plain.add(text)
            else:
                table.add(make_entry(parse_rule(text, where), default))
        return table

    def add(self, entry: RuleEntry) -> None:
        rule = entry.rule
        if rule.range is not None:
            version, bits = rule.range.version, rule.range.max_prefixlen - rule.range.prefixlen
            start = int(rule.range.network_address) >> bits
            self.ranges.setdefault((version, bits), {}).setdefault(start, []).append(entry)
        elif rule.host is None:
            self.matches_all.append(entry)
        else:
            (self.subdomains if rule.subdomains else self.names).setdefault(rule.host, []).append(entry)

    def matching(self, host: Host) -> Iterator[RuleEntry]:
        """Yield the rules for a host, the most specific first."""
        if isinstance(host, Name):
            if host in self.plain:
                yield RuleEntry(Rule(host), self.default, host)
            yield from self.names.get(host, ())
            parent = host.partition(".")[2]
            while parent:
                yield from self.subdomains.get(parent, ())
                parent = parent.partition(".")[2]
        else:
            yield from self.containing(host)
        yield from self.matches_all

    def containing(self, address: Address) -> Iterator[RuleEntry]:
        """Yield the rules for ranges that contain the address."""
        version, number = address.version, int(address)
        for (kind, bits), starts in self.ranges.items():
            if kind == version:
                yield from starts.get(number >> bits, ())


def opens_closed(range_: Range, address: Address) -> bool:
    """Return whether a range opens this closed address. Only a range within the closed range does: `0.0.0.0/0` opens no
    private address, `10.0.0.0/8` does. These must be named alone: metadata addresses, this host's addresses outside
    closed ranges, and addresses closed because of an address that they carry."""
    if address not in range_:
        return False
    if range_.prefixlen == range_.max_prefixlen:
        return True
    found = None if closed(address) == "metadata" else closed_range(address)
    return found is not None and range_.prefixlen >= found[0]
