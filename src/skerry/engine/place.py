"""Where a server works: its directories, and the locks that make it the only one there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from skerry.config import RUN_BASE, run_dir
from skerry.errors import Conflict


def make_directories(state: Path) -> None:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(state, 0o700)
    for path, mode in (
        (RUN_BASE, 0o711), (run_dir(state), 0o711), (run_dir(state) / "m", 0o711),
        (run_dir(state) / "k", 0o700), (run_dir(state) / "b", 0o700),
    ):  # fmt: skip
        path.mkdir(mode=mode, exist_ok=True)
        os.chmod(path, mode)


def lock(state: Path) -> list[int]:
    """Held until the fds are closed. Both sides: a state directory could be reached under two run directories (a bind
    mount), and a run directory from two state directories of one name (another file system mounted over the first)."""
    fds: list[int] = []
    try:
        for path in (state / "lock", run_dir(state) / "lock"):
            fds.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            _lock(fds[-1], state)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return fds


def _lock(fd: int, state: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(fd, 32).decode("ascii", "replace").strip()
        raise Conflict(
            f"another server (pid {owner}) works on {state}",
            hint="talk to that one, or give this one another SKERRY_STATE_DIR",
        ) from error
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
