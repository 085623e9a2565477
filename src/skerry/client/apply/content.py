"""File contents by their git object names: fetched, previous and new ones."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from skerry.client.host.output_dir import SparseWriter, TransferLimit
from skerry.client.host.posix import c_library
from skerry.errors import Conflict, SandboxUnavailable
from skerry.types.review import OBJECT_ID

PIECE: Final = 1 << 20
MAX_SINGLE_SYNCS: Final = 32  # more files than this are synced all at once
MAX_MERGE_BYTES: Final = 64 << 20  # larger files are taken whole or not merged


def oid_of(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Hasher:
    """Computes the git object name of a content of known size."""

    def __init__(self, size: int) -> None:
        self._sha1 = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        self._sha256 = hashlib.sha256()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._sha1.update(data)
        self._sha256.update(data)

    @property
    def oid(self) -> str:
        return self._sha1.hexdigest()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


class Contents:
    """A directory of contents. A content is stored whole under its object name, or not at all; `sync` makes it survive
    a power failure."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, oid: str) -> Path:
        if not OBJECT_ID.fullmatch(oid):
            raise SandboxUnavailable(f"{oid[:80]!r} is not an object name")
        return self.directory / oid

    def has(self, oid: str) -> bool:
        return self.path(oid).exists()

    def add(self, data: bytes) -> str:
        oid = oid_of(data)
        self.keep(oid, len(data), [data])
        return oid

    def keep(self, oid: str, size: int, pieces: Iterable[bytes]) -> None:
        with self.receive(oid, size) as coming:
            for piece in pieces:
                coming.write(piece)

    def store_user_file(self, oid: str, size: int, pieces: Iterable[bytes]) -> None:
        """Store a file of the user as it was examined; raise Conflict if it has changed since."""
        try:
            self.keep(oid, size, pieces)
        except SandboxUnavailable as error:
            raise Conflict("a file was written while it was read; nothing was changed", hint="apply again") from error

    def receive(
        self, oid: str | None, size: int, sha256: str | None = None, limit: TransferLimit | None = None
    ) -> ContentWriter:
        """Return a writer for a content that arrives in pieces. It must have that size, and that name or sha256."""
        return ContentWriter(self, oid, size, sha256, limit)

    def size(self, oid: str) -> int:
        return self.path(oid).stat().st_size

    def read(self, oid: str) -> bytes:
        return self.path(oid).read_bytes()

    def pieces(self, oid: str) -> Iterator[bytes]:
        with self.path(oid).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    def take(self, other: Contents) -> None:
        """Take over all contents of another directory on the same disk."""
        for path in other.directory.iterdir():
            if not self.has(path.name):
                os.link(path, self.path(path.name))

    def sync(self) -> None:
        listed = list(self.directory.iterdir())
        if len(listed) > MAX_SINGLE_SYNCS:
            sync_all(self.directory)
            return
        for path in [*listed, self.directory]:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def sync_all(directory: Path) -> None:
    """Sync the whole file system of a directory: faster than syncing many files one by one."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if c_library().syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        os.close(descriptor)


class ContentWriter:
    def __init__(
        self, contents: Contents, oid: str | None, size: int, sha256: str | None, limit: TransferLimit | None = None
    ) -> None:
        self._contents, self._limit = contents, limit
        self._wanted = (oid, size, sha256)
        self._hasher = Hasher(size)
        self._part = contents.directory / f"arriving-{oid or sha256}"
        self.oid = oid or ""

    def __enter__(self) -> ContentWriter:
        if self._limit is not None:
            self._limit.expect(self._wanted[1])
        self._file = self._part.open("wb")
        self._writer = SparseWriter(self._file.fileno(), self._limit)
        return self

    def write(self, data: bytes) -> None:
        self._hasher.add(data)
        if self._hasher.size > self._wanted[1]:
            raise SandboxUnavailable(f"a content is longer than the {self._wanted[1]} bytes that were announced")
        self._writer.write(data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            with self._file:
                if kind is None:
                    self._check()
                    self._writer.finish()
            if kind is None:
                os.rename(self._part, self._contents.path(self.oid))
        finally:
            self._part.unlink(missing_ok=True)

    def _check(self) -> None:
        oid, size, sha256 = self._wanted
        if self._hasher.size != size:
            raise SandboxUnavailable(f"a content ended after {self._hasher.size} of {size} bytes")
        if (oid is not None and oid != self._hasher.oid) or (sha256 is not None and sha256 != self._hasher.sha256):
            raise SandboxUnavailable("a content differs from the accepted one", hint="check the review again")
        self.oid = self._hasher.oid
