"""A copy of a file tree that is not trusted, as exact as the kernel lets us: owners, modes, times, extended attributes,
hard links, holes, devices (overlay's whiteouts are such). Through directory fds; no link is followed. The tree must
stand still meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from skerry.errors import InvalidRequest
from skerry.storage import tree

_FICLONE = 0x40049409
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_HERE = (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOTTY)
_CHUNK = 1 << 30


def copy_tree(source: Path, target: Path) -> None:
    """`target` must not exist; its parent does."""
    names: dict[int, bytes] = {}
    finished: list[tree.Entry] = []
    os.mkdir(target, 0o700)
    top = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for entry in tree.walk(source):
            _copy(entry, top, names)
            if stat.S_ISDIR(entry.stat.st_mode):
                finished.append(entry)
        for entry in reversed(finished):  # what was made in a directory has changed its time
            _set_times(entry, top)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidRequest("a path is too long to be copied, and this host's storage copies") from error
        raise
    finally:
        os.close(top)


def _copy(entry: tree.Entry, top: int, names: dict[int, bytes]) -> None:
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
        os.chmod(path, stat.S_IMODE(found.st_mode), dir_fd=top)  # after chown, which takes setuid away
    _copy_xattrs(entry, top)
    _set_times(entry, top)


def _set_times(entry: tree.Entry, top: int) -> None:
    times = (entry.stat.st_atime_ns, entry.stat.st_mtime_ns)
    os.utime(entry.path, ns=times, dir_fd=top, follow_symlinks=False)


def _copy_xattrs(entry: tree.Entry, top: int) -> None:
    source = b"/proc/self/fd/%d/%s" % (entry.parent, entry.name)
    target = b"/proc/self/fd/%d/%s" % (top, entry.path)
    for name in os.listxattr(source, follow_symlinks=False):
        os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)


def _copy_file(entry: tree.Entry, top: int) -> None:
    source = os.open(entry.name, _READ, dir_fd=entry.parent)
    try:
        target = os.open(entry.path, _MAKE, 0o600, dir_fd=top)
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
            if error.errno != errno.ENXIO:  # nothing but a hole is left
                raise
            return
        end = os.lseek(source, start, os.SEEK_HOLE)
        _copy_range(source, target, start, end)
        start = end


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    os.lseek(source, start, os.SEEK_SET)
    os.lseek(target, start, os.SEEK_SET)
    while start < end:
        done = os.sendfile(target, source, None, min(end - start, _CHUNK))
        if done == 0:
            return
        start += done
