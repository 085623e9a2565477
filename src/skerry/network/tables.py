"""Rules laid out so that finding those that speak of a host takes as many look-ups as the host has labels, or as there
are lengths of prefixes in use, however many rules there are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from skerry.network.paths import is_within, plain_path, readings
from skerry.network.rules import EVERY, Ports, Range, Rule, is_plain, parse_rule
from skerry.types.hosts import Address, Host, Name, closed, closed_range


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule with its ports settled. `text` is how verdicts name it."""

    rule: Rule
    ports: Ports
    text: str
    prefix: str | None = None

    def on(self, port: int) -> bool:
        return any(low <= port <= high for low, high in self.ports)

    def takes(self, method: str, path: str | None) -> bool:
        """Does it speak of this request? `path` is plain, or None if it can't be told what it means."""
        if self.rule.methods and method not in self.rule.methods:
            return False
        return self.prefix is None or (path is not None and is_within(path, self.prefix))

    def may_take(self, method: str, path: str | None) -> bool:
        """Could a server read this request so that the rule speaks of it? What can't be told counts as yes."""
        if self.rule.methods and method.upper() not in self.rule.methods:
            return False
        if self.prefix is None or path is None:
            return True
        prefix = self.prefix.lower()
        return any(is_within(one, each) for one in readings(path.lower()) for each in readings(prefix))


def make_entry(rule: Rule, default: Ports, text: str | None = None) -> Entry:
    ports = rule.ports if rule.ports is not None else EVERY if rule.everything else default
    return Entry(rule, ports, text or str(rule), plain_path(rule.path) if rule.path else None)


@dataclass(slots=True)
class Table:
    """`plain`: names that stand alone, on the ports that go without saying; their entries are made when asked for."""

    default: Ports = EVERY
    plain: set[str] = field(default_factory=set)
    names: dict[str, list[Entry]] = field(default_factory=dict)
    below: dict[str, list[Entry]] = field(default_factory=dict)
    ranges: dict[tuple[int, int], dict[int, list[Entry]]] = field(default_factory=dict)
    everything: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Table:
        table = cls()
        for entry in entries:
            table.add(entry)
        return table

    @classmethod
    def parse(cls, rules: Iterable[str], where: str, default: Ports) -> Table:
        """Raises InvalidRequest for one that is none."""
        table = cls(default)
        for text in rules:
            if is_plain(text):
                table.plain.add(text)
            else:
                table.add(make_entry(parse_rule(text, where), default))
        return table

    def add(self, entry: Entry) -> None:
        rule = entry.rule
        if rule.range is not None:
            version, bits = rule.range.version, rule.range.max_prefixlen - rule.range.prefixlen
            start = int(rule.range.network_address) >> bits
            self.ranges.setdefault((version, bits), {}).setdefault(start, []).append(entry)
        elif rule.host is None:
            self.everything.append(entry)
        else:
            (self.below if rule.below else self.names).setdefault(rule.host, []).append(entry)

    def about(self, host: Host) -> Iterator[Entry]:
        """The rules that speak of it, the closest first."""
        if isinstance(host, Name):
            if host in self.plain:
                yield Entry(Rule(host), self.default, host)
            yield from self.names.get(host, ())
            parent = host.partition(".")[2]
            while parent:
                yield from self.below.get(parent, ())
                parent = parent.partition(".")[2]
        else:
            yield from self.containing(host)
        yield from self.everything

    def containing(self, address: Address) -> Iterator[Entry]:
        """The rules for ranges that the address is in."""
        version, number = address.version, int(address)
        for (kind, bits), starts in self.ranges.items():
            if kind == version:
                yield from starts.get(number >> bits, ())


def names_it(range_: Range, address: Address) -> bool:
    """Does a range open this closed address? Only one that lies within the closed range: `0.0.0.0/0` names no private
    address, `10.0.0.0/8` does. Metadata, this host's own addresses in no closed range, and what is closed for an
    address that it carries must be named alone."""
    if address not in range_:
        return False
    if range_.prefixlen == range_.max_prefixlen:
        return True
    found = None if closed(address) == "metadata" else closed_range(address)
    return found is not None and range_.prefixlen >= found[0]
