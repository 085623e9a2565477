"""Contents by git's own name of them: what was fetched, what was there, what is to be there."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from skerry.errors import Conflict, SandboxUnavailable
from skerry.types.review import OBJECT_ID

PIECE: Final = 1 << 20
FEW: Final = 32  # files that are made to last one by one
MERGE_MOST: Final = 64 << 20  # larger ones are taken whole or not at all

_libc = ctypes.CDLL(None, use_errno=True)


def oid_of(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Hasher:
    """git's name of a content whose size is known before."""

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
    """A directory of them. One is there whole, under its true name, or not at all; `sync` makes that outlive a power
    cut."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, oid: str) -> Path:
        if not OBJECT_ID.fullmatch(oid):
            raise SandboxUnavailable(f"{oid[:80]!r} is no object's name")
        return self.directory / oid

    def has(self, oid: str) -> bool:
        return self.path(oid).exists()

    def add(self, data: bytes) -> str:
        oid = oid_of(data)
        self.keep(oid, len(data), [data])
        return oid

    def keep(self, oid: str, size: int, pieces: Iterable[bytes]) -> None:
        with self.arriving(oid, size) as coming:
            for piece in pieces:
                coming.write(piece)

    def keep_own(self, oid: str, size: int, pieces: Iterable[bytes]) -> None:
        """One of the user's own, as it was looked at; Conflict if it is another one by now."""
        try:
            self.keep(oid, size, pieces)
        except SandboxUnavailable as error:
            raise Conflict(
                "a file was written to while it was read; nothing was changed", hint="apply again"
            ) from error

    def arriving(self, oid: str | None, size: int, sha256: str | None = None) -> Arriving:
        """One that comes piece by piece. It must be of that size and have that name, or that sha256."""
        return Arriving(self, oid, size, sha256)

    def size(self, oid: str) -> int:
        return self.path(oid).stat().st_size

    def read(self, oid: str) -> bytes:
        return self.path(oid).read_bytes()

    def pieces(self, oid: str) -> Iterator[bytes]:
        with self.path(oid).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    def take(self, other: Contents) -> None:
        """All that another one on the same disk has."""
        for path in other.directory.iterdir():
            if not self.has(path.name):
                os.link(path, self.path(path.name))

    def sync(self) -> None:
        listed = list(self.directory.iterdir())
        if len(listed) > FEW:
            sync_all(self.directory)
            return
        for path in [*listed, self.directory]:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def sync_all(directory: Path) -> None:
    """All of its disk: of many files that is quicker than one after the other."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        os.close(descriptor)


class Arriving:
    def __init__(self, contents: Contents, oid: str | None, size: int, sha256: str | None) -> None:
        self._contents = contents
        self._wanted = (oid, size, sha256)
        self._hasher = Hasher(size)
        self._part = contents.directory / f"arriving-{oid or sha256}"
        self.oid = oid or ""

    def __enter__(self) -> Arriving:
        self._file = self._part.open("wb")
        return self

    def write(self, data: bytes) -> None:
        self._hasher.add(data)
        if self._hasher.size > self._wanted[1]:
            raise SandboxUnavailable(f"a content is longer than the {self._wanted[1]} bytes that it was said to have")
        self._file.write(data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self._file.close()
            if kind is None:
                self._check()
                os.rename(self._part, self._contents.path(self.oid))
        finally:
            self._part.unlink(missing_ok=True)

    def _check(self) -> None:
        oid, size, sha256 = self._wanted
        if self._hasher.size != size:
            raise SandboxUnavailable(f"a content broke off after {self._hasher.size} of {size} bytes")
        if (oid is not None and oid != self._hasher.oid) or (sha256 is not None and sha256 != self._hasher.sha256):
            raise SandboxUnavailable("a content is not the one that was accepted", hint="look at the review again")
        self.oid = self._hasher.oid
