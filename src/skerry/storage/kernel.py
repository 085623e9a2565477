"""System calls that Python's os module lacks: mount, umount2, syncfs, fallocate; and the process's capabilities."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

MS_NOSUID, MS_NODEV, MS_NOATIME = 2, 4, 1024
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
CAP_SYS_RESOURCE = 24
_GET_FLAGS, _SET_FLAGS, _NO_COPY = 0x80086601, 0x40086602, 0x00800000
_KEEP_SIZE = 1
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    if result != 0:
        _fail(f"mount {kind} on {target}")


def unmount(target: Path, flags: int = 0) -> None:
    if _libc.umount2(os.fsencode(target), flags | UMOUNT_NOFOLLOW) != 0:
        _fail(f"unmount {target}")


def syncfs(path: Path) -> None:
    """Write out the whole file system that contains `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) != 0:
            _fail(f"syncfs of {path}")
    finally:
        os.close(fd)


def exchange(one: Path, other: Path) -> None:
    """Exchange two names atomically."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        _fail(f"exchange {one} and {other}")


def fallocate(fd: int, start: int, length: int, *, grow: bool = True) -> None:
    """Allocate blocks for a part of a file, extending it if `grow`. Not posix_fallocate, which writes zeros on file
    systems that lack this call."""
    if _libc.fallocate(fd, 0 if grow else _KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(length)) != 0:
        _fail("fallocate")


def no_copy_on_write(fd: int) -> None:
    """Disable copy-on-write for a new, empty file, so that writes use the preallocated blocks if the host's disk is
    btrfs."""
    flags = bytearray(8)
    with contextlib.suppress(OSError):  # other file systems neither have nor need this flag
        fcntl.ioctl(fd, _GET_FLAGS, flags)
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("=q", int.from_bytes(flags[:4], "little") | _NO_COPY))


def has_capability(number: int) -> bool:
    with open("/proc/thread-self/status", encoding="ascii") as file:
        effective = next(line for line in file if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> number & 1)


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")
