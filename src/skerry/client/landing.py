"""Where files from inside land on this host: one directory, and nothing outside it, whatever names they bear.

Names come from inside a sandbox and are hostile. Every step is taken from a directory's descriptor with O_NOFOLLOW,
and a file is only ever made, never opened: nothing that is there already can be written through or replaced.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from skerry.errors import InvalidRequest
from skerry.types import FileInfo

MOST_FILES = 10_000
MOST_BYTES = 8 << 30
DEEPEST = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """This one file is not brought back, and why."""


def check_part(name: str) -> None:
    """One part of a path from inside: a plain name that means the same to every tool that will read it here."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Refused("its name leads elsewhere")
    if not name.isprintable() or "\\" in name:
        raise Refused("its name has characters that don't belong in one")
    if len(os.fsencode(name)) > 255:
        raise Refused("its name is too long")


def changed(before: dict[str, FileInfo], after: dict[str, FileInfo]) -> list[str]:
    """Paths of the regular files that are new, or differ in size, time or mode."""

    def mark(info: FileInfo | None) -> object:
        return info and (info.type, info.size, info.mtime, info.mode)

    return sorted(path for path, info in after.items() if info.type == "file" and mark(before.get(path)) != mark(info))


class Landing:
    """An empty directory of this host that takes files from inside."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        path = Path(directory)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(f"out: {path}: {error.strerror}", hint="name a directory that can be made") from error
        if os.listdir(self._root):
            os.close(self._root)
            raise InvalidRequest(f"out: {path} is not empty", hint="name a new directory, or empty this one")
        self.bytes = 0
        self.files = 0

    def close(self) -> None:
        os.close(self._root)

    def __enter__(self) -> Landing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def file(self, relative: str, info: FileInfo | None = None) -> Iterator[LandingFile]:
        """A new file at that place, executable if it is so inside. It is removed again if the block fails."""
        *above, name = relative.split("/")
        if len(above) > DEEPEST:
            raise Refused(f"it lies deeper than {DEEPEST} directories")
        for part in (*above, name):
            check_part(part)
        if self.files >= MOST_FILES:
            raise Refused(f"there are more than {MOST_FILES} files")
        directory = self._descend(above)
        try:
            descriptor = _made(name, directory, executable=info is not None and bool(info.mode & stat.S_IXUSR))
            try:
                yield LandingFile(self, descriptor)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
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
                below = os.open(part, _DIRECTORY, dir_fd=at)
                os.close(at)
                at = below
        except OSError as error:
            os.close(at)
            raise Refused(f"its directory can't be made: {error.strerror}") from error
        return at


def _made(name: str, directory: int, *, executable: bool) -> int:
    try:
        return os.open(name, _NEW_FILE, 0o777 if executable else 0o666, dir_fd=directory)
    except OSError as error:
        why = "there is one of that name already" if error.errno == errno.EEXIST else error.strerror
        raise Refused(str(why)) from error


class LandingFile:
    def __init__(self, landing: Landing, descriptor: int) -> None:
        self._landing = landing
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        # Counted as it comes: a sparse file inside is as long as its author likes.
        self._landing.bytes += len(data)
        if self._landing.bytes > MOST_BYTES:
            raise Refused(f"all together are more than {MOST_BYTES >> 30} GiB")
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


class Part:
    """A file on its way: a temporary one beside its place, which it takes whole or not at all. Set-id bits don't cross,
    and the umask counts. `above` is the directory's descriptor; the part has one of its own."""

    def __init__(self, above: int, temp: bytes, name: bytes, mode: int, mtime: int | None) -> None:
        self._temp = temp
        self._name = name
        self._mtime = mtime
        self._above = os.dup(above)
        try:
            self._descriptor = os.open(temp, _NEW_FILE, mode & 0o777, dir_fd=above)
        except BaseException:
            os.close(self._above)
            raise

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def settle(self) -> tuple[int, int]:
        """Puts it in its place; what it is from then on: device and inode."""
        try:
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
    """Gives what was made under a name of ours the name that it is to have."""
    try:
        os.rename(temp, name, src_dir_fd=above, dst_dir_fd=above)
    finally:
        with suppress(FileNotFoundError):  # two names of one file: the rename has left both
            os.unlink(temp, dir_fd=above)


def stays_inside(name: bytes, target: bytes) -> bool:
    """Whether a link, followed from where it lies, can't leave the directory that all names begin at. `a/..` is not
    taken for nothing: `a` may be a link itself."""
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
    """One file of this host, replaced in one step when the block ends well."""

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o666, limit: int | None = None) -> None:
        directory, name = os.path.split(os.path.abspath(path))
        self.size = 0
        self._limit = limit
        above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            raw = os.fsencode(name)
            self._part = Part(above, b".%b.%b.part" % (raw[:100], token_hex(4).encode()), raw, mode, None)
        finally:
            os.close(above)

    def __enter__(self) -> SingleFile:
        return self

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self._limit is not None and self.size > self._limit:
            raise InvalidRequest(f"limit: what comes from inside is more than {self._limit} bytes")
        self._part.write(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._part.settle()
        else:
            self._part.discard()
