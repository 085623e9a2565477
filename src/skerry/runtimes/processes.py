"""Host processes: identified reliably by pid, start time and boot; started with posix_spawn."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import select
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from skerry import linux
from skerry.errors import SandboxUnavailable
from skerry.runtimes.mount_view import SEALED, MountView
from skerry.runtimes.runtime import Init

_END_LIMIT_MS = 5000
_NICE = -10
TIMER_SLACK_NS = 1_000_000
# A process can make its command line as long as its address space at no cost (PR_SET_MM_MAP): never read all of it.
_MAX_LINE = 64 << 10


@functools.cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Init:
    start_time = _start_time(pid)
    if start_time is None:
        raise SandboxUnavailable("the sandbox exited during the start")
    return Init(pid, start_time, boot_id())


def prefer(init: Init) -> None:
    """Give the keeper priority over everything else in its sandbox: a hundred busy programs must not delay its answers.
    Other sandboxes are not affected, because weights count within a group. And let its timers be late: the Go runtime
    has a thread that sleeps for 20 µs again and again while the keeper works, a quarter of a command's cost. Later
    threads inherit both; without the right to set them, the keeper runs without."""
    known: set[int] = set()
    with contextlib.suppress(OSError):
        for _ in range(3):  # it may be creating threads right now
            tasks = {int(name) for name in os.listdir(f"/proc/{init.pid}/task")} - known
            for task in tasks:
                os.setpriority(os.PRIO_PROCESS, task, _NICE)
                fd = os.open(f"/proc/{task}/timerslack_ns", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(fd, b"%d" % TIMER_SLACK_NS)
                finally:
                    os.close(fd)
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
    """Return a pidfd, which the caller closes."""
    fd = handle(init)
    if fd is None or _ended(fd):
        if fd is not None:
            os.close(fd)
        raise SandboxUnavailable("PID 1 of the sandbox has exited")
    return fd


def handle(init: Init) -> int | None:
    """Return a pidfd, also of an ending process; None if it is gone. The start time is compared after opening: from
    then on the pid cannot be reused. (The state in /proc describes only the first thread, which may be a zombie while
    others still hold its files.)"""
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
    """Return the hard limit."""
    fd = pidfd(init)
    try:
        lines = Path(f"/proc/{init.pid}/limits").read_text().splitlines()
    except OSError as error:
        raise SandboxUnavailable("PID 1 of the sandbox has exited") from error
    finally:
        os.close(fd)
    return int(next(line.split()[4] for line in lines if line.startswith("Max open files")))


def end_by_arguments(arguments: tuple[str, ...]) -> None:
    """Kill the processes with exactly these arguments in a row, and wait for them."""
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
            line = file.read(_MAX_LINE)
    except OSError:
        return False
    return b"\0" + b"\0".join(os.fsencode(word) for word in arguments) + b"\0" in line


def _start_time(pid: int) -> int | None:
    """Return field 22. The name may contain spaces and brackets: the fields begin after the last bracket."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(4096)
    except OSError:
        return None
    return int(text[text.rindex(b")") + 2 :].split()[19])


# Run a host program with chosen fds from a threaded event loop: posix_spawn, never fork.

_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **SEALED}
_CLEAR_OF_TARGETS = 64  # sources are moved above all targets, so that no dup2 overwrites a source that is still needed


def sealed_null() -> int:
    """Open /dev/null through a private read-only mount. crun before 1.24 gives its stdio, and so the host's /dev/null,
    to the sandbox's root with fchown; on this mount that fails with EROFS, which crun ignores."""
    tree = linux.open_tree("/dev/null")
    try:
        linux.mount_setattr(tree, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID)
        return os.open(f"/proc/self/fd/{tree}", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(tree)


async def run(argv: Sequence[str], fds: Sequence[int], limit_s: float, view: MountView) -> int:
    """Return the exit code, negative for a signal. `fds` become 0, 1, 2, 3 …; no other is inherited. The program is
    killed after `limit_s` or if the caller is cancelled (TimeoutError, CancelledError)."""
    pidfd = os.pidfd_open(await _spawn_with(view, argv, fds))
    try:
        async with asyncio.timeout(limit_s):
            await readable(pidfd)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        raise
    finally:
        code = _reap(pidfd)
    return code


async def readable(fd: int) -> None:
    """Wait until `fd` is readable: for a pidfd, until its process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _reap(pidfd: int) -> int:
    """Reap a process that has ended or was just sent SIGKILL."""
    try:
        status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    finally:
        os.close(pidfd)
    if status is None:
        return 0
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


async def _spawn_with(view: MountView, argv: Sequence[str], fds: Sequence[int]) -> int:
    """Start the program on a new thread, because a thread cannot leave its mount namespace."""
    started: Future[int] = Future()

    def work() -> None:
        try:
            view.enter()
            started.set_result(_spawn(argv, fds))
        except BaseException as error:
            started.set_exception(error)

    thread = threading.Thread(target=work, name="skerry-mounts")
    thread.start()
    try:
        return await asyncio.shield(asyncio.wrap_future(started))
    except asyncio.CancelledError:
        thread.join()  # the caller closes the fds, and removes everything that was started
        if started.exception() is None:
            _kill(started.result())
        raise


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _spawn(argv: Sequence[str], fds: Sequence[int]) -> int:
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _CLEAR_OF_TARGETS) for fd in fds]
    try:
        return os.posix_spawn(
            argv[0],
            list(argv),
            _ENV,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(moved)],
            setsid=True,  # Ctrl-C on a foreground server does not reach it
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )
    finally:
        for fd in moved:
            os.close(fd)
