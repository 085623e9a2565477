"""The driver `loop`: an ext4 file system in a sparse file for each upper. For kernels with a btrfs that lacks simple
quotas: the limit works on any kernel, and an upper takes about 20 ms and a few MB.

    <home>/u/<id>/disk.img   the file, as large as the limit
    <home>/u/<id>/inherited  bytes copied from a snapshot, which do not count against the limit
    <home>/u/<id>/fs/        its mount point: nosuid, nodev, noatime; it holds upper/ and work/
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path

from skerry.errors import Conflict, HostUnsupported
from skerry.storage import kernel, loopdev, tree
from skerry.storage.driver import (
    DEFAULT_MIN_FREE,
    MissingFeature,
    UpperDriver,
    add_upper_and_work,
    holds_anything,
    refuse_shrinking,
)
from skerry.storage.mounts import mount_at, mounts_below

_SMALLEST = 8 << 20
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME
# The file reads as zeros where nothing was written, so the inode tables need no initialisation.
_OPTIONS = "discard,noinit_itable"


class LoopDriver(UpperDriver):
    name = "loop"
    enforces_limit = True

    def __init__(self, state_dir: Path, min_free: int = DEFAULT_MIN_FREE) -> None:
        super().__init__(state_dir / "loop", state_dir, min_free)
        self._mounting = threading.Lock()

    @staticmethod
    def missing_feature() -> MissingFeature | None:
        for tool in ("mkfs.ext4", "resize2fs"):
            if shutil.which(tool) is None:
                return MissingFeature(f"{tool} is not installed", "apt-get install e2fsprogs")
        reason = loopdev.lacking()
        return MissingFeature(reason) if reason else None

    @staticmethod
    def used(state_dir: Path) -> bool:
        return holds_anything(state_dir / "loop")

    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        directory.mkdir(mode=0o700)
        if origin is not None:
            inherited = tree.disk_use(origin)
            (directory / "inherited").write_text(str(inherited + inherited // 32))  # and ext4's metadata for it
        image = directory / "disk.img"
        fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, max(limit + _inherited(directory), _SMALLEST) >> 12 << 12)
        finally:
            os.close(fd)
        extended = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"
        _run("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", extended, str(image))
        (directory / "fs").mkdir(mode=0o700)
        self._mount(directory)
        (directory / "fs").chmod(0o700)
        add_upper_and_work(directory / "fs", origin)

    def create(self, upper: str, limit: int, origin: str | None = None, *, consume: bool = False) -> Path:
        return super().create(upper, limit, origin, consume=consume) / "fs"

    def unmake(self, directory: Path) -> None:
        for mount in mounts_below(directory):
            kernel.unmount(mount.point, kernel.MNT_DETACH)
        tree.remove(directory)

    def path(self, upper: str) -> Path:
        """Mount the upper if the server or the host restarted since."""
        directory = super().path(upper)
        with self._mounting:
            if mount_at(directory / "fs") is None:
                self._mount(directory)
        return directory / "fs"

    def resize(self, upper: str, limit: int) -> None:
        directory = super().path(upper)
        image = directory / "disk.img"
        if os.stat(image).st_size == max(limit + _inherited(directory), _SMALLEST) >> 12 << 12:
            return
        refuse_shrinking(upper, self.usage(upper), limit)
        limit += _inherited(directory)
        if limit < os.stat(image).st_size:
            raise Conflict(
                f"the disk of {upper} cannot shrink",
                hint="this host's storage driver is loop; btrfs can (skerry doctor)",
            )
        self.check_space()
        if not kernel.has_capability(kernel.CAP_SYS_RESOURCE):
            raise HostUnsupported(
                f"the disk of {upper} cannot grow: the kernel requires CAP_SYS_RESOURCE, which this server lacks",
                hint="this host's storage driver is loop; btrfs can (skerry doctor)",
            )
        os.truncate(image, limit >> 12 << 12)
        loopdev.set_capacity(image)
        with loopdev.attached(image) as device:
            _run("resize2fs", device)

    def usage(self, upper: str) -> int:
        mounted = self.path(upper)
        found = os.statvfs(mounted)
        return max((found.f_blocks - found.f_bfree) * found.f_frsize - _inherited(mounted.parent), 0)

    def close(self) -> None:
        for mount in mounts_below(self.home):
            try:
                kernel.unmount(mount.point)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise

    @staticmethod
    def _mount(directory: Path) -> None:
        with loopdev.attached(directory / "disk.img") as device:
            kernel.mount(device, directory / "fs", "ext4", _FLAGS, _OPTIONS)


def _inherited(directory: Path) -> int:
    try:
        return int((directory / "inherited").read_text())
    except FileNotFoundError:
        return 0


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise HostUnsupported(f"{argv[0]} failed: {done.stderr.strip()[-500:]}")
