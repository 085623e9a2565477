"""The operator's settings for registries, in the files of podman and docker: mirrors and blocked names in
`registries.conf`, certificates in `certs.d`.

/etc/containers/registries.conf, /etc/containers/registries.conf.d/*.conf       version 2 of the format
/etc/containers/certs.d/HOST[:PORT]/, /etc/docker/certs.d/HOST[:PORT]/          *.crt; *.cert with *.key
"""

from __future__ import annotations

import re
import ssl
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from skerry.errors import HostUnsupported, PermissionDenied
from skerry.types import Reference

ETC = Path("/etc")
_HOST = re.compile(r"\[?[A-Za-z0-9][A-Za-z0-9.:-]*\]?(?::\d+)?")


class _Mirror(msgspec.Struct, frozen=True, rename="kebab"):
    location: str
    insecure: bool = False
    pull_from_mirror: Literal["all", "digest-only", "tag-only", ""] = ""


class _Registry(msgspec.Struct, frozen=True, rename="kebab"):
    prefix: str = ""
    location: str = ""
    insecure: bool = False
    blocked: bool = False
    mirror_by_digest_only: bool = False
    mirror: tuple[_Mirror, ...] = ()

    @property
    def begins(self) -> str:
        return self.prefix or self.location


class _File(msgspec.Struct, frozen=True):
    registry: tuple[_Registry, ...] = ()


@dataclass(frozen=True)
class RegistryEndpoint:
    """A place to pull from. `insecure`: without TLS, or with any certificate. `mirror`: another one follows."""

    host: str
    repository: str
    insecure: bool = False
    mirror: bool = False


def endpoints(reference: Reference, etc: Path | None = None) -> list[RegistryEndpoint]:
    """Return the places that have an image, in the order to try them: the mirrors, then the registry itself."""
    name = f"{reference.registry}/{reference.repository}"
    found = _best_match(name, _read(etc or ETC))
    if found is None:
        return [RegistryEndpoint(reference.registry, reference.repository)]
    if found.blocked:
        raise PermissionDenied(
            f"{reference.registry} is blocked on the server's machine for {reference.repository}",
            hint="an administrator can change registries.conf there",
        )
    places = [
        _endpoint(_moved(name, found.begins, mirror.location), mirror.insecure, mirror=True)
        for mirror in found.mirror
        if _serves(mirror, found, reference)
    ]
    return [*places, _endpoint(_moved(name, found.begins, found.location), found.insecure)]


def trust(host: str, insecure: bool, etc: Path | None = None) -> ssl.SSLContext:
    """Return a context with the host's certificates, or those that SSL_CERT_FILE and SSL_CERT_DIR name, and with those
    of `certs.d` for this registry."""
    context = ssl.create_default_context()
    for above in ("containers", "docker"):
        directory = (etc or ETC) / above / "certs.d" / host
        if not _HOST.fullmatch(host) or not directory.is_dir():
            continue
        try:
            for file in sorted(directory.iterdir()):
                if file.suffix == ".crt":
                    context.load_verify_locations(file)
                elif file.suffix == ".cert":
                    context.load_cert_chain(file, file.with_suffix(".key"))
        except (OSError, ssl.SSLError) as error:
            raise HostUnsupported(f"the certificates in {directory} cannot be used: {error}") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _read(etc: Path) -> list[_Registry]:
    """Return the tables of all files. A later file replaces the table of a prefix."""
    containers = etc / "containers"
    tables: dict[str, _Registry] = {}
    for file in (containers / "registries.conf", *sorted((containers / "registries.conf.d").glob("*.conf"))):
        try:
            read = msgspec.convert(tomllib.loads(file.read_text()), type=_File)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, msgspec.ValidationError) as error:
            raise HostUnsupported(f"{file} is not valid: {error}") from error
        tables |= {table.begins: table for table in read.registry if table.begins}
    return list(tables.values())


def _best_match(name: str, tables: list[_Registry]) -> _Registry | None:
    matching = [table for table in tables if _matched(name, table.begins)]
    return max(matching, key=lambda table: len(table.begins), default=None)


def _matched(name: str, prefix: str) -> str:
    """Return the part of the name that a prefix stands for: whole components, or hosts below `*.example.com`."""
    if prefix.startswith("*."):
        host = name.partition("/")[0]
        return host if host.partition(":")[0].endswith(prefix[1:]) else ""
    return prefix if name == prefix or name.startswith(prefix + "/") else ""


def _moved(name: str, prefix: str, location: str) -> str:
    return location + name.removeprefix(_matched(name, prefix)) if location else name


def _serves(mirror: _Mirror, table: _Registry, reference: Reference) -> bool:
    wanted = mirror.pull_from_mirror or ("digest-only" if table.mirror_by_digest_only else "all")
    return wanted == "all" or (wanted == "digest-only") == (reference.digest is not None)


def _endpoint(place: str, insecure: bool, mirror: bool = False) -> RegistryEndpoint:
    host, _, repository = place.partition("/")
    if not _HOST.fullmatch(host) or not repository:
        raise HostUnsupported(f"registries.conf has an invalid location: {place[:200]!r}")
    return RegistryEndpoint(host, repository, insecure, mirror)
