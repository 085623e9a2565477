"""The size of a running sandbox's /dev/shm, changed from outside and with no help from inside."""

from __future__ import annotations

import errno
import os

from skerry import syscalls
from skerry.errors import Conflict, SandboxUnavailable
from skerry.runtimes import processes
from skerry.runtimes.runtime import Init
from skerry.types import format_size

_WHERE = "dev/shm"
_BENEATH = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS


def size_for(memory: int) -> int:
    """Its pages count as the sandbox's memory."""
    return memory // 2


def set_size(init: Init, size: int) -> None:
    """Also of a frozen one. What is mounted there is ours: inside, nobody can mount, or rename a mount point; and
    whatever it were, only the root of a mount in that sandbox's own namespace can be reached."""
    mount = _opened(init)
    try:
        _configure(mount, size)
    finally:
        os.close(mount)


def _opened(init: Init) -> int:
    pidfd = processes.pidfd(init)
    try:
        root = os.open(f"/proc/{init.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(processes.pidfd(init))  # still that process: then the root is its own
            return syscalls.openat2(root, _WHERE, os.O_PATH | os.O_DIRECTORY, _BENEATH)
        finally:
            os.close(root)
    except OSError as error:
        raise SandboxUnavailable(f"its /dev/shm can't be reached: {error.strerror}") from error
    finally:
        os.close(pidfd)


def _configure(mount: int, size: int) -> None:
    context = syscalls.fspick(mount)
    try:
        syscalls.fsconfig_string(context, "size", str(size))
        syscalls.fsconfig_reconfigure(context)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Conflict(
            f"the files in /dev/shm take more than the {format_size(size)} that go with that little memory",
            hint="delete some first, or give it more memory",
            details={"limit": "memory"},
        ) from error
    finally:
        os.close(context)
