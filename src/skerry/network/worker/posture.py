"""What the worker is: nobody. Called once, before the first byte of anyone's is read.

The modules that it needs are imported before, by root: they are the server's own, and may lie where nobody else can
read. Nothing is parsed and no message received until this has returned."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from typing import Final

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION: Final = 0x20080522
_FILE_MOST: Final = 16 << 20  # a liar's book of names must not fill the disk
_THREADS_MOST: Final = 512
_FILES_MOST: Final = 1 << 20
_OOM_SCORE: Final = 300  # when the host runs out of memory it goes before the server, and is back at once
_FIRST_FREE, _LAST = 4, 0x7FFFFFFF  # the standard three and the channel stay
_libc = ctypes.CDLL(None, use_errno=True)


def become_nobody(uid: int, parent: int) -> None:
    """Takes every right away, for good. `parent`: whose death is ours."""
    os.closerange(_FIRST_FREE, _LAST)  # whatever the server may have had open without close-on-exec
    os.umask(0o077)
    os.chdir("/")
    _limit()
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
        raise SystemExit("its server is gone")


def _limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = min(hard, _FILES_MOST) if hard > 0 else _FILES_MOST
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_MOST, _FILE_MOST))
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    threads = min(most, _THREADS_MOST) if most > 0 else _THREADS_MOST
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))


def _drop_capabilities() -> None:
    """Also what a kernel that keeps them over setresuid (a securebit) would leave."""
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
