"""pip: its indexes and links, as listed by `pip config list`, or its built-in index."""

from __future__ import annotations

import ast
import json
import re
from typing import Final
from urllib.parse import urlsplit

from skerry.client.presets.cache import cached_answer
from skerry.client.presets.machine import Machine
from skerry.client.presets.preset import PresetBuilder

# The sections that `pip install` reads; a later one wins.
_SECTIONS: Final = ("global", "install", ":env:")
_LINE: Final = re.compile(r"(global|install|:env:)\.([a-z-]+)=(.+)")
_DEFAULT: Final = re.compile(r"--index-url <url>.*?\(default (\S+?)\)")
_PROBE: Final = "pip"  # a package that indexes have, to find the host of their files
_COMMANDS: Final = (("pip",), ("pip3",), ("python3", "-m", "pip"))


def read(machine: Machine) -> PresetBuilder:
    command, said = _settings(machine)
    settings = said or {}
    found = PresetBuilder("pip", machine, lambda url: settings.get("proxy") or machine.proxy_of(url))
    if said is None:
        raise found.error("pip is not installed on this machine, so its index is unknown")
    index, extra = _words(settings, "index-url"), _words(settings, "extra-index-url")
    no_index = (settings.get("no-index") or "").lower() in ("1", "true", "yes", "on")
    indexes = [] if no_index else [*(index[:1] or [_default(found, command)]), *extra]
    links = _words(settings, "find-links")
    urls = [url for url in (*indexes, *links) if _on_the_network(url)]
    if not urls:
        raise found.error("its configuration names only files of this machine, which a sandbox does not have")
    plain = {url: found.visit(url) for url in urls}
    for url in indexes:
        if url in plain:
            for other in _file_hosts(machine, command, url, settings):
                found.visit(other)
    if settings.get("cert"):
        found.bundles.append(machine.path(settings["cert"]))
    # The first index on the network replaces one that is a directory here: otherwise pip inside would use its default.
    carried = [plain[url] for url in (indexes if index else extra) if url in plain and not no_index]
    _set(found, "PIP_INDEX_URL", carried[:1] if index else [])
    _set(found, "PIP_EXTRA_INDEX_URL", carried[1:] if index else carried)
    _set(found, "UV_DEFAULT_INDEX", carried[:1] if index else [])
    _set(found, "UV_INDEX", carried[1:] if index else carried)
    _set(found, "PIP_FIND_LINKS", [plain[url] for url in links if url in plain])
    _set(found, "PIP_NO_INDEX", ["1"] if no_index or (index and not carried) else [])
    _set(found, "UV_NO_INDEX", ["1"] if no_index or (index and not carried) else [])
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
    """Parse lines like `global.index-url='https://…'`; the section of variables wins, then install's, then global's."""
    rows = {}
    for line in said.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match:
            try:
                rows[match[1], match[2]] = str(ast.literal_eval(match[3]))
            except (ValueError, SyntaxError):
                continue
    return {key: rows[section, key] for section in _SECTIONS for at, key in rows if at == section}


def _default(found: PresetBuilder, command: tuple[str, ...]) -> str:
    """Use the built-in index, which pip prints in its help. That takes pip half a second, so the answer is cached."""

    def look() -> list[str] | None:
        match = _DEFAULT.search(" ".join((found.machine.ask(*command, "install", "--help") or "").split()))
        return [match[1]] if match and _on_the_network(match[1]) else None

    answer = cached_answer(found.machine, f"default of {found.machine.program(command[0])}", look)
    if not answer:
        raise found.error("pip does not report its index", "set index-url in pip.conf, or PIP_INDEX_URL")
    return answer[0]


def _file_hosts(machine: Machine, command: tuple[str, ...], index: str, settings: dict[str, str]) -> list[str]:
    """Return the hosts of an index's files, if not the index: pip reports which file it would download. Its settings
    are not used, because it might prefer a file of this machine."""

    def look() -> list[str] | None:
        # as variables, because an index URL may contain a password, and all users can see a command's arguments
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

    return cached_answer(machine, f"pip {index}", look)


def _words(settings: dict[str, str], name: str) -> list[str]:
    return (settings.get(name) or "").split()


def _on_the_network(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


def _set(found: PresetBuilder, name: str, words: list[str]) -> None:
    if words:
        found.env[name] = " ".join(words)
