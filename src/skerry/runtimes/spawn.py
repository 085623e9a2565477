"""Runs a host program with chosen fds, from a threaded event loop: posix_spawn, never fork."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Sequence

from skerry import syscalls

_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_CLEAR_OF_TARGETS = 64  # sources are moved above all targets, so that no dup2 overwrites one still to come


def sealed_null() -> int:
    """/dev/null through a read-only mount of its own. crun before 1.24 gives its stdio to the sandbox's root with
    fchown, and so the host's /dev/null; on this one that is EROFS, which it ignores."""
    tree = syscalls.open_tree("/dev/null")
    try:
        syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID)
        return os.open(f"/proc/self/fd/{tree}", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(tree)


async def run(argv: Sequence[str], fds: Sequence[int], limit_s: float = 30.0) -> int:
    """The exit code, negative for a signal. `fds` become 0, 1, 2, 3 …; no other is passed on. Killed when `limit_s` is
    over or the caller is cancelled (TimeoutError, CancelledError)."""
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


async def readable(fd: int) -> None:
    """Until `fd` is readable: for a pidfd, until its process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _reap(pidfd: int) -> int:
    """It has ended, or was just sent SIGKILL."""
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    finally:
        os.close(pidfd)
    if status is None:
        return 0
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _spawn(argv: Sequence[str], fds: Sequence[int]) -> int:
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _CLEAR_OF_TARGETS) for fd in fds]
    try:
        return os.posix_spawn(
            argv[0],
            list(argv),
            _ENV,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(moved)],
            setsid=True,  # Ctrl-C on a server in the foreground does not reach it
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )
    finally:
        for fd in moved:
            os.close(fd)
