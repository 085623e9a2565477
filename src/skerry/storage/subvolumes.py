"""btrfs ioctls: subvolumes, snapshots, quotas, and the space of a subvolume's own extents."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry.storage import tree

FIRST_INODE = 256
TOP_LEVEL = 5
_DEVICE_TREE = 4
_EXTENT_DATA, _DEV_EXTENT = 108, 204
_RESIZE, _SUBVOL_CREATE, _SNAP_CREATE, _SNAP_DESTROY = 0x50009403, 0x50009418, 0x50009417, 0x5000940F
_SUBVOL_GETFLAGS, _SUBVOL_SETFLAGS, _READ_ONLY, _SUBVOL_INFO = 0x80089419, 0x4008941A, 2, 0x81F8943C
_INO_LOOKUP, _FS_INFO, _TREE_SEARCH = 0xD0009412, 0x8400941F, 0xC0709411
_SYNC, _START_SYNC, _WAIT_SYNC = 0x9408, 0x80089418, 0x40089416
_QUOTA_CTL, _QGROUP_CREATE, _QGROUP_LIMIT = 0xC0109428, 0x4010942A, 0x8030942B
_ENABLE_SIMPLE_QUOTA = 4
_LIMIT_REFERENCED = 1
_U64_MAX = (1 << 64) - 1
_BUFFER = 256 << 10
_HEADER = struct.Struct("=QQQII")  # of an item: transid, objectid, offset, type, length
_EXTENT = struct.Struct("=QQBBHBQQ")  # generation, ram_bytes, compression …, type, disk_bytenr, disk_num_bytes
_ITEM_COST = 25  # an item's own entry in its leaf
_MAX_KNOWN = 2_000_000  # extents, about 200 MB of memory
_LEAF_FILL = 1.3  # leaves are split in halves and fill up again: their measured size relative to their items


@dataclass(frozen=True)
class Measure:
    """Bytes that are billed to a subvolume and referenced by its tree; of these, `shared` already existed at the last
    capture. `young` appeared during the measurement and may or may not be part of the billed value. `seconds`: the
    duration of the measurement."""

    live: int
    shared: int
    young: int
    seconds: float


@contextmanager
def opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def create(target: Path) -> None:
    with opened(target.parent) as parent:
        fcntl.ioctl(parent, _SUBVOL_CREATE, _named(target.name))


def snapshot(source: Path, target: Path) -> None:
    with opened(source) as fd, opened(target.parent) as parent:
        fcntl.ioctl(parent, _SNAP_CREATE, _named(target.name, fd))


def destroy(target: Path) -> None:
    """Remove a subvolume in one step, or a plain directory. Ignore a missing one."""
    with opened(target.parent) as parent:
        try:
            fcntl.ioctl(parent, _SNAP_DESTROY, _plainly_named(target.name))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.EINVAL):  # not a subvolume
                raise
            tree.remove(target)


def set_read_only(subvolume: Path, read_only: bool = True) -> None:
    """Also ends the running transaction: everything done before is on disk afterwards."""
    with opened(subvolume) as fd:
        fcntl.ioctl(fd, _SUBVOL_SETFLAGS, struct.pack("=Q", _READ_ONLY if read_only else 0))


def is_read_only(subvolume: Path) -> bool:
    flags = bytearray(8)
    with opened(subvolume) as fd:
        fcntl.ioctl(fd, _SUBVOL_GETFLAGS, flags)
    return bool(flags[0] & _READ_ONLY)


def set_limit(home: Path, subvolume: Path, limit: int) -> None:
    """Set the limit through the pool's root: through a subvolume that is full, the call itself would exceed the
    quota."""
    with opened(subvolume) as fd:
        group = root_id(fd)
    with opened(home) as fd:
        fcntl.ioctl(fd, _QGROUP_LIMIT, struct.pack("=QQQQQQ", group, _LIMIT_REFERENCED, limit, 0, 0, 0))


def root_id(fd: int) -> int:
    """Return the ID of the subvolume that an fd is in."""
    answer = bytearray(struct.pack("=QQ", 0, FIRST_INODE).ljust(4096, b"\0"))
    fcntl.ioctl(fd, _INO_LOOKUP, answer)
    return int.from_bytes(answer[:8], "little")


def born(fd: int) -> tuple[int, bool]:
    """Return the transaction in which a subvolume was made, and whether it started as a copy."""
    info = _info(fd)
    parent, (otransid,) = info[312:328], struct.unpack_from("=Q", info, 352)
    return otransid, any(parent)


def changed(fd: int) -> int:
    """Return the last committed transaction that changed a subvolume."""
    return int.from_bytes(_info(fd)[280:288], "little")


def _info(fd: int) -> bytearray:
    """struct btrfs_ioctl_get_subvol_info_args."""
    info = bytearray(504)
    fcntl.ioctl(fd, _SUBVOL_INFO, info)
    return info


def enable_quota(home: Path) -> Path:
    """Enable simple quotas of the file system at `home`; return its sysfs directory."""
    with opened(home) as fd:
        fcntl.ioctl(fd, _QUOTA_CTL, struct.pack("=QQ", _ENABLE_SIMPLE_QUOTA, 0))
        info = bytearray(1024)
        fcntl.ioctl(fd, _FS_INFO, info)
    return Path("/sys/fs/btrfs", str(uuid.UUID(bytes=bytes(info[16:32]))))


def drop_group(home: int, group: int) -> None:
    fcntl.ioctl(home, _QGROUP_CREATE, struct.pack("=QQ", 0, group))


def resize(home: Path, size: int | None) -> None:
    """Resize to `size` bytes; None: as large as its device."""
    with opened(home) as fd:
        fcntl.ioctl(fd, _RESIZE, _plainly_named("max" if size is None else str(size)))


def last_chunk_end(home: Path) -> int:
    """Return the offset after which no byte of the device is in use."""
    with opened(home) as fd:
        ends = [
            offset + int.from_bytes(data[24:32], "little")
            for _, _, offset, kind, data in _items(fd, _DEVICE_TREE)
            if kind == _DEV_EXTENT
        ]
    return max(ends, default=0)


def commit(fd: int) -> int:
    """End the running transaction, which updates the quotas, and return its number. Does not wait for data."""
    transaction = bytearray(8)
    fcntl.ioctl(fd, _START_SYNC, transaction)
    fcntl.ioctl(fd, _WAIT_SYNC, transaction)
    return int.from_bytes(transaction, "little")


def clean(home: Path) -> None:
    """Let the kernel clean up removed subvolumes now; it would start within half a minute."""
    with opened(home) as fd:
        fcntl.ioctl(fd, _SYNC)


def measure(fd: int, captured: int, committed: int, reserved: int) -> Measure:
    """Measure a subvolume. `captured`: the transaction of the last capture. Data younger than the last commit was
    `reserved` then."""
    began = time.monotonic()
    otransid, cloned = born(fd)
    since = otransid + 1 if cloned else 0  # older data belongs to the original subvolume and is billed to it
    shared = young = whole = 0

    def count(length: int, generation: int) -> None:
        nonlocal shared, young, whole
        whole += length
        if generation <= captured:
            shared += length
        if generation > committed:
            young += length

    tables = _extents(fd, since, count)
    return Measure(whole - young + tables + reserved, shared, young, time.monotonic() - began)


def size(fd: int) -> int:
    """Return everything that a subvolume references, regardless of the writer. Reads its tree, not its files: no depth
    limit."""
    whole = 0

    def count(length: int, generation: int) -> None:
        nonlocal whole
        whole += length

    tables = _extents(fd, 0, count)
    return whole + tables


def _extents(fd: int, since: int, count: Callable[[int, int], None]) -> int:
    """Report length and generation of each extent once; return the approximate size of the tree itself.

    A tree may consist of small extents: beyond _MAX_KNOWN, extents are no longer deduplicated and count once per
    reference, which overestimates and never underestimates.
    """
    known: set[int] = set()
    tables = 0
    for transid, _, _, kind, data in _items(fd, 0):
        if transid >= since:
            tables += len(data) + _ITEM_COST
        if kind != _EXTENT_DATA or len(data) < _EXTENT.size or data[20] == 0:  # 0: the data is in the item itself
            continue
        generation, _, _, _, _, _, start, length = _EXTENT.unpack_from(data)
        if start and generation >= since and start not in known:
            count(length, generation)
            if len(known) < _MAX_KNOWN:
                known.add(start)
    return int(tables * _LEAF_FILL)


def _items(fd: int, tree_id: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield every item of a tree as transid, objectid, offset, type, data. Tree 0: the tree of the fd's subvolume."""
    objectid = offset = kind = 0
    while True:
        request = bytearray(112 + _BUFFER)
        struct.pack_into(
            "=7Q4I4QQ", request, 0, tree_id, objectid, _U64_MAX, offset, _U64_MAX, 0, _U64_MAX, kind, 255, 1 << 31, 0,
            0, 0, 0, 0, _BUFFER,
        )  # fmt: skip
        fcntl.ioctl(fd, _TREE_SEARCH, request)
        (count,) = struct.unpack_from("=I", request, 64)
        if count == 0:
            return
        at = 112
        for _ in range(count):
            transid, objectid, offset, kind, length = _HEADER.unpack_from(request, at)
            at += _HEADER.size
            yield transid, objectid, offset, kind, bytes(request[at : at + length])
            at += length
        if offset < _U64_MAX:
            offset += 1
        elif kind < 255:
            offset, kind = 0, kind + 1
        else:
            offset, kind, objectid = 0, 0, objectid + 1


def _named(name: str, source: int = 0) -> bytearray:
    """struct btrfs_ioctl_vol_args_v2."""
    return bytearray(struct.pack("=qQQ32x", source, 0, 0) + name.encode().ljust(4040, b"\0"))


def _plainly_named(name: str) -> bytearray:
    """struct btrfs_ioctl_vol_args."""
    return bytearray(struct.pack("=q", 0) + name.encode().ljust(4088, b"\0"))
