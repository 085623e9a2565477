"""Child processes of a build: they die with it, also if it is killed, and their mounts are never visible on the
host."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from skerry.errors import SkerryError

_MAX_LINE = 1 << 16
_KEPT_LINES = 20
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
_NO_NETWORK = ("--net", "--ipc", "--uts")
_WALL = ("setpriv", "--pdeathsig", "KILL", "--", *_UNSHARE)


@dataclass(frozen=True)
class OutputLine:
    """One line of output, or (text None) a tick: about a quarter of a second passed without one."""

    text: str | None


def isolated_argv(argv: list[str], *, isolated: bool) -> list[str]:
    """Return the command that runs `argv` in new namespaces so that it dies with its parent."""
    return [*_WALL, *(_NO_NETWORK if isolated else ()), "--", *argv]


def lines(
    argv: list[str],
    env: dict[str, str],
    what: str,
    timeout: float = 3600.0,
    *,
    stdin: int = subprocess.DEVNULL,
    cwd: str | os.PathLike[str] = "/",
    isolated: bool = False,
) -> Generator[OutputLine, None, None]:
    """Run a command and yield its output (both streams) as it arrives; raise if it fails or times out.

    A pid namespace ends every descendant with its first process, also those in their own sessions; that process has the
    parent-death signal, so `kill -9` of the builder is enough. The mount namespace ends with them. `isolated`: without
    a network too. If the consumer stops early (an error in a progress callback, a cancelled build), everything is
    killed at once.
    """
    child = subprocess.Popen(
        isolated_argv(argv, isolated=isolated),
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        umask=0o022,
        cwd=cwd,
    )
    recent: list[str] = []
    try:
        for line in _read_lines(child, time.monotonic() + timeout, what):
            if line.text is not None:
                recent = [*recent, line.text][-_KEPT_LINES:]
            yield line
        status = child.wait()
    finally:
        _end(child)
    if status != 0:
        raise SkerryError(f"{what} failed (exit status {status}):\n" + "\n".join(recent))


def output(argv: list[str], env: dict[str, str], what: str, timeout: float = 300.0) -> list[str]:
    """Return all lines of a command's output."""
    return [line.text for line in lines(argv, env, what, timeout) if line.text is not None]


def _read_lines(child: subprocess.Popen[bytes], deadline: float, what: str) -> Iterator[OutputLine]:
    assert child.stdout is not None  # noqa: S101 - a pipe was asked for
    fd = child.stdout.fileno()
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    rest = b""
    while True:
        if time.monotonic() > deadline:
            raise SkerryError(f"{what} timed out")
        if not poller.poll(250):
            yield OutputLine(None)
            continue
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            break
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        rest = rest[-_MAX_LINE:]
        yield from (OutputLine(text.decode("utf-8", "replace")) for text in whole if text.strip())
    if rest.strip():
        yield OutputLine(rest.decode("utf-8", "replace"))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the process, and wait (bounded) until the last descendant has closed the output pipe."""
    assert child.stdout is not None  # noqa: S101 - a pipe was asked for
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if poller.poll(1000) and not os.read(child.stdout.fileno(), 1 << 16):
            break
    child.stdout.close()
