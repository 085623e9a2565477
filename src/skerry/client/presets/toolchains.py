"""The package managers of programming languages: cargo, go, maven and gem.

- cargo: the registries in its configuration, or its built-in one, which cargo names by fetching a small crate. Cargo
  has no variable for a replaced source: inside, use `cargo --config /run/skerry/presets/cargo.toml` then.
- go: its module proxies and its checksum database, as printed by `go env`.
- maven: the mirrors in its settings files, or the built-in repository of its installation. Maven 3.9 and newer read the
  mirrors inside by themselves; an older one needs `mvn -s /run/skerry/presets/settings.xml`.
- gem: its sources, as listed by `gem sources`. Bundler gets the first of them in place of all others.
"""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from skerry.client.presets.cache import cached_answer
from skerry.client.presets.machine import Machine
from skerry.client.presets.preset import PLACE, PresetBuilder
from skerry.types.hosts import parse_authority

# -- go ----------------------------------------------------------------------------------------------------------------

_GO_NAMES = ("GOPROXY", "GOSUMDB", "GONOPROXY", "GONOSUMDB")


def read_go(machine: Machine) -> PresetBuilder:
    found = PresetBuilder("go", machine, machine.proxy_of)
    said = machine.ask("go", "env", "-json", *_GO_NAMES)
    if said is None:
        raise found.error("go is not installed on this machine, so its module proxy is unknown")
    settings = {name: str(value) for name, value in json.loads(said).items()}
    proxies = [url for url in re.split("[,|]", settings["GOPROXY"]) if urlsplit(url).scheme in ("http", "https")]
    if not proxies:
        raise found.error("GOPROXY names no module proxy on the network", "go fetches from source hosts: --allow HOST")
    # without `direct`: inside, a module that no proxy has would be looked for on any host, and denied
    found.env["GOPROXY"] = ",".join(map(found.visit, proxies))
    found.env["GOSUMDB"] = _visit_checksums(found, settings["GOSUMDB"])
    found.env |= {name: settings[name] for name in ("GONOPROXY", "GONOSUMDB") if settings[name]}
    return found


def _visit_checksums(found: PresetBuilder, database: str) -> str:
    """Allow the checksum database, like `name`, `name+key` or `name+key https://host/path`."""
    name, _, url = database.partition(" ")
    if not name or name == "off":
        return "off"
    plain = found.visit(url.strip() or f"https://{name.partition('+')[0]}")
    return f"{name} {plain}" if url else name


# -- gem ---------------------------------------------------------------------------------------------------------------


def read_gem(machine: Machine) -> PresetBuilder:
    found = PresetBuilder("gem", machine, machine.proxy_of)
    said = machine.ask("gem", "sources", "--list")
    if said is None:
        raise found.error("gem is not installed on this machine, so its sources are unknown")
    urls = [line.strip() for line in said.splitlines() if urlsplit(line.strip()).scheme in ("http", "https")]
    if not urls:
        raise found.error("its configuration names no source on the network")
    plain = []
    for url in urls:
        plain.append(found.visit(url))
        parts = urlsplit(url)
        index = f"index.{parts.netloc.rpartition('@')[2]}"  # of the public source; mirrors have none
        if parts.port is None and machine.addresses(index):
            found.visit(urlunsplit(parts._replace(netloc=index)))
    found.files["gemrc"] = ":sources:\n" + "".join(f"- {url}\n" for url in plain)
    found.env |= {"GEMRC": f"{PLACE}/gemrc", "BUNDLE_MIRROR__ALL": plain[0]}
    return found


# -- maven -------------------------------------------------------------------------------------------------------------

_MAVEN_HOME = re.compile(r"Maven home: (/\S.*?)(?:\x1b\[m)?$", re.MULTILINE)
_SUPER_POM = "org/apache/maven/model/pom-4.0.0.xml"
_BUILT_IN = {"*", "central", "external:*"}  # of `mirrorOf`, whose words are separated by commas


def read_maven(machine: Machine) -> PresetBuilder:
    found = PresetBuilder("maven", machine, machine.proxy_of)
    home = _MAVEN_HOME.search(machine.ask("mvn", "--batch-mode", "--version") or "")
    if home is None:
        raise found.error("maven is not installed on this machine, so its repository is unknown")
    files = (machine.home / ".m2/settings.xml", Path(home[1]) / "conf/settings.xml")
    settings = [tree for path in files if (tree := _parse(machine.read(path))) is not None]
    mirrors = [_fields(mirror) for tree in settings for mirror in tree.iter("mirror")]
    urls = [one["url"] for one in mirrors if "url" in one and one.get("blocked") != "true"]
    if not any(_replaces_built_in(one) for one in mirrors if one.get("url") in urls):
        urls += _built_in(Path(home[1]))
    if not urls:
        raise found.error("its settings and its installation name no repository on the network")
    plain = {url: found.visit(url) for url in urls}
    _sign_in(found, settings, {one.get("id", ""): one.get("url", "") for one in mirrors})
    kept = [{**one, "url": plain[one["url"]]} for one in mirrors if one.get("url") in plain]
    if kept:
        found.files["settings.xml"] = _settings_file(kept)
        found.env["MAVEN_ARGS"] = f"--settings {PLACE}/settings.xml"
    return found


def _parse(text: str | None) -> ElementTree.Element | None:
    """Return the tree without namespaces; None for a missing file, a broken one, or one that declares entities."""
    if text is None or "<!" in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL):
        return None
    try:
        return ElementTree.fromstring(re.sub(r'\sxmlns="[^"]*"', "", text, count=1))  # noqa: S314  # no entities
    except ElementTree.ParseError:
        return None


def _fields(element: ElementTree.Element) -> dict[str, str]:
    return {child.tag: (child.text or "").strip() for child in element if child.text}


def _replaces_built_in(mirror: dict[str, str]) -> bool:
    words = set(mirror.get("mirrorOf", "").replace(" ", "").split(","))
    return bool(_BUILT_IN & words) and "!central" not in words


def _built_in(home: Path) -> list[str]:
    """Return the repositories of the model that every project inherits, which is in a library of Maven."""
    found: list[str] = []
    for library in sorted(home.glob("lib/maven-model-builder-*.jar")):
        with zipfile.ZipFile(library) as jar:
            tree = _parse(jar.read(_SUPER_POM).decode())
        found += [] if tree is None else [url for url in _urls(tree) if url not in found]
    return found


def _urls(tree: ElementTree.Element) -> Iterator[str]:
    for kind in ("repository", "pluginRepository"):
        yield from (url for one in tree.iter(kind) if (url := _fields(one).get("url")))


def _sign_in(found: PresetBuilder, settings: list[ElementTree.Element], urls: dict[str, str]) -> None:
    """Send the logins of mirrors as secrets. Encrypted passwords, like `{…}`, stay here."""
    for server in (_fields(one) for tree in settings for one in tree.iter("server")):
        scheme, _, rest = urls.get(server.get("id", ""), "").partition("://")
        password = server.get("password", "")
        if rest and "username" in server and password and not password.startswith("{"):
            host, port = parse_authority(rest.partition("/")[0].rpartition("@")[2], 443 if scheme == "https" else 80)
            found.sign_in(scheme, host, port or 443, server["username"], password)


def _settings_file(mirrors: list[dict[str, str]]) -> str:
    names = ("id", "name", "url", "mirrorOf")
    rows = ["".join(f"<{name}>{escape(one[name])}</{name}>" for name in names if name in one) for one in mirrors]
    return "<settings><mirrors>" + "".join(f"<mirror>{row}</mirror>\n" for row in rows) + "</mirrors></settings>\n"


# -- cargo -------------------------------------------------------------------------------------------------------------

_CARGO_PROBE: Final = "cfg-if"  # a crate that registries have, to find the hosts of their index and files
_CARGO_MANIFEST: Final = f"""
[package]
name = "probe"
version = "0.1.0"
edition = "2021"
[dependencies]
{_CARGO_PROBE} = "1"
"""


def read_cargo(machine: Machine) -> PresetBuilder:
    text, config = _config(machine)
    found = PresetBuilder("cargo", machine, lambda url: _proxy(machine, config, url))
    if machine.ask("cargo", "--version") is None:
        raise found.error("cargo is not installed on this machine, so its registry is unknown")
    replaced = _replacement(config)
    named = {name: one["index"] for name, one in _tables(config, "registries").items() if "index" in one}
    for url in _file_hosts(machine, text):
        found.visit(url)
    for name, index in named.items():
        plain = _visit(found, index)
        found.env[f"CARGO_REGISTRIES_{name.upper().replace('-', '_')}_INDEX"] = plain
    if replaced is not None:
        plain = _visit(found, replaced)
        lines = ['[source.crates-io]\nreplace-with = "preset"\n', f"[source.preset]\nregistry = {json.dumps(plain)}\n"]
        found.files["cargo.toml"] = "".join(lines)
        found.env["SKERRY_CARGO_CONFIG"] = f"{PLACE}/cargo.toml"
    if not found.rules:
        raise found.error("cargo did not reach its registry", "set the registry in ~/.cargo/config.toml")
    cainfo = machine.environ.get("CARGO_HTTP_CAINFO") or _tables(config, "http").get("cainfo")
    if isinstance(cainfo, str):
        found.bundles.append(machine.path(cainfo))
    return found


def _home(machine: Machine) -> Path:
    return machine.path(machine.environ.get("CARGO_HOME") or "~/.cargo")


def _config(machine: Machine) -> tuple[str, dict[str, Any]]:
    """Return the user's configuration. That of a project is left to the project."""
    for name in ("config.toml", "config"):
        text = machine.read(_home(machine) / name)
        if text is not None:
            try:
                return text, tomllib.loads(text)
            except tomllib.TOMLDecodeError:
                break
    return "", {}


def _tables(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _replacement(config: dict[str, Any]) -> str | None:
    """Return the registry that replaces the built-in one; None if none does, or if it is a directory."""
    sources, name = _tables(config, "source"), "crates-io"
    for _ in range(10):
        source = sources.get(name) or {}
        if "replace-with" not in source:
            break
        name = str(source["replace-with"])
    registry = _tables(config, "registries").get(name, {}).get("index")
    found = (sources.get(name) or {}).get("registry", registry)
    return str(found) if name != "crates-io" and found else None


def _visit(found: PresetBuilder, index: str) -> str:
    """Allow the host of an index, like `sparse+https://host/path/` or the URL of a git repository."""
    sparse = index.startswith("sparse+")
    return ("sparse+" if sparse else "") + found.visit(index.removeprefix("sparse+"))


def _proxy(machine: Machine, config: dict[str, Any], url: str) -> str | None:
    named = machine.environ.get("CARGO_HTTP_PROXY") or _tables(config, "http").get("proxy")
    return str(named) if named else machine.proxy_of(url)


def _file_hosts(machine: Machine, text: str) -> list[str]:
    """Return the hosts of the index that cargo uses and of its files: cargo fetches one crate into an empty home."""

    def look() -> list[str] | None:
        with tempfile.TemporaryDirectory(prefix="skerry-cargo-") as place:
            home, project = Path(place, "home"), Path(place, "project")
            (project / "src").mkdir(parents=True)
            home.mkdir()
            (project / "Cargo.toml").write_text(_CARGO_MANIFEST)
            (project / "src/lib.rs").touch()
            (home / "config.toml").write_text(text)
            manifest = ("--manifest-path", str(project / "Cargo.toml"))
            variables = {"CARGO_HOME": str(home), "CARGO_NET_RETRY": "0", "CARGO_NET_OFFLINE": ""}
            machine.ask("cargo", "fetch", "--quiet", *manifest, variables=variables)
            return [url for index in sorted(home.glob("registry/index/*")) for url in _hosts(index)] or None

    return cached_answer(machine, f"cargo {text}", look)


def _hosts(index: Path) -> list[str]:
    """Return the host in the name of an index's directory, and that of its files."""
    host = index.name.rpartition("-")[0]
    try:
        files = json.loads((index / "config.json").read_text())["dl"]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    parts = urlsplit(str(files))
    return [f"https://{host}/", f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"]
