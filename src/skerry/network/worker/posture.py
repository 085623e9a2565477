"""Drop the worker's privileges. Called once, before it reads the first byte of a sandbox.

Its modules are imported before, as root: only root may be able to read them. Nothing is parsed and no message received
until this has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from typing import Final

from skerry.codecs.cassette import MAX_SIZE

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION: Final = 0x20080522
_MAX_FILE_SIZE: Final = MAX_SIZE  # fake IPs and cassettes must not fill the disk, even if the worker misbehaves
_MAX_THREADS: Final = 512
_MAX_OPEN_FILES: Final = 1 << 20
_OOM_SCORE: Final = 300  # when memory runs out, the kernel kills the worker before the server; it restarts at once
_FIRST_CLOSED_FD, _LAST_FD = 4, 0x7FFFFFFF  # stdin, stdout, stderr and the channel stay open
_libc = ctypes.CDLL(None, use_errno=True)


def drop_privileges(uid: int, parent: int) -> None:
    """Drop every privilege for good. `parent`: the server, with which the worker ends."""
    os.closerange(_FIRST_CLOSED_FD, _LAST_FD)  # any descriptor that the server opened without close-on-exec
    os.umask(0o077)
    os.chdir("/")
    _set_limits()
    with contextlib.suppress(OSError):
        own = int(_read("/proc/self/oom_score_adj"))
        _write("/proc/self/oom_score_adj", str(max(own, _OOM_SCORE)))
    for capability in range(int(_read("/proc/sys/kernel/cap_last_cap")) + 1):
        _prctl(_PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _drop_capabilities()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # last: a change of ids clears it
    if os.getppid() != parent:
        raise SystemExit("the server is gone")


def _set_limits() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = min(hard, _MAX_OPEN_FILES) if hard > 0 else _MAX_OPEN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_SIZE, _MAX_FILE_SIZE))
    hard_limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    threads = min(hard_limit, _MAX_THREADS) if hard_limit > 0 else _MAX_THREADS
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))


def _drop_capabilities() -> None:
    """Drop capabilities that survive setresuid on a kernel with that securebit set."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
