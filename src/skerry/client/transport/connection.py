"""Connections and their errors, shared by both clients."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import httpcore2
import httpx2

from skerry._version import __version__
from skerry.client.host.content import PIECE, pieces
from skerry.client.host.posix import effective_uid
from skerry.client.transport.address import Address
from skerry.client.transport.requests.sandboxes import Request
from skerry.codecs import h11_headers
from skerry.errors import Conflict, InvalidRequest, ServerUnreachable

h11_headers.harden()

CONNECT_TIMEOUT = 10.0
# Below the server's keep-alive (75 s): a connection that it is closing must not be chosen for a request.
KEEP_IDLE = 30.0
# A followed stream may be silent for hours: a server on a machine that is gone is noticed within two minutes.
# macOS calls the first of the three times TCP_KEEPALIVE.
_IDLE = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value)
      for name, value in ((_IDLE, 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)) if hasattr(socket, name)),
)  # fmt: skip
_SETUP = "`sudo skerry setup` makes the server a service that your user can reach"

_PIECE_AT_ONCE = (socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PIECE)


class NotConnected(ServerUnreachable):
    """Nothing was sent: no server listens."""


def transport_options(address: Address) -> dict[str, Any]:
    """Return the arguments for httpx2's transport.

    It is used without httpx2's client on top: no cookies, no redirects, no proxy or .netrc of the environment. A token
    goes only to the server that it was made for, and a call takes half as long.
    """
    return {
        "uds": address.socket,
        "verify": ssl.create_default_context() if address.url.startswith("https:") else _unused_context(),
        "trust_env": False,
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEEP_IDLE),
        "socket_options": [_PIECE_AT_ONCE] if address.local else list(_KEEP_ALIVE),
    }


def http_request(address: Address, request: Request, more_headers: Mapping[str, str] = {}) -> httpx2.Request:
    query = f"?{urlencode(request.params, quote_via=quote, errors='surrogateescape')}" if request.params else ""
    headers = {"user-agent": f"skerry/{__version__}", **request.headers(), **more_headers}
    if address.token:
        headers["authorization"] = f"Bearer {address.token}"
    timeouts = {"connect": CONNECT_TIMEOUT, "read": request.read_timeout, "write": request.read_timeout, "pool": None}
    url, content, more = f"{address.url}{request.path}{query}", request.content, {"timeout": timeouts}
    if isinstance(content, bytes) and len(content) > PIECE:
        headers |= {"host": address.url.partition("//")[2], "content-length": str(len(content))}
        return httpx2.Request(request.method, url, headers=headers, stream=Pieces(content), extensions=more)
    return httpx2.Request(request.method, url, headers=headers, content=content, extensions=more)


class Pieces(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A large body in pieces: the socket of a local server takes one piece in one call."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        return pieces(self._content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in pieces(self._content):
            yield piece


@cache
def _unused_context() -> ssl.SSLContext:
    """Return a context that is never used. httpx2 wants one also without TLS: making it takes 1 ms, and 20 ms more if
    it loads the certificates."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextmanager
def translate_errors(address: Address) -> Iterator[None]:
    """Convert httpx2's exceptions: none of them reaches a caller."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise not_connected(address, error) from error
    except httpx2.TimeoutException as error:
        raise ServerUnreachable(f"the server at {address} stopped responding", hint="`skerry server status`") from error
    except httpx2.InvalidURL as error:
        raise InvalidRequest(f"the request is not valid: {error}", hint="use shorter arguments") from error
    except httpx2.TransportError as error:
        raise ServerUnreachable(f"the connection to {address} broke: {error}", hint="`skerry server logs`") from error


@contextmanager
def translate_stream_errors(address: Address) -> Iterator[None]:
    """Convert the exceptions of an upgraded connection. TimeoutError: no data arrived in time."""
    try:
        yield
    except httpcore2.ReadTimeout as error:
        raise TimeoutError from error
    except TimeoutError:
        raise
    except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError, ValueError) as error:
        raise ServerUnreachable(f"the connection to {address} broke: {error}", hint="`skerry server logs`") from error


def not_connected(address: Address, error: Exception) -> NotConnected:
    if not address.local:
        return NotConnected(f"no server at {address}: {error}", hint="is it running, and SKERRY_SERVER right?")
    if _errno_of(error) in (errno.EACCES, errno.EPERM):
        hint = "`skerry doctor` names the command that gives your user access"
        return NotConnected(f"permission denied for the server at {address}", hint=hint)
    if not address.own:
        return NotConnected(f"no server at {address}", hint="is it running, and the address right?")
    hint = _SETUP if effective_uid() else "start it: `skerry server start`"
    return NotConnected(f"no server at {address}", hint=hint)


def _errno_of(error: BaseException | None) -> int | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def listen_on(host: str, port: int) -> socket.socket:
    """Open a listener on this machine, for a forward."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        hint = "take another port here, or 0 for any that is free"
        raise Conflict(f"{host} port {port} cannot be used: {why}", hint=hint) from error


def reset_on_close(connection: socket.socket) -> None:
    """Make the end of a connection a reset, so that it is not mistaken for an orderly one."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
