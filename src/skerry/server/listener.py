"""Listening: one uvicorn server a socket, all in one loop, all stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from skerry.network.listen import bind_tcp, parse_listen
from skerry.server.app import make_app
from skerry.server.control import Control
from skerry.server.door import Door, door_hosts
from skerry.server.protocol import BoundedProtocol
from skerry.server.sockets import bind_unix, remove_unix, url_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from skerry.engine.engine import Engine
    from skerry.server.endpoint import Application

log = logging.getLogger("skerry.server")

KEEP_ALIVE_S = 75
GRACE_S = 10  # what is under way at a stop may take this long to end
UNWIND_S = 5
SWEEP_EVERY_S = 0.2
Ready = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Places:
    """Where to listen. The unix socket is always there: without it nobody could make the first token."""

    socket: Path
    listen: str | None = None
    group: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


class Listener(uvicorn.Server):
    """One socket's server. Signals are handled once, for all of them."""

    def __init__(self, app: ASGIApp, listening: socket.socket) -> None:
        # proxy_headers would let a caller choose its own address; WebSockets are ours: see websocket.py.
        super().__init__(
            uvicorn.Config(
                app, http=BoundedProtocol, ws="none", lifespan="off", interface="asgi3", loop="none", log_config=None,
                access_log=False, proxy_headers=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )  # fmt: skip
        self.socket = listening
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        sweeping = asyncio.create_task(self._close_idle())
        try:
            await super().shutdown(sockets=sockets)
        finally:
            sweeping.cancel()
        if self.server_state.tasks:  # cancelled at the end of the grace: each still ends its command
            await asyncio.wait(self.server_state.tasks, timeout=UNWIND_S)

    async def _close_idle(self) -> None:
        """uvicorn closes idle connections once; one that was accepted a moment later would be waited for in vain."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for connection in list(self.server_state.connections):
                connection.shutdown()


async def listen_for(
    engine: Engine,
    places: Places,
    control: Control,
    *,
    idle_exit: float | None = None,
    ready: Ready | None = None,
) -> None:
    """Answer calls for an open engine until the control says stop."""
    app = make_app(engine, control)
    async with contextlib.AsyncExitStack() as stack:
        listeners = stack.enter_context(_listeners(engine, places, app))
        stack.push_async_callback(control.mcp.aclose)
        control.addresses = [url_of(listener.socket) for listener in listeners]
        with _signals(control, listeners):
            async with _idle_watch(engine, control, idle_exit):
                await _run(listeners, control, places.socket, ready)
    log.info("stopped")


@contextlib.contextmanager
def _listeners(engine: Engine, places: Places, app: Application) -> Iterator[list[Listener]]:
    origins = frozenset(places.origins)
    with contextlib.ExitStack() as stack:
        unix = stack.enter_context(contextlib.closing(bind_unix(places.socket, places.group)))
        stack.callback(remove_unix, places.socket, unix)
        listeners = [Listener(app.behind(Door(engine.tokens, None, origins)), unix)]
        if places.listen is not None:
            host, port = parse_listen(places.listen)
            tcp = stack.enter_context(contextlib.closing(bind_tcp(host, port)))
            listeners.append(Listener(app.behind(Door(engine.tokens, door_hosts(host, places.hosts), origins)), tcp))
            _warn(engine, host)
        yield listeners


def _warn(engine: Engine, host: str) -> None:
    if not engine.tokens.any:
        log.warning("no token exists: nobody can call over TCP yet; `skerry token create` makes one")
    if not ipaddress.ip_address(host).is_loopback:
        log.warning("listening beyond this host without encryption: put a TLS proxy in front", extra={"host": host})


async def _run(listeners: list[Listener], control: Control, path: Path, ready: Ready | None) -> None:
    async with asyncio.TaskGroup() as group:
        for listener in listeners:
            group.create_task(listener.serve(sockets=[listener.socket]))
        try:
            with control.request():  # nobody can ask before: until then it is not idle
                for listener in listeners:
                    await listener.up.wait()
            log.info("listening", extra={"addresses": control.addresses})
            if ready is not None:
                ready(control.addresses)
            await control.stopping.wait()
        finally:
            # First the name goes, then the listener: whoever connected in between is still answered.
            remove_unix(path, listeners[0].socket)
            await asyncio.sleep(0.05)
            for listener in listeners:
                listener.should_exit = True


@contextlib.contextmanager
def _signals(control: Control, listeners: list[Listener]) -> Iterator[None]:
    """The first signal asks for a stop, the second one insists."""
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        if control.stopping.is_set():
            for listener in listeners:
                listener.force_exit = True
        control.stop()

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not the main thread: nobody sends us signals
                loop.add_signal_handler(number, asked, number)
                stack.callback(loop.remove_signal_handler, number)
        yield


@contextlib.asynccontextmanager
async def _idle_watch(engine: Engine, control: Control, seconds: float | None) -> AsyncIterator[None]:
    if seconds is None:
        yield
        return
    task = asyncio.create_task(_leave_when_idle(engine, control, seconds))
    try:
        yield
    finally:
        task.cancel()


async def _leave_when_idle(engine: Engine, control: Control, seconds: float) -> None:
    while True:
        left = seconds - control.idle_for()
        if left <= 0 and engine.empty:
            log.info("leaving: idle and empty")
            control.stop()
            return
        await asyncio.sleep(max(left, min(seconds, 1.0)))
