"""The address of a server: an explicit argument, SKERRY_SERVER, or the unix socket of this host's server."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from skerry.errors import HostUnsupported, InvalidRequest

if TYPE_CHECKING:
    from skerry.config import Settings

_HINT = "write it like unix:///run/skerry/api.sock or https://host:7070"


@dataclass(frozen=True)
class Address:
    """One server. `own`: no address was given, so it is this host's server, which may be started if it is not
    running."""

    url: str
    socket: str | None = None
    token: str | None = None
    own: bool = False

    @property
    def local(self) -> bool:
        return self.socket is not None

    def __str__(self) -> str:
        return f"unix://{self.socket}" if self.socket else self.url

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"  # never the token


def parse_address(text: str, token: str | None = None) -> Address:
    """Parse `unix:///path`, `http://host:port` or `https://host:port`."""
    if not isinstance(text, str):
        raise InvalidRequest(f"server: a {type(text).__name__} is not an address", hint=_HINT)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"server: {text!r} is not an address", hint=_HINT) from error
    if any(c <= " " or c == "\x7f" for c in text) or parts.query or parts.fragment:
        raise InvalidRequest(f"server: {text!r} is not an address", hint=_HINT)
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        return Address(url="http://localhost", socket=parts.path, token=check_token(token))
    if parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/") and parts.username is None:
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return Address(url=f"{parts.scheme}://{host}" + (f":{port}" if port else ""), token=check_token(token))
    raise InvalidRequest(f"server: {text!r} is not an address", hint=_HINT)


def check_token(token: str | None) -> str | None:
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token and token):
        raise InvalidRequest("token: not a token", hint="it looks like skt_…")
    return token


def resolve(server: str | None, settings: Settings) -> Address:
    """Return the server that a caller names; by default this host's."""
    from skerry.config import socket_path  # imported here, so that `import skerry` does not load the TOML parser

    named = server or settings["server"]
    address = parse_address(named, settings["token"]) if named else None
    if not hasattr(socket, "AF_UNIX") and (address is None or address.local):
        raise HostUnsupported(
            "Unix sockets are not supported on this system",
            hint="name a server: SKERRY_SERVER=https://host:7070 and SKERRY_TOKEN, or Client(server)",
        )
    return address or Address(url="http://localhost", socket=str(socket_path(settings.state_dir)), own=True)
