"""Host processes told apart for certain: by pid, start time and boot."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

from skerry.errors import SandboxUnavailable
from skerry.runtimes.runtime import Init

_END_LIMIT_MS = 5000
_NICE = -10
# Anybody may make their own command line as long as their address space, at no cost (PR_SET_MM_MAP): never read it all.
_LONGEST_LINE = 64 << 10


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Init:
    start_time = _start_time(pid)
    if start_time is None:
        raise SandboxUnavailable("the sandbox ended while it started")
    return Init(pid, start_time, boot_id())


def prefer(init: Init) -> None:
    """Has it go before all else that shares its sandbox's processors: a hundred busy programs inside must not keep it
    from answering in time. To other sandboxes it makes no difference, because weights count within a group. Threads
    that it makes later inherit it; where the host can't give it, it goes without."""
    known: set[int] = set()
    with contextlib.suppress(OSError):
        for _ in range(3):  # it may be making some just now
            tasks = {int(name) for name in os.listdir(f"/proc/{init.pid}/task")} - known
            for task in tasks:
                os.setpriority(os.PRIO_PROCESS, task, _NICE)
            known |= tasks


def alive(init: Init) -> bool:
    fd = handle(init)
    if fd is None:
        return False
    try:
        return not _ended(fd)
    finally:
        os.close(fd)


def pidfd(init: Init) -> int:
    """The caller's to close."""
    fd = handle(init)
    if fd is None or _ended(fd):
        if fd is not None:
            os.close(fd)
        raise SandboxUnavailable("the sandbox's PID 1 is gone")
    return fd


def handle(init: Init) -> int | None:
    """A pidfd of it, also when it is just ending; None when it is gone. The start time is compared after opening: from
    then on the pid can't become another's. (The state in /proc tells of the first thread alone, which may be a zombie
    while others still hold its files.)"""
    if boot_id() != init.boot_id:
        return None
    try:
        fd = os.pidfd_open(init.pid)
    except OSError:
        return None
    if _start_time(init.pid) == init.start_time:
        return fd
    os.close(fd)
    return None


def _ended(fd: int, limit_ms: int = 0) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_ms))


def open_files(init: Init) -> int:
    """Its hard limit."""
    fd = pidfd(init)
    try:
        lines = Path(f"/proc/{init.pid}/limits").read_text().splitlines()
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 is gone") from error
    finally:
        os.close(fd)
    return int(next(line.split()[4] for line in lines if line.startswith("Max open files")))


def end_by_arguments(arguments: tuple[str, ...]) -> None:
    """Kills the processes that were given exactly these arguments in a row, and waits for them."""
    for name in os.listdir("/proc"):
        if name.isdigit() and _has(int(name), arguments):
            _end(int(name), arguments)


def _end(pid: int, arguments: tuple[str, ...]) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _has(pid, arguments):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            _ended(fd, _END_LIMIT_MS)
    finally:
        os.close(fd)


def _has(pid: int, arguments: tuple[str, ...]) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            line = file.read(_LONGEST_LINE)
    except OSError:
        return False
    return b"\0" + b"\0".join(os.fsencode(word) for word in arguments) + b"\0" in line


def _start_time(pid: int) -> int | None:
    """Field 22. The name may hold spaces and brackets: the fields begin after the last one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(text[text.rindex(b")") + 2 :].split()[19])
