"""The file that a btrfs pool lies in. Every byte that the file system may use is backed by a block of the host's disk
before it is used (fallocate), so a full host disk is "no space left" to those who write, and never an I/O error that
turns the pool read-only under all.

The pool grows ahead of need and stops at the host's reserve; what has become free at its end is given back.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from skerry.storage import kernel, loopdev, subvolumes

SMALLEST = 256 << 20
_STEP = 64 << 20
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True)
class Room:
    """In bytes. `loose` belongs to no chunk yet: data or the file system's own tables may take it."""

    size: int
    loose: int
    free: int  # with what is free in the chunks for data

    def wanted(self, headroom: int) -> int:
        """How much the pool should grow: half again of the headroom, so that it does not grow at every look."""
        tables = min(headroom >> 2, 256 << 20)
        if self.free >= headroom and self.loose >= tables:
            return 0
        return max(headroom + (headroom >> 1) - self.free, 2 * tables - self.loose, _STEP)


class Backing:
    def __init__(self, image: Path, home: Path, reserve: int, headroom: int, most: int) -> None:
        self.image = image
        self.home = home
        self.reserve = reserve
        self.headroom = headroom
        self.most = most
        self.told = Path()  # where the kernel tells of the mounted pool
        self.free = self.size = 0  # of the pool, as last looked at
        self._lock = threading.Lock()

    def make(self, image: Path) -> None:
        """A new file of the smallest size that serves."""
        size = max(min(self.headroom + _STEP, self.most, self._affordable()), SMALLEST) >> 20 << 20
        fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            kernel.no_copy_on_write(fd)
            _back(fd, 0, size)
        finally:
            os.close(fd)

    def fit(self) -> None:
        """At the start of a server: as large as its file, all of it backed; a sparse one of old gives its rest back."""
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
        """Grows the pool, or gives back what is far more than the headroom. Whether it is being written fast."""
        with self._lock:
            room = self.room()
            fast = self.free - room.free > self.headroom >> 3
            self.free, self.size = room.free, room.size
            if os.stat(self.image).st_size > room.size + (1 << 20):
                self._take_all()  # what an earlier look, or server, did not come to
            wanted = min(room.wanted(self.headroom), self.most - room.size, self._affordable()) >> 20 << 20
            if wanted > 0:
                self._grow(os.stat(self.image).st_size, wanted)
                self.free += wanted
            elif room.loose > 3 * self.headroom:
                self._shrink(max(subvolumes.last_chunk_end(self.home), room.size - room.loose + 2 * self.headroom))
            return fast

    def room(self) -> Room:
        pool = os.statvfs(self.home)
        size = pool.f_blocks * pool.f_frsize
        total = {name: self._read(name, "disk_total") for name in ("data", "metadata", "system")}
        loose = max(size - sum(total.values()), 0)
        used = sum(
            self._read("data", name) for name in ("bytes_used", "bytes_may_use", "bytes_reserved", "bytes_pinned")
        )
        return Room(size, loose, max(total["data"] - used, 0) + loose)

    def _read(self, kind: str, name: str) -> int:
        return int((self.told / "allocation" / kind / name).read_text())

    def _affordable(self) -> int:
        """What can be taken of the host's disk before its reserve."""
        found = os.statvfs(self.image.parent)
        return max(found.f_bavail * found.f_frsize - self.reserve, 0)

    def _grow(self, size: int, more: int) -> None:
        fd = os.open(self.image, os.O_RDWR | os.O_CLOEXEC)
        try:
            _back(fd, size, more)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.ftruncate(fd, size)  # others took it in the same moment
        finally:
            os.close(fd)
        self._take_all()

    def _take_all(self) -> None:
        loopdev.set_capacity(self.image)
        subvolumes.resize(self.home, None)

    def _shrink(self, size: int) -> None:
        size = max(size + _STEP, SMALLEST) >> 20 << 20
        if size + _STEP >= os.stat(self.image).st_size:
            return
        try:
            subvolumes.resize(self.home, size)
        except OSError as error:  # a chunk was made there in the same moment
            if error.errno not in (errno.ENOSPC, errno.EINVAL, errno.EBUSY, errno.ETXTBSY):
                raise
            return
        os.truncate(self.image, size)
        loopdev.set_capacity(self.image)


def _back(fd: int, start: int, length: int) -> None:
    """Where the host's file system can't promise blocks, the file stays sparse: then only the reserve protects it."""
    try:
        kernel.fallocate(fd, start, length)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        os.ftruncate(fd, max(start + length, os.fstat(fd).st_size))
