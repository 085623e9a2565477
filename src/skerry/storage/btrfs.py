"""The driver `btrfs`: one file in the state directory, loop-mounted; a subvolume for each unit, held to its limit by
simple quotas (Linux 6.7); a snapshot is a subvolume that shares every block with its unit. A unit costs a tenth of a
millisecond, a snapshot a few, however large.

    <state>/pool.img   the file; grows ahead of need (`backing`)
    <state>/pool/      where it is mounted: nosuid, nodev, noatime
    <home>/c/          accounts of the units that were captured (`books`)
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
from pathlib import Path

from skerry.errors import HostUnsupported, NotFound, QuotaExceeded
from skerry.storage import kernel, loopdev, subvolumes, tree
from skerry.storage.backing import Backing
from skerry.storage.books import Books
from skerry.storage.driver import (
    DEFAULT_HEADROOM,
    DEFAULT_POOL,
    DEFAULT_RESERVE,
    Lack,
    UnitDriver,
    add_upper_and_work,
    refuse_shrinking,
)
from skerry.storage.mounts import Mount, mount_at
from skerry.types import format_size

log = logging.getLogger("skerry.storage")
LOOK_S, FAST_LOOK_S = 0.5, 0.1
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME
_FEATURES = Path("/sys/fs/btrfs/features")


class BtrfsDriver(UnitDriver):
    name = "btrfs"
    enforces_limit = True

    def __init__(
        self,
        state_dir: Path,
        reserve: int = DEFAULT_RESERVE,
        pool_size: int = DEFAULT_POOL,
        headroom: int = DEFAULT_HEADROOM,
    ) -> None:
        super().__init__(state_dir / "pool", state_dir, reserve)
        self.image = state_dir / "pool.img"
        self.backing = Backing(self.image, self.home, reserve, headroom, pool_size)
        self.books = Books(self.home)
        self._captured: dict[str, str] = {}
        self._removed = False
        self._unsealed: set[Path] = set()
        self._house: threading.Thread | None = None
        self._closing = threading.Event()

    @staticmethod
    def lack() -> Lack | None:
        if shutil.which("mkfs.btrfs") is None:
            return Lack("mkfs.btrfs is not installed", "apt-get install btrfs-progs")
        if not _FEATURES.is_dir():
            subprocess.run(["modprobe", "--quiet", "btrfs"], check=False, capture_output=True, timeout=30)
        if not _FEATURES.is_dir():
            return Lack("this kernel has no btrfs")
        if not (_FEATURES / "simple_quota").exists():
            return Lack("this kernel's btrfs has no simple quotas (Linux 6.7 has them)")
        reason = loopdev.lacking()
        return Lack(reason) if reason else None

    @staticmethod
    def used(state_dir: Path) -> bool:
        return (state_dir / "pool.img").exists()

    def prepare(self) -> None:
        super().prepare()
        if self._house is None:
            self._closing.clear()
            self._house = threading.Thread(target=self._keep_house, name="skerry-storage", daemon=True)
            self._house.start()

    def open_home(self) -> None:
        with self._alone():
            if not self.image.exists():
                self._make_pool()
            tree.private_directory(self.home)
            if not self._adopt():
                self._mount()
            self.backing.told = subvolumes.enable_quota(self.home)
            self._groups = self.backing.told / "qgroups"
            if (self._groups / "mode").read_text().strip() != "squota":
                raise HostUnsupported(f"the pool {self.image} has quotas of another kind", hint="move that file away")
            self.backing.fit()
        super().open_home()
        found = (self.home / "s" / name for name in self.snapshots())
        self._unsealed |= {snapshot for snapshot in found if not subvolumes.is_read_only(snapshot)}
        self.books.open(self._groups)
        self._drop_stale_groups()

    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        if origin is not None:
            subvolumes.snapshot(origin, directory)
            (directory / "work").mkdir()
            (directory / "work").chmod(0o755)
        else:
            subvolumes.create(directory)
            add_upper_and_work(directory)
        directory.chmod(0o700)
        subvolumes.set_limit(self.home, directory, limit)

    def unmake(self, directory: Path) -> None:
        subvolumes.destroy(directory)
        self._removed = True

    def delete(self, unit: str) -> None:
        """One step of the kernel's, which also works when the pool is full: no rename before it."""
        self.unmake(self._place(unit))
        self.books.forget(unit)

    def drop_snapshot(self, name: str) -> None:
        self.unmake(self._snapshot_place(name))

    def check_room(self, needed: int = 0) -> None:
        super().check_room(needed)
        least = self.backing.headroom >> 3
        if self.backing.free < least:
            self.backing.tend()
        if self.backing.free < least:
            raise QuotaExceeded(
                f"the pool of {format_size(self.backing.size >> 20 << 20)} is full and can't grow",
                hint="delete sandboxes or snapshots; or free space on the host's disk, or raise storage.pool_size",
                details={"free": self.backing.free, "size": self.backing.size},
            )

    def snapshot_size(self, name: str) -> int:
        with subvolumes.opened(self.snapshot_path(name).parent) as fd:
            return subvolumes.size(fd)

    def capture(self, unit: str) -> str:
        token = super().capture(unit)
        self._captured[token] = unit
        return token

    def check_copy(self, unit: str) -> None:
        """It shares every block."""

    def cost(self, origin: Path) -> int:
        return 0

    def copy(self, unit: Path, target: Path) -> None:
        subvolumes.snapshot(unit, target)

    def sync(self, unit: str) -> None:
        """By a picture that is thrown away: the kernel writes out what it shows and no more. syncfs would wait for what
        all the other sandboxes have written."""
        try:
            with self._scratch() as scratch:
                subvolumes.snapshot(self.path(unit), scratch)
                self.unmake(scratch)
        except OSError:  # the pool is full, say
            super().sync(unit)

    def keep(self, token: str, name: str, *, durable: bool = True) -> None:
        try:
            self.books.captured(self.path(self._captured.pop(token, "")), self.home / "t" / token)
        except (NotFound, FileNotFoundError):  # the unit was deleted meanwhile
            log.info("kept of a unit that is gone", extra={"snapshot": name})
        super().keep(token, name, durable=durable)

    def seal(self, snapshot: Path, durable: bool) -> None:
        """Read-only comes only now, since such a subvolume can't be renamed; and where nobody waits for it, later,
        since it takes a whole transaction. Its data was written out when it was captured."""
        if durable:
            subvolumes.set_read_only(snapshot)
        else:
            self._unsealed.add(snapshot)

    def discard(self, token: str) -> None:
        self._captured.pop(token, None)
        super().discard(token)

    def resize(self, unit: str, limit: int) -> None:
        place = self.path(unit)
        used = self.books.measure(place)
        refuse_shrinking(unit, used, limit)
        if limit > used:
            self.check_room()
        self.books.resize(place, limit)

    def usage(self, unit: str) -> int:
        """As of the last commit of the pool (at most 30 s ago), and what is reserved since."""
        return self.books.used(self.path(unit))

    def close(self) -> None:
        """Sandboxes that still run keep the pool alive through mounts of their own; the next `prepare` finds it."""
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

    def _keep_house(self) -> None:
        """Room ahead of those who write, and allowances for those who were captured."""
        pause, told = LOOK_S, False
        while not self._closing.wait(pause):
            try:
                self._clean()
                self._seal_one()
                pause = FAST_LOOK_S if self.backing.tend() else LOOK_S
                self.books.reconcile()
                told = False
            except Exception:  # the next look tries again; a sandbox at its limit stays there meanwhile
                if not told:
                    log.exception("the pool was not looked after")
                pause, told = LOOK_S, True

    def _seal_one(self) -> None:
        if self._unsealed:
            with contextlib.suppress(FileNotFoundError):  # dropped meanwhile
                subvolumes.set_read_only(self._unsealed.pop())

    def _clean(self) -> None:
        if self._removed and self.backing.room().free < self.backing.headroom:
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
        """Takes over the mount of an earlier server. One that an error made read-only is mounted afresh."""
        mount = mount_at(self.home)
        if mount is None:
            return False
        if not self._is_ours(mount):
            raise HostUnsupported(f"something else is mounted on {self.home}", hint=f"umount {self.home}")
        if "ro" in mount.super_options or not {"nosuid", "nodev"} <= mount.options:
            kernel.unmount(self.home)
            return False
        return True

    def _is_ours(self, mount: Mount) -> bool:
        return mount.kind == "btrfs" and loopdev.backs(mount.source, self.image)

    def _mount(self) -> None:
        """Without discard: it would punch holes where blocks are promised."""
        with loopdev.attached(self.image) as device:
            kernel.mount(device, self.home, "btrfs", _FLAGS, "nodiscard")

    def _drop_stale_groups(self) -> None:
        """Linux 6.7 to 6.12 keep the group of a removed subvolume. One that is still billed for what a snapshot holds
        must stay: those kernels abort a transaction that frees an extent of a group that is gone."""
        alive = {subvolumes.TOP_LEVEL}
        for folder in ("u", "s", "t"):
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
                    continue  # the subvolume is still being cleared away

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
