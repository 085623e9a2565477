"""The state directory: its subdirectories, and the locks that make one server its only user."""

from __future__ import annotations

import fcntl
import os
import shlex
from pathlib import Path

from skerry.config import BY_NAME, RUN_BASE, run_dir
from skerry.errors import Conflict


class StateDir:
    """A state directory that this process has locked."""

    def __init__(self, path: Path, locks: list[int]) -> None:
        self.path = path
        self._locks = locks

    @classmethod
    def acquire(cls, path: Path) -> StateDir:
        """Create the directories and take their locks. Raise Conflict if another server has them."""
        _make_directories(path)
        return cls(path, _lock_all(path))

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    def release(self) -> None:
        for fd in self._locks:
            os.close(fd)


def _make_directories(state: Path) -> None:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(state, 0o700)
    for path, mode in ((RUN_BASE, 0o711), (run_dir(state), 0o711), (run_dir(state) / "k", 0o700)):
        path.mkdir(mode=mode, exist_ok=True)
        os.chmod(path, mode)


def _lock_all(state: Path) -> list[int]:
    """Return locked fds; the locks last until they are closed. Both directories are locked: a state directory could be
    reached under two run directories (a bind mount), and a run directory from two state directories of one name
    (another file system mounted over the first)."""
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
        named = "" if str(state) == BY_NAME["state_dir"].default else f"SKERRY_STATE_DIR={shlex.quote(str(state))} "
        raise Conflict(
            f"another server (pid {owner}) uses {state}",
            hint=f"`{named}skerry server stop` stops it, and sandboxes keep running; or set another SKERRY_STATE_DIR",
        ) from error
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
