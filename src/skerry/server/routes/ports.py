"""/v1/sandboxes/{ref}/ports: ports of a sandbox.

…/connect is a WebSocket around a TCP connection to the port: binary messages are its bytes in both directions; the
text `eof` ends the sender's direction. Each side is read only as fast as the other side accepts data.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.http.upgrade import Upgrade
from skerry.server.http.websocket import INTERNAL, WebSocket
from skerry.server.routes.processes import MAX_WAIT_S
from skerry.types import PROCESS_ID, PortState, Value, check_http_path, check_port

if TYPE_CHECKING:
    from skerry.engine.processes.ports import Connection

EOF = "eof"


class PortQuery(Value, frozen=True, kw_only=True):
    """`timeout`: the maximum time to wait in seconds, at most 60; then call again. `http_path`: the port counts as
    open only when this path answers with a status below 500. `process`: return at once when this process has ended."""

    timeout: float = 30.0
    http_path: str | None = None
    process: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout) and 0 <= self.timeout <= MAX_WAIT_S):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint=f"0 to {MAX_WAIT_S:g} seconds")
        check_http_path(self.http_path)
        if self.process is not None and not PROCESS_ID.fullmatch(self.process):
            raise NotFound(f"process {self.process[:80]!r} not found")


def port_of(call: Call[Any, Any]) -> int:
    """Return the port from the path."""
    text = call.parameters["port"]
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise NotFound(f"port {text[:20]!r} not found")
    check_port(int(text))
    return int(text)


async def wait(call: Call[PortQuery, Empty]) -> PortState:
    port, query = port_of(call), call.query
    opening = call.engine.ports.wait(call.caller, call.ref, port, query.timeout, query.http_path, query.process)
    state = await call.until_disconnect(call.until_shutdown(opening))
    return state if state is not None else PortState(open=False, last="the server is stopping")


async def connect(call: Call[Empty, Empty]) -> Upgrade:
    connection = await call.engine.ports.connect(call.caller, call.ref, port_of(call))
    return Upgrade(partial(_serve, connection), connection.aclose)


async def _serve(connection: Connection, socket: WebSocket) -> None:
    """Copy until both sides have sent everything, or one fails."""
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
        # Reset by the program inside: a normal end of a TCP connection.
        await socket.close(INTERNAL, error.strerror or "the connection was reset")
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)


async def _inward(connection: Connection, socket: WebSocket) -> None:
    """Copy to the sandbox. If the peer disconnects without `eof`, reset the inner connection."""
    while (message := await socket.receive()) is not None:
        if isinstance(message, bytes):
            await connection.write(message)
        elif message == EOF:
            connection.end()
            return
        else:
            raise InvalidRequest("the only text message is eof", hint="send data in binary messages")
    raise ConnectionResetError("the peer disconnected")


async def _outward(connection: Connection, socket: WebSocket) -> None:
    while data := await connection.read():
        await socket.send(data)
    await socket.send(EOF)
