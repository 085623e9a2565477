"""Archives of images as files of this host: written completely or not at all, compressed according to their names."""

from __future__ import annotations

import io
import os
import stat
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Protocol

from skerry.client.host.content import open_host_file, pieces, size_of
from skerry.client.host.output_dir import SingleFile
from skerry.client.host.posix import open_root
from skerry.errors import InvalidRequest
from skerry.types import Progress

PIECE = 1 << 20


def tree_pieces(directory: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield files, directories, links, hard links and FIFOs, with modes, owners and times; sockets are skipped.

    The tree is walked by descriptors and no link is followed, even if a program replaces parts of it meanwhile."""
    out = bytearray()
    archiver = _TreeArchiver()
    try:
        root = open_root(directory, "the import of a directory")
    except OSError as error:
        raise _unreadable(os.fspath(directory), error) from error
    try:
        for piece in archiver.below(root):
            out += piece
            if len(out) >= PIECE:
                yield bytes(out)
                out.clear()
    finally:
        os.close(root)
    yield bytes(out) + bytes(2 * tarfile.BLOCKSIZE)


class _TreeArchiver:
    """Writes one tree. `_names`: the first name of each file, for hard links."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], str] = {}

    def below(self, root: int) -> Iterator[bytes]:
        """Yield parents first."""

        def fail(error: OSError) -> None:
            raise _unreadable(str(error.filename), error) from error

        yield self._head(_info(".", os.fstat(root)))
        for above, directories, files, descriptor in os.fwalk(".", dir_fd=root, onerror=fail):
            directories.sort()
            for name in sorted((*directories, *files)):
                path = os.path.normpath(os.path.join(above, name))
                try:
                    yield from self._entry(descriptor, name, path)
                except OSError as error:
                    raise _unreadable(path, error) from error

    def _entry(self, above: int, name: str, path: str) -> Iterator[bytes]:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        info = _info(path, found)
        if stat.S_ISSOCK(found.st_mode):
            return
        if stat.S_ISLNK(found.st_mode):
            info.linkname = os.readlink(name, dir_fd=above)
        if not info.isreg():
            yield self._head(info)
            return
        if found.st_nlink > 1 and (first := self._names.setdefault((found.st_dev, found.st_ino), path)) != path:
            info.type, info.linkname, info.size = tarfile.LNKTYPE, first, 0
            yield self._head(info)
            return
        # Without O_NONBLOCK, a FIFO in place of the file would block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=above), "rb") as file:
            if not os.path.samestat(os.fstat(file.fileno()), found):
                raise InvalidRequest(f"{path} was replaced while it was read")
            yield self._head(info)
            yield from _content(file, info.size, path)

    def _head(self, info: tarfile.TarInfo) -> bytes:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE, stat.S_IFCHR: tarfile.CHRTYPE, stat.S_IFBLK: tarfile.BLKTYPE,
}  # fmt: skip


def _info(name: str, found: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = _TYPES.get(stat.S_IFMT(found.st_mode), tarfile.REGTYPE)
    info.mode, info.uid, info.gid, info.mtime = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime
    info.size = found.st_size if info.type == tarfile.REGTYPE else 0
    if info.type in (tarfile.CHRTYPE, tarfile.BLKTYPE):
        info.devmajor, info.devminor = os.major(found.st_rdev), os.minor(found.st_rdev)
    return info


def _unreadable(path: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"{path}: {error.strerror}", hint="a root file system is best read by root")


def _content(file: io.BufferedReader, size: int, path: str) -> Iterator[bytes]:
    left = size
    while left:
        piece = file.read(min(left, PIECE))
        if not piece:
            raise InvalidRequest(f"{path} became shorter while it was read")
        left -= len(piece)
        yield piece
    yield bytes(-size % tarfile.BLOCKSIZE)


HostFile = str | os.PathLike[str] | BinaryIO
Watcher = Callable[[Progress], None]


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class ArchiveFile:
    """A file to `write` to: it appears if the block succeeds, otherwise nothing does. An open file is written
    directly."""

    def __init__(self, target: HostFile) -> None:
        self._file: SingleFile | BinaryIO
        if isinstance(target, (str, os.PathLike)):
            self._compressor, self._file = _compressor(os.fspath(target)), _single(target)
        else:
            self._compressor, self._file = _Plain(), target

    def __enter__(self) -> ArchiveFile:
        return self

    def write(self, data: bytes) -> None:
        if out := self._compressor.compress(data):
            self._file.write(out)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            try:
                self._file.write(self._compressor.flush())
            except BaseException as error:
                self._end(type(error))
                raise
        self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        if isinstance(self._file, SingleFile):
            self._file.__exit__(kind)
        elif kind is None:
            self._file.flush()


def _single(path: str | os.PathLike[str]) -> SingleFile:
    try:
        return SingleFile(path)
    except OSError as error:
        raise InvalidRequest(f"{os.fspath(path)!r}: {error.strerror}") from error


def _compressor(path: str) -> _Compressor:
    if path.endswith((".gz", ".tgz")):
        return zlib.compressobj(6, wbits=31)
    if path.endswith((".zst", ".tzst")):
        return _zstd()
    return _Plain()


def _zstd() -> _Compressor:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdCompressor()


@contextmanager
def archive_source(given: HostFile, progress: Watcher | None = None) -> Iterator[Iterable[bytes]]:
    """Yield the bytes to send: of an archive, or of a directory as an archive. The server handles the compression."""
    with ExitStack() as stack:
        if not isinstance(given, (str, os.PathLike)):
            yield _watched(pieces(given), size_of(given), progress)
        elif os.path.isdir(given):
            yield _watched(tree_pieces(given), None, progress)
        else:
            file = stack.enter_context(open_host_file(given)[0])
            yield _watched(pieces(file), size_of(file), progress)


def _watched(parts: Iterable[bytes], size: int | None, progress: Watcher | None) -> Iterator[bytes]:
    done = 0
    for part in parts:
        yield part
        done += len(part)
        if progress is not None:
            progress(Progress(stage="import", done=done, total=size or 0))
