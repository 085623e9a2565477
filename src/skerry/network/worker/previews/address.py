"""The preview that a request addresses, and the tokens that it presents. Pure; every byte is untrusted.

A preview is addressed by its port or, if it has one, its name. Two forms: `{port}-{sandbox}.localhost`, where each
preview is a separate web origin; and `/-/{port}-{sandbox}/…` below the listener's names, for programs that cannot
resolve such names. The second form is one origin for all previews, so no cookie passes in either direction: a page of
one sandbox could use or read another's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from skerry.types import PREVIEW_NAME, SANDBOX_ID

TOKEN_HEADER = b"x-skerry-preview-token"
TOKEN_PARAMETER = "skerry_token"  # noqa: S105 -- its name
COOKIE = "skerry_preview"
SECURE_COOKIE = "__Host-skerry_preview"  # browsers accept this prefix only from the host itself, over TLS
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)(?::[0-9]{1,5})?")
_KEY = rf"(?:([1-9][0-9]{{0,4}})|({PREVIEW_NAME.pattern}))-({SANDBOX_ID.pattern})"
_LABEL = re.compile(_KEY)
_PATH = re.compile(rf"/-/{_KEY}(?=[/?]|$)")
_TARGET = re.compile(r"/[!-\"$-~]*")  # a browser's request target: no fragment, scheme or authority


PreviewKey = tuple[str, int | str]
"""A sandbox's ID, and a port or a name."""


class UnknownPreviewHost(ValueError):
    """The request is for another server."""


class InvalidTarget(ValueError):
    """The target is not a path."""


@dataclass(frozen=True)
class PreviewDomains:
    """The domains that the listener serves. `local` is the address on which a connection arrived."""

    domains: tuple[str, ...]
    secure: tuple[str, ...] = ()

    def resolve(self, host: str, target: str, local: str) -> PreviewAddress:
        """Return the address of a request; `host` and `target` as received."""
        match = _HOST.fullmatch(host.lower())
        if match is None:
            raise UnknownPreviewHost
        if not _TARGET.fullmatch(target):
            raise InvalidTarget
        name = match[1]
        for domain in self.domains:
            if name.endswith(f".{domain}"):
                key = _key(_LABEL.fullmatch(name[: -len(domain) - 1]))
                return PreviewAddress(key, host.lower(), target, secure=domain in self.secure)
        if name not in _LOOPBACK and name not in self.domains and name.strip("[]") != local:
            raise UnknownPreviewHost  # above all DNS rebinding: a foreign name that resolves to this server
        found = _PATH.match(target)
        prefix = found[0] if found else ""
        return PreviewAddress(_key(found), host.lower(), target[len(prefix) :], prefix, secure=name in self.secure)


@dataclass(frozen=True)
class PreviewAddress:
    """`key` None: a well-formed request for a preview that cannot exist. `target`: the path for the program inside,
    with the token still in its query. `prefix`: the part removed from it; empty if the preview has a separate host
    name."""

    key: PreviewKey | None
    host: str
    target: str
    prefix: str = ""
    secure: bool = False

    @property
    def cookie(self) -> str:
        return SECURE_COOKIE if self.secure else COOKIE

    @property
    def scheme(self) -> str:
        return "https" if self.secure else "http"


def _key(match: re.Match[str] | None) -> PreviewKey | None:
    if match is None:
        return None
    port, name, sandbox = match.groups()
    if port is None:
        return sandbox, name
    return (sandbox, int(port)) if int(port) <= 65535 else None


def take_token(target: str) -> tuple[str, str | None]:
    """Return the target without the token parameter, and the token."""
    path, mark, query = target.partition("?")
    if TOKEN_PARAMETER not in query:
        return target, None
    kept: list[str] = []
    token = None
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if name == TOKEN_PARAMETER:
            token = value
        else:
            kept.append(pair)
    return path + (mark + "&".join(kept) if kept else ""), token


def same_host_location(target: str) -> str:
    """Return a redirect target on this host only: a browser takes `//name` and `/\\name` for another host."""
    return f"/.{target}" if target[1:2] in ("/", "\\") else target


def cookies_without(value: str, name: str) -> tuple[str, list[str]]:
    """Return a Cookie header without our cookie, and the values of our cookie."""
    kept, ours = [], []
    for pair in value.split(";"):
        key, _, text = pair.strip().partition("=")
        if key.strip() == name:
            ours.append(text.strip())
        elif pair.strip():
            kept.append(pair.strip())
    return "; ".join(kept), ours


def host_only_cookie(line: str, ours: Iterable[str] = (COOKIE, SECURE_COOKIE)) -> str | None:
    """Restrict a program's Set-Cookie to its host: a Domain would reach other previews and every other site below that
    domain. Drop a cookie with our name."""
    pair, *attributes = line.split(";")
    if pair.partition("=")[0].strip() in ours:
        return None
    kept = [part for part in attributes if part.partition("=")[0].strip().lower() != "domain"]
    return ";".join([pair, *kept])


def foreign_origin(origin: str, address: PreviewAddress) -> bool:
    """Return whether an Origin header names another page than this preview's."""
    return origin.lower() not in (f"http://{address.host}", f"https://{address.host}")
