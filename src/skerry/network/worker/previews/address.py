"""Which preview a request means, and with which token it comes. Pure; every byte of it is a stranger's.

Two forms: `{port}-{sandbox}.localhost`, where each preview is a web origin of its own; and `/-/{port}-{sandbox}/…`
below the listener's own names, for programs that can't look up such names. The second is one origin for all previews,
so no cookie passes there, neither way: a page of one sandbox could use, or read, another's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from skerry.types import SANDBOX_ID

TOKEN_HEADER = b"x-skerry-preview-token"
TOKEN_PARAMETER = "skerry_token"  # noqa: S105 -- its name
COOKIE = "skerry_preview"
SECURE_COOKIE = "__Host-skerry_preview"  # a name that browsers take from no other host, and by TLS only
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)(?::[0-9]{1,5})?")
_LABEL = re.compile(rf"([1-9][0-9]{{0,4}})-({SANDBOX_ID.pattern})")
_PATH = re.compile(rf"/-/([1-9][0-9]{{0,4}})-({SANDBOX_ID.pattern})(?=[/?]|$)")
_TARGET = re.compile(r"/[!-\"$-~]*")  # what a browser sends: no fragment, no scheme, no authority


class WrongHost(ValueError):
    """The request is for somebody else."""


class BadTarget(ValueError):
    """It is not a path."""


@dataclass(frozen=True)
class Names:
    """What the listener answers to. `local` is the address that a connection came in by."""

    domains: tuple[str, ...]
    secure: tuple[str, ...] = ()

    def place(self, host: str, target: str, local: str) -> Place:
        """Where a request wants to go. `host` and `target` as they came."""
        match = _HOST.fullmatch(host.lower())
        if match is None:
            raise WrongHost
        if not _TARGET.fullmatch(target):
            raise BadTarget
        name = match[1]
        for domain in self.domains:
            if name.endswith(f".{domain}"):
                key = _key(_LABEL.fullmatch(name[: -len(domain) - 1]))
                return Place(key, host.lower(), target, secure=domain in self.secure)
        if name not in _LOOPBACK and name not in self.domains and name.strip("[]") != local:
            raise WrongHost  # above all a name that somebody's DNS points to us: DNS rebinding
        found = _PATH.match(target)
        prefix = found[0] if found else ""
        return Place(_key(found), host.lower(), target[len(prefix) :], prefix, secure=name in self.secure)


@dataclass(frozen=True)
class Place:
    """`key` None: a well-formed request for nothing that could exist. `target`: what goes inside, the token still in
    its query. `prefix`: what was cut off it; empty where the preview has a host name of its own."""

    key: tuple[str, int] | None
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


def _key(match: re.Match[str] | None) -> tuple[str, int] | None:
    if match is None or int(match[1]) > 65535:
        return None
    return match[2], int(match[1])


def take_token(target: str) -> tuple[str, str | None]:
    """The target without the token's parameter, and the token."""
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


def clean_location(target: str) -> str:
    """A redirect to our own host and nowhere else: a browser takes `//name`, and `/\\name`, for another one's."""
    return f"/.{target}" if target[1:2] in ("/", "\\") else target


def cookies_without(value: str, name: str) -> tuple[str, list[str]]:
    """A Cookie header without ours, and what ours said."""
    kept, ours = [], []
    for pair in value.split(";"):
        key, _, text = pair.strip().partition("=")
        if key.strip() == name:
            ours.append(text.strip())
        elif pair.strip():
            kept.append(pair.strip())
    return "; ".join(kept), ours


def own_cookie(line: str, ours: Iterable[str] = (COOKIE, SECURE_COOKIE)) -> str | None:
    """A Set-Cookie of a program inside, for its own host alone: a Domain would let it speak to other previews, and to
    whatever else lives below that domain. One that has our name is dropped."""
    pair, *attributes = line.split(";")
    if pair.partition("=")[0].strip() in ours:
        return None
    kept = [part for part in attributes if part.partition("=")[0].strip().lower() != "domain"]
    return ";".join([pair, *kept])


def foreign_origin(origin: str, place: Place) -> bool:
    """Does an Origin header name another page than this preview's own?"""
    return origin.lower() not in (f"http://{place.host}", f"https://{place.host}")
