"""The only parser of rules: `[METHOD[,METHOD] ]HOST[:PORTS][/PATH][@ADDRESS[,ADDRESS]]`. Pure.

HOST is a name, `*.name` (its subdomains, not itself), `*`, an address or a range (`10.0.0.0/8`, `[fd00::/8]`). PORTS is
`443`, `443,8443`, `8000-8099` or `*`. `str(rule)` is its canonical text, which parses to the same rule.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from skerry.errors import InvalidRequest
from skerry.network.policy.paths import plain_path
from skerry.types import Network
from skerry.types.hosts import Address, BadHost, Host, Name, parse_authority, parse_host
from skerry.types.network import MAX_RULE

Range: TypeAlias = IPv4Network | IPv6Network
Ports: TypeAlias = tuple[tuple[int, int], ...]
ALL_PORTS: Final[Ports] = ((1, 65535),)
WEB_PORTS: Final[Ports] = ((80, 80), (443, 443))
# Most rules: a canonical name and nothing else. Its last label begins with a letter, so it is not a number.
_PLAIN: Final = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.DOTALL
)
_METHODS: Final = re.compile(r"[A-Za-z]{1,20}(?:,[A-Za-z]{1,20})*")
# The registered methods, and PURGE of caches. Any other is a typing error: such a rule would match nothing.
METHODS: Final = frozenset((
    "ACL", "BIND", "CHECKIN", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD", "LABEL",
    "LINK", "LOCK", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "OPTIONS",
    "ORDERPATCH", "PATCH", "POST", "PROPFIND", "PROPPATCH", "PURGE", "PUT", "QUERY", "REBIND", "REPORT", "SEARCH",
    "TRACE", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF",
))  # fmt: skip
_USUAL_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_RANGE_4: Final = re.compile(r"[0-9.]+/[0-9]{1,3}(?=[:/]|$)")
_BARE_6: Final = re.compile(r"[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:/[0-9]{1,3})?")
_AFTER: Final = re.compile(r"(?P<ports>:[^/]*)?(?P<path>/.*)?", re.DOTALL)
_PORTS: Final = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
_PATH: Final = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
_ADDRESSES: Final = re.compile(r"[0-9A-Fa-f:.,/\[\]]*")
_EXAMPLES: Final = 'like "api.example.com", "*.example.com", "db.internal:5432" or "10.0.0.0/8:5432"'
_PORT_EXAMPLES: Final = 'ports are like "443", "443,8443", "8000-8099" or "*"'


class _RuleError(Exception):
    def __init__(self, what: str, hint: str = _EXAMPLES) -> None:
        self.what, self.hint = what, hint


class Rule(NamedTuple):
    """`host` is the name; with `subdomains`, all names below it. None without `range` is `*`. `ports` is None if none
    were given: the default depends on whether the rule allows or denies. Empty `methods` or `path` match all. `at`: the
    closed addresses at which the name may be."""

    host: Name | None = None
    subdomains: bool = False
    range: Range | None = None
    ports: Ports | None = None
    methods: tuple[str, ...] = ()
    path: str = ""
    at: tuple[Range, ...] = ()

    @property
    def matches_all(self) -> bool:
        return self.host is None and self.range is None

    @property
    def restricted(self) -> bool:
        """Whether it looks at requests, and not only at hosts and ports."""
        return bool(self.methods or self.path)

    def __str__(self) -> str:
        if self.range is not None:
            place = show_range(self.range)
            place = f"[{place}]" if ":" in place and (self.ports is not None or self.path) else place
        else:
            place = "*" if self.host is None else f"*.{self.host}" if self.subdomains else self.host
        methods = ",".join(self.methods) + " " if self.methods else ""
        ports = "" if self.ports is None else f":{show_ports(self.ports)}"
        at = "@" + ",".join(map(show_range, self.at)) if self.at else ""
        return f"{methods}{place}{ports}{self.path}{at}"


def parse_rule(text: str, where: str = "network.allow") -> Rule:
    """Parse a rule. Raise InvalidRequest, which names the wrong part and shows a right one."""
    if is_plain(text):
        return Rule(Name(text))
    try:
        return _parse(text)
    except _RuleError as wrong:
        named = "" if wrong.what.startswith(repr(text)) else f"{text[:80]!r}: "
        raise InvalidRequest(f"{where}: {named}{wrong.what}", hint=wrong.hint) from None


def is_plain(text: str) -> bool:
    """Return whether the text is a canonical name and nothing else. Most of thousands of rules are, and need no
    parsing."""
    return _PLAIN.fullmatch(text) is not None


def canonical(rules: Iterable[str], where: str = "network.allow") -> tuple[str, ...]:
    """Return each rule in its canonical spelling, so that equal rules have equal text, without duplicates."""
    return tuple(dict.fromkeys(rule if is_plain(rule) else str(parse_rule(rule, where)) for rule in rules))


def check_rules(network: Network) -> None:
    """Parse every rule of a policy and of its presets. Raise InvalidRequest for the first invalid one."""
    for rule in network.allow:
        if not is_plain(rule):
            parse_rule(rule, "network.allow")
    for rule in network.deny:
        if not is_plain(rule):
            _check_deny(rule)
    for rule in network.inspect:
        _check_inspect(rule)
    for preset in network.presets:
        if isinstance(preset, str):
            raise InvalidRequest(
                f"network.presets: {preset[:60]!r} was not looked up",
                hint="a preset is read where the SDK or the CLI runs; over HTTP, send its content",
            )
        for rule in preset.allow:
            parse_rule(rule, f"network.presets.{preset.name}")
        if preset.proxy is not None:
            parse_proxy(preset.proxy, f"network.presets.{preset.name}.proxy")


def check_secret_hosts(name: str, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        parse_secret_host(host, f"secrets.{name}.hosts")


def parse_secret_host(text: str, where: str = "secrets") -> Rule:
    """Parse a destination of a secret: a host, with ports if not 443. Never `*`, never an address range."""
    rule = parse_rule(text, where)
    whole = rule.range is not None and rule.range.prefixlen < rule.range.max_prefixlen
    if rule.matches_all or rule.restricted or rule.at or whole:
        raise InvalidRequest(
            f"{where}: {text[:80]!r} cannot be the destination of a secret", hint='like "api.example.com"'
        )
    return rule


def parse_proxy(url: str, where: str = "proxy") -> tuple[Host, int]:
    """Return the host and port of an upstream proxy, `http://host:port`."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise BadHost("not of the form")
        host, port = parse_authority(parts.netloc, 80)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {url[:80]!r} is not a proxy: {error}", hint="like http://host:3128") from None
    return host, port or 80


def narrowest_rule(host: Host, port: int | None = None, at: Address | None = None) -> str:
    """Return the narrowest rule that allows this destination: for hints, suggestions and remembered approvals."""
    ports = None if port in (None, 80, 443) else ((port, port),)
    if not isinstance(host, Name):
        return str(Rule(range=single_address(host), ports=ports))
    return str(Rule(host=host, ports=ports, at=() if at is None else (single_address(at),)))


def show_range(range_: Range) -> str:
    return str(range_.network_address) if range_.prefixlen == range_.max_prefixlen else str(range_)


def show_ports(ports: Ports) -> str:
    return "*" if ports == ALL_PORTS else ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ports)


def _check_deny(text: str) -> None:
    if parse_rule(text, "network.deny").at:
        raise InvalidRequest(
            f"network.deny: {text[:80]!r}: a deny rule has no @", hint="deny the address itself, or the name alone"
        )


def _check_inspect(text: str) -> None:
    rule = parse_rule(text, "network.inspect")
    if rule.restricted or rule.at:
        raise InvalidRequest(
            f"network.inspect: {text[:80]!r}: must be a host, optionally with ports", hint='like "api.example.com"'
        )


@functools.lru_cache(maxsize=4096)  # a policy is parsed several times: checked, made canonical, compiled
def _parse(text: str) -> Rule:
    if not text or len(text) > MAX_RULE:
        raise _RuleError("it is empty" if not text else f"longer than {MAX_RULE} characters")
    if stray := re.search(r"[^\x20-\x7e]", text):
        raise _RuleError(*_not_ascii(text, stray[0]))
    methods, rest = _split_methods(text)
    if scheme := re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/@]*@)?", rest):
        raise _RuleError(
            f"a rule has no {scheme[0]!r}", f'write "{rest[scheme.end() :].split("?")[0].rstrip("/")[:60]}"'
        )
    rest, at = _split_addresses(rest)
    place, rest = _split_place(rest)
    if at and place.get("range") is not None:
        raise _RuleError("an address has no @", "name only the address")
    ports, path = _split_rest(rest)
    return Rule(**place, ports=ports, methods=methods, path=path, at=at)


def _split_methods(text: str) -> tuple[tuple[str, ...], str]:
    methods, space, rest = text.partition(" ")
    if not space:
        return (), text
    if not _METHODS.fullmatch(methods) or not rest or " " in rest:
        raise _RuleError(f"{methods[:40]!r} before the space is not a method, or there is an extra space",
                     'like "GET,HEAD api.example.com/v1"; write one rule per host')  # fmt: skip
    named = tuple(dict.fromkeys(methods.upper().split(",")))
    if unknown := [method for method in named if method not in METHODS]:
        near = difflib.get_close_matches(unknown[0], _USUAL_METHODS, 1)
        raise _RuleError(
            f"{unknown[0]!r} before the space is not an HTTP method",
            f'did you mean "{near[0]}"?' if near else 'like "GET,HEAD api.example.com/v1"; write one rule per host',
        )
    return named, rest


def _split_addresses(text: str) -> tuple[str, tuple[Range, ...]]:
    """Split off `@10.0.0.5`. An `@` in a path belongs to the path unless an address could follow it."""
    before, sign, after = text.rpartition("@")
    if not sign or ("/" in re.sub(r"/[0-9]+$", "", before) and not _ADDRESSES.fullmatch(after)):
        return text, ()
    if not _ADDRESSES.fullmatch(after) or not after:
        raise _RuleError(
            f"{after[:40]!r} after the @ is not an address", 'like "db.internal:5432@10.0.0.5" or "…@10.0.0.0/8"'
        )
    return before, tuple(dict.fromkeys(_range(one.removeprefix("[").removesuffix("]")) for one in after.split(",")))


def _split_place(text: str) -> tuple[dict[str, Any], str]:
    if text.startswith("["):
        inner, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in inner:
            raise _RuleError("brackets hold an IPv6 address", 'like "[fd00::1]:22" or "[fd00::/8]:22"')
        return {"range": _range(inner)}, rest
    if match := _RANGE_4.match(text) or _BARE_6.fullmatch(text):
        return {"range": _range(match[0])}, text[match.end() :]
    place = text.partition("/")[0]
    if "%" in place or place.count(":") > 1:
        raise _RuleError(
            f"{place[:60]!r} is not a host", 'an IPv6 address has no zone and, with a port, brackets: "[fd00::1]:22"'
        )
    host = place.partition(":")[0]
    return _named(host), text[len(host) :]


def _named(text: str) -> dict[str, Any]:
    if text == "*":
        return {}
    subdomains = text.startswith("*.")
    if "*" in text.removeprefix("*."):
        raise _RuleError(f"{text[:60]!r}: a star stands for whole labels, first or alone", 'like "*.example.com"')
    try:
        host = parse_host(text.removeprefix("*."))
    except BadHost as error:
        raise _RuleError(str(error), "write one rule per host" if "," in text else _EXAMPLES) from None
    if isinstance(host, Name):
        return {"host": host, "subdomains": subdomains}
    if subdomains:
        raise _RuleError("an address has no subdomains", f'"{host}" or a range like "10.0.0.0/8"')
    return {"range": single_address(host)}


def _split_rest(text: str) -> tuple[Ports | None, str]:
    match = _AFTER.fullmatch(text)
    if match is None:
        raise _RuleError(f"{text[:40]!r} after the host is neither ports nor a path")
    path = match["path"] or ""
    if path and ("?" in path or "#" in path or not _PATH.fullmatch(path) or plain_path(path) is None):
        raise _RuleError(f"{path[:60]!r} is not a plain path", 'like "api.example.com/v1/users": no "..", no query')
    return None if match["ports"] is None else _ports(match["ports"][1:]), "" if path == "/" else path


def _ports(text: str) -> Ports:
    if text == "*":
        return ALL_PORTS
    if not _PORTS.fullmatch(text):
        raise _RuleError(f"{text[:40]!r} is not a port", _PORT_EXAMPLES)
    found = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        pair = int(low), int(high or low)
        if not 1 <= pair[0] <= pair[1] <= 65535:
            raise _RuleError(f"{part!r} is not a port between 1 and 65535", _PORT_EXAMPLES)
        found.append(pair)
    return tuple(dict.fromkeys(sorted(found)))


def _range(text: str) -> Range:
    address, slash, bits = text.partition("/")
    try:
        start = _address(address)
        if not slash:
            return single_address(start)
        found: Range = ip_network(f"{address if ':' in address else start}/{bits}", strict=False)
        if isinstance(found, IPv6Network) and isinstance(start, IPv4Address):  # ::ffff:10.0.0.0/104
            found = ip_network(f"{start}/{found.prefixlen - 96}", strict=False)
    except ValueError:
        raise _RuleError(
            f"{text[:60]!r} is not an address or range", 'like "10.0.0.5", "10.0.0.0/8" or "fd00::/8"'
        ) from None
    if found.network_address != start:
        raise _RuleError(f"{text[:60]!r} has bits set beyond its prefix", f'write "{found}" or "{start}"')
    return found


def _address(text: str) -> Address:
    host = parse_host(f"[{text}]" if ":" in text else text)
    if isinstance(host, Name):
        raise BadHost(f"{text!r} is a name")
    return host


def single_address(address: Address) -> Range:
    """Return the range of one address."""
    return IPv4Network(address) if isinstance(address, IPv4Address) else IPv6Network(address)


def _not_ascii(text: str, stray: str) -> tuple[str, str]:
    if stray == "\0":
        return "it contains a NUL byte", _EXAMPLES
    import idna  # large tables, for this message only

    try:
        ascii_form = idna.encode(text, uts46=True).decode() if stray > "\x7f" else None
    except UnicodeError:  # also of names that IDNA 2008 does not permit
        ascii_form = None
    return f"{stray!r} is not ASCII" if stray > "\x7f" else f"it contains {stray!r}", (
        f'an international name is written in its xn-- form: "{ascii_form}"' if ascii_form else _EXAMPLES
    )
