"""Storage drivers: the protocol, and their shared part: uppers that appear and disappear with one rename.

<home>/u/<sandbox id>/   an upper: upper/ and work/ of one sandbox, with the IDs that the sandbox sees
<home>/u/<volume id>/    a volume: its files are upper/
<home>/s/<32 hex>/       a snapshot: the upper/ of a sandbox at one moment, never written again
<home>/t/<random>        being made, being removed, or left by a crash: swept
<home>/r/                record files of the engine (`engine.repair.record_files`)
<home>/q/<name>          quarantined: uppers and snapshots that no database describes
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.storage import kernel, tree
from skerry.storage.tree import disk_use, forget_keeper, private_directory, remove
from skerry.types import SANDBOX_ID, VOLUME_ID, readable_size

GiB = 1 << 30
DEFAULT_MIN_FREE = 1 * GiB
DEFAULT_POOL = 64 * GiB
DEFAULT_PREALLOCATE = 1 * GiB
SNAPSHOT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class MissingFeature:
    """The reason that a driver cannot be used on this host, and the command that fixes it."""

    reason: str
    fix: str | None = None


class Driver(Protocol):
    """Stores writable uppers, and volumes as uppers with another kind of name. All calls block; any number of threads
    may call. `clones_live`: a clone of an upper that is being written to is its state at one moment."""

    name: str
    enforces_limit: bool
    clones_live: bool

    @property
    def capacity(self) -> int:
        """Return the bytes that one upper could hold if nothing else used the storage."""

    def prepare(self) -> None:
        """Make or adopt the storage, and sweep leftovers of a crash. Call it before any other method; idempotent."""

    def create(self, upper: str, limit: int, origin: str | None = None, *, consume: bool = False) -> Path:
        """Create an upper that cannot grow beyond `limit` bytes. Fails below the host disk's minimum free space.

        It starts empty or as a copy of the snapshot `origin`; the copied bytes do not count. With `consume`, nothing
        else uses the snapshot: it may become the upper itself.
        """

    def clone(self, upper: str, target: str, limit: int) -> None:
        """Create an upper as a copy of another one. The copied bytes do not count towards its limit, but to that of the
        upper that wrote them, as long as one of both holds them."""

    def path(self, upper: str) -> Path: ...

    def mounting(self, upper: str) -> AbstractContextManager[None]:
        """Leave some space beyond the limit while a block mounts the upper: overlayfs creates a directory for its work,
        and if it cannot, the mount is read-only, with no error."""

    def check_space(self, needed: int = 0) -> None:
        """Raise QuotaExceeded unless the host's disk keeps its minimum free space with `needed` bytes more."""

    def resize(self, upper: str, limit: int) -> None:
        """Change the limit of an upper in use; fails if it already uses more."""

    def usage(self, upper: str) -> int:
        """Return the bytes that the upper uses."""

    def delete(self, upper: str) -> None:
        """Delete an upper. Ignore one that does not exist."""

    def uppers(self) -> set[str]:
        """Return the complete uppers of sandboxes. Sweep incomplete ones."""

    def volumes(self) -> set[str]:
        """Return the complete volumes."""

    def sync(self, upper: str) -> None:
        """Write out all dirty data of the upper; a driver that cannot separate it also writes that of all others."""

    def capture(self, upper: str) -> str:
        """Capture the upper's current state under a token for `keep` or `discard`. Nothing may write to it meanwhile:
        the caller freezes the sandbox for this call and no longer."""

    def keep(self, token: str, name: str, *, durable: bool = True) -> None:
        """Turn a captured upper into a snapshot with that name, without the keeper's files. A `durable` snapshot
        survives a power failure once this returns."""

    def captured(self, token: str) -> Path:
        """Return the files of a captured upper, until it is kept or discarded."""

    def discard(self, token: str) -> None:
        """Drop a captured upper. Ignore one that was already kept or discarded."""

    def snapshots(self) -> set[str]: ...

    def snapshot_path(self, name: str) -> Path:
        """Return the path of a snapshot's upper."""

    def snapshot_size(self, name: str) -> int:
        """Return the bytes of its files, some of which its upper and other snapshots may share. Reads all metadata."""

    def drop_snapshot(self, name: str) -> None:
        """Remove a snapshot. Ignore one that does not exist. The caller ensures that nothing uses it."""

    @property
    def records(self) -> Path:
        """Return the directory of the engine's record files, on the same file system as the uppers."""

    def quarantined(self, name: str) -> Path:
        """Return the place of quarantined data."""

    def quarantine_upper(self, upper: str, place: Path) -> None:
        """Move an upper or a volume there."""

    def quarantine_snapshot(self, name: str, place: Path) -> None: ...

    def remove_quarantined(self, place: Path) -> None: ...

    def close(self) -> None:
        """Unmount everything that is mounted and unused. Uppers stay."""


class UpperDriver(ABC):
    """The shared part. A subclass makes and removes the directory of an upper."""

    name: str
    enforces_limit: bool
    clones_live = False

    def __init__(self, home: Path, state_dir: Path, min_free: int = DEFAULT_MIN_FREE) -> None:
        self.home = home
        self.state_dir = state_dir
        self.min_free = min_free
        self._working: set[str] = set()
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """Return the size of the host's file system, without the part that is reserved for root or stays free."""
        found = os.statvfs(self.state_dir)
        return max((found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize - self.min_free, 0)

    @abstractmethod
    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        """Make the directory of an upper with its limit; `origin` is the directory of a snapshot to start from."""

    def take(self, snapshot: Path, directory: Path, limit: int) -> bool:
        """Turn the directory of a snapshot into that of an upper, if that costs less than a copy."""
        return False

    @abstractmethod
    def unmake(self, directory: Path) -> None:
        """Remove a directory that may be complete, half-made, half-removed or missing."""

    @abstractmethod
    def usage(self, upper: str) -> int: ...

    def mounting(self, upper: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def open_home(self) -> None:
        """Make u/, s/ and t/ available."""
        private_directory(self.home)
        for name in ("u", "s", "t", "r", "q"):
            private_directory(self.home / name)

    def prepare(self) -> None:
        private_directory(self.state_dir)
        self.open_home()
        self.sweep()

    def create(self, upper: str, limit: int, origin: str | None = None, *, consume: bool = False) -> Path:
        begin = None if origin is None else self.snapshot_path(origin).parent
        self.check_space(self.cost(begin) if begin is not None else 0)

        def make(scratch: Path) -> None:
            if begin is None or not consume or not self.take(begin, scratch, limit):
                self.make(scratch, limit, begin)

        return self._place_new(upper, make)

    def clone(self, upper: str, target: str, limit: int) -> None:
        source = self.path(upper)
        self.check_space(self.cost(source))
        self._place_new(target, lambda scratch: self.make_clone(source, scratch, limit))

    def make_clone(self, source: Path, directory: Path, limit: int) -> None:
        """Make the directory of an upper that is a copy of another one."""
        self.make(directory, limit, source)

    def _place_new(self, upper: str, make: Callable[[Path], None]) -> Path:
        """Make an upper under a scratch name, and give it its name."""
        target = self._place(upper)
        with self._scratch() as scratch:
            try:
                make(scratch)
                os.rename(scratch, target)
            except OSError as error:
                self.unmake(scratch)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise Conflict(f"storage for {upper} already exists") from None
                self._refuse_full(error, "sandboxes")
                raise
        return target

    def path(self, upper: str) -> Path:
        place = self._place(upper)
        if not place.is_dir():
            raise NotFound(f"storage for {upper} not found")
        return place

    def delete(self, upper: str) -> None:
        self._remove(self._place(upper))

    def _remove(self, place: Path) -> None:
        with self._scratch() as scratch:
            try:
                os.rename(place, scratch)
            except FileNotFoundError:
                return
            self.unmake(scratch)

    def uppers(self) -> set[str]:
        self.sweep()
        return {name for name in os.listdir(self.home / "u") if SANDBOX_ID.fullmatch(name)}

    def volumes(self) -> set[str]:
        return {name for name in os.listdir(self.home / "u") if VOLUME_ID.fullmatch(name)}

    def sync(self, upper: str) -> None:
        kernel.syncfs(self.path(upper))

    def capture(self, upper: str) -> str:
        source = self.path(upper)
        self.check_copy(upper)
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
        """Return the bytes that an upper started from that snapshot takes at once."""
        return disk_use(origin)

    def check_copy(self, upper: str) -> None:
        """Check that there is space for the copy that a capture makes."""
        self.check_space(self.usage(upper))

    def copy(self, upper: Path, target: Path) -> None:
        """Make `target` with a copy of the upper. Nothing writes to the upper meanwhile."""
        target.mkdir(mode=0o700)
        tree.copy_tree(upper / "upper", target / "upper")

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
                raise Conflict(f"snapshot {name} already exists") from None
            self._refuse_full(error, "snapshots")
            raise

    def seal(self, snapshot: Path, durable: bool) -> None:
        """Protect a snapshot that has its name: make it read-only and durable."""
        if durable:
            kernel.syncfs(snapshot)

    def captured(self, token: str) -> Path:
        return self.home / "t" / token / "upper"

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
            raise NotFound(f"snapshot {name} not found in the storage")
        return upper

    def snapshot_size(self, name: str) -> int:
        return disk_use(self.snapshot_path(name))

    def drop_snapshot(self, name: str) -> None:
        self._remove(self._snapshot_place(name))

    @property
    def records(self) -> Path:
        return self.home / "r"

    def quarantined(self, name: str) -> Path:
        return self.home / "q" / name

    def quarantine_upper(self, upper: str, place: Path) -> None:
        os.rename(self._place(upper), place)

    def quarantine_snapshot(self, name: str, place: Path) -> None:
        os.rename(self._snapshot_place(name), place)

    def remove_quarantined(self, place: Path) -> None:
        if place.parent != self.home / "q":
            raise InvalidRequest(f"{place} is not in the quarantine")
        self.unmake(place)

    def sweep(self) -> None:
        with self._lock:
            left = set(os.listdir(self.home / "t")) - self._working
        for name in left:
            self.unmake(self.home / "t" / name)

    def check_space(self, needed: int = 0) -> None:
        """Ensure that the host's disk keeps its minimum free space: a pool that cannot grow becomes read-only for every
        sandbox. `needed`: bytes about to be taken."""
        found = os.statvfs(self.state_dir)
        free = found.f_bavail * found.f_frsize - needed
        if free < self.min_free:
            raise QuotaExceeded(
                f"the host's disk has{' only' * bool(needed)} {readable_size(max(free, 0))} free"
                f"{' beside that' * bool(needed)}, less than the reserve"
                f" of {readable_size(self.min_free)}",
                hint=self._room_hint(),
                details={"free": free, "reserve": self.min_free},
            )

    def _refuse_full(self, error: OSError, what: str) -> None:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QuotaExceeded(f"the storage for {what} is full", hint=self._room_hint()) from error

    def _room_hint(self) -> str:
        return f"free space on the file system of {self.state_dir}, or delete sandboxes"

    def _place(self, upper: str) -> Path:
        if not SANDBOX_ID.fullmatch(upper) and not VOLUME_ID.fullmatch(upper):
            raise InvalidRequest(f"{upper[:80]!r} is not the ID of a sandbox or volume")
        return self.home / "u" / upper

    def _snapshot_place(self, name: str) -> Path:
        if not SNAPSHOT.fullmatch(name):
            raise InvalidRequest(f"{name[:80]!r} is not the name of a stored snapshot", hint="32 hex digits")
        return self.home / "s" / name

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Reserve a name in t/ that `sweep` skips meanwhile."""
        name = secrets.token_hex(12)
        with self._lock:
            self._working.add(name)
        try:
            yield self.home / "t" / name
        finally:
            with self._lock:
                self._working.discard(name)


def add_upper_and_work(directory: Path, origin: Path | None = None) -> None:
    """Make both directories, owned by the sandbox's root regardless of the umask; copy the upper from a snapshot if
    given."""
    for name in ("upper", "work"):
        path = directory / name
        if name == "upper" and origin is not None:
            tree.copy_tree(origin / "upper", path)
            continue
        path.mkdir()
        path.chmod(0o755)


def holds_anything(home: Path) -> bool:
    """Return whether uppers, volumes or snapshots exist, also in quarantine."""
    for folder, named in (("u", SANDBOX_ID), ("u", VOLUME_ID), ("s", SNAPSHOT), ("q", re.compile(".+"))):
        try:
            if any(named.fullmatch(name) for name in os.listdir(home / folder)):
                return True
        except FileNotFoundError:
            continue
    return False


def refuse_shrinking(upper: str, used: int, limit: int) -> None:
    if used > limit:
        raise Conflict(
            f"{upper} uses {readable_size(used, up=True)} of disk, more than the new limit of {readable_size(limit)}",
            hint="delete files first, or give it a higher limit",
        )


# The driver `plain`: a directory for each upper. It works everywhere but enforces no limit, and reports that.


class PlainDriver(UpperDriver):
    name = "plain"
    enforces_limit = False

    def __init__(self, state_dir: Path, min_free: int = DEFAULT_MIN_FREE) -> None:
        super().__init__(state_dir / "plain", state_dir, min_free)

    @staticmethod
    def missing_feature() -> MissingFeature | None:
        return None

    @staticmethod
    def used(state_dir: Path) -> bool:
        return holds_anything(state_dir / "plain")

    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        directory.mkdir(mode=0o700)
        add_upper_and_work(directory, origin)

    def unmake(self, directory: Path) -> None:
        tree.remove(directory)

    def resize(self, upper: str, limit: int) -> None:
        self.path(upper)

    def usage(self, upper: str) -> int:
        return tree.disk_use(self.path(upper))

    def close(self) -> None:
        return
