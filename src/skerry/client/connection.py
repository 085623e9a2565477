"""How a connection is made and how its failures are told; shared by both clients."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import httpcore
import httpx

from skerry._version import __version__
from skerry.client.address import Address
from skerry.client.content import PIECE, pieces
from skerry.client.requests import Request
from skerry.errors import Conflict, InvalidRequest, ServerUnreachable

CONNECT_WITHIN = 10.0
# Below the server's own keep-alive (75 s): a connection that it is just closing must not be picked for a request.
KEEP_IDLE = 30.0
# What is followed may be silent for hours: a server whose machine is gone is noticed within two minutes.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)  # fmt: skip
_SETUP = "`sudo skerry setup` makes the server a service that your user can reach"

_PIECE_AT_ONCE = (socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PIECE)


class NotConnected(ServerUnreachable):
    """Nothing was sent: nobody listened."""


def transport_options(address: Address) -> dict[str, Any]:
    """Arguments for httpx's transport.

    It is used without httpx's client on top: no cookies, no redirects, no proxy or .netrc of the environment. A token
    goes to the server that it was made for and nowhere else, and a call takes half as long."""
    return {
        "uds": address.socket,
        "verify": ssl.create_default_context() if address.url.startswith("https:") else _unused_context(),
        "trust_env": False,
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEEP_IDLE),
        "socket_options": [_PIECE_AT_ONCE] if address.local else list(_KEEP_ALIVE),
    }


def http_request(address: Address, request: Request) -> httpx.Request:
    query = f"?{urlencode(request.params, quote_via=quote, errors='surrogateescape')}" if request.params else ""
    headers = {"user-agent": f"skerry/{__version__}", **request.headers()}
    if address.token:
        headers["authorization"] = f"Bearer {address.token}"
    patience = {"connect": CONNECT_WITHIN, "read": request.read_timeout, "write": request.read_timeout, "pool": None}
    url, content, more = f"{address.url}{request.path}{query}", request.content, {"timeout": patience}
    if isinstance(content, bytes) and len(content) > PIECE:
        headers |= {"host": address.url.partition("//")[2], "content-length": str(len(content))}
        return httpx.Request(request.method, url, headers=headers, stream=Pieces(content), extensions=more)
    return httpx.Request(request.method, url, headers=headers, content=content, extensions=more)


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A large body, piece by piece: httpcore copies what is left of one that it is given whole after each call to the
    kernel, which takes minutes for some hundred MiB."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        return pieces(self._content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in pieces(self._content):
            yield piece


@cache
def _unused_context() -> ssl.SSLContext:
    """httpx wants one also without TLS: making it takes 1 ms, and 20 ms more if it loads the certificates."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextmanager
def speaking(address: Address) -> Iterator[None]:
    """httpx's failures as ours; nothing of httpx leaks to a caller."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise not_connected(address, error) from error
    except httpx.TimeoutException as error:
        raise ServerUnreachable(f"the server at {address} went silent", hint="`skerry server status`") from error
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"this can't be asked for: {error}", hint="give shorter arguments") from error
    except httpx.TransportError as error:
        raise ServerUnreachable(f"the connection to {address} broke: {error}", hint="`skerry server logs`") from error


@contextmanager
def on_the_wire(address: Address) -> Iterator[None]:
    """The same for an upgraded connection's own stream. TimeoutError: nothing came in the time that was given."""
    try:
        yield
    except httpcore.ReadTimeout as error:
        raise TimeoutError from error
    except TimeoutError:
        raise
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError, ValueError) as error:
        raise ServerUnreachable(f"the connection to {address} broke: {error}", hint="`skerry server logs`") from error


def not_connected(address: Address, error: Exception) -> NotConnected:
    if not address.local:
        return NotConnected(f"no server at {address}: {error}", hint="is it running, and SKERRY_SERVER right?")
    if _errno_of(error) in (errno.EACCES, errno.EPERM):
        return NotConnected(f"this user may not use the server at {address}", hint=_SETUP + " (group skerry)")
    if not address.own:
        return NotConnected(f"no server at {address}", hint="is it running, and the address right?")
    hint = _SETUP if os.geteuid() else "start it: `skerry server start`"
    return NotConnected(f"no server at {address}", hint=hint)


def _errno_of(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def listen_on(host: str, port: int) -> socket.socket:
    """A listener of this machine's, for a forward."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        hint = "take another port here, or 0 for any that is free"
        raise Conflict(f"{host} port {port} can't be listened on: {why}", hint=hint) from error


def break_off(connection: socket.socket) -> None:
    """Its end will be a reset, so that nobody takes it for an orderly one."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
