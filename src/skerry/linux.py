"""System calls without a Python wrapper. They raise OSError with the errno; every returned fd is close-on-exec."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

AT_FDCWD: Final = -100
AT_EMPTY_PATH: Final = 0x1000
AT_RECURSIVE: Final = 0x8000
OPEN_TREE_CLONE: Final = 1
MOVE_MOUNT_F_EMPTY_PATH: Final = 4
MOVE_MOUNT_T_EMPTY_PATH: Final = 0x40
FSOPEN_CLOEXEC: Final = 1
FSMOUNT_CLOEXEC: Final = 1
FSCONFIG_SET_FLAG: Final = 0
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
MS_NOATIME: Final = 0x400
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MS_SLAVE: Final = 0x80000
MAX_MOUNT_DATA: Final = 4095  # mount(2) copies one page of options
CLONE_FS: Final = 0x200
CLONE_NEWNS: Final = 0x20000
CLONE_NEWUSER: Final = 0x10000000
_CLONE_VM: Final = 0x100
_CLONE_VFORK: Final = 0x4000
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
_SET_IDS: Final = {"x86_64": (117, 119), "aarch64": (147, 149)}  # setresuid and setresgid

_STACK_BYTES: Final = 64 << 10
_CAPABILITY_VERSION_3: Final = 0x20080522
_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _OpenHow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Capabilities(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.clone.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


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


def open_tree(path: str, *, dir_fd: int = AT_FDCWD, clone: bool = True, recursive: bool = False) -> int:
    """Return a detached copy of the mount of `path`, rooted at `path`, without its sub-mounts unless `recursive`. An
    empty path is the directory of `dir_fd`."""
    flags = os.O_CLOEXEC | (OPEN_TREE_CLONE if clone else 0) | (0 if path else AT_EMPTY_PATH)
    flags |= AT_RECURSIVE if recursive else 0
    return _call(f"open_tree {path}", _OPEN_TREE, dir_fd, path, flags)


def mount_setattr(fd: int, attr_set: int, userns_fd: int = 0, *, propagation: int = 0) -> None:
    attr = _MountAttr(attr_set, 0, propagation, userns_fd)
    _call("mount_setattr", _MOUNT_SETATTR, fd, "", AT_EMPTY_PATH, attr, ctypes.sizeof(attr))


def move_mount(fd: int, target: str, *, dir_fd: int = AT_FDCWD) -> None:
    """Attach a detached mount. An empty target is the directory of `dir_fd`."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if target else MOVE_MOUNT_T_EMPTY_PATH)
    _call(f"move_mount {target}", _MOVE_MOUNT, fd, "", dir_fd, target, flags)


def fsopen(kind: str) -> int:
    return _call(f"fsopen {kind}", _FSOPEN, kind, FSOPEN_CLOEXEC)


def fsconfig_string(fd: int, key: str, value: str) -> None:
    _call(f"fsconfig {key}={value}", _FSCONFIG, fd, FSCONFIG_SET_STRING, key, value, 0)


def fsconfig_flag(fd: int, key: str) -> None:
    _call(f"fsconfig {key}", _FSCONFIG, fd, FSCONFIG_SET_FLAG, key, None, 0)


def fsconfig_fd(fd: int, key: str, value: int) -> None:
    _call(f"fsconfig {key}", _FSCONFIG, fd, FSCONFIG_SET_FD, key, None, value)


def fspick(mount: int) -> int:
    """Open the file system of a mount for reconfiguration, by an fd of the mount's root."""
    return _call("fspick", _FSPICK, mount, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH)


def fsconfig_reconfigure(fd: int) -> None:
    _call("fsconfig reconfigure", _FSCONFIG, fd, FSCONFIG_CMD_RECONFIGURE, None, None, 0)


def fsconfig_create(fd: int) -> None:
    _call("fsconfig create", _FSCONFIG, fd, FSCONFIG_CMD_CREATE, None, None, 0)


def setns(fd: int, kind: int) -> None:
    """Move this thread into a namespace."""
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
    """Create namespaces for the calling thread only."""
    if _libc.unshare(flags) < 0:
        raise _failure("unshare")


def clone_ended(flags: int) -> int:
    """Start a process that ends at once, with the new namespaces of `flags`, and return its pid. They exist until the
    caller has reaped it. Nothing is copied: the process runs `_exit` in this one's memory while this thread waits, and
    no signal can reach it."""
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = (ctypes.addressof(stack) + _STACK_BYTES) & ~15
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        how = flags | _CLONE_VM | _CLONE_VFORK | signal.SIGCHLD
        pid = int(_libc.clone(ctypes.cast(_libc._exit, ctypes.c_void_p), top, how, None))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid < 0:
        raise _failure("clone")
    return pid


def become(user: int) -> None:
    """Give the calling thread another effective uid and gid, with the same capabilities. Only for a thread that ends
    then. (The wrappers of libc would change every thread.)"""
    dumpable = _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    set_uids, set_gids = _SET_IDS[os.uname().machine]
    _call("setresgid", set_gids, -1, user, -1)
    _call("setresuid", set_uids, -1, user, -1)
    header, data = _CapabilityHeader(_CAPABILITY_VERSION_3, 0), (_Capabilities * 2)()
    if _libc.capget(ctypes.byref(header), data) < 0:
        raise _failure("capget")
    for part in data:
        part.effective = part.permitted
    if _libc.capset(ctypes.byref(header), data) < 0:
        raise _failure("capset")
    if dumpable == 1:  # the kernel cleared it for the whole process
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
