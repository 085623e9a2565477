"""`python -m skerry.images.packer`: this directory, the root of an image, goes out on stdout as an archive of it.

A process of its own (see `pack`), locked into the directory before it looks at the first file: what it reads was made
by strangers. The tree is read twice, since an archive names a layer's digest before the layer; nothing is stored. It
tells in lines of JSON on stderr what was left out, and how it ended.
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
from skerry.images import tar_headers as tar
from skerry.images.confine import confine
from skerry.images.layout import About, documents
from skerry.storage import holes, tree
from skerry.storage.ours import is_ours

_CHUNK: Final = 1 << 20
_NOTICES: Final = 100
_PATH_MOST: Final = 4000
_HOLES_LEAST: Final = 64 << 10  # below that a file goes whole: not every reader knows of holes
_PIECES_MOST: Final = 1_000_000
_OTHERS: Final = {stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_DEPTH_MOST: Final = 250
_ATTRIBUTES_MOST: Final = 512 << 10  # of one file; readers bound their headers


class Layer:
    """The tree as a layer. Twice the same bytes, since nobody writes to it."""

    def __init__(self) -> None:
        self.files = self.directories = self.links = self.bytes = 0
        self.skipped: list[tuple[bytes, str]] = []
        self.more = 0
        self._seen: dict[tuple[int, ...], bytes] = {}

    def pieces(self) -> Iterator[bytes]:
        for entry in tree.walk(Path(), self._left_out):
            yield from self._entry(entry)
        yield tar.END

    def _left_out(self, path: bytes) -> bool:
        if is_ours(path):
            return True
        if len(path) > _PATH_MOST or path.count(b"/") >= _DEPTH_MOST:
            self._skip(path, "its path is too long for an archive")
            return True
        return False

    def _skip(self, path: bytes, why: str) -> None:
        if len(self.skipped) < _NOTICES:
            self.skipped.append((path, why))
        else:
            self.more += 1

    def _entry(self, entry: tree.Entry) -> Iterator[bytes]:
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

    def _file(self, entry: tree.Entry) -> Iterator[bytes]:
        size, name, table = entry.stat.st_size, entry.path, b""
        records: list[tuple[bytes, bytes]] = []
        fd = tree.open_file(entry)
        try:
            pieces = [(0, size)]
            if entry.stat.st_blocks * 512 + _HOLES_LEAST <= size:
                pieces = list(_bounded(fd, size))
                if len(pieces) > _PIECES_MOST:
                    self._skip(entry.path, f"it is in more than {_PIECES_MOST:,} pieces")
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
        entry: tree.Entry,
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
        """Those of users alone: the others are words to a kernel, and no import takes them."""
        found: list[tuple[bytes, bytes]] = []
        try:
            for name in sorted(os.listxattr(path, follow_symlinks=False)):
                raw = os.fsencode(name)
                if raw.startswith(b"user.") and not raw.startswith(b"user.overlay.") and b"=" not in raw:
                    found.append((b"SCHILY.xattr." + raw, os.getxattr(path, name, follow_symlinks=False)))
        except OSError as error:
            if error.errno != errno.E2BIG:  # btrfs lets a file have more of them than the kernel lists
                raise
            found = []
            self._skip(path, "not itself, but its attributes: they are too many")
        if sum(len(key) + len(value) for key, value in found) > _ATTRIBUTES_MOST:
            self._skip(path, "not itself, but its attributes: they are too long")
            return []
        return found


def identity(found: os.stat_result) -> tuple[int, ...]:
    """Layers may be subvolumes of one file system, whose inode numbers overlap: the time tells them apart."""
    return (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size)


def _bounded(fd: int, size: int) -> Iterator[tuple[int, int]]:
    for number, piece in enumerate(holes.pieces(fd, size)):
        yield piece
        if number == _PIECES_MOST:
            return


def _content(fd: int, at: int, length: int, path: bytes) -> Iterator[bytes]:
    while length:
        piece = os.pread(fd, min(length, _CHUNK), at)
        if not piece:
            raise InvalidRequest(f"{_text(path)} became shorter while it was read")
        yield piece
        at += len(piece)
        length -= len(piece)


def archive(about: About) -> dict[str, Any]:
    """Writes it to stdout; what was in it."""
    total, size = hashlib.sha256(), 0
    for piece in Layer().pieces():
        total.update(piece)
        size += len(piece)
    when = int(about.created_at) * 10**9
    for path, content in documents(about, total.hexdigest(), size).items():
        _write(_outer(path, len(content), when) + content + tar.padding(len(content)))
    _write(_outer(f"blobs/sha256/{total.hexdigest()}", size, when))
    layer, again = Layer(), hashlib.sha256()
    out = bytearray()
    for piece in layer.pieces():
        again.update(piece)
        out += piece
        if len(out) >= _CHUNK:
            _write(out)
            out.clear()
    if again.digest() != total.digest():
        raise SkerryError("the files changed while they were read")
    _write(out + tar.padding(size) + tar.END)
    told = [{"path": _text(path), "raw": path.hex(), "reason": why} for path, why in layer.skipped]
    return {
        "files": layer.files, "directories": layer.directories, "links": layer.links, "bytes": layer.bytes,
        "skipped": told, "more": layer.more,
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


def main() -> None:
    about = msgspec.json.decode(sys.stdin.buffer.read(), type=About)
    confine(files=tree.MAX_DEPTH + 64)
    try:
        done = archive(about)
    except BrokenPipeError:  # whoever wanted it has gone
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
