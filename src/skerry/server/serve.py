"""The server's life: open the engine, answer until asked to stop, close it. Sandboxes live on."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import resource
from pathlib import Path

import uvloop

from skerry.config import Settings, socket_path
from skerry.engine.engine import Engine
from skerry.server import log
from skerry.server.control import Control
from skerry.server.listener import GRACE_S, Places, Ready, listen_for
from skerry.server.sockets import is_answering

LOOK_EVERY_S = 0.05
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
    """Serve a state directory until SIGTERM, SIGINT, POST /v1/server/stop, or `idle_exit` seconds of idleness with no
    sandbox alive. `socket` None: the place where clients of this host look. `ready` is called with the addresses once
    calls are answered. The log goes to `log_file`, bounded in size, or to stderr."""
    log.configure(log_file)
    _raise_open_files()
    _keep_freed_memory()
    path = socket or socket_path(settings.state_dir)
    places = Places(path, listen, group, settings["listen.hosts"], settings["listen.origins"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, places, idle_exit, ready))


async def _serve(settings: Settings, places: Places, idle_exit: float | None, ready: Ready | None) -> None:
    await _until_the_last_one_left(settings.state_dir / "lock", places.socket)
    engine = Engine(settings)
    await engine.open()  # takes the lock of the state directory, which is what entitles us to the socket's path
    try:
        await listen_for(engine, places, Control(), idle_exit=idle_exit, ready=ready)
    finally:
        await engine.close()


async def _until_the_last_one_left(lock: Path, socket: Path) -> None:
    """A server that is leaving has taken its socket away, so that nobody comes to it any more, and holds the lock for
    another moment. One that stays answers on its socket: then opening the engine says so."""
    for _ in range(round((GRACE_S + 30) / LOOK_EVERY_S)):
        if not _is_held(lock) or is_answering(socket):
            return
        await asyncio.sleep(LOOK_EVERY_S)


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
    """Output passes through in pieces of a quarter MiB. glibc gives such memory back to the kernel at once and takes it
    anew, page by page, for the next one: that is a quarter of the work of streaming. Another C library is not asked."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        mallopt(_M_TRIM_THRESHOLD, 8 << 20)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
