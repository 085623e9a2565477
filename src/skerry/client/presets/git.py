"""git: the hosts in its configuration and in the current repository: remotes, `insteadOf`, `http.<url>`, logins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from skerry.client.presets.machine import Machine
from skerry.client.presets.preset import PORTS, PresetBuilder, without_login
from skerry.types.hosts import BadHost, parse_host

# user@host:path, which is neither a URL nor a Windows drive
_SCP: Final = re.compile(r"(?:[^@/:\s]+@)?(?P<host>[A-Za-z0-9.-]{2,}|\[[0-9A-Fa-f:.]+\]):(?!//)\S*")
_HEADER: Final = re.compile(r"(?P<name>[A-Za-z-]+):\s*(?P<value>.+)")


def read(machine: Machine) -> PresetBuilder:
    said = machine.ask("git", "config", "--list", "--null", "--show-scope", here=True)
    pairs = list(_pairs(said or ""))
    found = PresetBuilder("git", machine, lambda url: dict(pairs).get("http.proxy") or machine.proxy_of(url))
    if said is None:
        raise found.error("git is not installed on this machine, so its configuration is unknown")
    for key, value in pairs:
        for url in _urls(key, value):
            _visit(found, url)
    if not found.rules:
        raise found.error("its configuration and the current repository name no host")
    _carry(found, pairs)
    found.bundles += [
        machine.path(value) for key, value in pairs if re.fullmatch(r"http\.(?:.*\.)?sslcainfo", key) and value
    ]
    return found


def _pairs(said: str) -> Iterator[tuple[str, str]]:
    """Return the settings; of the current repository only the remotes: its author must not choose proxies or
    headers."""
    words = said.split("\0")
    for scope, row in zip(words[::2], words[1::2], strict=False):
        key, _, value = row.partition("\n")
        if scope in ("system", "global", "command") or key.startswith("remote."):
            yield key, value


def _urls(key: str, value: str) -> Iterator[str]:
    section, _, rest = key.partition(".")
    middle, dot, name = rest.rpartition(".")
    if section == "remote" and name in ("url", "pushurl"):
        yield value
    elif section in ("url", "http", "credential") and dot:
        yield middle


def _visit(found: PresetBuilder, url: str) -> None:
    """Allow the host of a URL. Skip local paths, and addresses with a wildcard, which name several hosts."""
    if urlsplit(url).scheme in PORTS:
        if "*" not in urlsplit(url).netloc:
            found.visit(url)
    elif match := _SCP.fullmatch(url):
        try:
            found.allow(parse_host(match["host"]), 22)
        except BadHost:
            return


def _carry(found: PresetBuilder, pairs: list[tuple[str, str]]) -> None:
    """Pass redirections inside as variables, which override every file there; headers with credentials become
    secrets."""
    carried = []
    for key, value in pairs:
        middle = key.partition(".")[2].rpartition(".")[0]
        if key.endswith((".insteadof", ".pushinsteadof")) and key.startswith("url."):
            web = urlsplit(middle).scheme in ("http", "https")
            carried.append((f"url.{without_login(middle) if web else middle}.{key.rpartition('.')[2]}", value))
        elif key.startswith("http.") and key.endswith(".extraheader") and (match := _HEADER.fullmatch(value)):
            parts = urlsplit(middle)
            if parts.scheme in PORTS and parts.hostname:
                kind, space, secret = match["value"].partition(" ")
                header = f"{match['name']}: {kind} {{}}" if space else f"{match['name']}: {{}}"
                port = parts.port or PORTS[parts.scheme]
                found.carry(parts.scheme, parse_host(parts.hostname), port, (secret or kind).strip(), header=header)
    for number, (key, value) in enumerate(carried):
        found.env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    if carried:
        found.env["GIT_CONFIG_COUNT"] = str(len(carried))
