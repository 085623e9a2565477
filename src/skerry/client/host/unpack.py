"""Unpacks an archive from inside into a directory of this host, and nowhere else, whatever it contains.

Every step starts from a directory's descriptor with O_NOFOLLOW; a file is created beside its target under a temporary
name and renamed. So nothing is ever written through an existing file, or through a link of the archive, also on a file
system where names that differ only in case are equal.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from threading import Lock
from typing import Final

from skerry.client.host.archive_entry import SkippedPaths
from skerry.client.host.output_dir import PartialFile, TransferLimit, put, stays_inside
from skerry.client.host.posix import DIRECTORY, open_root, require_posix
from skerry.codecs.tar import Entry, Malformed, Reader
from skerry.types import Progress, TransferResult

_MAX_LINKED: Final = 65_536
# Errors of the host as a whole, not of one file.
_FATAL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE))


class DirectoryUnpacker(SkippedPaths):
    """Call `feed`, then `finish`; `close` in every case. An interruption leaves complete files only."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        outside_links: bool = False,
        limit: TransferLimit | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        super().__init__()
        require_posix("the download of a directory")
        os.makedirs(directory, exist_ok=True)
        self._root = open_root(directory, "the download of a directory")
        self._here, self._name = os.dup(self._root), b""  # the directory of the last entry
        self._outside_links = outside_links
        self._limit = limit
        self._progress = progress
        self._reader = Reader()
        self._part: PartialFile | None = None  # the current file, unless it was rejected
        self._entry = Entry(b"", "other")  # its entry
        self._left = self._came = 0  # bytes that it lacks; bytes of all files
        self._prefix = f".skerry-{token_hex(6)}-".encode()
        self._made = 0
        self._leaving: list[Entry] = []  # new directories on the current path
        self._landed: dict[bytes, tuple[int, int]] = {}
        self._busy = Lock()  # a cancelled call may leave a thread that still feeds
        self._closed = False
        self.files = self.directories = self.links = self.bytes = 0

    def feed(self, data: bytes) -> None:
        with self._busy:
            for one in self._reader.feed(data) if not self._closed else ():
                if isinstance(one, Entry):
                    self._land(one)
                else:
                    self._write(one)
        if self._progress is not None:
            self._progress(Progress(stage="download", done=self._came))

    def finish(self, moved: TransferResult) -> TransferResult:
        """Return the result, with the entries skipped inside and here."""
        if not self._reader.ended:
            raise Malformed("it ends early")
        self._leave(b"")
        return TransferResult(
            files=self.files, directories=self.directories, links=self.links, bytes=self.bytes,
            skipped=(*moved.skipped, *self.skipped), more=moved.more + self.more,
        )  # fmt: skip

    def close(self) -> None:
        with self._busy:
            self._closed = True
            if self._part is not None:
                self._part.discard()
            self._leave(b"")
            os.close(self._here)
            os.close(self._root)

    # -- entries ------------------------------------------------------------------------------------------------------

    def _land(self, entry: Entry) -> None:
        try:
            self._leave(entry.name)
            above, _, name = entry.name.rpartition(b"/")
            if entry.kind == "other":
                self._skip(entry, "it is a device or a FIFO")
            elif not name:
                return  # the root itself
            elif entry.kind == "link" and not (self._outside_links or stays_inside(entry.name, entry.link)):
                self._skip(entry, f"it is a link out of the directory, to {os.fsdecode(entry.link)!r}")
            else:
                self._make(entry, self._enter(above), name)
        except OSError as error:
            self._refuse(entry, error)

    def _make(self, entry: Entry, above: int, name: bytes) -> None:
        self._landed.pop(entry.name, None)
        if entry.kind == "directory":
            self._make_directory(entry, above, name)
        elif entry.kind == "link":
            temp = self._temp()
            os.symlink(entry.link, temp, dir_fd=above)
            put(above, temp, name)
            self.links += 1
        elif entry.kind == "hard link":
            self._make_hard_link(entry, above, name)
        else:
            if self._limit is not None:
                self._limit.expect(entry.size)
            part = PartialFile(above, self._temp(), name, entry.mode, entry.mtime, self._limit)
            self._part, self._entry, self._left = part, entry, entry.size
            self._write(b"")

    def _temp(self) -> bytes:
        self._made += 1
        return self._prefix + b"%d" % self._made

    def _refuse(self, entry: Entry, error: OSError) -> None:
        if error.errno in _FATAL:
            raise error
        blocked = error.errno in (errno.ELOOP, errno.ENOTDIR)
        self._skip(entry, "a link or a file blocks its path" if blocked else error)

    def _skip(self, entry: Entry, reason: str | OSError) -> None:
        self.skip(os.fsdecode(entry.name[:1024]), reason)

    def _write(self, data: bytes) -> None:
        """Write a piece of the current file; pieces of a rejected file are dropped."""
        self._came += len(data)
        part = self._part
        if part is None:
            if self._limit is not None:
                self._limit.add(0, len(data))
            return
        part.write(data)
        self._left -= len(data)
        if self._left == 0:
            self._part = None
            self._settle(part)

    def _settle(self, part: PartialFile) -> None:
        try:
            identity = part.settle()
        except OSError as error:
            self._refuse(self._entry, error)
            return
        self.files += 1
        self.bytes += self._entry.size
        if len(self._landed) < _MAX_LINKED:
            self._landed[self._entry.name] = identity

    def _make_hard_link(self, entry: Entry, above: int, name: bytes) -> None:
        """Create a hard link, but only to a file of this archive: never to one that existed before."""
        identity = self._landed.get(entry.link) if entry.link != entry.name else None
        if identity is None:
            self._skip(entry, "it is a hard link to a file that is not in the archive")
            return
        directory, _, base = entry.link.rpartition(b"/")
        source, temp = self._walk(directory), self._temp()
        try:
            os.link(base, temp, src_dir_fd=source, dst_dir_fd=above, follow_symlinks=False)
        finally:
            os.close(source)
        found = os.stat(temp, dir_fd=above, follow_symlinks=False)
        if (found.st_dev, found.st_ino) != identity or not stat.S_ISREG(found.st_mode):
            os.unlink(temp, dir_fd=above)
            self._skip(entry, "it is a hard link to a file that was replaced meanwhile")
            return
        put(above, temp, name)
        self.files += 1

    # -- directories --------------------------------------------------------------------------------------------------

    def _make_directory(self, entry: Entry, above: int, name: bytes) -> None:
        """Create a directory; an existing one stays unchanged. Mode and time are set when the archive leaves it."""
        try:
            os.mkdir(name, entry.mode & 0o777 | 0o700, dir_fd=above)
        except FileExistsError:
            os.close(os.open(name, DIRECTORY, dir_fd=above))
            return
        self.directories += 1
        self._leaving.append(entry)

    def _leave(self, name: bytes) -> None:
        while self._leaving and not name.startswith(self._leaving[-1].name + b"/"):
            entry = self._leaving.pop()
            with suppress(OSError):
                descriptor = self._walk(entry.name)
                try:
                    if entry.mode & 0o700 != 0o700:
                        os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o777 & (entry.mode | 0o077))
                    os.utime(descriptor, (entry.mtime, entry.mtime))
                finally:
                    os.close(descriptor)

    def _enter(self, path: bytes) -> int:
        """Return the directory of an entry, created if the archive did not; it stays open for the next entry."""
        if path != self._name:
            descriptor = self._walk(path, make=True)
            os.close(self._here)
            self._here, self._name = descriptor, path
        return self._here

    def _walk(self, path: bytes, *, make: bool = False) -> int:
        """Open a directory step by step, from the current one if it lies below."""
        start = self._root
        if self._name and (path + b"/").startswith(self._name + b"/"):
            start, path = self._here, path[len(self._name) + 1 :]
        at = os.dup(start)
        try:
            for part in path.split(b"/") if path else ():
                below = self._open(part, at, make)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at

    def _open(self, part: bytes, at: int, make: bool) -> int:
        try:
            return os.open(part, DIRECTORY, dir_fd=at)
        except FileNotFoundError:
            if not make:
                raise
        os.mkdir(part, 0o777, dir_fd=at)
        self.directories += 1
        return os.open(part, DIRECTORY, dir_fd=at)
