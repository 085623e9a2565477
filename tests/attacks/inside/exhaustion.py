"""Exhausting shared resources of a host. Each attack holds its share and reports its size, then waits to be ended
while the test measures the rest."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
MAX_TRIES = 20000


def inotify() -> int:
    """Instances are counted for the owner of the user namespace too, and that one's limit is 128 by default."""
    count = 0
    while count < MAX_TRIES and libc.inotify_init1(0) >= 0:
        count += 1
    return count


def message_queues() -> int:
    """Their bytes are counted for the owner of the user namespace too."""
    count = 0
    librt = ctypes.CDLL("librt.so.1", use_errno=True)
    while count < 256 and librt.mq_open(b"/skerry-q%d" % count, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0:
        librt.mq_unlink(b"/skerry-q%d" % count)
        count += 1
    return count


def terminals() -> int:
    count = 0
    try:
        while count < MAX_TRIES:
            os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
            count += 1
    except OSError:
        pass
    return count


def asynchronous_io() -> int:
    """fs.aio-max-nr is one number for the whole host."""
    number = {"x86_64": 206, "aarch64": 0}[os.uname().machine]
    count = 0
    context = ctypes.c_ulong(0)
    for size in (65536, 32768, 8192, 1024, 128, 1):
        while count < MAX_TRIES and libc.syscall(number, size, ctypes.byref(context)) == 0:
            count += size
            context = ctypes.c_ulong(0)
    return count


def pending_signals() -> int:
    """Queued signals are counted for the owner of the user namespace too."""
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (resource.getrlimit(resource.RLIMIT_SIGPENDING)[1],) * 2)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    count = 0
    libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    while count < 2_000_000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0:
        count += 1
    return count


if __name__ == "__main__":
    print(globals()[sys.argv[1]](), flush=True)  # noqa: T201
    sys.stdin.read()
