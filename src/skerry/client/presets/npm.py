"""npm: its registries, as listed by `npm config ls`, and the logins in .npmrc files, which it does not print. A
project's .npmrc is left to the project."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from skerry.client.presets.cache import cached_answer
from skerry.client.presets.machine import Machine
from skerry.client.presets.preset import PLACE, PresetBuilder
from skerry.types.hosts import BadHost, parse_authority

_SCOPED: Final = re.compile(r"@[A-Za-z0-9._~-]+:registry")
_LOGIN: Final = re.compile(r"//(?P<place>.+?)/?:(?P<what>_authToken|_auth|_password|username)")
_VARIABLE: Final = re.compile(r"\$\{([^}]+)\}")
_PROBE: Final = "npm"


def read(machine: Machine) -> PresetBuilder:
    settings = _settings(machine)
    found = PresetBuilder("npm", machine, lambda url: _proxy(machine, settings, url))
    if not isinstance(settings.get("registry"), str):
        raise found.error("npm is not installed on this machine, so its registry is unknown")
    registries = {"registry": str(settings["registry"])}
    registries |= {key: str(value) for key, value in settings.items() if _SCOPED.fullmatch(key)}
    first = registries["registry"]
    plain = {key: found.visit(url) for key, url in registries.items()}
    for other in _file_hosts(machine, first):
        found.visit(other)
    _sign_in(found, settings, set(registries.values()))
    if isinstance(settings.get("cafile"), str):
        found.bundles.append(machine.path(settings["cafile"]))
    given = settings.get("ca")
    found.certificates += [given] if isinstance(given, str) else given if isinstance(given, list) else []
    found.env["NPM_CONFIG_REGISTRY"] = found.env["YARN_REGISTRY"] = plain.pop("registry")
    bare = found.env["YARN_REGISTRY"].rstrip("/")
    # The first is of yarn 2 and later. Without the second, corepack fetches these from another host.
    found.env["YARN_NPM_REGISTRY_SERVER"] = found.env["COREPACK_NPM_REGISTRY"] = bare
    if plain:  # a scope's registry has no variable name that a shell could hold
        found.files["npmrc"] = "".join(f"{key}={url}\n" for key, url in plain.items())
        found.env["NPM_CONFIG_GLOBALCONFIG"] = f"{PLACE}/npmrc"
    return found


def _settings(machine: Machine) -> dict[str, Any]:
    try:
        said = json.loads(machine.ask("npm", "config", "ls", "--long", "--json") or "")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _proxy(machine: Machine, settings: dict[str, Any], url: str) -> str | None:
    parts = urlsplit(url)
    named = (settings.get("https-proxy") if parts.scheme == "https" else None) or settings.get("proxy")
    exempt = settings.get("noproxy")
    words = exempt if isinstance(exempt, str) else ",".join(map(str, exempt or ()))
    if machine.goes_direct(parts.hostname or "", words):
        return None
    return str(named) if named else machine.proxy_of(url)


def _file_hosts(machine: Machine, registry: str) -> list[str]:
    """Return the hosts of a registry's packages, if not the registry: npm returns the address of one package."""

    def look() -> list[str] | None:
        said = (machine.ask("npm", "view", _PROBE, "dist.tarball", "--fetch-retries=0") or "").strip()
        parts = urlsplit(said)
        if parts.scheme not in ("http", "https"):
            return None
        return [f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"]

    return cached_answer(machine, f"npm {registry}", look)


def _sign_in(found: PresetBuilder, settings: dict[str, Any], registries: set[str]) -> None:
    """Read logins like `//host/path/:_authToken=…`, for hosts that are registries here."""
    hosts = {urlsplit(url).netloc.rpartition("@")[2]: urlsplit(url).scheme for url in registries}
    logins: dict[str, dict[str, str]] = {}
    for key, value in _lines(found.machine, settings):
        match = _LOGIN.fullmatch(key)
        if match and match["place"].partition("/")[0] in hosts:
            logins.setdefault(match["place"].partition("/")[0], {})[match["what"]] = value
    for place, login in logins.items():
        scheme = hosts[place]
        try:
            host, port = parse_authority(place, 443 if scheme == "https" else 80)
        except BadHost:
            continue
        if login.get("_authToken"):
            found.carry(scheme, host, port or 443, login["_authToken"], header="Authorization: Bearer {}")
        elif login.get("_auth"):
            found.carry(scheme, host, port or 443, login["_auth"], header="Authorization: Basic {}")
        elif login.get("username") and login.get("_password"):
            found.sign_in(scheme, host, port or 443, login["username"], _decoded(login["_password"]))


def _lines(machine: Machine, settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the machine's and the user's .npmrc, with `${VARIABLES}` expanded as npm does. Skip the
    project's: it could send any variable to any host."""
    for path in (settings.get("globalconfig"), settings.get("userconfig")):
        for line in (machine.read(Path(str(path))) or "").splitlines() if path else ():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith(("#", ";")):
                whole = _VARIABLE.sub(lambda m: machine.environ.get(m[1], m[0]), value.strip())
                yield key.strip(), whole.strip("\"'")


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return text
