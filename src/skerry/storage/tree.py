"""File trees that are not trusted: walked, measured, hashed, removed through directory fds, no link ever followed."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from skerry.errors import InvalidRequest
from skerry.storage import holes

MAX_DEPTH = 400  # one fd a level; a real tree stays below 100
MAX_NAMES = 1_000_000  # in one directory: they are sorted in memory
_CHUNK = 1 << 20
_HUGE = 64 << 30  # a larger file is known by its pieces: a guest can make one of exabytes that is all hole
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# Set by the kernel or the host, different on each copy of the same tree, and without meaning for what a sandbox sees.
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
class Entry:
    """One thing in a tree. `parent` is an open fd of its directory, valid only while the walk stands there."""

    path: bytes
    parent: int
    name: bytes
    stat: os.stat_result


def walk(root: Path | int, leave_out: Callable[[bytes], bool] = lambda path: False) -> Iterator[Entry]:
    """The root as ".", then everything below it: parents first, names in byte order."""
    top = os.open(root, _DIRECTORY) if isinstance(root, Path) else open_directory(root, b".")
    try:
        yield Entry(b".", top, b".", os.fstat(top))
        yield from below(top, b"", 0, leave_out)
    finally:
        os.close(top)


def below(
    directory: int, prefix: bytes, depth: int, leave_out: Callable[[bytes], bool] = lambda path: False
) -> Iterator[Entry]:
    check_depth(prefix, depth)
    for name in names(directory):
        path = prefix + name
        if leave_out(path):
            continue
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        yield Entry(path, directory, name, found)
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
    """What is in a directory, in byte order."""
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
    """Bytes that the tree takes on disk; a file with several names counts once."""
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
    """ "sha256:…" of a tree: paths, types, modes, owners, contents, link targets, extended attributes. Not: times."""
    whole = hashlib.sha256(b"skerry-tree-1\n")
    names: dict[tuple[int, int], bytes] = {}
    for entry in walk(root):
        for field in _identity(entry, names, progress):
            whole.update(len(field).to_bytes(8, "big"))
            whole.update(field)
    return f"sha256:{whole.hexdigest()}"


def _identity(
    entry: Entry, names: dict[tuple[int, int], bytes], progress: Callable[[int], None] | None
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


def open_file(entry: Entry) -> int:
    """A regular file of a walk: what was looked at is what is opened, or nothing is."""
    fd = os.open(entry.name, _FILE, dir_fd=entry.parent)
    opened = os.fstat(fd)
    if (opened.st_dev, opened.st_ino) != (entry.stat.st_dev, entry.stat.st_ino):
        os.close(fd)
        raise InvalidRequest(f"{entry.path[:80]!r} changed while it was read")
    return fd


def _content(entry: Entry, progress: Callable[[int], None] | None) -> bytes:
    fd = open_file(entry)
    try:
        total = hashlib.sha256()
        size = entry.stat.st_size
        if size > _HUGE:
            total.update(b"by its pieces\n")
        for at, length in holes.pieces(fd, size) if size > _HUGE else ((0, size),):
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


def _xattrs(entry: Entry) -> Iterator[bytes]:
    for name, value in xattrs(entry.parent, entry.name):
        yield os.fsencode(name)
        yield value


def xattrs(parent: int, name: bytes) -> Iterator[tuple[str, bytes]]:
    """The attributes that mean something, in order."""
    # These calls take no dir_fd. The magic link to an open directory is as safe, and the last part is not followed.
    path = b"/proc/self/fd/%d/%s" % (parent, name)
    try:
        found = sorted(os.listxattr(path, follow_symlinks=False))
    except OSError as error:
        if error.errno != errno.E2BIG:  # btrfs lets a file have more of them than the kernel lists
            raise
        raise InvalidRequest(f"{name[:80]!r} has more attributes than can be read") from None
    for attribute in found:
        if attribute not in _VOLATILE_XATTRS:
            yield attribute, os.getxattr(path, attribute, follow_symlinks=False)


def remove(path: Path) -> None:
    """Removes a directory and all below it; nothing there is fine.

    Every directory met is first moved up beside the root of the removal, so that a tree of any depth (the inside may
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
    """Unlinks what is in a directory and moves its directories into `top`, under names that are returned."""
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
    """Removes what the keeper wrote in a sandbox's tree: outputs and sessions, which are that sandbox's alone."""
    fds = [os.open(root, _DIRECTORY)]
    try:
        for name in ("var", "lib"):
            fds.append(os.open(name, _DIRECTORY, dir_fd=fds[-1]))
        remove(Path(f"/proc/self/fd/{fds[-1]}/skerry"))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # nothing there, or no directory of ours
            raise
    finally:
        for fd in fds:
            os.close(fd)


def sync(path: Path | int) -> None:
    """fsync of a file or directory."""
    fd = path if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        if not isinstance(path, int):
            os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or the old one, also after a power cut."""
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
    """A directory that only root can enter; one that exists is tightened."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.stat(path).st_mode & 0o077:
        os.chmod(path, 0o700)
    return path
