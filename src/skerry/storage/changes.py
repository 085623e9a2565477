"""Differences between two stacks of layers: paths added, modified, deleted.

Only names in layers that the stacks do not share are examined, and below a directory that such a layer hides, replaces
or moves, everything. Both trees are read merged, as a sandbox sees them (merged.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from skerry.errors import InvalidRequest
from skerry.storage import tree
from skerry.storage.merged import merged
from skerry.storage.skerry_paths import MOUNT_POINTS, is_skerry_path
from skerry.storage.tree import WalkEntry, next_data, open_file
from skerry.types import SnapshotChange, SnapshotDiff

MAX_CHANGES = 100_000
_MAX_FDS = 4096  # a hostile tree must not exhaust the server's file descriptors
_RACY_NS = 2 * 10**9  # older kernels update file times at 250 Hz, and the clock may be adjusted slightly
_REARRANGED = ("trusted.overlay.opaque", "trusted.overlay.redirect")
_NO_CHECK: Callable[[], None] = lambda: None  # noqa: E731
_KINDS: dict[int, Literal["file", "directory", "link", "other"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
}

Kind = Literal["added", "modified", "deleted"]
Found = tuple[bytes, Kind, os.stat_result]


@dataclass(frozen=True)
class _Place:
    """A directory that exists in both trees. `layers`: the same directory in the unshared layers; None: everything in
    it is examined, because an unshared layer rearranged it."""

    before: int
    after: int
    prefix: bytes
    depth: int
    layers: tuple[int, ...] | None


class _TreeComparison:
    def __init__(self, settled: float | None, check: Callable[[], None]) -> None:
        self._settled = None if settled is None else int(settled * 1e9) - _RACY_NS
        self._check = check
        self._open = 0

    def compare(self, place: _Place) -> Iterator[Found]:
        tree.check_depth(place.prefix, place.depth)
        self._check()
        for name in _candidates(place):
            path = place.prefix + name
            if is_skerry_path(path):
                continue
            old, new = _stat_or_none(place.before, name), _stat_or_none(place.after, name)
            if old is not None and new is not None:
                yield from self._compare_entry(place, name, old, new)
            elif new is not None:
                yield from self._list_tree("added", place.after, name, place, new)
            elif old is not None:
                yield from self._list_tree("deleted", place.before, name, place, old)

    def _compare_entry(self, place: _Place, name: bytes, old: os.stat_result, new: os.stat_result) -> Iterator[Found]:
        path = place.prefix + name
        were, are = stat.S_ISDIR(old.st_mode), stat.S_ISDIR(new.st_mode)
        if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
            yield path, "modified", new
            if were:
                yield from self._inside("deleted", place.before, name, place)
            if are:
                yield from self._inside("added", place.after, name, place)
            return
        if not self._same(place, name, old, new):
            yield path, "modified", new
        if are:
            with ExitStack() as stack:
                yield from self.compare(self._enter(stack, place, name))

    def _enter(self, stack: ExitStack, place: _Place, name: bytes) -> _Place:
        before, after = (self._opened(stack, fd, name) for fd in (place.before, place.after))
        layers: tuple[int, ...] | None = None
        if place.layers is not None:
            there = [(fd, found) for fd in place.layers if (found := _stat_or_none(fd, name)) is not None]
            if not any(_rearranges(fd, name, found) for fd, found in there):
                layers = tuple(self._opened(stack, fd, name) for fd, _ in there)
        return _Place(before, after, place.prefix + name + b"/", place.depth + 1, layers)

    def _opened(self, stack: ExitStack, parent: int, name: bytes) -> int:
        if self._open >= _MAX_FDS:
            raise InvalidRequest("the directory trees are too deep to compare", hint="remove deeply nested directories")
        fd = tree.open_directory(parent, name)
        self._open += 1
        stack.callback(self._close, fd)
        return fd

    def _close(self, fd: int) -> None:
        self._open -= 1
        os.close(fd)

    def _list_tree(self, kind: Kind, parent: int, name: bytes, place: _Place, found: os.stat_result) -> Iterator[Found]:
        if _is_mount_point(parent, name, place.prefix + name):
            return
        yield place.prefix + name, kind, found
        if stat.S_ISDIR(found.st_mode):
            yield from self._inside(kind, parent, name, place)

    def _inside(self, kind: Kind, parent: int, name: bytes, place: _Place) -> Iterator[Found]:
        with ExitStack() as stack:
            fd = self._opened(stack, parent, name)
            for entry in tree.below(fd, place.prefix + name + b"/", place.depth + 1, is_skerry_path):
                self._check()
                if not _is_mount_point(entry.parent, entry.name, entry.path):
                    yield entry.path, kind, entry.stat

    def _same(self, place: _Place, name: bytes, old: os.stat_result, new: os.stat_result) -> bool:
        """Ignore times: a file that was touched or rewritten with the same content is unchanged."""
        if (old.st_mode, old.st_uid, old.st_gid) != (new.st_mode, new.st_uid, new.st_gid):
            return False
        kind = stat.S_IFMT(old.st_mode)
        if kind != stat.S_IFDIR and self._untouched(old, new):
            return True
        sides = (place.before, place.after)
        try:
            one, other = (list(tree.xattrs(fd, name)) for fd in sides)
        except InvalidRequest:  # too many attributes to read: cannot prove that they are equal
            return False
        if one != other:
            return False
        if kind == stat.S_IFLNK:
            return len({os.readlink(name, dir_fd=fd) for fd in sides}) == 1
        if kind == stat.S_IFREG:
            if old.st_size != new.st_size:
                return False
            return same_content(
                tree.WalkEntry(place.prefix + name, place.before, name, old),
                tree.WalkEntry(place.prefix + name, place.after, name, new),
                self._check,
            )
        return old.st_rdev == new.st_rdev

    def _untouched(self, old: os.stat_result, new: os.stat_result) -> bool:
        """The same inode, not written since before the two diverged. The kernel sets ctime; code in a sandbox
        cannot."""
        if self._settled is None or old.st_ctime_ns >= self._settled:
            return False
        mine = (old.st_ino, old.st_ctime_ns, old.st_mtime_ns, old.st_size)
        return mine == (new.st_ino, new.st_ctime_ns, new.st_mtime_ns, new.st_size)


def changes(
    before: Sequence[Path],
    after: Sequence[Path],
    *,
    settled: float | None = None,
    max_changes: int = MAX_CHANGES,
    check: Callable[[], None] = _NO_CHECK,
) -> SnapshotDiff:
    """Compare one stack of layers (top first) with another.

    `settled`: the time at which the older stack was taken from the same upper. A file with equal metadata that was last
    changed before that time is not read. `check` is called now and then and may raise to stop.
    """
    shared = _shared(before, after)
    with ExitStack() as stack:
        layers = _open_all(stack, (*before[: len(before) - shared], *after[: len(after) - shared]))
        if not layers:
            return SnapshotDiff(changes=())
        old, new = (stack.enter_context(merged(side)) for side in (before, after))
        found = _from_root(_TreeComparison(settled, check), _Place(old, new, b"", 0, layers))
        listed = [_change(*one) for one in islice(found, max_changes + 1)]
    return SnapshotDiff(changes=tuple(listed[:max_changes]), truncated=len(listed) > max_changes)


def _from_root(comparison: _TreeComparison, place: _Place) -> Iterator[Found]:
    old, new = os.fstat(place.before), os.fstat(place.after)
    if (old.st_mode, old.st_uid, old.st_gid) != (new.st_mode, new.st_uid, new.st_gid):
        yield b"", "modified", new
    yield from comparison.compare(place)


def _shared(before: Sequence[Path], after: Sequence[Path]) -> int:
    """Return the number of layers, from the bottom, that both have in common."""
    count = 0
    for one, other in zip(reversed(before), reversed(after), strict=False):
        if one != other:
            break
        count += 1
    return count


def _open_all(stack: ExitStack, paths: Iterable[Path]) -> tuple[int, ...]:
    fds = []
    for path in dict.fromkeys(paths):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        fds.append(fd)
    return tuple(fds)


def _candidates(place: _Place) -> list[bytes]:
    sides = (place.before, place.after) if place.layers is None else place.layers
    if len(sides) == 1:
        return tree.names(sides[0])
    return sorted(set().union(*(tree.names(fd) for fd in sides)))


def _rearranges(parent: int, name: bytes, found: os.stat_result) -> bool:
    """Return whether a layer has a non-directory here, or a directory that hides or moves its lower content."""
    if not stat.S_ISDIR(found.st_mode):
        return True
    return any(attribute in _REARRANGED for attribute, _ in tree.xattrs(parent, name))


def _is_mount_point(parent: int, name: bytes, path: bytes) -> bool:
    """Return whether this is an empty directory that was made for the sandbox."""
    if path not in MOUNT_POINTS:
        return False
    try:
        fd = tree.open_directory(parent, name)
    except OSError:  # not a directory
        return False
    try:
        inside = ((one, path + b"/" + one) for one in tree.names(fd))
        return all(is_skerry_path(below) or _is_mount_point(fd, one, below) for one, below in inside)
    finally:
        os.close(fd)


def _stat_or_none(parent: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _change(path: bytes, kind: Kind, found: os.stat_result) -> SnapshotChange:
    whole = b"/" + path
    text = whole.decode("utf-8", "replace")
    raw = whole if text.encode() != whole else None
    return SnapshotChange(path=text, kind=kind, type=_KINDS.get(stat.S_IFMT(found.st_mode), "other"), raw_path=raw)


# Compare file contents by their data ranges.

_CHUNK = 1 << 20


def same_content(one: WalkEntry, other: WalkEntry, check: Callable[[], None]) -> bool:
    """Compare two regular files of equal size."""
    first = open_file(one)
    try:
        second = open_file(other)
        try:
            return _same(first, second, one.stat.st_size, check)
        finally:
            os.close(second)
    finally:
        os.close(first)


def _same(first: int, second: int, size: int, check: Callable[[], None]) -> bool:
    at = 0
    while True:
        at = min(next_data(first, at, size), next_data(second, at, size))
        if at >= size:
            return True
        check()
        one, other = os.pread(first, _CHUNK, at), os.pread(second, _CHUNK, at)
        if one != other:
            return False
        if not one:
            return True
        at += len(one)
