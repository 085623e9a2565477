"""Runs a host program with chosen fds, from a threaded event loop: posix_spawn, never fork."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Sequence

_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_CLEAR_OF_TARGETS = 64  # sources are moved above all targets, so that no dup2 overwrites one still to come


async def run(argv: Sequence[str], fds: Sequence[int] = (), limit_s: float = 30.0) -> int:
    """The exit code, negative for a signal. `fds` become 3, 4, …; stdio is empty and takes nothing. Killed when
    `limit_s` is over or the caller is cancelled (TimeoutError, CancelledError)."""
    pid = _spawn(argv, fds)
    pidfd = os.pidfd_open(pid)
    try:
        async with asyncio.timeout(limit_s):
            await readable(pidfd)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        raise
    finally:
        code = _reap(pidfd)
    return code


def _reap(pidfd: int) -> int:
    """It has ended, or was just sent SIGKILL."""
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    finally:
        os.close(pidfd)
    if status is None:
        return 0
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


async def readable(fd: int) -> None:
    """Until `fd` is readable: for a pidfd, until its process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _spawn(argv: Sequence[str], fds: Sequence[int]) -> int:
    stdio = _nothing()
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _CLEAR_OF_TARGETS) for fd in (stdio, *fds)]
    os.close(stdio)
    try:
        null = [(os.POSIX_SPAWN_DUP2, moved[0], n) for n in (0, 1, 2)]
        given = [(os.POSIX_SPAWN_DUP2, fd, 3 + n) for n, fd in enumerate(moved[1:])]
        return os.posix_spawn(
            argv[0],
            list(argv),
            _ENV,
            file_actions=[*null, *given],
            setsid=True,  # Ctrl-C on a server in the foreground does not reach it
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )
    finally:
        for fd in moved:
            os.close(fd)


def _nothing() -> int:
    """An empty file without a name that can't be written to. Not /dev/null: crun chowns what it has as stdio to the
    sandbox's root, who could then chmod the host's own."""
    fd = os.memfd_create("stdio", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd
