"""Untrusted file trees: walk, measure, hash, copy and remove them through directory fds, without following links."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from skerry.errors import InvalidRequest

MAX_DEPTH = 400  # one fd per level; real trees stay below 100
MAX_NAMES = 1_000_000  # in one directory: they are sorted in memory
_CHUNK = 1 << 20
_HUGE = 64 << 30  # larger files are hashed by data ranges: a guest can make a file of exabytes that is one hole
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# Set by the kernel or the host, different on each copy of the same tree, and irrelevant to a sandbox.
_VOLATILE_XATTRS = frozenset(
    {
        "security.selinux",
        "security.ima",
        "security.evm",
        "trusted.overlay.origin",
        "trusted.overlay.impure",
        "trusted.overlay.nlink",
        "trusted.overlay.uuid",
    }
)


@dataclass(frozen=True)
class WalkEntry:
    """One entry of a tree. `parent` is an open fd of its directory, valid only while the walk is there."""

    path: bytes
    parent: int
    name: bytes
    stat: os.stat_result


def walk(root: Path | int, leave_out: Callable[[bytes], bool] = lambda path: False) -> Iterator[WalkEntry]:
    """Yield the root as ".", then everything below it: parents first, names in byte order."""
    top = os.open(root, _DIRECTORY) if isinstance(root, Path) else open_directory(root, b".")
    try:
        yield WalkEntry(b".", top, b".", os.fstat(top))
        yield from below(top, b"", 0, leave_out)
    finally:
        os.close(top)


def below(
    directory: int, prefix: bytes, depth: int, leave_out: Callable[[bytes], bool] = lambda path: False
) -> Iterator[WalkEntry]:
    check_depth(prefix, depth)
    for name in names(directory):
        path = prefix + name
        if leave_out(path):
            continue
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        yield WalkEntry(path, directory, name, found)
        if stat.S_ISDIR(found.st_mode):
            child = open_directory(directory, name)
            try:
                yield from below(child, path + b"/", depth + 1, leave_out)
            finally:
                os.close(child)


def check_depth(path: bytes, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"a directory is nested deeper than {MAX_DEPTH} levels: {path[:80]!r}…")


def names(directory: int) -> list[bytes]:
    """Return the names in a directory, in byte order."""
    found: list[bytes] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(found) == MAX_NAMES:
                raise InvalidRequest(f"a directory has more than {MAX_NAMES:,} entries")
            found.append(os.fsencode(entry.name))
    found.sort()
    return found


def open_directory(parent: int, name: bytes) -> int:
    return os.open(name, _DIRECTORY, dir_fd=parent)


def disk_use(root: Path) -> int:
    """Return the bytes that the tree takes on disk; hard links count once."""
    total = 0
    seen: set[tuple[int, int]] = set()
    for entry in walk(root):
        found = entry.stat
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
        total += found.st_blocks * 512
    return total


def digest(root: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return "sha256:…" of a tree: paths, types, modes, owners, contents, link targets, extended attributes. Not:
    times."""
    whole = hashlib.sha256(b"skerry-tree-1\n")
    names: dict[tuple[int, int], bytes] = {}
    for entry in walk(root):
        for field in _identity(entry, names, progress):
            whole.update(len(field).to_bytes(8, "big"))
            whole.update(field)
    return f"sha256:{whole.hexdigest()}"


def _identity(
    entry: WalkEntry, names: dict[tuple[int, int], bytes], progress: Callable[[int], None] | None
) -> Iterator[bytes]:
    found = entry.stat
    kind = stat.S_IFMT(found.st_mode)
    yield entry.path
    if kind != stat.S_IFDIR and found.st_nlink > 1:
        first = names.setdefault((found.st_dev, found.st_ino), entry.path)
        if first != entry.path:
            yield b"hardlink"
            yield first
            return
    yield b"%o %o %d %d" % (kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
    if kind == stat.S_IFREG:
        yield b"%d" % found.st_size
        yield _content(entry, progress)
    elif kind == stat.S_IFLNK:
        yield os.readlink(entry.name, dir_fd=entry.parent)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        yield b"%d %d" % (os.major(found.st_rdev), os.minor(found.st_rdev))
    yield from _xattrs(entry)


def open_file(entry: WalkEntry) -> int:
    """Open a regular file of a walk; fail if it was replaced meanwhile."""
    fd = os.open(entry.name, _FILE, dir_fd=entry.parent)
    opened = os.fstat(fd)
    if (opened.st_dev, opened.st_ino) != (entry.stat.st_dev, entry.stat.st_ino):
        os.close(fd)
        raise InvalidRequest(f"{entry.path[:80]!r} changed while it was being read")
    return fd


def _content(entry: WalkEntry, progress: Callable[[int], None] | None) -> bytes:
    fd = open_file(entry)
    try:
        total = hashlib.sha256()
        size = entry.stat.st_size
        if size > _HUGE:
            total.update(b"by its pieces\n")
        for at, length in data_ranges(fd, size) if size > _HUGE else ((0, size),):
            if size > _HUGE:
                total.update(b"%d %d\n" % (at, length))
            for chunk in _read(fd, at, length):
                total.update(chunk)
                if progress is not None:
                    progress(len(chunk))
        return total.digest()
    finally:
        os.close(fd)


def _read(fd: int, at: int, length: int) -> Iterator[bytes]:
    while length and (chunk := os.pread(fd, min(length, _CHUNK), at)):
        yield chunk
        at += len(chunk)
        length -= len(chunk)


def _xattrs(entry: WalkEntry) -> Iterator[bytes]:
    for name, value in xattrs(entry.parent, entry.name):
        yield os.fsencode(name)
        yield value


def xattrs(parent: int, name: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the relevant attributes, in order."""
    # These calls take no dir_fd. The magic link to an open directory is equally safe, and the last part is not
    # followed.
    path = b"/proc/self/fd/%d/%s" % (parent, name)
    try:
        found = sorted(os.listxattr(path, follow_symlinks=False))
    except OSError as error:
        if error.errno != errno.E2BIG:  # btrfs allows more attributes per file than the kernel lists
            raise
        raise InvalidRequest(f"{name[:80]!r} has too many extended attributes") from None
    for attribute in found:
        if attribute not in _VOLATILE_XATTRS:
            yield attribute, os.getxattr(path, attribute, follow_symlinks=False)


def remove(path: Path) -> None:
    """Remove a directory and everything below it. Ignore a missing one.

    Every directory is first moved up beside the root of the removal, so that a tree of any depth (code in a sandbox may
    nest tens of thousands of directories) needs two fds and no recursion. Stops at a mount point with EBUSY.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        waiting = _empty(top, top)
        while waiting:
            name = waiting.pop()
            child = os.open(name, _DIRECTORY, dir_fd=top)
            try:
                waiting += _empty(child, top)
            finally:
                os.close(child)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _empty(directory: int, top: int) -> list[str]:
    """Unlink the files in a directory and move its directories into `top`; return their new names."""
    moved = []
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            name = secrets.token_hex(16)
            os.rename(entry.name, name, src_dir_fd=directory, dst_dir_fd=top)
            moved.append(name)
        else:
            os.unlink(entry.name, dir_fd=directory)
    return moved


def forget_keeper(root: Path) -> None:
    """Remove the keeper's files from a sandbox's tree: outputs and sessions, which belong to that sandbox only."""
    fds = [os.open(root, _DIRECTORY)]
    try:
        for name in ("var", "lib"):
            fds.append(os.open(name, _DIRECTORY, dir_fd=fds[-1]))
        remove(Path(f"/proc/self/fd/{fds[-1]}/skerry"))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # missing, or not a directory
            raise
    finally:
        for fd in fds:
            os.close(fd)


def sync(path: Path | int) -> None:
    """fsync a file or directory."""
    fd = path if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        if not isinstance(path, int):
            os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically, also with respect to power failures."""
    temporary = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, path)
    except BaseException:
        _unlink_quietly(temporary)
        raise
    sync(path.parent)


def _unlink_quietly(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def private_directory(path: Path) -> Path:
    """Make a directory that only root can enter; restrict an existing one."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.stat(path).st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


# Data ranges of sparse files: a file of terabytes may be one hole.


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each data range, in order."""
    at = 0
    while (at := next_data(fd, at, size)) < size:
        end = min(_seek(fd, at, size, os.SEEK_HOLE), size)
        yield at, end - at
        at = end


def next_data(fd: int, at: int, size: int) -> int:
    """Return the first offset with data from `at` on; `size` if none."""
    return _seek(fd, at, size, os.SEEK_DATA)


def _seek(fd: int, at: int, size: int, what: int) -> int:
    try:
        return os.lseek(fd, at, what)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


# Copy an untrusted file tree as exactly as the kernel allows: owners, modes, times, extended attributes, hard links,
# holes, devices (which include overlay whiteouts). Uses directory fds and follows no link. The tree must not change
# meanwhile.

_FICLONE = 0x40049409
_COPY_FROM = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_COPY_TO = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_HERE = (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY)
_COPY_CHUNK = 1 << 30


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree. `target` must not exist; its parent must."""
    names: dict[int, bytes] = {}
    finished: list[WalkEntry] = []
    os.mkdir(target, 0o700)
    top = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for entry in walk(source):
            _copy(entry, top, names)
            if stat.S_ISDIR(entry.stat.st_mode):
                finished.append(entry)
        for entry in reversed(finished):  # creating entries in a directory has changed its time
            _set_times(entry, top)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidRequest("a path is too long to copy, and this host's storage driver copies") from error
        raise
    finally:
        os.close(top)


def _copy(entry: WalkEntry, top: int, names: dict[int, bytes]) -> None:
    found, path = entry.stat, entry.path
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFDIR and found.st_nlink > 1:
        first = names.setdefault(found.st_ino, path)
        if first != path:
            os.link(first, path, src_dir_fd=top, dst_dir_fd=top, follow_symlinks=False)
            return
    if kind == stat.S_IFDIR:
        if path != b".":
            os.mkdir(path, 0o700, dir_fd=top)
    elif kind == stat.S_IFREG:
        _copy_file(entry, top)
    elif kind == stat.S_IFLNK:
        os.symlink(os.readlink(entry.name, dir_fd=entry.parent), path, dir_fd=top)
    else:
        os.mknod(path, kind | 0o600, found.st_rdev, dir_fd=top)
    os.chown(path, found.st_uid, found.st_gid, dir_fd=top, follow_symlinks=False)
    if kind != stat.S_IFLNK:
        os.chmod(path, stat.S_IMODE(found.st_mode), dir_fd=top)  # after chown, which clears setuid
    _copy_xattrs(entry, top)
    _set_times(entry, top)


def _set_times(entry: WalkEntry, top: int) -> None:
    times = (entry.stat.st_atime_ns, entry.stat.st_mtime_ns)
    os.utime(entry.path, ns=times, dir_fd=top, follow_symlinks=False)


def _copy_xattrs(entry: WalkEntry, top: int) -> None:
    source = b"/proc/self/fd/%d/%s" % (entry.parent, entry.name)
    target = b"/proc/self/fd/%d/%s" % (top, entry.path)
    for name in os.listxattr(source, follow_symlinks=False):
        os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)


def _copy_file(entry: WalkEntry, top: int) -> None:
    source = os.open(entry.name, _COPY_FROM, dir_fd=entry.parent)
    try:
        target = os.open(entry.path, _COPY_TO, 0o600, dir_fd=top)
        try:
            _copy_content(source, target, os.fstat(source).st_size)
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_content(source: int, target: int, size: int) -> None:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    else:
        return
    os.ftruncate(target, size)
    start = 0
    while start < size:
        try:
            start = os.lseek(source, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # only a hole is left
                raise
            return
        end = os.lseek(source, start, os.SEEK_HOLE)
        _copy_range(source, target, start, end)
        start = end


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    os.lseek(source, start, os.SEEK_SET)
    os.lseek(target, start, os.SEEK_SET)
    while start < end:
        done = os.sendfile(target, source, None, min(end - start, _COPY_CHUNK))
        if done == 0:
            return
        start += done
