"""Walks a directory of this host by descriptors and never through a link: a directory that is replaced by a link
meanwhile is not followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from skerry.client.host.archive_entry import SPECIAL
from skerry.client.host.posix import DIRECTORY
from skerry.codecs.tar import MAX_NAME

_OPEN_LEVELS: Final = 64  # descriptors held at once; those above are found again from below


class Visitor(Protocol):
    """Receives each entry of a walk, and may yield bytes for it."""

    def skip(self, path: str, reason: str | OSError) -> None: ...
    def directory(self, path: str, found: os.stat_result) -> Iterator[bytes]: ...
    def link(self, above: int, name: str, path: str) -> Iterator[bytes]: ...
    def file(self, above: int, name: str, path: str) -> Iterator[bytes]: ...


class Exclusion(Protocol):
    """`texts`: empty if nothing is ever excluded."""

    @property
    def texts(self) -> tuple[str, ...]: ...
    def excludes(self, path: str, directory: bool) -> bool: ...


@dataclass
class _OpenDirectory:
    """A directory on the path from the root to the current one. `below`: its directories that are still to be
    entered."""

    path: str
    descriptor: int
    identity: tuple[int, int]
    below: list[str] = field(default_factory=list)


class Walk:
    """Visits a whole directory: the files of each directory before its subdirectories."""

    def __init__(self, archiver: Visitor, exclude: Exclusion) -> None:
        self._things = archiver
        self._exclude = exclude
        self._levels: list[_OpenDirectory] = []

    def below(self, root: int) -> Iterator[bytes]:
        levels = self._levels
        try:
            yield from self._enter(os.dup(root), "")
            while levels:
                if levels[-1].below:
                    yield from self._descend(levels[-1], levels[-1].below.pop())
                else:
                    self._leave()
        finally:
            for level in levels:
                if level.descriptor >= 0:
                    os.close(level.descriptor)

    def _descend(self, level: _OpenDirectory, name: str) -> Iterator[bytes]:
        path = f"{level.path}/{name}" if level.path else name
        if level.descriptor < 0:
            self._things.skip(path, "the directory above it was moved meanwhile")
            return
        try:
            descriptor = os.open(name, DIRECTORY, dir_fd=level.descriptor)
        except OSError as error:
            self._things.skip(path, error)
            return
        yield from self._things.directory(path, os.fstat(descriptor))
        yield from self._enter(descriptor, path)

    def _enter(self, descriptor: int, path: str) -> Iterator[bytes]:
        """Visit the files of a directory; its subdirectories are kept for later."""
        found = os.fstat(descriptor)
        level = _OpenDirectory(path, descriptor, (found.st_dev, found.st_ino))
        self._levels.append(level)
        if len(self._levels) > _OPEN_LEVELS:
            self._let_go(self._levels[-1 - _OPEN_LEVELS])
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    yield from self._one(level, entry)
        except OSError as error:
            self._things.skip(path or ".", error)
        level.below.sort(reverse=True)

    def _one(self, level: _OpenDirectory, entry: os.DirEntry[str]) -> Iterator[bytes]:
        path = f"{level.path}/{entry.name}" if level.path else entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        if self._exclude.texts and self._exclude.excludes(path, is_directory):
            return
        if len(path) > MAX_NAME // 4 and len(os.fsencode(path)) >= MAX_NAME:
            self._things.skip(path[:200] + "…", "its path is too long")
        elif is_directory:
            level.below.append(entry.name)
        elif entry.is_symlink():
            yield from self._things.link(level.descriptor, entry.name, path)
        elif entry.is_file(follow_symlinks=False):
            yield from self._things.file(level.descriptor, entry.name, path)
        else:
            self._things.skip(path, SPECIAL)

    def _let_go(self, level: _OpenDirectory) -> None:
        if level.descriptor >= 0:
            os.close(level.descriptor)
            level.descriptor = -1

    def _leave(self) -> None:
        """Return to the parent directory, if it is still the same."""
        level = self._levels.pop()
        above = self._levels[-1] if self._levels else None
        if above is not None and above.descriptor < 0 and level.descriptor >= 0:
            descriptor = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=level.descriptor)
            found = os.fstat(descriptor)
            above.descriptor = descriptor
            if (found.st_dev, found.st_ino) != above.identity:
                self._let_go(above)
        self._let_go(level)


class NamedWalk:
    """Visits named paths from the root; the directories above a path are visited before the first entry in them."""

    def __init__(self, archiver: Visitor, exclude: Exclusion) -> None:
        self._things = archiver
        self._exclude = exclude
        self._chain: list[tuple[str, int]] = []

    def of(self, root: int, paths: Iterable[str]) -> Iterator[bytes]:
        sent: set[str] = set()
        try:
            for path in paths:
                parts = path.split("/")
                if not {"", ".", ".."}.isdisjoint(parts) or (".git" in path.lower() and _in_git(parts)):
                    self._things.skip(path, "its name refers to another directory")  # an index can be forged
                    continue
                if self._excluded(parts):
                    continue
                try:
                    above = self._climb(root, parts[:-1])
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._things.skip(path, error)
                    continue
                for depth in range(1, len(parts)):
                    if (directory := "/".join(parts[:depth])) not in sent:
                        sent.add(directory)
                        yield from self._things.directory(directory, os.fstat(self._chain[depth - 1][1]))
                yield from self._named(above, parts[-1], path)
        finally:
            for _, descriptor in self._chain:
                os.close(descriptor)

    def _excluded(self, parts: list[str]) -> bool:
        last = len(parts)
        return bool(self._exclude.texts) and any(
            self._exclude.excludes("/".join(parts[:depth]), depth < last) for depth in range(1, last + 1)
        )

    def _climb(self, root: int, parts: list[str]) -> int:
        """Return the descriptor of a directory, with those of the directories above it left in the chain."""
        chain, shared = self._chain, 0
        while shared < min(len(chain), len(parts)) and chain[shared][0] == parts[shared]:
            shared += 1
        while len(chain) > shared:
            os.close(chain.pop()[1])
        at = chain[-1][1] if chain else root
        for part in parts[shared:]:
            at = os.open(part, DIRECTORY, dir_fd=at)
            chain.append((part, at))
        return at

    def _named(self, above: int, name: str, path: str) -> Iterator[bytes]:
        try:
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return  # git still lists deleted files
        except OSError as error:
            self._things.skip(path, error)
            return
        if stat.S_ISLNK(found.st_mode):
            yield from self._things.link(above, name, path)
        elif stat.S_ISREG(found.st_mode):
            yield from self._things.file(above, name, path)
        elif stat.S_ISDIR(found.st_mode):  # a submodule that was not fetched
            yield from self._things.directory(path, found)
        else:
            self._things.skip(path, SPECIAL)


def _in_git(parts: list[str]) -> bool:
    """Return whether a path is inside a git directory, which may contain passwords."""
    return any(part.lower() == ".git" for part in parts)
