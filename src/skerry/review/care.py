"""Keeping a ledger small and clean: locks, leftovers of killed writers, packs joined before they are many.

Every commit makes one pack. Joining them geometrically (`git repack --geometric`) rewrites only the small ones, so
that a ledger of n commits has about log(n) packs, and each object is rewritten about log(n) times.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from skerry.errors import Conflict, SkerryError
from skerry.review import differing, packs
from skerry.review.git import Git, GitFailed

MANY: Final = 40  # packs: joined when somebody has time
TOO_MANY: Final = 200  # joined at once, by who makes the next commit
_LOOSE: Final = 1000
_PATIENCE: Final = 600.0
_SECONDS: Final = 1800.0
_OLD_READER: Final = 3600.0


@contextmanager
def held(path: Path, patience: float) -> Iterator[int]:
    """A lock that its holder's children share, if they get its fd."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        until = time.monotonic() + patience
        while not _taken(fd):
            if time.monotonic() >= until:
                raise Conflict(f"another process works on the ledger at {path.parent}")
            time.sleep(0.005)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def locked(place: Path, patience: float = _PATIENCE) -> Iterator[int]:
    """Whoever joins packs holds it; beside the writers' own, which is not held for so long."""
    with held(place / "care.lock", patience) as fd:
        yield fd


def size(place: Path) -> int:
    total = 0
    pending = [str(place)]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def sweep(place: Path) -> None:
    """With the writers' lock held. A git of a killed server may still be joining packs: what it makes is left alone."""
    for path in place.glob(f"{packs.SCRATCH}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in place.glob(f"{differing.SCRATCH}*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _OLD_READER:
                shutil.rmtree(path, ignore_errors=True)
    for path in [*place.glob("refs/**/*.lock"), *place.glob("*.lock"), *place.glob("info/*.lock")]:
        if path.name not in ("writer.lock", "care.lock"):
            path.unlink(missing_ok=True)
    with suppress(Conflict), locked(place, 0):
        for path in [*place.glob("objects/*/tmp_obj_*"), *_unfinished(place / "objects" / "pack")]:
            path.unlink(missing_ok=True)


class Tending:
    """Joins packs beside the work, in a thread of its own, so that no commit waits for it."""

    def __init__(self, place: Path, git: Git) -> None:
        self._place, self._git = place, git
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """After each commit. That packs could not be joined, as on a full disk, is no failure of what was written."""
        count = _packs(self._place)
        if count > TOO_MANY:
            self._tend()
        elif count > MANY and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._tend, name="ledger-care", daemon=True)
            self._thread.start()

    def _tend(self) -> None:
        with suppress(SkerryError, OSError):
            maintain(self._place, self._git)


def maintain(place: Path, git: Git) -> bool:
    if _packs(place) <= MANY and _loose(place) <= _LOOSE:
        return False
    try:
        with locked(place, 0) as lock:
            try:
                git.run("repack", "--geometric=2", "-d", "-q", held=(lock,), seconds=_SECONDS)
            except GitFailed as failed:
                if "geometric" not in failed.message:
                    raise
                git.run("repack", "-a", "-d", "-k", "-q", held=(lock,), seconds=_SECONDS)  # git before 2.32
    except Conflict:
        return False  # another does it
    return True


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _packs(place: Path) -> int:
    return sum(name.endswith(".pack") for name in os.listdir(place / "objects" / "pack"))


def _loose(place: Path) -> int:
    found = 0
    for name in os.listdir(place / "objects"):
        if len(name) == 2:
            found += len(os.listdir(place / "objects" / name))
    return found


def _unfinished(directory: Path) -> Iterator[Path]:
    """Temporary files, packs without an index, and what lies beside a pack that is gone."""
    names = set(os.listdir(directory))
    for name in names:
        stem, _, kind = name.rpartition(".")
        whole = f"{stem}.pack" in names and (kind != "pack" or f"{stem}.idx" in names)
        if not name.startswith("pack-") or not whole:
            yield directory / name
