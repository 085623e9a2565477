"""A directory of this host as a tar archive with owners, for an image: as `tar` would have it, read as it is sent."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator

from skerry.errors import InvalidRequest

PIECE = 1 << 20


def pieces(directory: str | os.PathLike[str]) -> Iterator[bytes]:
    """Files, directories, links, hard links and FIFOs, with modes, owners and times; sockets are left out."""
    out = bytearray()
    with tarfile.open(fileobj=io.BytesIO(), mode="w", format=tarfile.PAX_FORMAT) as notes:
        for path, name in _walk(os.fspath(directory)):
            for piece in _entry(notes, path, name):
                out += piece
                if len(out) >= PIECE:
                    yield bytes(out)
                    out.clear()
    yield bytes(out) + bytes(2 * tarfile.BLOCKSIZE)


def _walk(root: str) -> Iterator[tuple[str, str]]:
    """Parents first. No link is followed."""

    def fail(error: OSError) -> None:
        raise InvalidRequest(f"{error.filename}: {error.strerror}") from error

    yield root, "."
    for above, directories, files in os.walk(root, onerror=fail):
        directories.sort()
        for name in sorted((*directories, *files)):
            path = os.path.join(above, name)
            yield path, os.path.relpath(path, root)


def _entry(notes: tarfile.TarFile, path: str, name: str) -> Iterator[bytes]:
    try:
        info = notes.gettarinfo(path, name)
        if info is None:
            return
        info.uname = info.gname = ""
        if not info.isreg():
            yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            return
        with open(path, "rb") as file:
            yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            yield from _content(file, info.size, path)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}", hint="a root file system is best read by root") from error


def _content(file: io.BufferedReader, size: int, path: str) -> Iterator[bytes]:
    left = size
    while left:
        piece = file.read(min(left, PIECE))
        if not piece:
            raise InvalidRequest(f"{path} became shorter while it was read")
        left -= len(piece)
        yield piece
    yield bytes(-size % tarfile.BLOCKSIZE)
