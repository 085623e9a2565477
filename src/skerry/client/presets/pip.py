"""pip: its indexes and links, as `pip config list` tells them, or the one that it has built in."""

from __future__ import annotations

import ast
import json
import re
from typing import Final
from urllib.parse import urlsplit

from skerry.client.presets.finding import Finding
from skerry.client.presets.machine import Machine
from skerry.client.presets.remembered import remembered

# What `pip install` goes by; a later one wins.
_SECTIONS: Final = ("global", "install", ":env:")
_LINE: Final = re.compile(r"(global|install|:env:)\.([a-z-]+)=(.+)")
_DEFAULT: Final = re.compile(r"--index-url <url>.*?\(default (\S+?)\)")
_PROBE: Final = "pip"  # a package that indexes have, to see where their files lie
_COMMANDS: Final = (("pip",), ("pip3",), ("python3", "-m", "pip"))


def read(machine: Machine) -> Finding:
    command, said = _settings(machine)
    settings = said or {}
    found = Finding("pip", machine, lambda url: settings.get("proxy") or machine.proxy_of(url))
    if said is None:
        raise found.error("there is no pip on this machine that could be asked for its index")
    index, extra = _words(settings, "index-url"), _words(settings, "extra-index-url")
    no_index = (settings.get("no-index") or "").lower() in ("1", "true", "yes", "on")
    indexes = [] if no_index else [*(index[:1] or [_default(found, command)]), *extra]
    links = _words(settings, "find-links")
    urls = [url for url in (*indexes, *links) if _on_the_network(url)]
    if not urls:
        raise found.error("its set-up names files of this machine only, which are not in a sandbox")
    plain = {url: found.visit(url) for url in urls}
    for url in indexes:
        if url in plain:
            for other in _file_hosts(machine, command, url, settings):
                found.visit(other)
    if settings.get("cert"):
        found.bundles.append(machine.path(settings["cert"]))
    # The first that is on the network stands for one that is a directory here: inside, pip would look for its own.
    carried = [plain[url] for url in (indexes if index else extra) if url in plain and not no_index]
    _set(found, "PIP_INDEX_URL", carried[:1] if index else [])
    _set(found, "PIP_EXTRA_INDEX_URL", carried[1:] if index else carried)
    _set(found, "PIP_FIND_LINKS", [plain[url] for url in links if url in plain])
    _set(found, "PIP_NO_INDEX", ["1"] if no_index or (index and not carried) else [])
    _set(found, "PIP_TRUSTED_HOST", _words(settings, "trusted-host"))
    _set(found, "PIP_DEFAULT_TIMEOUT", _words(settings, "timeout") or _words(settings, "default-timeout"))
    return found


def _settings(machine: Machine) -> tuple[tuple[str, ...], dict[str, str] | None]:
    for command in _COMMANDS:
        said = machine.ask(*command, "config", "list")
        if said is not None:
            return command, parse_settings(said)
    return (), None


def parse_settings(said: str) -> dict[str, str]:
    """Lines like `global.index-url='https://…'`; the variables' section wins, then install's, then global's."""
    rows = {}
    for line in said.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match:
            try:
                rows[match[1], match[2]] = str(ast.literal_eval(match[3]))
            except (ValueError, SyntaxError):
                continue
    return {key: rows[section, key] for section in _SECTIONS for at, key in rows if at == section}


def _default(found: Finding, command: tuple[str, ...]) -> str:
    """The one that is built in: its help tells it. pip takes half a second for that, so that it is kept."""

    def look() -> list[str] | None:
        match = _DEFAULT.search(" ".join((found.machine.ask(*command, "install", "--help") or "").split()))
        return [match[1]] if match and _on_the_network(match[1]) else None

    told = remembered(found.machine, f"default of {found.machine.program(command[0])}", look)
    if not told:
        raise found.error("pip does not say which index it uses", "set index-url in pip.conf, or PIP_INDEX_URL")
    return told[0]


def _file_hosts(machine: Machine, command: tuple[str, ...], index: str, settings: dict[str, str]) -> list[str]:
    """Where an index's files lie, if not beside it: pip is asked what it would download. Its own settings are left
    out, since a file of this machine may be what it would take first."""

    def look() -> list[str] | None:
        # by variables, since an index's address may have a password, and everybody sees a command's arguments
        variables = {name: "" for name in machine.environ if name.startswith("PIP_")}
        for name in ("cert", "proxy", "client-cert", "trusted-host"):
            variables[f"PIP_{name.upper().replace('-', '_')}"] = " ".join(_words(settings, name))
        said = machine.ask(
            *command, "install", "--dry-run", "--no-deps", "--ignore-installed", "--no-input", "--quiet",
            "--disable-pip-version-check", "--timeout=10", "--retries=1", "--report=-", _PROBE,
            variables={**variables, "PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": index},
        )  # fmt: skip
        try:
            url = json.loads(said or "")["install"][0]["download_info"]["url"]
        except (ValueError, LookupError, TypeError):
            return None
        parts = urlsplit(str(url))
        return [f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"] if _on_the_network(url) else []

    return remembered(machine, f"pip {index}", look)


def _words(settings: dict[str, str], name: str) -> list[str]:
    return (settings.get(name) or "").split()


def _on_the_network(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


def _set(found: Finding, name: str, words: list[str]) -> None:
    if words:
        found.env[name] = " ".join(words)
