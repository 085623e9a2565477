"""`python -m skerry.images.archive.packer`: write this directory, the root of an image, to stdout as an archive.

A separate process (see `pack`), confined to the directory before it reads the first file, because the files are
untrusted. The tree is read twice, because an archive names a layer's digest before the layer; nothing is stored.
Skipped files and the result are reported as JSON lines on stderr.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.images.archive import tar
from skerry.images.archive.confine import confine
from skerry.images.archive.layout import About, documents
from skerry.storage import tree
from skerry.storage.skerry_paths import is_skerry_path

_CHUNK: Final = 1 << 20
_NOTICES: Final = 100
_MAX_PATH: Final = 4000
_MIN_SPARSE: Final = 64 << 10  # smaller files are stored without holes: not every reader supports them
_MAX_PIECES: Final = 1_000_000
_OTHERS: Final = {stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_MAX_DEPTH: Final = 250
_MAX_ATTRIBUTES: Final = 512 << 10  # of one file; readers limit their headers


class Layer:
    """The tree as a layer. Both passes give the same bytes, because nothing writes to the tree."""

    def __init__(self, *, whole: bool = False, plain: bool = False) -> None:
        """`whole`: the files of Skerry too; `plain`: sparse files as ordinary ones."""
        self._whole, self._plain = whole, plain
        self.files = self.directories = self.links = self.bytes = 0
        self.skipped: list[tuple[bytes, str]] = []
        self.more = 0
        self._seen: dict[tuple[int, ...], bytes] = {}

    def pieces(self) -> Iterator[bytes]:
        for entry in tree.walk(Path(), self._left_out):
            yield from self._entry(entry)
        yield tar.END

    def _left_out(self, path: bytes) -> bool:
        if is_skerry_path(path) and not self._whole:
            return True
        if len(path) > _MAX_PATH or path.count(b"/") >= _MAX_DEPTH:
            self._skip(path, "its path is too long for an archive")
            return True
        return False

    def _skip(self, path: bytes, why: str) -> None:
        if len(self.skipped) < _NOTICES:
            self.skipped.append((path, why))
        else:
            self.more += 1

    def _entry(self, entry: tree.WalkEntry) -> Iterator[bytes]:
        found, kind = entry.stat, stat.S_IFMT(entry.stat.st_mode)
        if kind in _OTHERS:
            self._skip(entry.path, f"it is {_OTHERS[kind]}")
            return
        if kind == stat.S_IFDIR:
            self.directories += 1
            yield self._header(entry, entry.path + b"/", tar.DIRECTORY)
            return
        if found.st_nlink > 1:
            first = self._seen.setdefault(identity(found), entry.path)
            if first != entry.path:
                self.files += 1
                yield tar.header(entry.path, tar.HARD_LINK, link=first, mtime_ns=found.st_mtime_ns)
                return
        if kind == stat.S_IFLNK:
            self.links += 1
            yield self._header(entry, entry.path, tar.LINK, link=os.readlink(entry.name, dir_fd=entry.parent))
        elif kind == stat.S_IFIFO:
            self.files += 1
            yield self._header(entry, entry.path, tar.FIFO)
        else:
            yield from self._file(entry)

    def _file(self, entry: tree.WalkEntry) -> Iterator[bytes]:
        size, name, table = entry.stat.st_size, entry.path, b""
        records: list[tuple[bytes, bytes]] = []
        fd = tree.open_file(entry)
        try:
            pieces = [(0, size)]
            if entry.stat.st_blocks * 512 + _MIN_SPARSE <= size and not self._plain:
                pieces = list(_bounded(fd, size))
                if len(pieces) > _MAX_PIECES:
                    self._skip(entry.path, f"it has more than {_MAX_PIECES:,} data ranges")
                    return
                name, table, records = tar.sparse(entry.path, size, pieces)
            stored = len(table) + sum(length for _, length in pieces)
            self.files += 1
            self.bytes += size
            yield self._header(entry, name, tar.FILE, size=stored, more=records) + table
            for at, length in pieces:
                yield from _content(fd, at, length, entry.path)
            yield tar.padding(stored)
        finally:
            os.close(fd)

    def _header(
        self,
        entry: tree.WalkEntry,
        name: bytes,
        kind: bytes,
        *,
        size: int = 0,
        link: bytes = b"",
        more: list[tuple[bytes, bytes]] | None = None,
    ) -> bytes:
        found = entry.stat
        records = [] if kind == tar.LINK else self._attributes(entry.path)
        return tar.header(
            name, kind, mode=stat.S_IMODE(found.st_mode), uid=found.st_uid, gid=found.st_gid, size=size,
            mtime_ns=found.st_mtime_ns, link=link, more=[*(more or ()), *records],
        )  # fmt: skip

    def _attributes(self, path: bytes) -> list[tuple[bytes, bytes]]:
        """Return user attributes only: others have a meaning for a kernel, and no import accepts them."""
        found: list[tuple[bytes, bytes]] = []
        try:
            for name in sorted(os.listxattr(path, follow_symlinks=False)):
                raw = os.fsencode(name)
                if raw.startswith(b"user.") and not raw.startswith(b"user.overlay.") and b"=" not in raw:
                    found.append((b"SCHILY.xattr." + raw, os.getxattr(path, name, follow_symlinks=False)))
        except OSError as error:
            if error.errno != errno.E2BIG:  # btrfs allows more attributes per file than the kernel lists
                raise
            found = []
            self._skip(path, "only its attributes: there are too many")
        if sum(len(key) + len(value) for key, value in found) > _MAX_ATTRIBUTES:
            self._skip(path, "only its attributes: they are too long")
            return []
        return found


def identity(found: os.stat_result) -> tuple[int, ...]:
    """Layers may be subvolumes of one file system with overlapping inode numbers: the time distinguishes them."""
    return (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size)


def _bounded(fd: int, size: int) -> Iterator[tuple[int, int]]:
    for number, piece in enumerate(tree.data_ranges(fd, size)):
        yield piece
        if number == _MAX_PIECES:
            return


def _content(fd: int, at: int, length: int, path: bytes) -> Iterator[bytes]:
    while length:
        piece = os.pread(fd, min(length, _CHUNK), at)
        if not piece:
            raise InvalidRequest(f"{_text(path)} became shorter while it was being read")
        yield piece
        at += len(piece)
        length -= len(piece)


def archive(about: About) -> dict[str, Any]:
    """Write the archive to stdout; return a summary."""
    total, size = hashlib.sha256(), 0
    for piece in Layer(whole=about.directory is not None).pieces():
        total.update(piece)
        size += len(piece)
    when = int(about.created_at) * 10**9
    for path, content in documents(about, total.hexdigest(), size).items():
        _write(_outer(path, len(content), when) + content + tar.padding(len(content)))
    _write(_outer(f"blobs/sha256/{total.hexdigest()}", size, when))
    layer, again = Layer(whole=about.directory is not None), hashlib.sha256()
    _write_all(_hashed(layer.pieces(), again))
    if again.digest() != total.digest():
        raise SkerryError("the files changed while they were being read")
    _write(tar.padding(size) + tar.END)
    return _summary(layer)


def tree_archive(*, plain: bool = False) -> dict[str, Any]:
    """Write the tree itself to stdout; return a summary."""
    layer = Layer(whole=True, plain=plain)
    _write_all(layer.pieces())
    return _summary(layer)


def _hashed(pieces: Iterator[bytes], total: Any) -> Iterator[bytes]:
    for piece in pieces:
        total.update(piece)
        yield piece


def _write_all(pieces: Iterator[bytes]) -> None:
    out = bytearray()
    for piece in pieces:
        out += piece
        if len(out) >= _CHUNK:
            _write(out)
            out.clear()
    _write(out)


def _summary(layer: Layer) -> dict[str, Any]:
    skipped = [{"path": _text(path), "raw": path.hex(), "reason": why} for path, why in layer.skipped]
    return {
        "files": layer.files, "directories": layer.directories, "links": layer.links, "bytes": layer.bytes,
        "skipped": skipped, "more": layer.more,
    }  # fmt: skip


def _outer(path: str, size: int, when: int) -> bytes:
    return tar.header(path.encode(), tar.FILE, size=size, mtime_ns=when)


def _write(content: bytes | bytearray) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(1, view) :]


def _text(raw: bytes) -> str:
    return raw[:4096].decode("utf-8", "replace")


def _tell(what: dict[str, Any]) -> None:
    os.write(2, json.dumps(what).encode() + b"\n")


def _enter(directory: str) -> bool:
    """Enter a directory of the tree, whose links lead to places in the tree only."""
    try:
        os.chdir(directory)
    except OSError:
        return False
    return True


def main() -> None:
    about = msgspec.json.decode(sys.stdin.buffer.read(), type=About | None)
    confine(files=tree.MAX_DEPTH + 64)
    try:
        if about is not None and about.directory is not None and not _enter(about.directory):
            _tell({"missing": about.directory})
            return
        done = tree_archive(plain=about is not None) if about is None or about.plain else archive(about)
    except BrokenPipeError:  # the reader has gone
        return
    except SkerryError as error:
        _tell({"failed": error.message, "hint": error.hint})
    except OSError as error:
        damaged = error.errno in (errno.EIO, errno.EUCLEAN)
        where = f": {_text(os.fsencode(error.filename))}" if error.filename else ""
        _tell({"failed": f"{error.strerror}{where}", "damaged": damaged})
    else:
        _tell({"done": done})


if __name__ == "__main__":
    main()
