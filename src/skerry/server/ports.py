"""/v1/sandboxes/{ref}/ports: what listens inside.

…/connect is a WebSocket around a TCP connection to it: binary messages are its bytes, both ways; the text `eof` says
that its sender will send no more. What is read is only what the other side has room for.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from skerry.errors import InvalidRequest, NotFound
from skerry.server.call import Call, Nothing
from skerry.server.processes import WAIT_MOST
from skerry.server.upgrade import Upgrade
from skerry.server.websocket import INTERNAL, WebSocket
from skerry.types import PortState, Value, check_http_path, check_port

if TYPE_CHECKING:
    from skerry.engine.ports import Connection

EOF = "eof"


class PortQuery(Value, frozen=True, kw_only=True):
    """`timeout`: how many seconds the answer may take, at most 60; ask again then. `http_path`: it counts as open only
    once this path answers below 500."""

    timeout: float = 30.0
    http_path: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout) and 0 <= self.timeout <= WAIT_MOST):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint=f"0 to {WAIT_MOST:g} seconds")
        check_http_path(self.http_path)


def port_of(call: Call[Any, Any]) -> int:
    """The port in the path."""
    text = call.parameters["port"]
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise NotFound(f"there is no port {text[:20]!r}")
    check_port(int(text))
    return int(text)


async def wait(call: Call[PortQuery, Nothing]) -> PortState:
    port, query = port_of(call), call.query
    opening = call.engine.ports.wait(call.caller, call.ref, port, query.timeout, query.http_path)
    state = await call.while_here(call.unless_stopping(opening))
    return state if state is not None else PortState(open=False, last="the server is stopping")


async def connect(call: Call[Nothing, Nothing]) -> Upgrade:
    connection = await call.engine.ports.connect(call.caller, call.ref, port_of(call))
    return Upgrade(partial(_serve, connection), connection.aclose)


async def _serve(connection: Connection, socket: WebSocket) -> None:
    """Until both sides have said all, or one breaks."""
    ways = [asyncio.ensure_future(way) for way in (_inward(connection, socket), _outward(connection, socket))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in ways:
            if way.done():
                way.result()
    except BaseException as error:
        connection.reset()
        if not isinstance(error, OSError):
            raise
        # Reset by the program inside: an ordinary end of a TCP connection, if not a good one.
        await socket.close(INTERNAL, error.strerror or "the connection was reset")
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)


async def _inward(connection: Connection, socket: WebSocket) -> None:
    """A peer that leaves without an `eof` has broken off: the connection inside is broken off too."""
    while (message := await socket.receive()) is not None:
        if isinstance(message, bytes):
            await connection.write(message)
        elif message == EOF:
            connection.end()
            return
        else:
            raise InvalidRequest("the only text that is understood is eof", hint="data goes in binary messages")
    raise ConnectionResetError("the other side left")


async def _outward(connection: Connection, socket: WebSocket) -> None:
    while data := await connection.read():
        await socket.send(data)
    await socket.send(EOF)
