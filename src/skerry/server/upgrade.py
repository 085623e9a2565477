"""From HTTP to a WebSocket. The request is one like any other until its answer, 101: the same parser, the same checks,
the same refusals. Cross-site hijacking is thereby refused as every other call from a foreign page is: by the door."""

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
from skerry.server.answers import Gone, error_body
from skerry.server.call import Headers
from skerry.server.websocket import CLOSE_WITHIN_S, INTERNAL, WebSocket

TAKE_OVER = "skerry.websocket"  # in the scope's extensions, where the protocol can hand the connection over
VERSION = "13"


class UpgradeRequired(InvalidRequest):
    """A path that speaks WebSocket was called by something else."""

    status: ClassVar[int] = 426
    headers: ClassVar[Mapping[str, str]] = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": VERSION,
    }


@dataclass(frozen=True)
class Upgrade:
    """The answer of a WebSocket route. `serve` has the connection until it returns; `close` is called in every case."""

    serve: Callable[[WebSocket], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


def handshake(scope: Scope, headers: Headers) -> dict[str, str]:
    """The headers that go with the 101, or why there will be none."""
    if scope["method"] != "GET" or scope["http_version"] != "1.1" or TAKE_OVER not in scope.get("extensions", {}):
        raise UpgradeRequired("a WebSocket is spoken here", hint="send Connection: Upgrade and Upgrade: websocket")
    if (version := headers.get(b"sec-websocket-version")) != VERSION:
        raise UpgradeRequired(f"Sec-WebSocket-Version: {(version or '')[:40]!r} is not spoken", hint=f"only {VERSION}")
    key = headers.get(b"sec-websocket-key") or ""
    if not _is_key(key):
        raise InvalidRequest("Sec-WebSocket-Key: not 16 bytes in base64")
    return {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept_key(key)}


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


async def converse(socket: WebSocket, serve: Callable[[WebSocket], Awaitable[None]]) -> None:
    """What fails from here on is told in the conversation itself."""
    try:
        await _while_open(socket, asyncio.ensure_future(serve(socket)))
    except Gone:
        raise
    except SkerryError as error:
        await _tell(socket, error)
        raise
    except Exception:
        await socket.close(INTERNAL, "the server met an unexpected error")
        raise
    finally:
        await socket.close()


async def _while_open(socket: WebSocket, work: asyncio.Future[None]) -> None:
    """When the peer has gone, the work has a moment left to deal with what came from it."""
    ended = asyncio.ensure_future(socket.ended())
    try:
        await asyncio.wait((work, ended), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((work,), timeout=CLOSE_WITHIN_S)
        if not work.done():
            raise Gone
        work.result()
    finally:
        ended.cancel()
        work.cancel()
        await asyncio.wait((work,))


async def _tell(socket: WebSocket, error: SkerryError) -> None:
    await socket.send(error_message(error))
    await socket.close(INTERNAL, error.message)


def error_message(error: SkerryError) -> str:
    return '{"type":"error",' + error_body(error).decode().removeprefix("{")
