"""The user's tree, walked by descriptors: every step with O_NOFOLLOW, so that no link is ever followed.

A directory that is replaced by a link in between is refused by the kernel at that step, not missed by a check."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from skerry.client.applying.content import PIECE, Hasher, oid_of
from skerry.errors import Conflict
from skerry.types.paths import refused

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2
_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_libc = ctypes.CDLL(None, use_errno=True)


class Moved(Conflict):
    """A path is not as it was when it was looked at."""


@dataclass(frozen=True)
class Seen:
    """What stands at a path. `oid`: of a file's content or a link's target. `mark`: changes when it is written to or
    replaced."""

    kind: Literal["file", "link", "directory", "other"]
    mode: int = 0
    size: int = 0
    oid: str = ""
    sha256: str = ""
    mark: tuple[int, ...] = ()
    device: int = 0

    @property
    def executable(self) -> bool:
        return self.kind == "file" and bool(self.mode & stat.S_IXUSR)

    def like(self, other: Seen | None) -> bool:
        """The same to git."""
        return other is not None and (self.kind, self.oid, self.executable) == (other.kind, other.oid, other.executable)


class Tree:
    def __init__(self, root: str | Path, *, exchange: bool = True) -> None:
        self.root = Path(root)
        self.exchange = exchange  # whether the file system is asked to swap two names in one step
        self.step: Callable[[str], None] = lambda _: None
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._root)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def directory(self, path: bytes) -> Iterator[int]:
        """Its descriptor; b"" is the root. OSError where it is none, or a link stands in the way."""
        at = os.dup(self._root)
        try:
            if path:
                _check(path)
                for part in path.split(b"/"):
                    below = os.open(part, DIRECTORY, dir_fd=at)
                    os.close(at)
                    at = below
            yield at
        finally:
            os.close(at)

    @contextmanager
    def above(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """The directory that a path stands in, and its name there."""
        _check(path)
        head, _, name = path.rpartition(b"/")
        with self.directory(head) as above:
            yield above, name

    def look(self, path: bytes) -> Seen | None:
        """What stands there; None: nothing, and nothing in the way of it but what is no directory."""
        try:
            with self.above(path) as (above, name):
                return seen(above, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise

    def pieces(self, path: bytes) -> Iterator[bytes]:
        """A file's content, or a link's target."""
        with self.above(path) as (above, name):
            if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                yield os.readlink(name, dir_fd=above)
                return
            descriptor = os.open(name, _READ, dir_fd=above)
        try:
            while piece := os.read(descriptor, PIECE):
                yield piece
        finally:
            os.close(descriptor)

    def names(self, path: bytes) -> list[bytes]:
        with self.directory(path) as at:
            return [os.fsencode(name) for name in os.listdir(at)]

    def move(self, source: bytes, target: bytes) -> None:
        """To a place where nothing stands: FileExistsError otherwise."""
        with self.above(source) as (old, name), self.above(target) as (new, wanted):
            _move(old, name, new, wanted, flags=_NOREPLACE)

    def swap(self, aside: bytes, path: bytes) -> None:
        """Two names of one file system change places. Where that can't be one step, `aside~` is used for a moment and
        `settle` mends what was cut off there; what somebody else puts at `path` in that moment is lost."""
        with self.above(aside) as (there, held), self.above(path) as (above, name):
            if self.exchange:
                try:
                    _rename(there, held, above, name, _EXCHANGE)
                    return
                except OSError as error:
                    if error.errno not in _UNSUPPORTED:
                        raise
            spare = held + b"~"
            try:
                os.link(name, spare, src_dir_fd=above, dst_dir_fd=there, follow_symlinks=False)
            except OSError:
                _move(above, name, there, spare, flags=_NOREPLACE)
            self.step("swap, half")
            os.rename(held, name, src_dir_fd=there, dst_dir_fd=above)
            self.step("swap, nearly")
            os.rename(spare, held, src_dir_fd=there, dst_dir_fd=there)

    def settle(self, aside: bytes, path: bytes) -> None:
        """After a swap that was cut off: it was done, or it was not."""
        with suppress(FileNotFoundError), self.above(aside) as (there, held), self.above(path) as (above, name):
            spare = held + b"~"
            if not _stands(there, spare):
                return
            if not _stands(there, held):
                os.rename(spare, held, src_dir_fd=there, dst_dir_fd=there)
            elif not _stands(above, name):
                os.rename(spare, name, src_dir_fd=there, dst_dir_fd=above)
            else:
                os.unlink(spare, dir_fd=there)

    def remove(self, path: bytes) -> None:
        """OSError if its directory is not there: then it may be elsewhere."""
        with self.above(path) as (above, name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)

    def sync(self, paths: set[bytes]) -> None:
        """Names in these directories outlive a power cut."""
        for path in sorted(paths):
            with suppress(OSError), self.directory(path) as at:
                os.fsync(at)


def seen(above: int, name: bytes) -> Seen | None:
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None
    mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=above)
        return Seen("link", size=len(target), oid=oid_of(target), mark=mark, device=found.st_dev)
    if not stat.S_ISREG(found.st_mode):
        kind: Literal["directory", "other"] = "directory" if stat.S_ISDIR(found.st_mode) else "other"
        return Seen(kind, mode=stat.S_IMODE(found.st_mode), mark=mark, device=found.st_dev)
    return _seen_file(above, name)


def _seen_file(above: int, name: bytes) -> Seen:
    descriptor = os.open(name, _READ, dir_fd=above)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Moved("it was replaced while it was read")
        hasher = Hasher(found.st_size)
        while piece := os.read(descriptor, PIECE):
            hasher.add(piece)
        after = os.fstat(descriptor)
        if hasher.size != found.st_size or after.st_mtime_ns != found.st_mtime_ns:
            raise Moved("it was written to while it was read")
        mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        mode = stat.S_IMODE(found.st_mode)
        return Seen("file", mode, found.st_size, hasher.oid, hasher.sha256, mark, found.st_dev)
    finally:
        os.close(descriptor)


def _check(path: bytes) -> None:
    """Planned paths were checked long before; this is what makes another one impossible."""
    if (why := refused(path)) is not None:
        raise Moved(why)


def _stands(above: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _move(old: int, name: bytes, new: int, wanted: bytes, *, flags: int) -> None:
    try:
        _rename(old, name, new, wanted, flags)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if _stands(new, wanted):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), wanted) from error
        os.rename(name, wanted, src_dir_fd=old, dst_dir_fd=new)


def _rename(old: int, name: bytes, new: int, wanted: bytes, flags: int) -> None:
    if _libc.renameat2(old, name, new, wanted, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), wanted)
