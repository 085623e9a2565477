"""The handlers of a policy: which one covers a request. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from skerry.errors import InvalidRequest
from skerry.network.policy.paths import plain_path
from skerry.network.policy.rules import WEB_PORTS, Rule, parse_rule
from skerry.network.policy.tables import RuleEntry, RuleTable, make_entry
from skerry.types import Handler
from skerry.types.hosts import Host

_WHERE: Final = "network.handlers"


class HandlerTable:
    """The handlers of a sandbox: the first one that covers a request handles it."""

    def __init__(self, handlers: Iterable[Handler]) -> None:
        entries = [(make_entry(parse_rule(handler.host, _WHERE), WEB_PORTS), handler) for handler in handlers]
        self._entries = [(RuleTable.of((entry,)), entry, handler) for entry, handler in entries]

    def covers(self, host: Host, port: int) -> bool:
        """Return whether any request to this place may have a handler: it may never need a connection to the host."""
        return any(entry.covers_port(port) and any(table.matching(host)) for table, entry, _ in self._entries)

    def find(self, host: Host, port: int, method: str, path: str) -> Handler | None:
        """Return the handler of a request. An ambiguous path counts as covered: without its handler, the request would
        pass unchanged."""
        if not self._entries:
            return None
        plain = plain_path(path)
        for table, entry, handler in self._entries:
            if entry.covers_port(port) and any(table.matching(host)) and entry.may_match_request(method, plain):
                return handler
        return None


def handled_places(handlers: Iterable[Handler], mirror: Iterable[str]) -> list[RuleEntry]:
    """Return the hosts and ports with handlers or a mirror: their requests must be readable."""
    rules = [parse_rule(handler.host, _WHERE) for handler in handlers]
    rules += [parse_rule(host, "network.mirror") for host in mirror]
    return [make_entry(rule._replace(methods=(), path="", at=()), WEB_PORTS) for rule in rules]


def parse_handled(text: str) -> Rule:
    """Parse the host of a handler, with optional methods, ports and path."""
    rule = parse_rule(text, _WHERE)
    if rule.at:
        raise InvalidRequest(f"{_WHERE}: {text[:80]!r}: a handler has no @", hint="name the host alone")
    return rule


def check_mirror(text: str) -> None:
    rule = parse_rule(text, "network.mirror")
    if rule.restricted or rule.at:
        raise InvalidRequest(
            f"network.mirror: {text[:80]!r}: must be a host, optionally with ports", hint='like "api.example.com"'
        )
