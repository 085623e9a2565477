"""What a storage driver is, and what all drivers share: units that appear and vanish by one rename.

<home>/u/<sandbox id>/   a unit: upper/ and work/ of one sandbox, with the ids that the inside sees
<home>/s/<32 hex>/       a snapshot: upper/ as a unit's was at one moment, never written again
<home>/t/<random>        being made, being removed, or left by a crash: swept
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.storage import kernel
from skerry.storage.copying import copy_tree
from skerry.storage.tree import disk_use, forget_keeper, private_directory, remove
from skerry.types import SANDBOX_ID, format_size

GiB = 1 << 30
DEFAULT_RESERVE = 1 * GiB
DEFAULT_POOL = 64 * GiB
DEFAULT_HEADROOM = 1 * GiB
SNAPSHOT = re.compile(r"[0-9a-f]{32}")


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

    def create(self, unit: str, limit: int, origin: str | None = None) -> Path:
        """A new unit that can't grow beyond `limit` bytes. Refused below the reserve of the host's disk.

        Its upper is empty, or begins as that of the snapshot `origin`; what it begins with does not count."""

    def path(self, unit: str) -> Path: ...

    def resize(self, unit: str, limit: int) -> None:
        """Another limit for a unit in use; refused if it uses more already."""

    def usage(self, unit: str) -> int:
        """Bytes that the unit takes."""

    def delete(self, unit: str) -> None:
        """Removes a unit; one that is not there is fine."""

    def units(self) -> set[str]:
        """The units that are whole. Sweeps the others."""

    def sync(self, unit: str) -> None:
        """Writes out all that is unwritten of the unit; a driver that can't tell it apart, of all others too."""

    def capture(self, unit: str) -> str:
        """The unit as it is now, under a token that `keep` or `discard` takes. Nothing may write to it meanwhile: the
        caller freezes the sandbox for the length of this call and no longer."""

    def keep(self, token: str, name: str, *, durable: bool = True) -> None:
        """Makes a captured unit a snapshot of that name, without what the keeper wrote. A `durable` one outlasts a
        power cut once this has returned."""

    def discard(self, token: str) -> None:
        """Forgets a captured unit; one that was kept or discarded already is fine."""

    def snapshots(self) -> set[str]: ...

    def snapshot_path(self, name: str) -> Path:
        """Where the upper of a snapshot is."""

    def snapshot_size(self, name: str) -> int:
        """Bytes that its files take, some of which its unit and other snapshots of it may share. Looks at them all."""

    def drop_snapshot(self, name: str) -> None:
        """Removes a snapshot; one that is not there is fine. The caller knows that nothing stands on it."""

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
    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        """Makes the unit's directory, with its limit; `origin` is the directory of a snapshot to begin as."""

    @abstractmethod
    def unmake(self, directory: Path) -> None:
        """Removes a directory that may be whole, half-made, half-removed or not there."""

    @abstractmethod
    def usage(self, unit: str) -> int: ...

    def open_home(self) -> None:
        """After this, u/, s/ and t/ are where the units and snapshots are kept."""
        private_directory(self.home)
        for name in ("u", "s", "t"):
            private_directory(self.home / name)

    def prepare(self) -> None:
        private_directory(self.state_dir)
        self.open_home()
        self.sweep()

    def create(self, unit: str, limit: int, origin: str | None = None) -> Path:
        target = self._place(unit)
        begin = None if origin is None else self.snapshot_path(origin).parent
        self.check_room(self.cost(begin) if begin is not None else 0)
        with self._scratch() as scratch:
            try:
                self.make(scratch, limit, begin)
                os.rename(scratch, target)
            except OSError as error:
                self.unmake(scratch)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise Conflict(f"storage for {unit} exists already") from None
                self._refuse_full(error, "sandboxes")
                raise
        return target

    def path(self, unit: str) -> Path:
        place = self._place(unit)
        if not place.is_dir():
            raise NotFound(f"there is no storage for {unit}")
        return place

    def delete(self, unit: str) -> None:
        self._remove(self._place(unit))

    def _remove(self, place: Path) -> None:
        with self._scratch() as scratch:
            try:
                os.rename(place, scratch)
            except FileNotFoundError:
                return
            self.unmake(scratch)

    def units(self) -> set[str]:
        self.sweep()
        return {name for name in os.listdir(self.home / "u") if SANDBOX_ID.fullmatch(name)}

    def sync(self, unit: str) -> None:
        kernel.syncfs(self.path(unit))

    def capture(self, unit: str) -> str:
        source = self.path(unit)
        self.check_copy(unit)
        token = secrets.token_hex(12)
        with self._lock:
            self._working.add(token)
        try:
            self.copy(source, self.home / "t" / token)
        except BaseException as error:
            self.discard(token)
            if isinstance(error, OSError):
                self._refuse_full(error, "snapshots")
            raise
        return token

    def cost(self, origin: Path) -> int:
        """Bytes that a unit takes at once which begins as that snapshot."""
        return disk_use(origin)

    def check_copy(self, unit: str) -> None:
        """Whether there is room for what a capture copies."""
        self.check_room(self.usage(unit))

    def copy(self, unit: Path, target: Path) -> None:
        """Makes `target`, which has the upper of a unit. Nobody writes to the unit."""
        target.mkdir(mode=0o700)
        copy_tree(unit / "upper", target / "upper")

    def keep(self, token: str, name: str, *, durable: bool = True) -> None:
        place = self._snapshot_place(name)
        source = self.home / "t" / token
        try:
            forget_keeper(source / "upper")
            remove(source / "work")
            os.rename(source, place)
            self._done(token)
            try:
                self.seal(place, durable)
            except BaseException:
                self.drop_snapshot(name)
                raise
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise Conflict(f"there is a snapshot {name} already") from None
            self._refuse_full(error, "snapshots")
            raise

    def seal(self, snapshot: Path, durable: bool) -> None:
        """Makes sure of a snapshot that has its name: nothing writes to it, and a power cut does not take it."""
        if durable:
            kernel.syncfs(snapshot)

    def discard(self, token: str) -> None:
        self.unmake(self.home / "t" / token)
        self._done(token)

    def _done(self, token: str) -> None:
        with self._lock:
            self._working.discard(token)

    def snapshots(self) -> set[str]:
        return {name for name in os.listdir(self.home / "s") if SNAPSHOT.fullmatch(name)}

    def snapshot_path(self, name: str) -> Path:
        upper = self._snapshot_place(name) / "upper"
        if not upper.is_dir():
            raise NotFound(f"there is no snapshot {name} in the storage")
        return upper

    def snapshot_size(self, name: str) -> int:
        return disk_use(self.snapshot_path(name))

    def drop_snapshot(self, name: str) -> None:
        self._remove(self._snapshot_place(name))

    def sweep(self) -> None:
        with self._lock:
            left = set(os.listdir(self.home / "t")) - self._working
        for name in left:
            self.unmake(self.home / "t" / name)

    def check_room(self, needed: int = 0) -> None:
        """The host's disk must keep its reserve: a pool that can't grow turns read-only under every sandbox. `needed`
        is about to be taken of it."""
        found = os.statvfs(self.state_dir)
        free = found.f_bavail * found.f_frsize - needed
        if free < self.reserve:
            raise QuotaExceeded(
                f"the host's disk has{' only' * bool(needed)} {format_size(max(free, 0) >> 20 << 20)} free"
                f"{' beside that' * bool(needed)}, less than the reserve"
                f" of {format_size(self.reserve)}",
                hint=self._room_hint(),
                details={"free": free, "reserve": self.reserve},
            )

    def _refuse_full(self, error: OSError, what: str) -> None:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuotaExceeded(f"the storage for {what} is full", hint=self._room_hint()) from error

    def _room_hint(self) -> str:
        return f"free space on the file system of {self.state_dir}, or delete sandboxes"

    def _place(self, unit: str) -> Path:
        if not SANDBOX_ID.fullmatch(unit):
            raise InvalidRequest(f"{unit[:80]!r} is not a sandbox's id")
        return self.home / "u" / unit

    def _snapshot_place(self, name: str) -> Path:
        if not SNAPSHOT.fullmatch(name):
            raise InvalidRequest(f"{name[:80]!r} is not a snapshot's name in the storage", hint="32 hex digits")
        return self.home / "s" / name

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


def add_upper_and_work(directory: Path, origin: Path | None = None) -> None:
    """Both as the root of the inside owns them, whatever the umask; the upper as that of a snapshot."""
    for name in ("upper", "work"):
        path = directory / name
        if name == "upper" and origin is not None:
            copy_tree(origin / "upper", path)
            continue
        path.mkdir()
        path.chmod(0o755)


def holds_anything(home: Path) -> bool:
    """Whether there are units or snapshots."""
    for folder, named in (("u", SANDBOX_ID), ("s", SNAPSHOT)):
        try:
            if any(named.fullmatch(name) for name in os.listdir(home / folder)):
                return True
        except FileNotFoundError:
            continue
    return False


def refuse_shrinking(unit: str, used: int, limit: int) -> None:
    if used > limit:
        raise Conflict(
            f"{unit} uses {format_size(used)} of disk, more than the new limit of {format_size(limit)}",
            hint="delete files first, or give it a higher limit",
        )
