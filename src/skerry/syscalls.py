"""The kernel calls that Python has no name for: errno-true, and every fd they return is close-on-exec."""

from __future__ import annotations

import ctypes
import os
from typing import Final

AT_FDCWD: Final = -100
AT_EMPTY_PATH: Final = 0x1000
OPEN_TREE_CLONE: Final = 1
MOVE_MOUNT_F_EMPTY_PATH: Final = 4
MOVE_MOUNT_T_EMPTY_PATH: Final = 0x40
FSOPEN_CLOEXEC: Final = 1
FSMOUNT_CLOEXEC: Final = 1
FSCONFIG_SET_STRING: Final = 1
FSCONFIG_SET_FD: Final = 5
FSCONFIG_CMD_CREATE: Final = 6
FSCONFIG_CMD_RECONFIGURE: Final = 7
FSPICK_CLOEXEC: Final = 1
FSPICK_EMPTY_PATH: Final = 8
CLONE_NEWUTS: Final = 0x04000000
MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
MOUNT_ATTR_NOEXEC: Final = 0x8
MOUNT_ATTR_IDMAP: Final = 0x00100000
MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MOUNT_DATA_MOST: Final = 4095  # mount(2) copies one page of options
CLONE_FS: Final = 0x200
CLONE_NEWNS: Final = 0x20000
MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8
RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
RESOLVE_IN_ROOT: Final = 0x10

# One number on every architecture: these calls are younger than the unified table.
_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_FSOPEN: Final = 430
_FSCONFIG: Final = 431
_FSMOUNT: Final = 432
_FSPICK: Final = 433
_OPENAT2: Final = 437
_MOUNT_SETATTR: Final = 442


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _OpenHow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def _call(name: str, number: int, *args: int | str | ctypes.Structure | None) -> int:
    words: list[object] = []
    for arg in args:
        if isinstance(arg, int):
            words.append(ctypes.c_long(arg))
        elif isinstance(arg, str):
            words.append(ctypes.c_char_p(os.fsencode(arg)))
        elif isinstance(arg, ctypes.Structure):
            words.append(ctypes.byref(arg))
        else:
            words.append(ctypes.c_void_p(None))
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise _failure(name)
    return result


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def open_tree(path: str, *, dir_fd: int = AT_FDCWD, clone: bool = True) -> int:
    """A detached copy of the mount (not its sub-mounts) that `path` lies on, rooted there."""
    flags = os.O_CLOEXEC | (OPEN_TREE_CLONE if clone else 0)
    return _call(f"open_tree {path}", _OPEN_TREE, dir_fd, path, flags)


def mount_setattr(fd: int, attr_set: int, userns_fd: int = 0) -> None:
    attr = _MountAttr(attr_set, 0, 0, userns_fd)
    _call("mount_setattr", _MOUNT_SETATTR, fd, "", AT_EMPTY_PATH, attr, ctypes.sizeof(attr))


def move_mount(fd: int, target: str, *, dir_fd: int = AT_FDCWD) -> None:
    _call(f"move_mount {target}", _MOVE_MOUNT, fd, "", dir_fd, target, MOVE_MOUNT_F_EMPTY_PATH)


def fsopen(kind: str) -> int:
    return _call(f"fsopen {kind}", _FSOPEN, kind, FSOPEN_CLOEXEC)


def fsconfig_string(fd: int, key: str, value: str) -> None:
    _call(f"fsconfig {key}={value}", _FSCONFIG, fd, FSCONFIG_SET_STRING, key, value, 0)


def fsconfig_fd(fd: int, key: str, value: int) -> None:
    _call(f"fsconfig {key}", _FSCONFIG, fd, FSCONFIG_SET_FD, key, None, value)


def fspick(mount: int) -> int:
    """The file system of a mount, by an fd of the mount's root, to be configured anew."""
    return _call("fspick", _FSPICK, mount, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH)


def fsconfig_reconfigure(fd: int) -> None:
    _call("fsconfig reconfigure", _FSCONFIG, fd, FSCONFIG_CMD_RECONFIGURE, None, None, 0)


def fsconfig_create(fd: int) -> None:
    _call("fsconfig create", _FSCONFIG, fd, FSCONFIG_CMD_CREATE, None, None, 0)


def setns(fd: int, kind: int) -> None:
    """Of this thread."""
    if _libc.setns(fd, kind) < 0:
        raise _failure("setns")


def fsmount(fd: int, attributes: int) -> int:
    return _call("fsmount", _FSMOUNT, fd, FSMOUNT_CLOEXEC, attributes)


def openat2(dir_fd: int, path: str, flags: int, resolve: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    return _call(f"openat2 {path}", _OPENAT2, dir_fd, path, how, ctypes.sizeof(how))


def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    words = (os.fsencode(source), os.fsencode(target), os.fsencode(kind))
    if _libc.mount(*words, flags, os.fsencode(data)) < 0:
        raise _failure(f"mount {kind} on {target}")


def umount(target: str, flags: int = 0) -> None:
    if _libc.umount2(os.fsencode(target), flags | UMOUNT_NOFOLLOW) < 0:
        raise _failure(f"umount {target}")


def unshare(flags: int) -> None:
    """Of the calling thread alone."""
    if _libc.unshare(flags) < 0:
        raise _failure("unshare")
