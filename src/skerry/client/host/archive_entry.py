"""One file, link or directory of this host as a part of an archive."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from typing import Final

from skerry.client.host.posix import FILE
from skerry.codecs.tar import Entry, header, padding
from skerry.errors import InvalidRequest
from skerry.types import Skipped

PIECE: Final = 256 << 10
MAX_SKIPPED: Final = 1000
SPECIAL: Final = "it is a FIFO, a socket or a device"
_MAX_LINKED: Final = 100_000
_KEPT_BITS: Final = 0o777


class SkippedPaths:
    """Skipped paths: the first ones by name, the others counted."""

    def __init__(self) -> None:
        self.skipped: list[Skipped] = []
        self.more = 0

    def skip(self, path: str, reason: str | OSError) -> None:
        if isinstance(reason, FileNotFoundError):
            reason = "it was removed meanwhile"
        elif isinstance(reason, OSError):
            reason = (reason.strerror or str(reason)).lower()
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(Skipped(path=path, reason=reason))
        else:
            self.more += 1


class EntryCounter(SkippedPaths):
    """Counts only, to know the total size in advance."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def made(self, path: str, content: bytes | None = None) -> Iterator[bytes]:
        self.total += len(content or b"")
        return iter(())

    def directory(self, path: str, found: os.stat_result) -> Iterator[bytes]:
        return iter(())

    def link(self, above: int, name: str, path: str) -> Iterator[bytes]:
        return iter(())

    def file(self, above: int, name: str, path: str) -> Iterator[bytes]:
        try:
            self.total += os.stat(name, dir_fd=above, follow_symlinks=False).st_size
        except OSError as error:
            self.skip(path, error)
        return iter(())


class EntryArchiver(SkippedPaths):
    """Yields the archive bytes. `above`: the descriptor of the directory, `path`: the name in the archive."""

    def __init__(self) -> None:
        super().__init__()
        self._linked: dict[tuple[int, int], bytes] = {}

    def made(self, path: str, content: bytes | None = None) -> Iterator[bytes]:
        """Add an entry that is not on disk: a file with that content, or a directory."""
        raw, now = os.fsencode(path), int(time.time())
        if content is None:
            yield header(Entry(raw, "directory", 0o755, 0, now))
        else:
            yield header(Entry(raw, "file", 0o644, len(content), now)) + content + padding(len(content))

    def directory(self, path: str, found: os.stat_result) -> Iterator[bytes]:
        yield header(Entry(os.fsencode(path), "directory", found.st_mode & _KEPT_BITS, 0, int(found.st_mtime)))

    def link(self, above: int, name: str, path: str) -> Iterator[bytes]:
        try:
            target = os.readlink(name, dir_fd=above)
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
        except OSError as error:
            self.skip(path, error)
            return
        yield header(Entry(os.fsencode(path), "link", 0o777, 0, int(found.st_mtime), os.fsencode(target)))

    def file(self, above: int, name: str, path: str) -> Iterator[bytes]:
        try:
            descriptor = os.open(name, FILE, dir_fd=above)
        except OSError as error:
            self.skip(path, error)
            return
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                yield from self._content(descriptor, found, path)
            else:
                self.skip(path, SPECIAL)
        finally:
            os.close(descriptor)

    def _content(self, descriptor: int, found: os.stat_result, path: str) -> Iterator[bytes]:
        raw, mode, mtime = os.fsencode(path), found.st_mode & _KEPT_BITS, int(found.st_mtime)
        if found.st_nlink > 1 and (first := self._first(found, raw)) is not None:
            yield header(Entry(raw, "hard link", mode, 0, mtime, first))
        elif found.st_size >= PIECE:
            yield header(Entry(raw, "file", mode, found.st_size, mtime))
            yield from _large(descriptor, found.st_size, path)
        else:
            try:
                data = _small(descriptor, found.st_size)
            except OSError as error:
                self.skip(path, error)
                return
            yield header(Entry(raw, "file", mode, len(data), mtime)) + data + padding(len(data))

    def _first(self, found: os.stat_result, raw: bytes) -> bytes | None:
        """Return the name under which a file with several hard links is already in the archive."""
        identity = (found.st_dev, found.st_ino)
        first = self._linked.get(identity)
        if first is None and len(self._linked) < _MAX_LINKED:
            self._linked[identity] = raw
        return first if first != raw else None


def _small(descriptor: int, size: int) -> bytes:
    """Read a small file completely: its actual size is written afterwards."""
    data = os.read(descriptor, size)
    while 0 < len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


def _large(descriptor: int, size: int, path: str) -> Iterator[bytes]:
    """Yield a large file after its size was sent: an error from here on fails the archive."""
    left = size
    while left:
        try:
            data = os.read(descriptor, min(left, PIECE))
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror}, while it was read") from error
        if not data:
            raise InvalidRequest(f"{path}: it became shorter while it was read", hint="try again, or exclude it")
        left -= len(data)
        yield data
    yield padding(size)
