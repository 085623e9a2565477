"""`python -m skerry.images.archive.unpacker`: unpack a layer's archive from stdin into this directory.

A separate process (see `unpack`), confined to the directory before it reads the first byte. So a link in an archive can
only lead to another place of the same tree. Progress is reported as JSON lines on stdout.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
from typing import Any, Final

from skerry.images.archive.confine import confine
from skerry.images.archive.decompress import DecompressedStream
from skerry.images.archive.tar import ArchiveEntry, Damaged, LayerReader

_WHITEOUT, _AUFS, _OPAQUE = b".wh.", b".wh..wh.", b".wh..wh..opq"
_NOTICES: Final = 100
_NOBODY, _LAST_ID = 65534, 65535  # a sandbox has 65,536 IDs
_INTERVAL, _LOOK = 0.2, 100  # seconds, entries
_INODES_SHARE: Final = 20  # this fraction (1/n) of the host's inodes stays free
_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Directories that an archive uses without an entry get their usual mode.
_USUAL: Final = {b"tmp": 0o1777, b"var/tmp": 0o1777, b"root": 0o700}
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_ITS_FAULT: Final = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.EMLINK,
        errno.EFBIG,
    )
)


class TreeUnpacker:
    """Unpacks one archive. Paths are relative to the root, which is the tree itself."""

    def __init__(self, limits: dict[str, int], whiteouts: bool) -> None:
        self._bounds, self._whiteouts = limits, whiteouts
        self._source = DecompressedStream(0, limits["bytes"], limits["ratio"], self._tick)
        self._reader = LayerReader(self._source.read)
        self._reported_at = 0.0
        self._directories: dict[bytes, int] = {}  # existing directories, with their time
        self._opaque: set[bytes] = set()
        self._entries = self._files = self._noticed = self._holes = 0

    def run(self) -> dict[str, Any]:
        for entry in self._reader:
            self._entries += 1
            if self._entries > self._bounds["entries"]:
                raise Damaged(f"the archive has more than {self._bounds['entries']} entries")
            if self._entries % _LOOK == 0:
                self._check_room()
            self._place(entry)
        if not self._reader.ended and not self._source.compressed:
            raise Damaged("the archive is truncated")
        self._source.drain()
        for path, when in self._directories.items():
            os.utime(path or b".", ns=(when, when), follow_symlinks=False)
        for path in sorted(self._opaque):
            _tell({"opaque": path.hex()})
        return {
            "entries": self._entries, "files": self._files, "bytes": self._source.gave, "read": self._source.came,
            "digest": self._source.digest, "unsaid": max(0, self._noticed - _NOTICES),
        }  # fmt: skip

    # -- one entry ----------------------------------------------------------------------------------------------------

    def _place(self, entry: ArchiveEntry) -> None:
        above, _, name = entry.path.rpartition(b"/")
        if self._whiteouts and _WHITEOUT in entry.path and self._hidden(entry.path, above, name):
            return
        if entry.kind == "device":
            self._notice(f"left out {_text(entry.path)}: it is a device")
            return
        path = _join(self._enter(above), name)
        if entry.kind == "directory":
            self._directory(entry, path)
            return
        self._clear(path)
        if entry.kind == "file":
            self._file(entry, path)
        elif entry.kind == "fifo":
            os.mkfifo(path, 0o600)
            os.chown(path, *self._owner(entry), follow_symlinks=False)
            os.chmod(path, entry.mode)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        elif entry.kind == "link":
            os.symlink(entry.link, path)
            os.chown(path, *self._owner(entry), follow_symlinks=False)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        else:
            self._hard_link(entry, path)

    def _hidden(self, path: bytes, above: bytes, name: bytes) -> bool:
        """Handle a whiteout, which marks a deleted file of a lower layer, or an aufs file. Return whether it was
        one."""
        if any(part.startswith(_WHITEOUT) for part in above.split(b"/")):
            return True
        if not name.startswith(_WHITEOUT):
            return False
        if name == _OPAQUE:
            self._opaque.add(self._enter(above))
        elif not name.startswith(_AUFS):
            gone = name[len(_WHITEOUT) :]
            if gone in (b"", b".", b".."):
                raise Damaged(f"the archive has an invalid whiteout: {_text(path)}")
            self._hide(_join(self._enter(above), gone))
        return True

    def _hide(self, path: bytes) -> None:
        """Hide lower layers at that place. Files of this layer stay there; a directory becomes opaque."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))  # needs no CAP_MKNOD since Linux 5.8
            return
        if stat.S_ISDIR(found.st_mode):
            self._opaque.add(path)

    def _directory(self, entry: ArchiveEntry, path: bytes) -> None:
        if path not in self._directories:
            self._make_directory(path)
        os.chown(path or b".", *self._owner(entry), follow_symlinks=False)
        os.chmod(path or b".", entry.mode)
        self._xattrs(entry, path or b".")
        self._directories[path] = entry.mtime_ns

    def _file(self, entry: ArchiveEntry, path: bytes) -> None:
        if entry.pieces is not None:  # holes take no space, but reading them takes time
            self._holes += entry.size
            if self._holes > self._bounds["bytes"]:
                raise Damaged(f"the archive holds more than {self._bounds['bytes']} bytes")
        fd = os.open(path, _FILE, 0o600)
        try:
            if entry.pieces is not None:
                os.ftruncate(fd, entry.size)
            for at, view in self._reader.parts(entry):
                while view:
                    done = os.pwrite(fd, view, at)
                    at, view = at + done, view[done:]
            os.fchown(fd, *self._owner(entry))
            os.fchmod(fd, entry.mode)
            self._xattrs(entry, fd)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)
        self._files += 1

    def _hard_link(self, entry: ArchiveEntry, path: bytes) -> None:
        try:
            kind = os.lstat(entry.link).st_mode
            if stat.S_ISREG(kind) or stat.S_ISLNK(kind) or stat.S_ISFIFO(kind):
                os.link(entry.link, path, follow_symlinks=False)
                return
        except FileNotFoundError:
            pass
        raise Damaged(f"the archive has a hard link to a missing file: {_text(entry.path)} for {_text(entry.link)}")

    # -- places --------------------------------------------------------------------------------------------------------

    def _enter(self, above: bytes) -> bytes:
        """Return the directory of an entry, created if necessary; resolved, if a link of this layer leads there. All
        stored paths are resolved."""
        if not above or above in self._directories:
            return above
        upper, _, name = above.rpartition(b"/")
        path = _join(self._enter(upper), name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            mode = stat.S_IFCHR
        if stat.S_ISCHR(mode):  # missing, or a whiteout
            self._make_directory(path)
        elif stat.S_ISLNK(mode):
            path = os.path.realpath(b"/" + path, strict=True)[1:]
            mode = os.lstat(path or b".").st_mode
        if stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            raise Damaged(f"the archive has an entry below a path that is not a directory: {_text(above)}")
        return path

    def _make_directory(self, path: bytes) -> None:
        if path and (was := self._clear(path, keep_directory=True)) != "directory":
            os.mkdir(path)
            os.chmod(path, _USUAL.get(path, 0o755))
            if was == "whiteout":
                self._opaque.add(path)
        self._directories.setdefault(path, 0)

    def _clear(self, path: bytes, keep_directory: bool = False) -> str:
        """Clear the place, because a later entry replaces an earlier one. Return the kind of the removed entry."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return "nothing"
        if not stat.S_ISDIR(mode):
            os.unlink(path)
            return "whiteout" if stat.S_ISCHR(mode) else "file"
        if not keep_directory:
            self._remove(path)
        return "directory"

    def _remove(self, path: bytes) -> None:
        for name in os.listdir(path):
            below = _join(path, name)
            if stat.S_ISDIR(os.lstat(below).st_mode):
                self._remove(below)
            else:
                os.unlink(below)
        os.rmdir(path)
        self._directories.pop(path, None)
        self._opaque.discard(path)

    # -- owners and attributes -----------------------------------------------------------------------------------------

    def _owner(self, entry: ArchiveEntry) -> tuple[int, int]:
        if entry.uid > _LAST_ID or entry.gid > _LAST_ID:
            self._notice(
                f"{_text(entry.path)} belongs to {entry.uid}:{entry.gid}, outside the ID range: changed to nobody"
            )
        return (
            entry.uid if entry.uid <= _LAST_ID else _NOBODY,
            entry.gid if entry.gid <= _LAST_ID else _NOBODY,
        )

    def _xattrs(self, entry: ArchiveEntry, of: int | bytes) -> None:
        """Set user attributes only: others have a meaning for the host's kernel (capabilities, labels, overlay's
        marks)."""
        for name, value in entry.xattrs.items():
            if not name.startswith(b"user.") or name.startswith(b"user.overlay."):
                self._notice(f"left out the attribute {_text(name)} of {_text(entry.path)}")
                continue
            try:
                os.setxattr(of, name, value)
            except (OSError, ValueError):
                self._notice(f"this host's file system rejects the attribute {_text(name)} of {_text(entry.path)}")

    def _notice(self, text: str) -> None:
        self._noticed += 1
        if self._noticed <= _NOTICES:
            _tell({"notice": text})

    # -- progress and limits -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._reported_at < _INTERVAL:
            return
        self._reported_at = now
        _tell({"read": self._source.came})
        self._check_room()

    def _check_room(self) -> None:
        found = os.statvfs(".")
        if found.f_bavail * found.f_frsize < self._bounds["min_free"]:
            raise OSError(errno.ENOSPC, "the host's disk has reached its minimum free space")
        if found.f_files and found.f_favail < found.f_files // _INODES_SHARE:  # empty files use only inodes
            raise OSError(errno.ENOSPC, "the host's disk is almost out of inodes")


def _join(above: bytes, name: bytes) -> bytes:
    return above + b"/" + name if above else name


def _text(raw: bytes) -> str:
    return ascii(raw[:200].decode("utf-8", "replace"))[1:-1]


def _tell(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    limits = json.loads(sys.argv[1])
    confine()
    try:
        done = TreeUnpacker(limits, whiteouts=sys.argv[2] == "layer").run()
    except Damaged as error:
        _tell({"damaged": error.message, "hint": error.hint})
    except MemoryError:
        _tell({"damaged": "the archive needs too much memory to read"})
    except OSError as error:
        word = "full" if error.errno in _FULL else "damaged" if error.errno in _ITS_FAULT else "failed"
        _tell({word: f"{error.strerror}: {_text(os.fsencode(error.filename))}" if error.filename else str(error)})
    else:
        _tell({"done": done})


if __name__ == "__main__":
    main()
