"""Loop devices: a file as a disk. Always with autoclear: the kernel lets go of the device at the last close or unmount,
so a crash between attaching and mounting leaks nothing."""

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
    """The device of a file, kept for the length of the block; a mount made in it keeps it afterwards.

    A device that has the file already is taken: two devices on one file are two caches of one disk, and destroy it.
    """
    with _opened(file) as (path, _):
        yield path


def set_capacity(file: Path) -> None:
    """Tells the file's device that the file has grown."""
    with _opened(file) as (_, fd):
        fcntl.ioctl(fd, _SET_CAPACITY)


def backs(device: str, file: Path) -> bool:
    """Whether this device (/dev/loopN) is one on this very file."""
    try:
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _backing(fd) == _identity(os.stat(file))
    finally:
        os.close(fd)


def lacking() -> str | None:
    """Why loop devices can't be had here, or None."""
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
                if error.errno != errno.EBUSY:  # another process took the free one first
                    raise
            else:
                return path, fd
    finally:
        os.close(control)
    raise HostUnsupported(f"no free loop device after {_TRIES} tries")


def _free_device(control: int) -> str:
    number = fcntl.ioctl(control, _GET_FREE)
    path = f"/dev/loop{number}"
    if not os.path.exists(path):  # a /dev that is not the kernel's own devtmpfs
        os.mknod(path, 0o60660, os.makedev(7, number))
    return path


def _configure(fd: int, backing: int) -> None:
    """struct loop_config. With direct I/O the file system above caches the pages, and the one below does not again."""
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
