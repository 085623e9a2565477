"""Upgrade a request to a WebSocket. Until the response 101 it is an ordinary request: the same parser, checks and
errors. The authenticator thereby denies cross-site hijacking like every other request from a foreign page."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from starlette.types import Scope
from websockets.utils import accept_key

from skerry.errors import InvalidRequest, SkerryError
from skerry.server.http.call import Headers
from skerry.server.http.responses import ClientDisconnected, error_body
from skerry.server.http.websocket import CLOSE_TIMEOUT_S, INTERNAL, WebSocket

TAKE_OVER = "skerry.websocket"  # key in the scope's extensions of the function that hands the connection over
VERSION = "13"
PROTOCOL = "skerry"  # the other offered ones carry credentials: a browser needs one that is accepted


class UpgradeRequired(InvalidRequest):
    """A WebSocket path was requested without an upgrade."""

    status: ClassVar[int] = 426
    headers: ClassVar[Mapping[str, str]] = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": VERSION,
    }


@dataclass(frozen=True)
class Upgrade:
    """The response of a WebSocket route. `serve` owns the connection until it returns; `close` is always called."""

    serve: Callable[[WebSocket], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


def handshake(scope: Scope, headers: Headers) -> dict[str, str]:
    """Return the headers of the 101 response. Raise an error if the request is not a valid upgrade."""
    if scope["method"] != "GET" or scope["http_version"] != "1.1" or TAKE_OVER not in scope.get("extensions", {}):
        raise UpgradeRequired(
            "this path requires a WebSocket upgrade", hint="send Connection: Upgrade and Upgrade: websocket"
        )
    if (version := headers.get(b"sec-websocket-version")) != VERSION:
        raise UpgradeRequired(
            f"Sec-WebSocket-Version: {(version or '')[:40]!r} is not supported", hint=f"use {VERSION}"
        )
    key = headers.get(b"sec-websocket-key") or ""
    if not _is_key(key):
        raise InvalidRequest("Sec-WebSocket-Key: not 16 bytes in base64")
    offered = [word.strip() for word in (headers.get(b"sec-websocket-protocol") or "").split(",")]
    chosen = {"Sec-WebSocket-Protocol": PROTOCOL} if PROTOCOL in offered else {}
    return {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept_key(key), **chosen}


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


async def serve_socket(socket: WebSocket, serve: Callable[[WebSocket], Awaitable[None]]) -> None:
    """Serve the WebSocket. Errors from here on are reported as messages."""
    try:
        await _while_open(socket, asyncio.ensure_future(serve(socket)))
    except ClientDisconnected:
        raise
    except SkerryError as error:
        await _report(socket, error)
        raise
    except Exception:
        await socket.close(INTERNAL, "unexpected error in the server")
        raise
    finally:
        await socket.close()


async def _while_open(socket: WebSocket, work: asyncio.Future[None]) -> None:
    """After the peer disconnects, give the work a short time to handle the received messages. A peer without rights
    gets none."""
    ended = asyncio.ensure_future(socket.ended())
    try:
        await asyncio.wait((work, ended), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((work,), timeout=0 if socket.revoked else CLOSE_TIMEOUT_S)
        if not work.done():
            raise ClientDisconnected
        work.result()
    finally:
        ended.cancel()
        work.cancel()
        await asyncio.wait((work,))


async def _report(socket: WebSocket, error: SkerryError) -> None:
    await socket.send(error_message(error))
    await socket.close(INTERNAL, error.message)


def error_message(error: SkerryError) -> str:
    return '{"type":"error",' + error_body(error).decode().removeprefix("{")
