"""The user's tree, walked by descriptors: every step uses O_NOFOLLOW, so that no link is ever followed.

If a directory is replaced by a link in between, the kernel refuses that step; a check could miss it.
"""

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

from skerry.client.apply.content import PIECE, Hasher, oid_of
from skerry.client.host.posix import DIRECTORY, FILE, c_library, open_root
from skerry.errors import Conflict
from skerry.types.paths import refused

_NOREPLACE: Final = 1
_EXCHANGE: Final = 2
_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


class PathMoved(Conflict):
    """A path changed since it was examined."""


@dataclass(frozen=True)
class PathState:
    """The file, link or directory at a path. `oid`: of a file's content or a link's target. `mark`: changes when the
    file is written or replaced."""

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

    def like(self, other: PathState | None) -> bool:
        """Return whether git sees no difference."""
        return other is not None and (self.kind, self.oid, self.executable) == (other.kind, other.oid, other.executable)


class Tree:
    def __init__(self, root: str | Path, *, exchange: bool = True) -> None:
        self.root = Path(root)
        self.exchange = exchange  # whether to use an atomic exchange of two names, if the file system has one
        self.step: Callable[[str], None] = lambda _: None
        self._root = open_root(root, "access to a working tree")

    def close(self) -> None:
        os.close(self._root)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def directory(self, path: bytes) -> Iterator[int]:
        """Yield the descriptor of a directory; b"" is the root. Raise OSError if it is not a directory or a link is on
        the way."""
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
        """Yield the descriptor of the directory above a path, and the last name."""
        _check(path)
        head, _, name = path.rpartition(b"/")
        with self.directory(head) as above:
            yield above, name

    def look(self, path: bytes) -> PathState | None:
        """Return the state of a path. None: nothing is there, or a file stands in place of one of its directories."""
        try:
            with self.above(path) as (above, name):
                return path_state(above, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise

    def pieces(self, path: bytes) -> Iterator[bytes]:
        """Yield the content of a file, or the target of a link."""
        with self.above(path) as (above, name):
            if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                yield os.readlink(name, dir_fd=above)
                return
            descriptor = os.open(name, FILE, dir_fd=above)
        try:
            while piece := os.read(descriptor, PIECE):
                yield piece
        finally:
            os.close(descriptor)

    def names(self, path: bytes) -> list[bytes]:
        with self.directory(path) as at:
            return [os.fsencode(name) for name in os.listdir(at)]

    def move(self, source: bytes, target: bytes) -> None:
        """Move to a free name; raise FileExistsError otherwise."""
        with self.above(source) as (old, name), self.above(target) as (new, wanted):
            _move(old, name, new, wanted, flags=_NOREPLACE)

    def swap(self, aside: bytes, path: bytes) -> None:
        """Exchange two names of one file system. Where the kernel has no atomic exchange, `aside~` is used for a
        moment, and `settle` repairs an interruption there; a file that another program creates at `path` in that moment
        is lost."""
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
        """Complete or revert a swap that was interrupted."""
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
        """Remove a name. Raise OSError if its directory is absent: then the name may be elsewhere."""
        with self.above(path) as (above, name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)

    def sync(self, paths: set[bytes]) -> None:
        """Sync directories, so that their names survive a power failure."""
        for path in sorted(paths):
            with suppress(OSError), self.directory(path) as at:
                os.fsync(at)


def path_state(above: int, name: bytes) -> PathState | None:
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None
    mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=above)
        return PathState("link", size=len(target), oid=oid_of(target), mark=mark, device=found.st_dev)
    if not stat.S_ISREG(found.st_mode):
        kind: Literal["directory", "other"] = "directory" if stat.S_ISDIR(found.st_mode) else "other"
        return PathState(kind, mode=stat.S_IMODE(found.st_mode), mark=mark, device=found.st_dev)
    return _seen_file(above, name)


def _seen_file(above: int, name: bytes) -> PathState:
    descriptor = os.open(name, FILE, dir_fd=above)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PathMoved("it was replaced while it was read")
        hasher = Hasher(found.st_size)
        while piece := os.read(descriptor, PIECE):
            hasher.add(piece)
        after = os.fstat(descriptor)
        if hasher.size != found.st_size or after.st_mtime_ns != found.st_mtime_ns:
            raise PathMoved("it was written while it was read")
        mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        mode = stat.S_IMODE(found.st_mode)
        return PathState("file", mode, found.st_size, hasher.oid, hasher.sha256, mark, found.st_dev)
    finally:
        os.close(descriptor)


def _check(path: bytes) -> None:
    """Check a planned path again: planning validated it, and this makes any other path impossible."""
    if (why := refused(path)) is not None:
        raise PathMoved(why)


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
    if c_library().renameat2(old, name, new, wanted, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), wanted)
