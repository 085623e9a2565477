"""Run a server: open the engine, serve until asked to stop, close the engine. Sandboxes keep running."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import logging
import os
import resource
import sys
from pathlib import Path

import uvloop

from skerry import telemetry
from skerry.config import Settings, socket_path
from skerry.engine.engine import Engine
from skerry.server import log
from skerry.server.control import Control
from skerry.server.http.protocol import ConnectionLimits
from skerry.server.listener import GRACE_S, ListenOptions, Ready, listen_for
from skerry.server.sockets import is_answering
from skerry.types import parse_size, parse_span

POLL_S = 0.05
SWITCH_INTERVAL_S = 0.0005
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def serve(
    settings: Settings,
    *,
    socket: Path | None = None,
    listen: str | None = None,
    idle_exit: float | None = None,
    group: str | None = None,
    log_file: Path | None = None,
    ready: Ready | None = None,
) -> None:
    """Serve a state directory until SIGTERM, SIGINT, POST /v1/server/stop, or `idle_exit` seconds without requests and
    sandboxes. `socket` None: the default path, which clients of this host try first. `listen` None: the setting
    `server.listen`. `ready` is called with the addresses once the server accepts requests. The log goes to `log_file`,
    bounded in size and age, or to stderr."""
    size, age = parse_size(settings["server.log_size"]), parse_span(settings["server.log_age"])
    log.configure(log_file, limit=size, max_age_s=age)
    if problem := telemetry.configure("skerry-server"):
        logging.getLogger("skerry.server").warning("no spans are sent", extra={"error": problem})
    _raise_open_files()
    _keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # a thread that computes hunks must not delay the event loop
    path = socket or socket_path(settings.state_dir)
    options = ListenOptions(
        path, listen or settings["server.listen"], group, settings["server.allowed_hosts"],
        settings["server.wire"], settings["server.wire_domain"], settings["server.allowed_origins"], _limits(settings),
        settings["server.trusted_proxies"],
    )  # fmt: skip
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, options, idle_exit, ready))


def _limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        max_connections=settings["server.max_connections"],
        max_per_address=settings["server.max_connections_per_address"],
        request_timeout_s=parse_span(settings["server.request_timeout"]),
        idle_timeout_s=parse_span(settings["server.idle_connection_timeout"]),
    )


async def _serve(settings: Settings, options: ListenOptions, idle_exit: float | None, ready: Ready | None) -> None:
    await _wait_for_previous_server(settings.state_dir / "lock", options.socket)
    engine = await Engine.open(settings)  # the lock of the state directory permits use of the socket's path
    gc.collect()
    gc.freeze()  # modules and tables live as long as the server: a collection that visits them delays every caller
    try:
        await listen_for(engine, options, Control(), idle_exit=idle_exit, ready=ready)
    finally:
        await engine.close()


async def _wait_for_previous_server(lock: Path, socket: Path) -> None:
    """Wait for a stopping server: it has removed its socket and holds the lock a little longer. A server that keeps
    running answers on its socket; then opening the engine fails with the reason."""
    for _ in range(round((GRACE_S + 30) / POLL_S)):
        if not _is_held(lock) or is_answering(socket):
            return
        await asyncio.sleep(POLL_S)


def _is_held(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _keep_freed_memory() -> None:
    """Keep freed memory in the process. Output passes through in pieces of 256 KiB; glibc returns such memory to the
    kernel at once and faults it in again, page by page, for the next piece, a quarter of the work of streaming. Other C
    libraries have no mallopt."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        mallopt(_M_TRIM_THRESHOLD, 8 << 20)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
