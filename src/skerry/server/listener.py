"""Listeners: one uvicorn server per socket, in one event loop, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from skerry.network.listen import bind_tcp, parse_listen
from skerry.server.app import make_app
from skerry.server.control import Control
from skerry.server.http.auth import Authenticator, allowed_hosts
from skerry.server.http.protocol import BoundedProtocol, ConnectionLimits, ConnectionTable
from skerry.server.sockets import bind_unix, remove_unix, url_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from skerry.engine.engine import Engine
    from skerry.server.http.endpoint import Application

log = logging.getLogger("skerry.server")

GRACE_S = 10  # time for requests in progress to end at a stop
UNWIND_S = 5
SWEEP_EVERY_S = 0.2
Ready = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class ListenOptions:
    """Addresses to listen on. The unix socket always exists: the first token can only be created over it. `wires`: the
    protocols of other products to answer; host names below `domain` are theirs. `proxies`: networks of proxies with
    X-Forwarded-For."""

    socket: Path
    listen: str | None = None
    group: str | None = None
    hosts: tuple[str, ...] = ()
    wires: tuple[str, ...] = ()
    domain: str | None = None
    origins: tuple[str, ...] = ()
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    proxies: tuple[str, ...] = ()


class SocketServer(uvicorn.Server):
    """The server of one socket. `_signals` handles signals once, for all sockets."""

    def __init__(self, app: ASGIApp, listening: socket.socket, limits: ConnectionLimits) -> None:
        protocol = partial(BoundedProtocol, table=ConnectionTable(limits))
        # proxy_headers would let a caller choose its own address; http/websocket.py implements WebSockets.
        super().__init__(
            uvicorn.Config(
                app, http=protocol, ws="none", lifespan="off", interface="asgi3", loop="none",  # type: ignore[arg-type]
                log_config=None, access_log=False, proxy_headers=False, server_header=False,
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
        if self.server_state.tasks:  # cancelled at the end of the grace period: each task still ends its command
            await asyncio.wait(self.server_state.tasks, timeout=UNWIND_S)

    async def _close_idle(self) -> None:
        """uvicorn closes idle connections once; one that was accepted a moment later would be waited for in vain."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for connection in list(self.server_state.connections):
                connection.shutdown()


async def listen_for(
    engine: Engine,
    options: ListenOptions,
    control: Control,
    *,
    idle_exit: float | None = None,
    ready: Ready | None = None,
) -> None:
    """Serve an open engine until `control.stop` is called."""
    app = make_app(engine, control, options.wires, options.domain)
    async with contextlib.AsyncExitStack() as stack:
        listeners = stack.enter_context(_listeners(engine, options, app))
        stack.push_async_callback(control.mcp.aclose)
        for wire in app.wires:
            await stack.enter_async_context(wire.running())
        control.addresses = [url_of(listener.socket) for listener in listeners]
        with _signals(control, listeners):
            async with control.loop.running(), _idle_watch(engine, control, idle_exit):
                await _run(listeners, control, options.socket, ready)
    log.info("server stopped")


@contextlib.contextmanager
def _listeners(engine: Engine, options: ListenOptions, app: Application) -> Iterator[list[SocketServer]]:
    origins = frozenset(options.origins)
    with contextlib.ExitStack() as stack:
        unix = stack.enter_context(contextlib.closing(bind_unix(options.socket, options.group)))
        stack.callback(remove_unix, options.socket, unix)
        listeners = [SocketServer(app.app_for(Authenticator(engine.tokens, None, origins)), unix, options.limits)]
        if options.listen is not None:
            host, port = parse_listen(options.listen)
            tcp = stack.enter_context(contextlib.closing(bind_tcp(host, port)))
            authenticator = Authenticator(
                engine.tokens, allowed_hosts(host, options.hosts), origins, options.domain,
                tuple(map(ipaddress.ip_network, options.proxies)),
            )  # fmt: skip
            listeners.append(SocketServer(app.app_for(authenticator), tcp, options.limits))
            _warn(engine, host)
        yield listeners


def _warn(engine: Engine, host: str) -> None:
    if not engine.tokens.any:
        log.warning("no token exists: TCP clients cannot authenticate; create one with `skerry token create`")
    if not ipaddress.ip_address(host).is_loopback:
        log.warning("listening beyond this host without encryption: add a TLS proxy", extra={"host": host})


async def _run(listeners: list[SocketServer], control: Control, path: Path, ready: Ready | None) -> None:
    async with asyncio.TaskGroup() as group:
        for listener in listeners:
            group.create_task(listener.serve(sockets=[listener.socket]))
        try:
            with control.request():  # clients cannot connect yet: the server is not idle
                for listener in listeners:
                    await listener.up.wait()
            log.info("server is listening", extra={"addresses": control.addresses})
            if ready is not None:
                ready(control.addresses)
            await control.stopping.wait()
        finally:
            # Remove the name first, then the listener: a client that connected in between still gets a response.
            remove_unix(path, listeners[0].socket)
            await asyncio.sleep(0.05)
            for listener in listeners:
                listener.should_exit = True


@contextlib.contextmanager
def _signals(control: Control, listeners: list[SocketServer]) -> Iterator[None]:
    """Stop at the first signal; at the second, close open connections."""
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        log.info("server is stopping", extra={"signal": signal.Signals(number).name})
        if control.stopping.is_set():
            for listener in listeners:
                listener.force_exit = True
        control.stop()

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not the main thread: no signals arrive
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
            log.info("server is stopping: idle and without sandboxes")
            control.stop()
            return
        await asyncio.sleep(max(left, min(seconds, 1.0)))
