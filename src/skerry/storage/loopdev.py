"""Loop devices: files as disks. Always with autoclear: the kernel releases the device at the last close or unmount, so
a crash between attaching and mounting leaks nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.errors import HostUnsupported

_GET_FREE, _CONFIGURE, _GET_STATUS, _SET_CAPACITY = 0x4C82, 0x4C0A, 0x4C05, 0x4C07
_AUTOCLEAR, _DIRECT_IO = 4, 16
_BLOCK = 4096
_INFO_SIZE = 232  # struct loop_info64
_FLAGS_AT = 52
_TRIES = 50


@contextmanager
def attached(file: Path) -> Iterator[str]:
    """Attach a file to a loop device for the duration of the block; a mount made in it keeps the device.

    Reuse a device that already has the file: two devices on one file are two caches of one disk and destroy it.
    """
    with _opened(file) as (path, _):
        yield path


def set_capacity(file: Path) -> None:
    """Notify the file's device that the file has grown."""
    with _opened(file) as (_, fd):
        fcntl.ioctl(fd, _SET_CAPACITY)


def backs(device: str, file: Path) -> bool:
    """Return whether this device (/dev/loopN) has exactly this file."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _backing(fd) == _identity(os.stat(file))
    finally:
        os.close(fd)


def lacking() -> str | None:
    """Return why loop devices are unavailable, or None."""
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"no loop devices: /dev/loop-control: {error.strerror}"
    try:
        os.close(os.open(_free_device(control), os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"no loop device can be opened: {error.strerror}"
    finally:
        os.close(control)
    return None


@contextmanager
def _opened(file: Path) -> Iterator[tuple[str, int]]:
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    fd = -1
    try:
        path, fd = _find(backing) or _attach(backing)
        yield path, fd
    finally:
        if fd >= 0:
            os.close(fd)
        os.close(backing)


def _find(backing: int) -> tuple[str, int] | None:
    wanted = _identity(os.fstat(backing))
    for name in _busy_names():
        path = f"/dev/{name}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        if _backing(fd) == wanted:
            return path, fd
        os.close(fd)
    return None


def _attach(backing: int) -> tuple[str, int]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            path = _free_device(control)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _configure(fd, backing)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:  # another process took the free device first
                    raise
            else:
                return path, fd
    finally:
        os.close(control)
    raise HostUnsupported(f"no free loop device after {_TRIES} tries")


def _free_device(control: int) -> str:
    number = fcntl.ioctl(control, _GET_FREE)
    path = f"/dev/loop{number}"
    if not os.path.exists(path):  # /dev is not the kernel's devtmpfs
        os.mknod(path, 0o60660, os.makedev(7, number))
    return path


def _configure(fd: int, backing: int) -> None:
    """Configure by struct loop_config. With direct I/O, only the upper file system caches the pages."""
    info = bytearray(_INFO_SIZE)
    struct.pack_into("=I", info, _FLAGS_AT, _AUTOCLEAR | _DIRECT_IO)
    fcntl.ioctl(fd, _CONFIGURE, struct.pack("=II", backing, _BLOCK) + info + bytes(64))


def _backing(fd: int) -> tuple[int, int] | None:
    info = bytearray(_INFO_SIZE)
    try:
        fcntl.ioctl(fd, _GET_STATUS, info)
    except OSError:
        return None
    device, inode = struct.unpack_from("=QQ", info)
    return device, inode


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _busy_names() -> list[str]:
    return [
        name
        for name in os.listdir("/sys/block")
        if name.startswith("loop") and os.path.exists(f"/sys/block/{name}/loop/backing_file")
    ]
