"""The directory of this host that receives files from a sandbox. Nothing is written outside of it, whatever the names.

Names come from inside a sandbox and are hostile. Every step starts from a directory's descriptor with O_NOFOLLOW, and
files are only created, never opened: no existing file can be written through, and none is replaced unless the caller
asks for it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from skerry.client.host.posix import DIRECTORY, NEW_FILE, open_root
from skerry.errors import InvalidRequest
from skerry.types import FileInfo, parse_size

MAX_FILES = 10_000
MAX_SPARSE = 8 << 30  # default for the total size with holes, unless the sandbox's disk is larger
MAX_DEPTH = 64
_BLOCK = 4096  # the block of most file systems: smaller holes save nothing
_ZEROS = bytes(_BLOCK)


class FileRejected(Exception):
    """This file is not copied; the message is the reason."""


def check_part(name: str) -> None:
    """Check one part of a path from inside: a plain name with the same meaning for every tool that reads it here."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FileRejected("its name refers to another directory")
    if not name.isprintable() or "\\" in name:
        raise FileRejected("its name contains invalid characters")
    if len(os.fsencode(name)) > 255:
        raise FileRejected("its name is too long")


def changed(before: dict[str, FileInfo], after: dict[str, FileInfo]) -> list[str]:
    """Return the paths of regular files that are new, or differ in size, time or mode."""

    def mark(info: FileInfo | None) -> object:
        return info and (info.type, info.size, info.mtime, info.mode)

    return sorted(path for path, info in after.items() if info.type == "file" and mark(before.get(path)) != mark(info))


class TransferLimit:
    """The maximum size of one transfer out of a sandbox, counted over all of its files.

    `given` bounds the total size, holes included. Without it, the data is bounded by `disk`, the sandbox's disk limit:
    only holes, shared blocks and files of the image can exceed that inside. Holes take no space here either, but their
    zeros are transferred, so the total size is bounded too.
    """

    def __init__(self, disk: int, given: str | int | None = None, what: str = "limit", hint: str | None = None) -> None:
        self._what, self._hint = what, hint or f"allow more with {what}= or --max-size"
        self._max_data = disk if given is None else None
        self._max_total = max(disk, MAX_SPARSE) if given is None else parse_size(given, what)
        self._data = self._total = 0

    def add(self, data: int, total: int) -> None:
        """Count bytes that arrived, of which `data` are to be written; raise if they exceed the limit."""
        self._data += data
        self.expect(total)
        self._total += total
        if self._max_data is not None and self._data > self._max_data:
            raise self._exceeded(f"the sandbox's disk limit of {self._max_data} bytes")

    def expect(self, size: int) -> None:
        """Raise at once if a file of this size would exceed the limit."""
        if self._total + size > self._max_total:
            raise self._exceeded(f"{self._max_total} bytes")

    def _exceeded(self, bound: str) -> InvalidRequest:
        return InvalidRequest(f"{self._what}: the transfer exceeds {bound}", hint=self._hint)


class SparseWriter:
    """Writes a new file from front to back. Blocks of zeros become holes: the disk space of a sparse file is about the
    same as inside. `limit` counts the bytes before they are written."""

    def __init__(self, descriptor: int, limit: TransferLimit | None = None) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._data_end = 0  # end of the last data
        self.size = 0

    def write(self, data: bytes) -> None:
        ranges = list(_data_ranges(data, self.size))
        if self._limit is not None:
            self._limit.add(sum(self._new_bytes(start, end) for start, end in ranges), len(data))
        for start, end in ranges:
            _write_at(self._descriptor, memoryview(data)[start - self.size : end - self.size], start)
        self.size += len(data)

    def _new_bytes(self, start: int, end: int) -> int:
        """Count a range as the space that it takes: with the start of its first block and, after a hole, the rest of
        the last block before the hole."""
        before, self._data_end = self._data_end, end
        if start // _BLOCK * _BLOCK < before:
            return end - before
        return -before % _BLOCK + end - start // _BLOCK * _BLOCK

    def finish(self) -> None:
        """Set the size, because the file may end with a hole."""
        os.ftruncate(self._descriptor, self.size)


def _data_ranges(data: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file, start and end, that are not zeros, from its bytes at `offset`."""
    begun: int | None = None
    at, stop = offset, offset + len(data)
    while at < stop:
        end = min(stop, (at // _BLOCK + 1) * _BLOCK)
        zeros = data[at - offset : end - offset] == (_ZEROS if end - at == _BLOCK else _ZEROS[: end - at])
        if zeros and begun is not None:
            yield begun, at
        begun = None if zeros else at if begun is None else begun
        at = end
    if begun is not None:
        yield begun, stop


def _write_at(descriptor: int, view: memoryview, at: int) -> None:
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


class OutputDir:
    """An empty directory of this host that receives files from inside. With `overwrite`, it may have content: files of
    the same path are replaced, each completely or not at all, and all others stay."""

    def __init__(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        path, self._overwrite = Path(directory), overwrite
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._root = open_root(path, "a directory for output files")
        except OSError as error:
            raise InvalidRequest(
                f"out: {path}: {error.strerror}", hint="name a directory that can be created"
            ) from error
        if not overwrite and os.listdir(self._root):
            os.close(self._root)
            raise InvalidRequest(
                f"out: {path} is not empty", hint="name a new directory, or replace files with overwrite (--overwrite)"
            )
        self.files = 0

    def close(self) -> None:
        os.close(self._root)

    def __enter__(self) -> OutputDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def file(self, relative: str, limit: TransferLimit, info: FileInfo | None = None) -> Iterator[OutputDirFile]:
        """Create a file at that path, executable if it is executable inside. It is removed if the block fails."""
        *above, name = relative.split("/")
        if len(above) > MAX_DEPTH:
            raise FileRejected(f"it is nested deeper than {MAX_DEPTH} directories")
        for part in (*above, name):
            check_part(part)
            if self._overwrite and part.casefold() == ".git":  # hooks and settings of an existing repository run code
                raise FileRejected("files of .git are not copied to a directory with content")
        if self.files >= MAX_FILES:
            raise FileRejected(f"there are more than {MAX_FILES} files")
        directory = self._descend(above)
        try:
            made = f".skerry-{token_hex(8)}.part" if self._overwrite else name
            descriptor = _made(made, directory, executable=info is not None and bool(info.mode & stat.S_IXUSR))
            try:
                file = OutputDirFile(descriptor, limit)
                yield file
                file.finish()
                if self._overwrite:
                    _replace(made, name, directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(made, dir_fd=directory)
                raise
            finally:
                os.close(descriptor)
            self.files += 1
        finally:
            os.close(directory)

    def _descend(self, parts: list[str]) -> int:
        at = os.dup(self._root)
        try:
            for part in parts:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=at)
                below = os.open(part, DIRECTORY, dir_fd=at)
                os.close(at)
                at = below
        except OSError as error:
            os.close(at)
            raise FileRejected(f"its directory cannot be created: {error.strerror}") from error
        return at


def _made(name: str, directory: int, *, executable: bool) -> int:
    try:
        return os.open(name, NEW_FILE, 0o777 if executable else 0o666, dir_fd=directory)
    except OSError as error:
        why = "a file of that name already exists" if error.errno == errno.EEXIST else error.strerror
        raise FileRejected(str(why)) from error


def _replace(made: str, name: str, directory: int) -> None:
    try:
        os.rename(made, name, src_dir_fd=directory, dst_dir_fd=directory)  # replaces a link, not its target
    except OSError as error:
        raise FileRejected(f"it cannot replace the existing one: {error.strerror}") from error


class OutputDirFile(SparseWriter):
    def write(self, data: bytes) -> None:
        # counted on arrival: the size of a sparse file inside is chosen by its author
        try:
            super().write(data)
        except InvalidRequest as error:
            raise FileRejected(str(error)) from error


class PartialFile:
    """A file in transfer: a temporary file beside its target, which replaces it completely or not at all. Set-id bits
    are dropped, and the umask applies. `above`: the directory's descriptor, which the part duplicates."""

    def __init__(
        self, above: int, temp: bytes, name: bytes, mode: int, mtime: int | None, limit: TransferLimit | None = None
    ) -> None:
        self._temp = temp
        self._name = name
        self._mtime = mtime
        self._above = os.dup(above)
        try:
            self._descriptor = os.open(temp, NEW_FILE, mode & 0o777, dir_fd=above)
        except BaseException:
            os.close(self._above)
            raise
        self._writer = SparseWriter(self._descriptor, limit)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def settle(self) -> tuple[int, int]:
        """Move the file to its target; return its device and inode."""
        try:
            self._writer.finish()
            if self._mtime is not None:
                os.utime(self._descriptor, (self._mtime, self._mtime))
            found = os.fstat(self._descriptor)
            os.rename(self._temp, self._name, src_dir_fd=self._above, dst_dir_fd=self._above)
        except BaseException:
            self.discard()
            raise
        self._close()
        return found.st_dev, found.st_ino

    def discard(self) -> None:
        with suppress(OSError):
            os.unlink(self._temp, dir_fd=self._above)
        self._close()

    def _close(self) -> None:
        os.close(self._descriptor)
        os.close(self._above)


def put(above: int, temp: bytes, name: bytes) -> None:
    """Rename a temporary name to the final one."""
    try:
        os.rename(temp, name, src_dir_fd=above, dst_dir_fd=above)
    finally:
        with suppress(FileNotFoundError):  # two names of one file: rename left both
            os.unlink(temp, dir_fd=above)


def stays_inside(name: bytes, target: bytes) -> bool:
    """Return whether a link, followed from its directory, cannot leave the root directory. `a/..` is not simplified:
    `a` may be a link."""
    if target.startswith(b"/"):
        return False
    depth, named = name.count(b"/"), False
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
            if named or depth < 0:
                return False
        elif part not in (b"", b"."):
            named = True
    return True


class SingleFile:
    """One file of this host, replaced atomically if the block succeeds."""

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o666, limit: TransferLimit | None = None) -> None:
        directory, name = os.path.split(os.path.abspath(path))
        self.size = 0
        above = open_root(directory, "a safe download to a file")
        try:
            raw = os.fsencode(name)
            temp = b".%b.%b.part" % (raw[:100], token_hex(4).encode())
            self._part = PartialFile(above, temp, raw, mode, None, limit)
        finally:
            os.close(above)

    def __enter__(self) -> SingleFile:
        return self

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._part.write(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._part.settle()
        else:
            self._part.discard()
