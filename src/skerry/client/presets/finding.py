"""What one client's set-up comes to, gathered piece by piece."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from skerry.client.presets.certificates import additions
from skerry.client.presets.machine import Machine
from skerry.errors import InvalidRequest
from skerry.types import Preset, SecretValue
from skerry.types.hosts import BadHost, Host, Name, closed, parse_host, show_host
from skerry.types.network import SECRET_LEAST

PLACE: Final = "/run/skerry/presets"
PORTS: Final = {"https": 443, "http": 80, "ssh": 22, "git": 9418}


@dataclass
class Finding:
    """`client` is what errors call it. Rules come from `visit`, which also takes the passwords out of URLs."""

    client: str
    machine: Machine
    rules: dict[str, None] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    bundles: list[Path] = field(default_factory=list)
    certificates: list[str] = field(default_factory=list)
    proxy: str | None = None
    secrets: list[SecretValue] = field(default_factory=list)

    def preset(self, name: str, machine: Machine) -> Preset:
        return Preset(
            name=name, allow=tuple(self.rules), env=self.env, files=self.files, proxy=self.proxy,
            certificates=additions(machine, self.bundles, self.certificates),
        )  # fmt: skip

    def visit(self, url: str, *, proxied: bool = False) -> str:
        """Allow the URL's host on its port, and give the URL back with nobody signed in. What a sandbox can't reach at
        all is an error."""
        parts = urlsplit(url)
        try:
            host, port = parse_host(_host_text(url)), parts.port or PORTS[parts.scheme]
        except (BadHost, ValueError, KeyError) as error:
            raise self.error(f"its set-up names {without_login(url)!r}, which can't be reached: {error}") from None
        self.allow(host, port, proxied=proxied)
        if parts.username and parts.scheme in ("https", "http"):
            self.sign_in(parts.scheme, host, port, unquote(parts.username), unquote(parts.password or ""))
        return without_login(url) if parts.scheme in ("https", "http") else url

    def allow(self, host: Host, port: int, *, proxied: bool = False) -> None:
        """`proxied`: its name is looked up by the proxy, so that it does not matter where it is from here."""
        addresses = () if proxied else self.machine.addresses(show_host(host))
        for address in addresses:
            kind = closed(address)
            if kind is not None and kind not in ("private", "carrier-grade NAT"):
                raise self.error(
                    f"it goes to {show_host(host, port)}, a {kind} address, which means something else inside",
                    "give it a name or an address that others reach this machine by",
                )
        named = [str(address) for address in addresses if self.machine.needs_naming(address)]
        at = f"@{','.join(sorted(named))}" if named and isinstance(host, Name) else ""
        self.rules[f"{show_host(host, port)}{at}"] = None

    def use_proxy(self, proxy: str | None) -> bool:
        """Everything goes through it, if there is one. It is allowed like every host, since it is dialled."""
        if not proxy:
            return False
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.username:
            raise self.error("its proxy wants a password, which can't be given to it yet")
        if parts.scheme != "http" or not parts.hostname:
            raise self.error(f"its proxy {proxy[:80]!r} is not an HTTP proxy", "like http://host:3128")
        try:
            host, port = parse_host(_host_text(urlunsplit(parts))), parts.port or 80
        except ValueError as error:
            raise self.error(f"its proxy {proxy[:80]!r} can't be used: {error}") from None
        self.allow(host, port)
        self.proxy = f"http://{show_host(host, port)}"
        return True

    def sign_in(self, scheme: str, host: Host, port: int, user: str, password: str) -> None:
        """A login as a secret, which the proxy outside puts into requests."""
        if len(password) < SECRET_LEAST:  # a token in the user's place, or a password that is no secret by itself
            encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
            self.carry(scheme, host, port, encoded, header="Authorization: Basic {}")
        else:
            self.carry(scheme, host, port, password, basic=user)

    def carry(
        self, scheme: str, host: Host, port: int, value: str, *, header: str | None = None, basic: str | None = None
    ) -> None:
        if scheme != "https":
            raise self.error(
                f"its set-up has a password for {show_host(host, port)} without TLS",
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
    """The host as it stands there: `urlsplit(…).hostname` takes brackets off and folds case by Unicode."""
    return re.sub(r":[0-9]*$", "", urlsplit(url).netloc.rpartition("@")[2])
