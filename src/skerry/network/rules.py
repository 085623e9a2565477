"""What a rule may say: `[METHOD[,METHOD] ]HOST[:PORTS][/PATH][@ADDRESS[,ADDRESS]]`. The one parser of it. Pure.

HOST is a name, `*.name` (all below it, not itself), `*`, an address or a range (`10.0.0.0/8`, `[fd00::/8]`). PORTS is
`443`, `443,8443`, `8000-8099` or `*`. `str(rule)` is its canonical text, which parses to the same rule.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from skerry.errors import InvalidRequest
from skerry.network.paths import plain_path
from skerry.types import Network
from skerry.types.hosts import Address, BadHost, Host, Name, parse_authority, parse_host
from skerry.types.network import RULE_MOST

Range: TypeAlias = IPv4Network | IPv6Network
Ports: TypeAlias = tuple[tuple[int, int], ...]
EVERY: Final[Ports] = ((1, 65535),)
WEB: Final[Ports] = ((80, 80), (443, 443))
# Most rules: a name in its one spelling, and nothing else. Its last label begins with a letter: it is no number.
_PLAIN: Final = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.DOTALL
)
_METHODS: Final = re.compile(r"[A-Za-z]{1,20}(?:,[A-Za-z]{1,20})*")
# The registered ones, and PURGE of caches. Another is a typing error: such a rule would allow, or deny, nothing.
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
_LIKE: Final = 'like "api.example.com", "*.example.com", "db.internal:5432" or "10.0.0.0/8:5432"'
_PORTS_LIKE: Final = 'ports are like "443", "443,8443", "8000-8099" or "*"'


class _Wrong(Exception):
    def __init__(self, what: str, right: str = _LIKE) -> None:
        self.what, self.right = what, right


class Rule(NamedTuple):
    """`host` is the name, below which all is meant if `below`; None with no `range` is `*`. `ports` is None where none
    were given: what that means depends on whether it allows or denies. No `methods` means all, no `path` every one.
    `at`: the closed addresses at which the name may be."""

    host: Name | None = None
    below: bool = False
    range: Range | None = None
    ports: Ports | None = None
    methods: tuple[str, ...] = ()
    path: str = ""
    at: tuple[Range, ...] = ()

    @property
    def everything(self) -> bool:
        return self.host is None and self.range is None

    @property
    def restricted(self) -> bool:
        """Does it look at requests, and not at hosts and ports alone?"""
        return bool(self.methods or self.path)

    def __str__(self) -> str:
        if self.range is not None:
            place = show_range(self.range)
            place = f"[{place}]" if ":" in place and (self.ports is not None or self.path) else place
        else:
            place = "*" if self.host is None else f"*.{self.host}" if self.below else self.host
        methods = ",".join(self.methods) + " " if self.methods else ""
        ports = "" if self.ports is None else f":{show_ports(self.ports)}"
        at = "@" + ",".join(map(show_range, self.at)) if self.at else ""
        return f"{methods}{place}{ports}{self.path}{at}"


def parse_rule(text: str, where: str = "network.allow") -> Rule:
    """Raises InvalidRequest, which says what part of the rule is wrong and what would be right."""
    if is_plain(text):
        return Rule(Name(text))
    try:
        return _parse(text)
    except _Wrong as wrong:
        named = "" if wrong.what.startswith(repr(text)) else f"{text[:80]!r}: "
        raise InvalidRequest(f"{where}: {named}{wrong.what}", hint=wrong.right) from None


def is_plain(text: str) -> bool:
    """Is it a name in its one spelling, and nothing else? Of thousands of rules most are, and need no more looking."""
    return _PLAIN.fullmatch(text) is not None


def canonical(rules: Iterable[str], where: str = "network.allow") -> tuple[str, ...]:
    """Each in its one spelling, so that two that mean the same are the same; none twice."""
    return tuple(dict.fromkeys(rule if is_plain(rule) else str(parse_rule(rule, where)) for rule in rules))


def check_rules(network: Network) -> None:
    """Every rule of a policy, its presets' too. Raises InvalidRequest for the first that is none."""
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
                hint="a preset is read where the SDK or the CLI runs; over HTTP send what was read there",
            )
        for rule in preset.allow:
            parse_rule(rule, f"network.presets.{preset.name}")
        if preset.proxy is not None:
            parse_proxy(preset.proxy, f"network.presets.{preset.name}.proxy")


def check_secret_hosts(name: str, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        parse_secret_host(host, f"secrets.{name}.hosts")


def parse_secret_host(text: str, where: str = "secrets") -> Rule:
    """Where a secret may go: a host, with ports if not 443. Never everywhere, never an address range."""
    rule = parse_rule(text, where)
    whole = rule.range is not None and rule.range.prefixlen < rule.range.max_prefixlen
    if rule.everything or rule.restricted or rule.at or whole:
        raise InvalidRequest(f"{where}: {text[:80]!r} can't be where a secret goes", hint='like "api.example.com"')
    return rule


def parse_proxy(url: str, where: str = "proxy") -> tuple[Host, int]:
    """The host and port of an upstream proxy, `http://host:port`."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise BadHost("not of the form")
        host, port = parse_authority(parts.netloc, 80)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {url[:80]!r} is no proxy: {error}", hint="like http://host:3128") from None
    return host, port or 80


def rule_for(host: Host, port: int | None = None, at: Address | None = None) -> str:
    """The narrowest rule that allows this: what a hint names, what is learned, what an answer is remembered as."""
    ports = None if port in (None, 80, 443) else ((port, port),)
    if not isinstance(host, Name):
        return str(Rule(range=single(host), ports=ports))
    return str(Rule(host=host, ports=ports, at=() if at is None else (single(at),)))


def show_range(range_: Range) -> str:
    return str(range_.network_address) if range_.prefixlen == range_.max_prefixlen else str(range_)


def show_ports(ports: Ports) -> str:
    return "*" if ports == EVERY else ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ports)


def _check_deny(text: str) -> None:
    if parse_rule(text, "network.deny").at:
        raise InvalidRequest(
            f"network.deny: {text[:80]!r}: what is denied has no @", hint="deny the address itself, or the name alone"
        )


def _check_inspect(text: str) -> None:
    rule = parse_rule(text, "network.inspect")
    if rule.restricted or rule.at:
        raise InvalidRequest(
            f"network.inspect: {text[:80]!r}: a host, and ports perhaps", hint='like "api.example.com"'
        )


def _parse(text: str) -> Rule:
    if not text or len(text) > RULE_MOST:
        raise _Wrong("it is empty" if not text else f"longer than {RULE_MOST} characters")
    if stray := re.search(r"[^\x20-\x7e]", text):
        raise _Wrong(*_not_ascii(text, stray[0]))
    methods, rest = _split_methods(text)
    if scheme := re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/@]*@)?", rest):
        raise _Wrong(f"a rule has no {scheme[0]!r}", f'write "{rest[scheme.end() :].split("?")[0].rstrip("/")[:60]}"')
    rest, at = _split_addresses(rest)
    place, rest = _split_place(rest)
    if at and place.get("range") is not None:
        raise _Wrong("an address has no @", "name the address alone: it is what would stand after the @")
    ports, path = _split_rest(rest)
    return Rule(**place, ports=ports, methods=methods, path=path, at=at)


def _split_methods(text: str) -> tuple[tuple[str, ...], str]:
    methods, space, rest = text.partition(" ")
    if not space:
        return (), text
    if not _METHODS.fullmatch(methods) or not rest or " " in rest:
        raise _Wrong(f"{methods[:40]!r} before the space is no method, or there is a space too many",
                     'like "GET,HEAD api.example.com/v1"; each host is a rule of its own')  # fmt: skip
    named = tuple(dict.fromkeys(methods.upper().split(",")))
    if unknown := [method for method in named if method not in METHODS]:
        near = difflib.get_close_matches(unknown[0], _USUAL_METHODS, 1)
        raise _Wrong(
            f"{unknown[0]!r} before the space is no method of HTTP",
            f'did you mean "{near[0]}"?'
            if near
            else 'like "GET,HEAD api.example.com/v1"; each host is a rule of its own',
        )
    return named, rest


def _split_addresses(text: str) -> tuple[str, tuple[Range, ...]]:
    """`@10.0.0.5`. An `@` in a path is none of this unless an address could follow it."""
    before, sign, after = text.rpartition("@")
    if not sign or ("/" in re.sub(r"/[0-9]+$", "", before) and not _ADDRESSES.fullmatch(after)):
        return text, ()
    if not _ADDRESSES.fullmatch(after) or not after:
        raise _Wrong(f"{after[:40]!r} after the @ is no address", 'like "db.internal:5432@10.0.0.5" or "…@10.0.0.0/8"')
    return before, tuple(dict.fromkeys(_range(one.removeprefix("[").removesuffix("]")) for one in after.split(",")))


def _split_place(text: str) -> tuple[dict[str, Any], str]:
    if text.startswith("["):
        inner, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in inner:
            raise _Wrong("brackets hold an IPv6 address", 'like "[fd00::1]:22" or "[fd00::/8]:22"')
        return {"range": _range(inner)}, rest
    if match := _RANGE_4.match(text) or _BARE_6.fullmatch(text):
        return {"range": _range(match[0])}, text[match.end() :]
    place = text.partition("/")[0]
    if "%" in place or place.count(":") > 1:
        raise _Wrong(
            f"{place[:60]!r} is no host", 'an IPv6 address has no zone and, with a port, brackets: "[fd00::1]:22"'
        )
    host = place.partition(":")[0]
    return _named(host), text[len(host) :]


def _named(text: str) -> dict[str, Any]:
    if text == "*":
        return {}
    below = text.startswith("*.")
    if "*" in text.removeprefix("*."):
        raise _Wrong(f"{text[:60]!r}: a star stands for whole labels, first or alone", 'like "*.example.com"')
    try:
        host = parse_host(text.removeprefix("*."))
    except BadHost as error:
        raise _Wrong(str(error), "each host is a rule of its own" if "," in text else _LIKE) from None
    if isinstance(host, Name):
        return {"host": host, "below": below}
    if below:
        raise _Wrong("there is nothing below an address", f'"{host}" or a range like "10.0.0.0/8"')
    return {"range": single(host)}


def _split_rest(text: str) -> tuple[Ports | None, str]:
    match = _AFTER.fullmatch(text)
    if match is None:
        raise _Wrong(f"{text[:40]!r} after the host is neither ports nor a path")
    path = match["path"] or ""
    if path and ("?" in path or "#" in path or not _PATH.fullmatch(path) or plain_path(path) is None):
        raise _Wrong(f"{path[:60]!r} is not a plain path", 'like "api.example.com/v1/users": no "..", no query')
    return None if match["ports"] is None else _ports(match["ports"][1:]), "" if path == "/" else path


def _ports(text: str) -> Ports:
    if text == "*":
        return EVERY
    if not _PORTS.fullmatch(text):
        raise _Wrong(f"{text[:40]!r} is no port", _PORTS_LIKE)
    found = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        pair = int(low), int(high or low)
        if not 1 <= pair[0] <= pair[1] <= 65535:
            raise _Wrong(f"{part!r} is no port between 1 and 65535", _PORTS_LIKE)
        found.append(pair)
    return tuple(dict.fromkeys(sorted(found)))


def _range(text: str) -> Range:
    address, slash, bits = text.partition("/")
    try:
        start = _address(address)
        if not slash:
            return single(start)
        found: Range = ip_network(f"{address if ':' in address else start}/{bits}", strict=False)
        if isinstance(found, IPv6Network) and isinstance(start, IPv4Address):  # ::ffff:10.0.0.0/104
            found = ip_network(f"{start}/{found.prefixlen - 96}", strict=False)
    except ValueError:
        raise _Wrong(f"{text[:60]!r} is no address or range", 'like "10.0.0.5", "10.0.0.0/8" or "fd00::/8"') from None
    if found.network_address != start:
        raise _Wrong(f"{text[:60]!r} has bits set beyond its prefix", f'write "{found}" or "{start}"')
    return found


def _address(text: str) -> Address:
    host = parse_host(f"[{text}]" if ":" in text else text)
    if isinstance(host, Name):
        raise BadHost(f"{text!r} is a name")
    return host


def single(address: Address) -> Range:
    """The range of one address."""
    return IPv4Network(address) if isinstance(address, IPv4Address) else IPv6Network(address)


def _not_ascii(text: str, stray: str) -> tuple[str, str]:
    if stray == "\0":
        return "it contains a NUL byte", _LIKE
    try:
        ascii_form = text.encode("idna").decode() if stray > "\x7f" else None
    except UnicodeError:
        ascii_form = None
    return f"{stray!r} is not ASCII" if stray > "\x7f" else f"it contains {stray!r}", (
        f'an international name is written in its xn-- form: "{ascii_form}"' if ascii_form else _LIKE
    )
