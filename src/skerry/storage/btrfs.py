"""The driver `btrfs`: one file in the state directory, loop-mounted; a subvolume for each upper, limited by simple
quotas (Linux 6.7); a snapshot is a subvolume that shares every block with its upper. An upper takes a tenth of a
millisecond, a snapshot a few, regardless of size.

    <state>/pool.img   the file; grows ahead of demand (`Backing`)
    <state>/pool/      its mount point: nosuid, nodev, noatime
    <home>/c/          accounts of captured uppers (`accounts`)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry.errors import HostUnsupported, NotFound, QuotaExceeded
from skerry.storage import kernel, loopdev, subvolumes, tree
from skerry.storage.accounts import UpperAccounts
from skerry.storage.driver import (
    DEFAULT_MIN_FREE,
    DEFAULT_POOL,
    DEFAULT_PREALLOCATE,
    MissingFeature,
    UpperDriver,
    add_upper_and_work,
    refuse_shrinking,
)
from skerry.storage.mounts import Mount, mount_at
from skerry.types import readable_size

log = logging.getLogger("skerry.storage")
LOOK_S, FAST_LOOK_S = 0.5, 0.1
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME
_FEATURES = Path("/sys/fs/btrfs/features")


class BtrfsDriver(UpperDriver):
    name = "btrfs"
    enforces_limit = True
    clones_live = True

    def __init__(
        self,
        state_dir: Path,
        min_free: int = DEFAULT_MIN_FREE,
        pool_size: int = DEFAULT_POOL,
        preallocate: int = DEFAULT_PREALLOCATE,
    ) -> None:
        super().__init__(state_dir / "pool", state_dir, min_free)
        self.image = state_dir / "pool.img"
        self.backing = Backing(self.image, self.home, min_free, preallocate, pool_size)
        self.books = UpperAccounts(self.home)
        self._captured: dict[str, str] = {}
        self._removed = False
        self._unsealed: set[Path] = set()
        self._house: threading.Thread | None = None
        self._closing = threading.Event()

    @property
    def capacity(self) -> int:
        return min(super().capacity, self.backing.most)

    @staticmethod
    def missing_feature() -> MissingFeature | None:
        if shutil.which("mkfs.btrfs") is None:
            return MissingFeature("mkfs.btrfs is not installed", "apt-get install btrfs-progs")
        if not _FEATURES.is_dir():
            subprocess.run(["modprobe", "--quiet", "btrfs"], check=False, capture_output=True, timeout=30)
        if not _FEATURES.is_dir():
            return MissingFeature("this kernel does not support btrfs")
        if not (_FEATURES / "simple_quota").exists():
            return MissingFeature("this kernel's btrfs has no simple quotas (they need Linux 6.7)")
        reason = loopdev.lacking()
        return MissingFeature(reason) if reason else None

    @staticmethod
    def used(state_dir: Path) -> bool:
        return (state_dir / "pool.img").exists()

    def prepare(self) -> None:
        super().prepare()
        if self._house is None:
            self._closing.clear()
            self._house = threading.Thread(target=self._maintain_pool, name="skerry-storage", daemon=True)
            self._house.start()

    def open_home(self) -> None:
        with self._alone():
            if not self.image.exists():
                self._make_pool()
            tree.private_directory(self.home)
            if not self._adopt():
                self._mount()
            self.backing.sysfs = subvolumes.enable_quota(self.home)
            self._groups = self.backing.sysfs / "qgroups"
            if (self._groups / "mode").read_text().strip() != "squota":
                raise HostUnsupported(f"the pool {self.image} uses another kind of quotas", hint="move that file away")
            self.backing.fit()
        super().open_home()
        found = (self.home / "s" / name for name in self.snapshots())
        self._unsealed |= {snapshot for snapshot in found if not subvolumes.is_read_only(snapshot)}
        self.books.open(self._groups)
        self._drop_stale_groups()

    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        if origin is not None:
            subvolumes.snapshot(origin, directory)
            self._complete(directory, limit)
            return
        subvolumes.create(directory)
        add_upper_and_work(directory)
        directory.chmod(0o700)
        subvolumes.set_limit(self.home, directory, limit)

    def take(self, snapshot: Path, directory: Path, limit: int) -> bool:
        """A copy would wait for one more commit. A sealed snapshot is read-only and cannot be renamed."""
        try:
            self._unsealed.remove(snapshot)  # atomic: from now on it is not sealed
        except KeyError:
            return False
        os.rename(snapshot, directory)
        self._complete(directory, limit)
        return True

    def make_clone(self, source: Path, directory: Path, limit: int) -> None:
        subvolumes.snapshot(source, directory)
        (directory / "work").rmdir()
        self._complete(directory, limit)

    def _complete(self, directory: Path, limit: int) -> None:
        """Make an upper of a copied snapshot."""
        (directory / "work").mkdir()
        (directory / "work").chmod(0o755)
        directory.chmod(0o700)
        subvolumes.set_limit(self.home, directory, limit)

    def unmake(self, directory: Path) -> None:
        subvolumes.destroy(directory)
        self._removed = True

    def delete(self, upper: str) -> None:
        """Delete in one kernel operation, which also works when the pool is full: no rename before it."""
        self.unmake(self._place(upper))
        self.books.forget(upper)

    def drop_snapshot(self, name: str) -> None:
        self.unmake(self._snapshot_place(name))

    def quarantine_snapshot(self, name: str, place: Path) -> None:
        """A read-only subvolume cannot be renamed."""
        subvolumes.set_read_only(self._snapshot_place(name), False)
        super().quarantine_snapshot(name, place)
        subvolumes.set_read_only(place)

    def check_space(self, needed: int = 0) -> None:
        super().check_space(needed)
        least = self.backing.preallocate >> 3
        if self.backing.free < least:
            self.backing.tend()
        if self.backing.free < least:
            raise QuotaExceeded(
                f"the pool of {readable_size(self.backing.size)} is full and cannot grow",
                hint="delete sandboxes or snapshots; or free space on the host's disk, or raise storage.pool_size",
                details={"free": self.backing.free, "size": self.backing.size},
            )

    def snapshot_size(self, name: str) -> int:
        with subvolumes.opened(self.snapshot_path(name).parent) as fd:
            return subvolumes.size(fd)

    def capture(self, upper: str) -> str:
        token = super().capture(upper)
        self._captured[token] = upper
        return token

    def check_copy(self, upper: str) -> None:
        """A capture shares every block."""

    def cost(self, origin: Path) -> int:
        return 0

    def copy(self, upper: Path, target: Path) -> None:
        subvolumes.snapshot(upper, target)

    def sync(self, upper: str) -> None:
        """Sync by a temporary snapshot: the kernel writes out only the data of this upper. syncfs would wait for the
        writes of all other sandboxes."""
        try:
            with self._scratch() as scratch:
                subvolumes.snapshot(self.path(upper), scratch)
                self.unmake(scratch)
        except OSError:  # for example, the pool is full
            super().sync(upper)

    def keep(self, token: str, name: str, *, durable: bool = True) -> None:
        try:
            self.books.captured(self.path(self._captured.pop(token, "")), self.home / "t" / token)
        except (NotFound, FileNotFoundError):  # the upper was deleted meanwhile
            log.info("kept a snapshot of a deleted upper", extra={"snapshot": name})
        super().keep(token, name, durable=durable)

    def seal(self, snapshot: Path, durable: bool) -> None:
        """Make the snapshot read-only. This comes last, because a read-only subvolume cannot be renamed; if the caller
        does not wait for it, it is deferred, because it takes a whole transaction. Its data was written at the capture.
        """
        if durable:
            subvolumes.set_read_only(snapshot)
        else:
            self._unsealed.add(snapshot)

    def discard(self, token: str) -> None:
        self._captured.pop(token, None)
        super().discard(token)

    def resize(self, upper: str, limit: int) -> None:
        place = self.path(upper)
        used = self.books.measure(place)
        refuse_shrinking(upper, used, limit)
        if limit > used:
            self.check_space()
        self.books.resize(place, limit)

    def mounting(self, upper: str) -> contextlib.AbstractContextManager[None]:
        return self.books.extended(self.path(upper))

    def usage(self, upper: str) -> int:
        """Return bytes as of the pool's last commit (at most 30 s ago), plus later reservations."""
        return self.books.used(self.path(upper))

    def close(self) -> None:
        """Running sandboxes keep the pool alive through their own mounts; the next `prepare` adopts it."""
        self._closing.set()
        if self._house is not None:
            self._house.join()
            self._house = None
        mount = mount_at(self.home)
        if mount is None or not self._is_ours(mount):
            return
        try:
            kernel.unmount(self.home)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise

    def _maintain_pool(self) -> None:
        """Keep space preallocated for writers, and update the allowances of captured uppers."""
        pause, logged = LOOK_S, False
        while not self._closing.wait(pause):
            try:
                self._clean()
                self._seal_one()
                pause = FAST_LOOK_S if self.backing.tend() else LOOK_S
                self.books.reconcile()
                logged = False
            except Exception:  # the next round tries again; until then a sandbox at its limit stays there
                if not logged:
                    log.exception("pool maintenance failed")
                pause, logged = LOOK_S, True

    def _seal_one(self) -> None:
        if self._unsealed:
            with contextlib.suppress(FileNotFoundError):  # dropped meanwhile
                subvolumes.set_read_only(self._unsealed.pop())

    def _clean(self) -> None:
        if self._removed and self.backing.room().free < self.backing.preallocate:
            self._removed = False
            subvolumes.clean(self.home)

    def _make_pool(self) -> None:
        new = self.image.with_suffix(".new")
        new.unlink(missing_ok=True)
        try:
            self.backing.make(new)
        except OSError as error:
            new.unlink(missing_ok=True)
            self._refuse_full(error, "sandboxes")
            raise
        self._run("mkfs.btrfs", "--quiet", "--data", "single", "--metadata", "single", "--nodiscard", str(new))
        tree.sync(new)
        os.rename(new, self.image)
        tree.sync(self.state_dir)

    def _adopt(self) -> bool:
        """Adopt the mount of an earlier server. Remount a pool that an error made read-only."""
        mount = mount_at(self.home)
        if mount is None:
            return False
        if not self._is_ours(mount):
            raise HostUnsupported(f"another file system is mounted on {self.home}", hint=f"umount {self.home}")
        if "ro" in mount.super_options or not {"nosuid", "nodev"} <= mount.options:
            kernel.unmount(self.home)
            return False
        return True

    def _is_ours(self, mount: Mount) -> bool:
        return mount.kind == "btrfs" and loopdev.backs(mount.source, self.image)

    def _mount(self) -> None:
        """Mount without discard, which would punch holes into preallocated blocks."""
        with loopdev.attached(self.image) as device:
            kernel.mount(device, self.home, "btrfs", _FLAGS, "nodiscard")

    def _drop_stale_groups(self) -> None:
        """Linux 6.7 to 6.12 keep the quota group of a removed subvolume. A group that is still billed for extents of a
        snapshot must stay: those kernels abort a transaction that frees an extent of a removed group."""
        alive = {subvolumes.TOP_LEVEL}
        for folder in ("u", "s", "t", "q"):
            for entry in os.scandir(self.home / folder):
                if entry.inode() == subvolumes.FIRST_INODE:
                    with subvolumes.opened(Path(entry.path)) as fd:
                        alive.add(subvolumes.root_id(fd))
        groups = {int(name[2:]) for name in os.listdir(self._groups) if name.startswith("0_")}
        with subvolumes.opened(self.home) as fd:
            for group in groups - alive:
                try:
                    if int((self._groups / f"0_{group}" / "referenced").read_text()) == 0:
                        subvolumes.drop_group(fd, group)
                except OSError:
                    continue  # the subvolume is still being removed

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fd = os.open(self.state_dir / "pool.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @staticmethod
    def _run(*argv: str) -> None:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise HostUnsupported(f"{argv[0]} failed: {done.stderr.strip()[-500:]}")


# The file that holds a btrfs pool. Every byte that the file system may use is backed by a block of the host's disk in
# advance (fallocate). So writers on a full host disk get "no space left", and never an I/O error that makes the pool
# read-only for all sandboxes.
#
# The pool grows ahead of demand and stops at the host's minimum free space; free space at its end is given back.

MIN_POOL = 256 << 20
_STEP = 64 << 20
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True)
class PoolSpace:
    """Space in bytes. `loose` belongs to no chunk yet: data or metadata may take it."""

    size: int
    loose: int
    free: int  # including free space in the data chunks

    def wanted(self, preallocate: int) -> int:
        """Return how much the pool should grow: 1.5 times the preallocation, so that it does not grow in every
        round."""
        tables = min(preallocate >> 2, 256 << 20)
        if self.free >= preallocate and self.loose >= tables:
            return 0
        return max(preallocate + (preallocate >> 1) - self.free, 2 * tables - self.loose, _STEP)


class Backing:
    def __init__(self, image: Path, home: Path, min_free: int, preallocate: int, most: int) -> None:
        self.image = image
        self.home = home
        self.min_free = min_free
        self.preallocate = preallocate
        self.most = most
        self.sysfs = Path()  # sysfs directory of the mounted pool
        self.free = self.size = 0  # of the pool, at the last round
        self._lock = threading.Lock()

    def make(self, image: Path) -> None:
        """Create a file of the smallest usable size."""
        size = max(min(self.preallocate + _STEP, self.most, self._affordable()), MIN_POOL) >> 20 << 20
        fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            kernel.no_copy_on_write(fd)
            _back(fd, 0, size)
        finally:
            os.close(fd)

    def fit(self) -> None:
        """At server start, back the whole file and resize the pool to it; an old sparse file releases its unused
        part."""
        found = os.stat(self.image)
        if found.st_blocks * 512 < found.st_size - _STEP:
            self._shrink(subvolumes.last_chunk_end(self.home))
        fd = os.open(self.image, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size - os.fstat(fd).st_blocks * 512 < self._affordable():
                _back(fd, 0, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        self._take_all()
        self.tend()

    def tend(self) -> bool:
        """Grow the pool, or give back space far beyond the preallocation. Return whether it is being written fast."""
        with self._lock:
            room = self.room()
            fast = self.free - room.free > self.preallocate >> 3
            self.free, self.size = room.free, room.size
            if os.stat(self.image).st_size > room.size + (1 << 20):
                self._take_all()  # complete a resize that an earlier round or server did not finish
            wanted = min(room.wanted(self.preallocate), self.most - room.size, self._affordable()) >> 20 << 20
            if wanted > 0:
                self._grow(os.stat(self.image).st_size, wanted)
                self.free += wanted
            elif room.loose > 3 * self.preallocate:
                self._shrink(max(subvolumes.last_chunk_end(self.home), room.size - room.loose + 2 * self.preallocate))
            return fast

    def room(self) -> PoolSpace:
        pool = os.statvfs(self.home)
        size = pool.f_blocks * pool.f_frsize
        total = {name: self._read(name, "disk_total") for name in ("data", "metadata", "system")}
        loose = max(size - sum(total.values()), 0)
        used = sum(
            self._read("data", name) for name in ("bytes_used", "bytes_may_use", "bytes_reserved", "bytes_pinned")
        )
        return PoolSpace(size, loose, max(total["data"] - used, 0) + loose)

    def _read(self, kind: str, name: str) -> int:
        return int((self.sysfs / "allocation" / kind / name).read_text())

    def _affordable(self) -> int:
        """Return the host's free bytes above the minimum free space."""
        found = os.statvfs(self.image.parent)
        return max(found.f_bavail * found.f_frsize - self.min_free, 0)

    def _grow(self, size: int, more: int) -> None:
        fd = os.open(self.image, os.O_RDWR | os.O_CLOEXEC)
        try:
            _back(fd, size, more)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.ftruncate(fd, size)  # others took the space in the same moment
        finally:
            os.close(fd)
        self._take_all()

    def _take_all(self) -> None:
        loopdev.set_capacity(self.image)
        subvolumes.resize(self.home, None)

    def _shrink(self, size: int) -> None:
        size = max(size + _STEP, MIN_POOL) >> 20 << 20
        if size + _STEP >= os.stat(self.image).st_size:
            return
        try:
            subvolumes.resize(self.home, size)
        except OSError as error:  # a chunk was allocated there in the same moment
            if error.errno not in (errno.ENOSPC, errno.EINVAL, errno.EBUSY, errno.ETXTBSY):
                raise
            return
        os.truncate(self.image, size)
        loopdev.set_capacity(self.image)


def _back(fd: int, start: int, length: int) -> None:
    """If the host's file system cannot preallocate, the file stays sparse and only the minimum free space protects
    it."""
    try:
        kernel.fallocate(fd, start, length)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        os.ftruncate(fd, max(start + length, os.fstat(fd).st_size))
