"""Archives of images as files of this host: made whole or not at all, compressed as their name says."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Protocol

from skerry.client import rootfs
from skerry.client.content import open_host_file, pieces, size_of
from skerry.client.landing import SingleFile
from skerry.errors import InvalidRequest
from skerry.types import Progress

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
    """`write` into it; if the block ends well it is there, else nothing is. An open file is written as it comes."""

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
def source(given: HostFile, progress: Watcher | None = None) -> Iterator[Iterable[bytes]]:
    """What to send of an archive, or of a directory as one. Its compression is read where it goes."""
    with ExitStack() as stack:
        if not isinstance(given, (str, os.PathLike)):
            yield _watched(pieces(given), size_of(given), progress)
        elif os.path.isdir(given):
            yield _watched(rootfs.pieces(given), None, progress)
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
