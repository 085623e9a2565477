"""apt: the archives of this machine's sources, as listed by `apt-get indextargets`, its proxy and its settings.

The image keeps its own sources: those of another release would break it. `base` has those of its host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from skerry.client.presets.certificates import additions
from skerry.client.presets.machine import Machine
from skerry.client.presets.preset import PLACE, PresetBuilder

_SETTING: Final = re.compile(r'(Acquire::[A-Za-z0-9:._-]+) "([^"\\\n]*)";')
_CARRIED: Final = re.compile(
    r"Acquire::(?:ForceIPv[46]|Retries|Check-Valid-Until|Check-Date|Max-FutureTime|Queue-Mode|By-Hash"
    r"|https?::(?:Timeout|No-Cache|Max-Age|No-Store|Pipeline-Depth|User-Agent))"
)
_CA: Final = re.compile(r"Acquire::https(?:::[^:]+)?::CaInfo")
_BUNDLE: Final = "/run/skerry/ca.pem"


def read(machine: Machine) -> PresetBuilder:
    settings = dict(_settings(machine))
    found = PresetBuilder("apt", machine, lambda url: _proxy(machine, settings, url))
    said = machine.ask("apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)")
    if said is None:
        raise found.error("apt is not installed on this machine, so its archives are unknown")
    urls = [url for source in dict.fromkeys(said.split()) for url in _mirrors(machine, source)]
    if not urls:
        raise found.error("its sources name no archive on the network")
    for url in urls:
        found.visit(url)
    _sign_in(found, machine, settings)
    found.bundles += [machine.path(value) for name, value in settings.items() if _CA.fullmatch(name) and value]
    lines = [f'{name} "{value}";\n' for name, value in settings.items() if value and _CARRIED.fullmatch(name)]
    if additions(machine, found.bundles):  # GnuTLS, which apt uses, has no variable for it
        lines.append(f'Acquire::https::CaInfo "{_BUNDLE}";\n')
    if lines:
        found.files["apt.conf"] = "".join(lines)
        found.env["APT_CONFIG"] = f"{PLACE}/apt.conf"
    return found


def _mirrors(machine: Machine, source: str) -> list[str]:
    """Return the addresses of a source: `mirror+file:` is a list of them on this machine, a plain `file:` has none."""
    scheme = source.partition(":")[0].lower()
    if scheme == "mirror+file":
        lines = (machine.read(Path(re.sub(r"^mirror\+file:/*", "/", source.rstrip("/")))) or "").splitlines()
        listed = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
        return [url for url in listed if urlsplit(url).scheme in ("http", "https")]
    plain = re.sub(r"^(?:mirror|tor)\+", "", re.sub(r"^mirror:", "http:", source))
    return [plain] if urlsplit(plain).scheme in ("http", "https") else []


def _settings(machine: Machine) -> Iterator[tuple[str, str]]:
    for line in (machine.ask("apt-config", "dump") or "").splitlines():
        match = _SETTING.fullmatch(line)
        if match:
            yield match[1], match[2]


def _proxy(machine: Machine, settings: dict[str, str], url: str) -> str | None:
    """Return the proxy: the host's setting, then the scheme's (https falls back to http), then the variables."""
    parts = urlsplit(url)
    for name in dict.fromkeys((parts.scheme, "http")):
        for key in (f"Acquire::{name}::Proxy::{parts.hostname}", f"Acquire::{name}::Proxy"):
            if settings.get(key):
                return None if settings[key].upper() in ("DIRECT", "FALSE") else settings[key]
    return machine.proxy_of(url)


def _sign_in(found: PresetBuilder, machine: Machine, settings: dict[str, str]) -> None:
    """Read logins from auth.conf: `machine [https://]host[/path] login … password …`, for archives in the sources."""
    said = dict(re.findall(r"([A-Z_]+)='([^']*)'", machine.ask(
        "apt-config", "shell", "MAIN", "Dir::Etc::netrc/f", "PARTS", "Dir::Etc::netrcparts/d") or ""))  # fmt: skip
    parts = sorted(Path(said["PARTS"]).glob("*.conf")) if said.get("PARTS") else []
    words = " ".join(machine.read(path) or "" for path in (Path(said.get("MAIN") or "/nonexistent"), *parts)).split()
    fields = dict[str, str]()
    for name, value in [*pairwise(words), ("machine", "")]:
        if name == "machine":
            _one_login(found, fields)
            fields = {}
        if name in ("machine", "login", "password"):
            fields.setdefault(name, value)


def _one_login(found: PresetBuilder, fields: dict[str, str]) -> None:
    place = fields.get("machine", "")
    scheme = place.partition("://")[0] if "://" in place else "https"
    parts = urlsplit(place if "://" in place else f"https://{place}")
    at = f"{parts.hostname}:{parts.port or (443 if scheme == 'https' else 80)}"
    if fields.get("login") and any(rule == at or rule.startswith(f"{at}@") for rule in found.rules):
        found.visit(
            parts._replace(
                netloc=f"{_safe(fields['login'])}:{_safe(fields.get('password', ''))}@{parts.netloc}"
            ).geturl()
        )


def _safe(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())
