"""What a storage driver is, and what all drivers share: units that appear and vanish by one rename.

<home>/u/<sandbox id>/   a unit: upper/ and work/ of one sandbox, with the ids that the inside sees
<home>/t/<random>        being made, being removed, or left by a crash: swept
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.storage.tree import private_directory
from skerry.types import SANDBOX_ID, format_size

GiB = 1 << 30
DEFAULT_RESERVE = 1 * GiB
DEFAULT_POOL = 64 * GiB


@dataclass(frozen=True)
class Lack:
    """Why a driver can't be used on this host, and the command that would change it."""

    reason: str
    fix: str | None = None


class Driver(Protocol):
    """Where writable uppers live. All calls block; any number of threads may call."""

    name: str
    enforces_limit: bool

    def prepare(self) -> None:
        """Makes or adopts what the units lie in, and sweeps what a crash left. Before any other call; idempotent."""

    def create(self, unit: str, limit: int) -> Path:
        """A new unit that can't grow beyond `limit` bytes. Refused below the reserve of the host's disk."""

    def path(self, unit: str) -> Path: ...

    def resize(self, unit: str, limit: int) -> None:
        """Another limit for a unit in use; refused if it uses more already."""

    def usage(self, unit: str) -> int:
        """Bytes that the unit takes."""

    def delete(self, unit: str) -> None:
        """Removes a unit; one that is not there is fine."""

    def units(self) -> set[str]:
        """The units that are whole. Sweeps the others."""

    def close(self) -> None:
        """Unmounts what is mounted and not in use. Units stay."""


class UnitDriver(ABC):
    """The shared part. A driver adds how a unit's directory is made and unmade."""

    name: str
    enforces_limit: bool

    def __init__(self, home: Path, state_dir: Path, reserve: int = DEFAULT_RESERVE) -> None:
        self.home = home
        self.state_dir = state_dir
        self.reserve = reserve
        self._working: set[str] = set()
        self._lock = threading.Lock()

    @abstractmethod
    def make(self, directory: Path, limit: int) -> None:
        """Makes the unit's directory, with its limit."""

    @abstractmethod
    def unmake(self, directory: Path) -> None:
        """Removes a directory that may be whole, half-made, half-removed or not there."""

    def open_home(self) -> None:
        """After this, u/ and t/ are where the units are kept."""
        private_directory(self.home)
        private_directory(self.home / "u")
        private_directory(self.home / "t")

    def prepare(self) -> None:
        private_directory(self.state_dir)
        self.open_home()
        self.sweep()

    def create(self, unit: str, limit: int) -> Path:
        target = self._place(unit)
        self.check_room()
        with self._scratch() as scratch:
            try:
                self.make(scratch, limit)
                os.rename(scratch, target)
            except OSError as error:
                self.unmake(scratch)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise Conflict(f"storage for {unit} exists already") from None
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise QuotaExceeded("the storage for sandboxes is full", hint=self._room_hint()) from error
                raise
        return target

    def path(self, unit: str) -> Path:
        place = self._place(unit)
        if not place.is_dir():
            raise NotFound(f"there is no storage for {unit}")
        return place

    def delete(self, unit: str) -> None:
        place = self._place(unit)
        with self._scratch() as scratch:
            try:
                os.rename(place, scratch)
            except FileNotFoundError:
                return
            self.unmake(scratch)

    def units(self) -> set[str]:
        self.sweep()
        return {name for name in os.listdir(self.home / "u") if SANDBOX_ID.fullmatch(name)}

    def sweep(self) -> None:
        with self._lock:
            left = set(os.listdir(self.home / "t")) - self._working
        for name in left:
            self.unmake(self.home / "t" / name)

    def check_room(self) -> None:
        """The host's disk must keep its reserve: a pool that can't grow turns read-only under every sandbox."""
        found = os.statvfs(self.state_dir)
        free = found.f_bavail * found.f_frsize
        if free < self.reserve:
            raise QuotaExceeded(
                f"the host's disk has {format_size(free >> 20 << 20)} free, less than the reserve"
                f" of {format_size(self.reserve)}",
                hint=self._room_hint(),
                details={"free": free, "reserve": self.reserve},
            )

    def _room_hint(self) -> str:
        return f"free space on the file system of {self.state_dir}, or delete sandboxes"

    def _place(self, unit: str) -> Path:
        if not SANDBOX_ID.fullmatch(unit):
            raise InvalidRequest(f"{unit[:80]!r} is not a sandbox's id")
        return self.home / "u" / unit

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A name in t/ that `sweep` leaves alone meanwhile."""
        name = secrets.token_hex(12)
        with self._lock:
            self._working.add(name)
        try:
            yield self.home / "t" / name
        finally:
            with self._lock:
                self._working.discard(name)


def add_upper_and_work(directory: Path) -> None:
    """Both as the root of the inside owns them, whatever the umask."""
    for name in ("upper", "work"):
        path = directory / name
        path.mkdir()
        path.chmod(0o755)


def has_units(home: Path) -> bool:
    try:
        return any(SANDBOX_ID.fullmatch(name) for name in os.listdir(home / "u"))
    except FileNotFoundError:
        return False


def refuse_shrinking(unit: str, used: int, limit: int) -> None:
    if used > limit:
        raise Conflict(
            f"{unit} uses {format_size(used)} of disk, more than the new limit of {format_size(limit)}",
            hint="delete files first, or give it a higher limit",
        )
