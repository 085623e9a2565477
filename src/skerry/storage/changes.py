"""What differs between two stacks of layers: paths added, modified, deleted.

Only what a layer that the two don't share has a name for is looked at, and below a directory that such a layer
hides, replaces or moves, everything. Both trees are read merged, as a sandbox would see them (merged.py).
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
from skerry.storage.content import same_content
from skerry.storage.merged import merged
from skerry.storage.ours import SCAFFOLD, is_ours
from skerry.types import Change, Changes

MOST = 100_000
_FDS_MOST = 4096  # a hostile tree must not cost the server its file descriptors
_RACY_NS = 2 * 10**9  # an older kernel's clock for files ticks at 250 Hz; a clock may be set by a little
_REARRANGED = ("trusted.overlay.opaque", "trusted.overlay.redirect")
_NOBODY: Callable[[], None] = lambda: None  # noqa: E731
_KINDS: dict[int, Literal["file", "directory", "link", "other"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
}

Kind = Literal["added", "modified", "deleted"]
Found = tuple[bytes, Kind, os.stat_result]


@dataclass(frozen=True)
class _Place:
    """One directory that is in both trees. `layers`: the same directory in those layers that the trees don't share;
    None: all that is in it is looked at, because one of them put it together otherwise."""

    before: int
    after: int
    prefix: bytes
    depth: int
    layers: tuple[int, ...] | None


class _Comparison:
    def __init__(self, settled: float | None, check: Callable[[], None]) -> None:
        self._settled = None if settled is None else int(settled * 1e9) - _RACY_NS
        self._check = check
        self._open = 0

    def within(self, place: _Place) -> Iterator[Found]:
        tree.check_depth(place.prefix, place.depth)
        self._check()
        for name in _candidates(place):
            path = place.prefix + name
            if is_ours(path):
                continue
            old, new = _look(place.before, name), _look(place.after, name)
            if old is not None and new is not None:
                yield from self._both(place, name, old, new)
            elif new is not None:
                yield from self._whole("added", place.after, name, place, new)
            elif old is not None:
                yield from self._whole("deleted", place.before, name, place, old)

    def _both(self, place: _Place, name: bytes, old: os.stat_result, new: os.stat_result) -> Iterator[Found]:
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
                yield from self.within(self._enter(stack, place, name))

    def _enter(self, stack: ExitStack, place: _Place, name: bytes) -> _Place:
        before, after = (self._opened(stack, fd, name) for fd in (place.before, place.after))
        layers: tuple[int, ...] | None = None
        if place.layers is not None:
            there = [(fd, found) for fd in place.layers if (found := _look(fd, name)) is not None]
            if not any(_rearranges(fd, name, found) for fd, found in there):
                layers = tuple(self._opened(stack, fd, name) for fd, _ in there)
        return _Place(before, after, place.prefix + name + b"/", place.depth + 1, layers)

    def _opened(self, stack: ExitStack, parent: int, name: bytes) -> int:
        if self._open >= _FDS_MOST:
            raise InvalidRequest("the trees are too deep to be compared", hint="remove what is nested that deep")
        fd = tree.open_directory(parent, name)
        self._open += 1
        stack.callback(self._close, fd)
        return fd

    def _close(self, fd: int) -> None:
        self._open -= 1
        os.close(fd)

    def _whole(self, kind: Kind, parent: int, name: bytes, place: _Place, found: os.stat_result) -> Iterator[Found]:
        if _is_scaffold(parent, name, place.prefix + name):
            return
        yield place.prefix + name, kind, found
        if stat.S_ISDIR(found.st_mode):
            yield from self._inside(kind, parent, name, place)

    def _inside(self, kind: Kind, parent: int, name: bytes, place: _Place) -> Iterator[Found]:
        with ExitStack() as stack:
            fd = self._opened(stack, parent, name)
            for entry in tree.below(fd, place.prefix + name + b"/", place.depth + 1, is_ours):
                self._check()
                if not _is_scaffold(entry.parent, entry.name, entry.path):
                    yield entry.path, kind, entry.stat

    def _same(self, place: _Place, name: bytes, old: os.stat_result, new: os.stat_result) -> bool:
        """Times don't count: a file that was touched, or rewritten as it was, is the same."""
        if (old.st_mode, old.st_uid, old.st_gid) != (new.st_mode, new.st_uid, new.st_gid):
            return False
        kind = stat.S_IFMT(old.st_mode)
        if kind != stat.S_IFDIR and self._untouched(old, new):
            return True
        sides = (place.before, place.after)
        try:
            one, other = (list(tree.xattrs(fd, name)) for fd in sides)
        except InvalidRequest:  # too many to be read: not to be proved the same
            return False
        if one != other:
            return False
        if kind == stat.S_IFLNK:
            return len({os.readlink(name, dir_fd=fd) for fd in sides}) == 1
        if kind == stat.S_IFREG:
            if old.st_size != new.st_size:
                return False
            return same_content(
                tree.Entry(place.prefix + name, place.before, name, old),
                tree.Entry(place.prefix + name, place.after, name, new),
                self._check,
            )
        return old.st_rdev == new.st_rdev

    def _untouched(self, old: os.stat_result, new: os.stat_result) -> bool:
        """The same inode, not written since before the two parted. The kernel sets ctime; nothing inside can."""
        if self._settled is None or old.st_ctime_ns >= self._settled:
            return False
        mine = (old.st_ino, old.st_ctime_ns, old.st_mtime_ns, old.st_size)
        return mine == (new.st_ino, new.st_ctime_ns, new.st_mtime_ns, new.st_size)


def changes(
    before: Sequence[Path],
    after: Sequence[Path],
    *,
    settled: float | None = None,
    most: int = MOST,
    check: Callable[[], None] = _NOBODY,
) -> Changes:
    """From one stack of layers (top first) to another.

    `settled`: the two were taken of one unit, the older one at that time: a file that was last written
    before it, and looks the same, is not read. `check` is called now and then, and may raise to end the work.
    """
    shared = _shared(before, after)
    with ExitStack() as stack:
        layers = _own(stack, (*before[: len(before) - shared], *after[: len(after) - shared]))
        if not layers:
            return Changes(changes=())
        old, new = (stack.enter_context(merged(side)) for side in (before, after))
        found = _from_root(_Comparison(settled, check), _Place(old, new, b"", 0, layers))
        told = [_told(*one) for one in islice(found, most + 1)]
    return Changes(changes=tuple(told[:most]), truncated=len(told) > most)


def _from_root(comparison: _Comparison, place: _Place) -> Iterator[Found]:
    old, new = os.fstat(place.before), os.fstat(place.after)
    if (old.st_mode, old.st_uid, old.st_gid) != (new.st_mode, new.st_uid, new.st_gid):
        yield b"", "modified", new
    yield from comparison.within(place)


def _shared(before: Sequence[Path], after: Sequence[Path]) -> int:
    """How many layers, from the bottom up, the two have in common."""
    count = 0
    for one, other in zip(reversed(before), reversed(after), strict=False):
        if one != other:
            break
        count += 1
    return count


def _own(stack: ExitStack, paths: Iterable[Path]) -> tuple[int, ...]:
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
    """A layer that has something else than a directory here, or one that hides or moves what is below."""
    if not stat.S_ISDIR(found.st_mode):
        return True
    return any(attribute in _REARRANGED for attribute, _ in tree.xattrs(parent, name))


def _is_scaffold(parent: int, name: bytes, path: bytes) -> bool:
    """A directory that was made for the sandbox, and that nobody has put anything into."""
    if path not in SCAFFOLD:
        return False
    try:
        fd = tree.open_directory(parent, name)
    except OSError:  # something else is there
        return False
    try:
        inside = ((one, path + b"/" + one) for one in tree.names(fd))
        return all(is_ours(below) or _is_scaffold(fd, one, below) for one, below in inside)
    finally:
        os.close(fd)


def _look(parent: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _told(path: bytes, kind: Kind, found: os.stat_result) -> Change:
    whole = b"/" + path
    text = whole.decode("utf-8", "replace")
    raw = whole if text.encode() != whole else None
    return Change(path=text, kind=kind, type=_KINDS.get(stat.S_IFMT(found.st_mode), "other"), raw_path=raw)
