"""The driver `btrfs`: one sparse file in the state directory, loop-mounted; a subvolume for each unit, held to its
limit by simple quotas (Linux 6.7). A unit costs a tenth of a millisecond.

    <state>/pool.img   the file; never larger than what it holds (freed space goes back by discard)
    <state>/pool/      where it is mounted: nosuid, nodev, noatime
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.errors import HostUnsupported
from skerry.storage import kernel, loopdev, tree
from skerry.storage.driver import (
    DEFAULT_POOL,
    DEFAULT_RESERVE,
    Lack,
    UnitDriver,
    add_upper_and_work,
    refuse_shrinking,
)
from skerry.storage.mounts import Mount, mount_at

_RESIZE, _SUBVOL_CREATE, _SNAP_DESTROY = 0x50009403, 0x50009418, 0x5000940F
_SNAP_CREATE, _SUBVOL_SETFLAGS, _READ_ONLY = 0x50009417, 0x4008941A, 2
_INO_LOOKUP, _FS_INFO = 0xD0009412, 0x8400941F
_QUOTA_CTL, _QGROUP_CREATE, _QGROUP_LIMIT = 0xC0109428, 0x4010942A, 0x8030942B
_ENABLE_SIMPLE_QUOTA = 4
_LIMIT_REFERENCED = 1
_TOP_LEVEL = 5
_FIRST_INODE = 256
_SMALLEST = 256 << 20
_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOATIME
_FEATURES = Path("/sys/fs/btrfs/features")


class BtrfsDriver(UnitDriver):
    name = "btrfs"
    enforces_limit = True

    def __init__(self, state_dir: Path, reserve: int = DEFAULT_RESERVE, pool_size: int = DEFAULT_POOL) -> None:
        super().__init__(state_dir / "pool", state_dir, reserve)
        self.image = state_dir / "pool.img"
        self.pool_size = pool_size
        self._qgroups = Path()

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

    def open_home(self) -> None:
        with self._alone():
            if not self.image.exists():
                self._make_pool()
            tree.private_directory(self.home)
            if not self._adopt():
                self._mount()
            self._enable_quota()
            self._grow()
        super().open_home()
        for name in self.snapshots():
            _set_read_only(self.home / "s" / name)  # a crash may have come between its name and this
        self._drop_stale_qgroups()

    def make(self, directory: Path, limit: int, origin: Path | None = None) -> None:
        if origin is not None:
            _snapshot(origin, directory)
            (directory / "work").mkdir()
            (directory / "work").chmod(0o755)
        else:
            with _opened(directory.parent) as parent:
                fcntl.ioctl(parent, _SUBVOL_CREATE, _named(directory.name))
            add_upper_and_work(directory)
        with _opened(directory) as unit:
            os.fchmod(unit, 0o700)
            _set_limit(unit, limit)

    def copy(self, unit: Path, target: Path) -> None:
        _snapshot(unit, target)

    def seal(self, snapshot: Path) -> None:
        """Only now: a subvolume that is read-only can't be renamed."""
        _set_read_only(snapshot)
        super().seal(snapshot)

    def drop_snapshot(self, name: str) -> None:
        self.unmake(self._snapshot_place(name))  # one step of the kernel's

    def unmake(self, directory: Path) -> None:
        with _opened(directory.parent) as parent:
            try:
                fcntl.ioctl(parent, _SNAP_DESTROY, _plainly_named(directory.name))
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.EINVAL):  # not a subvolume
                    raise
                tree.remove(directory)

    def resize(self, unit: str, limit: int) -> None:
        used = self.usage(unit)
        refuse_shrinking(unit, used, limit)
        if limit > used:
            self.check_room()
        with _opened(self.path(unit)) as fd:
            _set_limit(fd, limit)

    def usage(self, unit: str) -> int:
        """As of the last commit of the pool (at most 30 s ago), and what is reserved since."""
        with _opened(self.path(unit)) as fd:
            group = self._qgroups / f"0_{_root_id(fd)}"
        return sum(int((group / name).read_text()) for name in ("referenced", "rsv_data"))

    def close(self) -> None:
        """Sandboxes that still run keep the pool alive through mounts of their own; the next `prepare` finds it."""
        mount = mount_at(self.home)
        if mount is None or not self._is_ours(mount):
            return
        try:
            kernel.unmount(self.home)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise

    def _make_pool(self) -> None:
        new = self.image.with_suffix(".new")
        new.unlink(missing_ok=True)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, self._affordable(0))
            self._run("mkfs.btrfs", "--quiet", "--data", "single", "--metadata", "single", "--nodiscard", str(new))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, self.image)
        tree.sync(self.state_dir)

    def _affordable(self, allocated: int) -> int:
        """What the pool may grow to: the operator's wish, but no more than the host's disk can hold now."""
        found = os.statvfs(self.state_dir)
        room = allocated + found.f_bavail * found.f_frsize - self.reserve
        return max(min(self.pool_size, room), _SMALLEST) >> 20 << 20

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
        with loopdev.attached(self.image) as device:
            kernel.mount(device, self.home, "btrfs", _FLAGS, "discard=async")

    def _enable_quota(self) -> None:
        with _opened(self.home) as fd:
            fcntl.ioctl(fd, _QUOTA_CTL, struct.pack("=QQ", _ENABLE_SIMPLE_QUOTA, 0))
            info = bytearray(1024)
            fcntl.ioctl(fd, _FS_INFO, info)
        self._qgroups = Path("/sys/fs/btrfs", str(uuid.UUID(bytes=bytes(info[16:32]))), "qgroups")
        if (self._qgroups / "mode").read_text().strip() != "squota":
            raise HostUnsupported(f"the pool {self.image} has quotas of another kind", hint="move that file away")

    def _grow(self) -> None:
        found = os.stat(self.image)
        size = self._affordable(found.st_blocks * 512)
        if size < found.st_size + (found.st_size >> 4):
            return
        os.truncate(self.image, size)
        loopdev.set_capacity(self.image)
        with _opened(self.home) as fd:
            fcntl.ioctl(fd, _RESIZE, _plainly_named("max"))

    def _drop_stale_qgroups(self) -> None:
        """Linux 6.7 to 6.12 keep the group of a removed subvolume."""
        alive = {_TOP_LEVEL}
        for folder in ("u", "s", "t"):
            for entry in os.scandir(self.home / folder):
                if entry.inode() == _FIRST_INODE:
                    with _opened(Path(entry.path)) as fd:
                        alive.add(_root_id(fd))
        groups = {int(name[2:]) for name in os.listdir(self._qgroups) if name.startswith("0_")}
        with _opened(self.home) as fd:
            for group in groups - alive:
                try:
                    fcntl.ioctl(fd, _QGROUP_CREATE, struct.pack("=QQ", 0, group))
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


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _named(name: str, source: int = 0) -> bytearray:
    """struct btrfs_ioctl_vol_args_v2."""
    return bytearray(struct.pack("=qQQ32x", source, 0, 0) + name.encode().ljust(4040, b"\0"))


def _plainly_named(name: str) -> bytearray:
    """struct btrfs_ioctl_vol_args."""
    return bytearray(struct.pack("=q", 0) + name.encode().ljust(4088, b"\0"))


def _snapshot(source: Path, target: Path) -> None:
    with _opened(source) as fd, _opened(target.parent) as parent:
        fcntl.ioctl(parent, _SNAP_CREATE, _named(target.name, fd))


def _set_read_only(subvolume: Path) -> None:
    with _opened(subvolume) as fd:
        fcntl.ioctl(fd, _SUBVOL_SETFLAGS, struct.pack("=Q", _READ_ONLY))


def _set_limit(unit: int, limit: int) -> None:
    """Group 0 stands for the subvolume of the fd."""
    fcntl.ioctl(unit, _QGROUP_LIMIT, struct.pack("=QQQQQQ", 0, _LIMIT_REFERENCED, limit, 0, 0, 0))


def _root_id(fd: int) -> int:
    """The id of the subvolume that an fd lies in."""
    answer = bytearray(struct.pack("=QQ", 0, _FIRST_INODE).ljust(4096, b"\0"))
    fcntl.ioctl(fd, _INO_LOOKUP, answer)
    return int.from_bytes(answer[:8], "little")
