"""The ports on which a sandbox's programs listen: waited for from inside, reached from outside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skerry.engine.live import Live
from skerry.engine.reach import Reach
from skerry.errors import Conflict
from skerry.keeper import Keeper
from skerry.types import Caller, PortState

Use = Callable[[Caller, str], AbstractAsyncContextManager[tuple[Live, Keeper]]]
PIECE = 256 << 10


class Connection:
    """Bytes to and from a program inside. While they flow the sandbox is not idle."""

    def __init__(self, live: Live, connected: socket.socket) -> None:
        self._live = live
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def read(self) -> bytes:
        """What comes next; nothing: the program has said all."""
        with contextlib.suppress(OSError):  # else two small writes of the program's are 40 ms apart
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        data = await self._loop.sock_recv(self._socket, PIECE)
        self._live.touch()
        return data

    async def write(self, data: bytes) -> None:
        """At the program's speed."""
        self._live.touch()
        await self._loop.sock_sendall(self._socket, data)

    def end(self) -> None:
        """Nothing more will be written; what comes back is still read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """The other side broke off: so does this one, lest a program takes half a message for a whole one."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def aclose(self) -> None:
        self._socket.close()


class Ports:
    """`use` gives a running sandbox for one call, `find` one as it is."""

    def __init__(self, use: Use, find: Callable[[Caller, str], Live], reach: Reach) -> None:
        self._use = use
        self._find = find
        self._reach = reach

    async def wait(self, caller: Caller, ref: str, port: int, within: float, http_path: str | None) -> PortState:
        """Until it is open, or the time is over."""
        async with self._use(caller, ref) as (_, keeper):
            state = await keeper.wait_for_port(port, within, http_path)
        return PortState(open=state.open, status=state.status, last=state.last)

    async def connect(self, caller: Caller, ref: str, port: int) -> Connection:
        """A connection to who listens there."""
        live = self._find(caller, ref)
        try:
            return Connection(live, await self._reach.port(live, port))
        except OSError as error:
            raise Conflict(
                f"nothing listens on port {port} of {live.row.id}",
                hint="start the program inside first; `wait_for_port` waits for it",
                details={"port": port, "errno": error.errno},
            ) from error
