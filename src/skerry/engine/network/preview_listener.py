"""Where previews are served: the listener that the server holds and the worker accepts on, and the addresses it has."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from skerry.config import Settings
from skerry.errors import Conflict, InvalidRequest
from skerry.network.listen import bind_tcp, parse_listen

log = logging.getLogger("skerry.engine")
TRIES = 100
_NOWHERE = "none"
_BIND_TIMEOUT_S = 3.0  # a server that was killed leaves its worker behind for a moment, with the port
_DOMAIN = re.compile(r"(?=.{1,190}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_URL = re.compile(r"(https?)://\*\.([A-Za-z0-9.-]+)(:[0-9]{1,5})?/?")


@dataclass(frozen=True)
class Addresses:
    """The public addresses of the listener. `outer`: scheme and domain of the operator's reverse proxy."""

    host: str
    port: int
    domain: str
    outer: tuple[str, str] | None = None

    @property
    def domains(self) -> tuple[str, ...]:
        outer = (self.outer[1].partition(":")[0],) if self.outer else ()
        return tuple(dict.fromkeys((self.domain, *outer, "localhost")))

    @property
    def secure(self) -> tuple[str, ...]:
        return (self.outer[1].partition(":")[0],) if self.outer and self.outer[0] == "https" else ()

    def url(self, place: str) -> str:
        """Return the URL of a preview; `place`: its port or name, and the sandbox's ID."""
        if self.outer is not None:
            return f"{self.outer[0]}://{place}.{self.outer[1]}/"
        return f"http://{place}.{self.domain}:{self.port}/"

    def path_url(self, place: str) -> str:
        any_address = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 -- compared with
        host = any_address.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"http://{host}:{self.port}/-/{place}/"


class PreviewListener:
    """`socket` None: the operator wants none. Its port is the same after a restart, so that links stay good."""

    def __init__(self, settings: Settings) -> None:
        self._setting: str = settings["preview.listen"]
        self.max_per_address: int = settings["server.max_connections_per_address"]
        self._domain = _domain(settings["preview.domain"])
        self._outer = _outer(settings["preview.url"])
        self._note = settings.state_dir / "previews.port"
        self._holder: socket.socket | None = None
        self.socket: socket.socket | None = None
        self._place = None if self._setting == _NOWHERE else parse_listen(self._setting, "preview.listen")

    async def open(self) -> None:
        if self._place is None:
            return
        host, wanted = self._place
        known = _known(self._note, self._setting)
        if known is not None:
            await self._take_again(host, known)
        if self.socket is None:
            self._take_first(host, wanted)
        port = self.addresses.port
        if port != wanted and wanted:
            log.warning("the preview port is in use: another port is used", extra={"port": port})
        if not ipaddress.ip_address(host).is_loopback:
            log.warning("previews are served beyond this host, without encryption", extra={"host": host})
        log.info("serving previews", extra={"address": f"{host}:{port}", "domains": self.addresses.domains})
        self._note.write_text(f"{self._setting} {port}\n")

    @property
    def addresses(self) -> Addresses:
        if self.socket is None:
            raise Conflict("previews are not served here", hint="the operator can set preview.listen")
        host, port = self.socket.getsockname()[:2]
        return Addresses(host, port, self._domain, self._outer)

    def close(self) -> None:
        for one in (self.socket, self._holder):
            if one is not None:
                one.close()
        self.socket = self._holder = None

    async def _take_again(self, host: str, port: int) -> None:
        for _ in range(round(_BIND_TIMEOUT_S / 0.05)):
            if self._take(host, port):
                return
            await asyncio.sleep(0.05)

    def _take_first(self, host: str, wanted: int) -> None:
        following = range(wanted, min(wanted + TRIES, 65536)) if wanted else ()
        for port in (*following, 0, 0, 0):
            if self._take(host, port):
                return
        raise Conflict(f"preview.listen: no port from {wanted} on is free", hint="set it to another")

    def _take(self, host: str, port: int) -> bool:
        try:
            self.socket = bind_tcp(host, port)
        except Conflict:
            return False
        if host == "127.0.0.1":
            self._holder = _hold(self.socket.getsockname()[1])
            if self._holder is None:
                self.socket.close()
                self.socket = None
        return self.socket is not None


def _hold(port: int) -> socket.socket | None:
    """Hold the same port of ::1 without listening: names below localhost also mean that address, and browsers try it
    first. Another user of this machine could serve there and receive the tokens. SO_REUSEADDR is not set: another
    process that sets it too could share the port."""
    holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        holder.bind(("::1", port))
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno == errno.EADDRINUSE:
            holder.close()
            return None
    return holder  # bound; or this host has no ::1 and needs no holder


def _known(note: Path, setting: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        then, _, port = note.read_text().strip().rpartition(" ")
        if then == setting and 0 < int(port) < 65536:
            return int(port)
    return None


def _domain(text: str) -> str:
    domain = text.lower().removesuffix(".")
    if not _DOMAIN.fullmatch(domain):
        raise InvalidRequest(f"preview.domain: {text[:80]!r} is not a domain", hint="like localhost or preview.lan")
    return domain


def _outer(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    match = _URL.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"preview.url: {text[:80]!r} can't be used", hint="like https://*.preview.example.com")
    return match[1], _domain(match[2]) + (match[3] or "")
