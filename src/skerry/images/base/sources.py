"""The distribution's package archives from the host's apt configuration: one-line and deb822 files in, deb822 out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from skerry.errors import HostUnsupported

_POCKETS = ("", "-updates", "-security", "-proposed-updates", "-backports")
_WANTED_POCKETS = ("", "-updates", "-security")
_SCHEMES = ("http", "https", "file", "copy", "mirror+file")
_KEPT_OPTIONS = ("signed-by", "trusted", "check-valid-until")
_OPTION = re.compile(r"([a-z-]+)\s*=\s*(.*)", re.IGNORECASE)
_LARGEST = 1 << 20


@dataclass(frozen=True)
class AptSource:
    """One archive: mirrors, suites of it, components. `options` are deb822 fields, lower case."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)

    def stanza(self) -> str:
        lines = [
            "Types: deb",
            f"URIs: {' '.join(self.uris)}",
            f"Suites: {' '.join(self.suites)}",
            f"Components: {' '.join(self.components)}",
        ]
        lines += [f"{name.title()}: {value}" for name, value in sorted(self.options.items())]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Release:
    """The distribution and its release, from /etc/os-release."""

    id: str
    codename: str


def host_release(etc: Path = Path("/etc")) -> Release:
    values = dict(_shell_assignments(_text(etc / "os-release")))
    codename = values.get("VERSION_CODENAME", "")
    if values.get("ID") not in ("debian", "ubuntu") and not {"debian", "ubuntu"} & set(
        values.get("ID_LIKE", "").split()
    ):
        raise HostUnsupported(
            f"the base image needs apt, but this host is {values.get('PRETTY_NAME') or 'unknown'}",
            hint="use Debian or Ubuntu as the host, or an image made elsewhere",
        )
    if not re.fullmatch(r"[a-z][a-z0-9-]{1,40}", codename):
        raise HostUnsupported("/etc/os-release has no VERSION_CODENAME, so the archive's suite is unknown")
    return Release(id=values["ID"], codename=codename)


def host_sources(codename: str, etc: Path = Path("/etc/apt")) -> list[AptSource]:
    """Return the apt entries of the host's own release; third-party archives are left out."""
    parts = etc / "sources.list.d"
    files = [etc / "sources.list", *(sorted(parts.iterdir()) if parts.is_dir() else ())]
    found: list[AptSource] = []
    for file in files:
        if not file.is_file():
            continue
        if file.suffix == ".list":
            found += _one_line_entries(_text(file))
        elif file.suffix == ".sources":
            found += _stanzas(_text(file))
    own = [kept for source in found if (kept := _own_part(source, codename)) is not None]
    if not any(codename in source.suites for source in own):
        raise HostUnsupported(
            f"apt's sources on this host have no entry for {codename}",
            hint=f"add the distribution's own archive to {etc}/sources.list",
        )
    return list(_unique(own))


def without_passwords(source: AptSource) -> tuple[AptSource, list[str]]:
    """Return the source without user:password in its URLs, and netrc lines that pass them to apt instead."""
    uris, netrc = [], []
    for uri in source.uris:
        parts = urlsplit(uri)
        if parts.username is not None:
            host = parts.netloc.rpartition("@")[2]
            netrc.append(
                f"machine {parts.scheme}://{host}{parts.path} login {unquote(parts.username)}"
                f" password {unquote(parts.password or '')}"
            )
            uri = urlunsplit(parts._replace(netloc=host))
        uris.append(uri)
    return replace(source, uris=tuple(uris)), netrc


def _own_part(source: AptSource, codename: str) -> AptSource | None:
    suites = tuple(suite for suite in source.suites if suite in {codename + pocket for pocket in _WANTED_POCKETS})
    uris = tuple(uri for given in source.uris for uri in _reachable(given))
    if not (suites and uris and source.components):
        return None
    options = {name: value for name, value in source.options.items() if name in _KEPT_OPTIONS and value}
    if options.get("trusted", "no").lower() != "no":  # unsigned packages are the host's risk, not that of every sandbox
        del options["trusted"]
    return AptSource(uris=uris, suites=suites, components=source.components, options=options)


def _reachable(uri: str) -> list[str]:
    """Return URLs that also work inside: a list of mirrors on the host's disk becomes its first entry."""
    scheme = urlsplit(uri).scheme if re.match(r"[a-z+]+:", uri) else ""
    if scheme not in _SCHEMES:
        return []
    if scheme == "mirror+file":
        lines = _text(Path(urlsplit(uri).path)).splitlines()
        mirrors = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
        return [mirror for mirror in mirrors if urlsplit(mirror).scheme in ("http", "https")][:1]
    # apt uses the packages of file: in place, where the new tree's dpkg does not see them; copy: copies them.
    return [f"copy:{uri.removeprefix('file:')}" if scheme == "file" else uri]


def _one_line_entries(text: str) -> Iterator[AptSource]:
    for line in text.splitlines():
        words = line.partition("#")[0].strip()
        if not words.startswith(("deb ", "deb\t")):
            continue
        rest, options = words[3:].strip(), {}
        if rest.startswith("["):
            inner, closed, rest = rest[1:].partition("]")
            if not closed:
                continue
            options = {m[1].lower(): m[2] for word in inner.split() if (m := _OPTION.fullmatch(word))}
        fields = rest.split()
        if len(fields) >= 3:
            yield AptSource(uris=(fields[0],), suites=(fields[1],), components=tuple(fields[2:]), options=options)


def _stanzas(text: str) -> Iterator[AptSource]:
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields = _fields(block)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        yield AptSource(
            uris=tuple(fields.pop("uris", "").split()),
            suites=tuple(fields.pop("suites", "").split()),
            components=tuple(fields.pop("components", "").split()),
            options=fields,
        )


def _fields(block: str) -> dict[str, str]:
    """Return a stanza's fields in lower case; a value may continue in lines that start with a space (for example a
    key)."""
    fields: dict[str, str] = {}
    name = ""
    for line in block.split("\n"):
        if line.startswith("#") or not line.strip():
            continue
        if line[0] in " \t" and name:
            fields[name] += f"\n {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _unique(sources: list[AptSource]) -> Iterator[AptSource]:
    """apt warns about an archive that is configured twice, and takes longer; the first one counts."""
    seen: set[tuple[str, str]] = set()
    for source in sources:
        suites = tuple(suite for suite in source.suites if (source.uris[0].rstrip("/"), suite) not in seen)
        seen.update((source.uris[0].rstrip("/"), suite) for suite in suites)
        if suites:
            yield replace(source, suites=suites)


def _shell_assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            try:
                yield name, "".join(shlex.split(value))
            except ValueError:
                continue


def _text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LARGEST)
    except OSError:
        return ""
