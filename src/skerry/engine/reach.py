"""Reaching a port inside a sandbox: from outside, in its own network, and never by way of its keeper."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from skerry.engine.live import Live
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.network.messages import REFUSED, Dial, Dialled, FromServer

Tell = Callable[[FromServer, Sequence[int]], object]


class Entered(Protocol):
    """What enters networks (network/netns.py)."""

    async def dial(self, pidfd: int, port: int) -> socket.socket: ...


class Reach:
    """`awake` wakes a sandbox that sleeps, if its lifecycle allows that."""

    def __init__(self, awake: Callable[[Live], Awaitable[None]]) -> None:
        self._awake = awake
        self._entered: Entered | None = None

    def begin(self, entered: Entered) -> None:
        """Once the engine has it."""
        self._entered = entered

    async def wake(self, live: Live) -> None:
        with live.in_use():
            await self._awake(live)

    async def port(self, live: Live, port: int) -> socket.socket:
        """A connection to who listens there, on IPv4 or IPv6; ConnectionRefusedError: nobody does. The sandbox is in
        use until it is made; what happens on it afterwards is the caller's to tell."""
        with live.in_use():
            await self._awake(live)
            work = asyncio.ensure_future(self._port(live, port))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                work.add_done_callback(_close)
                raise

    async def _port(self, live: Live, port: int) -> socket.socket:
        if live.runtime is None or live.row.init is None or self._entered is None:
            raise SandboxUnavailable(f"{live.row.id} has just ended", details={"state": live.row.info().state})
        pidfd = live.runtime.pidfd(live.row.init)
        try:
            connected = await self._entered.dial(pidfd, port)
        finally:
            os.close(pidfd)
        if connected.getsockname() == connected.getpeername():  # the kernel chose that very port for our own end
            connected.close()
            raise ConnectionRefusedError("nothing listens there")
        return connected

    async def answer(self, dial: Dial, live: Live | None, tell: Tell) -> None:
        """The worker asks for a connection. `live` None: it may not have that one."""
        try:
            if live is None:
                raise SandboxUnavailable("there is no such preview or peer")
            with await self.port(live, dial.port) as connected:
                tell(Dialled(number=dial.number), (connected.fileno(),))
        except ConnectionRefusedError:
            tell(Dialled(number=dial.number, error=REFUSED), ())
        except (SkerryError, OSError) as error:
            told = error.message if isinstance(error, SkerryError) else error.strerror
            tell(Dialled(number=dial.number, error=told or "it could not be reached"), ())


def _close(work: asyncio.Future[socket.socket]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
