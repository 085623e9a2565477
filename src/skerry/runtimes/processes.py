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
# Anybody may make their own command line as long as their address space, at no cost (PR_SET_MM_MAP): never read it all.
_LONGEST_LINE = 64 << 10


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Init:
    found = _stat(pid)
    if found is None:
        raise SandboxUnavailable("the sandbox ended while it started")
    return Init(pid, found[1], boot_id())


def alive(init: Init) -> bool:
    found = _stat(init.pid)
    return found is not None and found[0] not in "ZX" and found[1] == init.start_time and boot_id() == init.boot_id


def pidfd(init: Init) -> int:
    """The caller's to close. Checked after opening: from then on the pid can't be another's."""
    try:
        fd = os.pidfd_open(init.pid)
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 is gone") from error
    if not alive(init):
        os.close(fd)
        raise SandboxUnavailable("the sandbox's PID 1 is gone")
    return fd


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
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(_END_LIMIT_MS)
    finally:
        os.close(fd)


def _has(pid: int, arguments: tuple[str, ...]) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            line = file.read(_LONGEST_LINE)
    except OSError:
        return False
    return b"\0" + b"\0".join(os.fsencode(word) for word in arguments) + b"\0" in line


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time (field 22). The name may hold spaces and brackets: the fields begin after the last one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[19])
