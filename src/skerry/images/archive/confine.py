"""Confine the process that reads untrusted bytes: one directory, and no right except to change file owners."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE, _PR_CAP_AMBIENT, _CLEAR_ALL = 24, 38, 4, 47, 4
_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID = 0, 1, 3, 4
_KEPT: Final = 1 << _CHOWN | 1 << _DAC_OVERRIDE | 1 << _FOWNER | 1 << _FSETID
_CAPSET_VERSION: Final = 0x20080522
_LAST_CAPABILITY: Final = 63
_MEMORY: Final = 1 << 30
_EINVAL: Final = 22


def confine(files: int = 64) -> None:
    """Make the working directory the root permanently: a process without CAP_SYS_CHROOT and without a descriptor of an
    outside file cannot leave it. The caller provides new namespaces and nothing but stdin, stdout, stderr. `files`:
    limit of open files."""
    _import_nothing()
    os.chroot(".")
    os.chdir("/")
    os.umask(0)
    os.setgroups([])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_CAP_AMBIENT, _CLEAR_ALL)
    for number in range(_LAST_CAPABILITY + 1):
        if not _KEPT >> number & 1:
            _prctl(_PR_CAPBSET_DROP, number, unknown_is_fine=True)
    header = struct.pack("<Ii", _CAPSET_VERSION, 0)
    low, high = _KEPT & 0xFFFFFFFF, _KEPT >> 32
    data = struct.pack("<6I", low, low, 0, high, high, 0)
    if _libc.capset(header, data) != 0:
        _fail("capset")


def _import_nothing() -> None:
    """Prevent imports: from now on the paths of Python's modules are paths in the untrusted tree. (Python itself
    imports late: since 3.13, to show an uncaught error.)"""
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]


def _prctl(option: int, value: int, *, unknown_is_fine: bool = False) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0:
        return
    if not (unknown_is_fine and ctypes.get_errno() == _EINVAL):
        _fail(f"prctl {option}")


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")
