"""Collects the needs of one program."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from skerry.client.presets.certificates import additions
from skerry.client.presets.machine import Machine
from skerry.errors import InvalidRequest
from skerry.types import Preset, SecretValue
from skerry.types.hosts import Address, BadHost, Host, Name, closed, parse_host, show_host
from skerry.types.network import MIN_SECRET

PLACE: Final = "/run/skerry/presets"
PORTS: Final = {"https": 443, "http": 80, "ssh": 22, "git": 9418}


@dataclass
class PresetBuilder:
    """`client`: its name in errors, `route`: returns the proxy for a URL. `visit` adds rules and removes the passwords
    from URLs; it returns True if the host is behind the proxy."""

    client: str
    machine: Machine
    route: Callable[[str], str | None]
    rules: dict[str, bool] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    bundles: list[Path] = field(default_factory=list)
    certificates: list[str] = field(default_factory=list)
    proxy: str | None = None
    secrets: list[SecretValue] = field(default_factory=list)

    def presets(self, name: str) -> tuple[Preset, ...]:
        """Return one preset, or two if only some of its hosts are behind a proxy."""
        direct = () if self.proxy is None else tuple(rule for rule, behind in self.rules.items() if not behind)
        main = Preset(
            name=name, allow=tuple(rule for rule in self.rules if rule not in direct), env=self.env, files=self.files,
            proxy=self.proxy, certificates=additions(self.machine, self.bundles, self.certificates),
        )  # fmt: skip
        return (main, Preset(name=f"{name}-direct", allow=direct)) if direct else (main,)

    def visit(self, url: str) -> str:
        """Allow the host of a URL on its port, and return the URL without credentials. A host that a sandbox can never
        reach is an error."""
        parts = urlsplit(url)
        try:
            host, port = parse_host(_host_text(url)), parts.port or PORTS[parts.scheme]
        except (BadHost, ValueError, KeyError) as error:
            raise self.error(
                f"its configuration names {without_login(url)!r}, which cannot be reached: {error}"
            ) from None
        web = parts.scheme in ("https", "http")
        if web and self._use(self.route(url)):
            self.rules.setdefault(
                show_host(host, port), True
            )  # the proxy resolves the name: its address here is irrelevant
        else:
            self.allow(host, port)
        if parts.username and web:
            self.sign_in(parts.scheme, host, port, unquote(parts.username), unquote(parts.password or ""))
        return without_login(url) if web else url

    def allow(self, host: Host, port: int) -> None:
        addresses = self.machine.addresses(show_host(host))
        for address in addresses:
            kind = closed(address)
            if kind is not None and kind not in ("private", "carrier-grade NAT"):
                raise self.error(
                    f"it goes to {show_host(host, port)}, a {kind} address, which is a different host inside",
                    "use a name or an address that other hosts reach this machine by",
                )
        self.rules.setdefault(self._rule(host, port, addresses), False)

    def _rule(self, host: Host, port: int, addresses: tuple[Address, ...]) -> str:
        named = sorted(str(address) for address in addresses if self.machine.needs_naming(address))
        at = f"@{','.join(named)}" if named and isinstance(host, Name) else ""
        return f"{show_host(host, port)}{at}"

    def _use(self, proxy: str | None) -> bool:
        """Route a host through a proxy, if any. The proxy is allowed like every host, because it is dialled, but not
        from inside: so it may be on this machine's loopback, if the server is on the same machine."""
        if not proxy:
            return False
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.username:
            raise self.error("its proxy needs a password, which is not supported yet")
        if parts.scheme != "http" or not parts.hostname:
            raise self.error(f"its proxy {proxy[:80]!r} is not an HTTP proxy", "like http://host:3128")
        try:
            host, port = parse_host(_host_text(urlunsplit(parts))), parts.port or 80
        except ValueError as error:
            raise self.error(f"its proxy {proxy[:80]!r} cannot be used: {error}") from None
        used = f"http://{show_host(host, port)}"
        if self.proxy not in (None, used):
            raise self.error(f"it goes through two proxies, {self.proxy} and {used}, which is not supported inside")
        self.proxy = used
        self.rules.setdefault(self._rule(host, port, self.machine.addresses(show_host(host))), True)
        return True

    def sign_in(self, scheme: str, host: Host, port: int, user: str, password: str) -> None:
        """Add a login as a secret, which the proxy outside puts into requests."""
        if len(password) < MIN_SECRET:  # a token in place of the user, or a password that is not secret alone
            encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
            self.carry(scheme, host, port, encoded, header="Authorization: Basic {}")
        else:
            self.carry(scheme, host, port, password, basic=user)

    def carry(
        self, scheme: str, host: Host, port: int, value: str, *, header: str | None = None, basic: str | None = None
    ) -> None:
        if scheme != "https":
            raise self.error(
                f"its configuration has a password for {show_host(host, port)} without TLS",
                "secrets are put into requests over TLS only: give it an https:// address",
            )
        hosts = (show_host(host) if port == 443 else show_host(host, port),)
        if any(secret.hosts == hosts and secret.value == value for secret in self.secrets):
            return
        name = f"SKERRY_{self.client.upper()}_LOGIN_{len(self.secrets) + 1}"
        self.secrets.append(SecretValue(name=name, hosts=hosts, header=header, basic=basic, value=value))

    def error(self, what: str, hint: str | None = None) -> InvalidRequest:
        return InvalidRequest(
            f"network.presets: {self.client}: {what}", hint=hint or "name hosts yourself: --allow HOST"
        )


def without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _host_text(url: str) -> str:
    """Return the host unchanged: `urlsplit(…).hostname` removes brackets and folds case by Unicode rules."""
    return re.sub(r":[0-9]*$", "", urlsplit(url).netloc.rpartition("@")[2])
