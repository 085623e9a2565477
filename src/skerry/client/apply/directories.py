"""Directories that appear and disappear with their files, as in git: no directory is kept empty."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from skerry.client.apply.journal import PathChange
from skerry.client.apply.tree import PathState, Tree


class Directories:
    def __init__(self, tree: Tree, look: Callable[[bytes], PathState | None], changes: Sequence[PathChange]) -> None:
        self._tree, self._look = tree, look
        self._puts = {change.path for change in changes if change.after is not None}
        self._drops = {change.path for change in changes if change.after is None}
        self._needed = {above for path in self._puts for above in above_all(path)}
        self._going: dict[bytes, int] = {}

    def removed(self) -> list[tuple[bytes, int]]:
        """Return the directories that the plan leaves empty, deepest first, with their modes."""
        for path in sorted(self._drops, key=_depth, reverse=True):
            for above in above_all(path):
                if above not in self._going and not self._is_left_empty(above):
                    break
                found = self._look(above)
                self._going[above] = found.mode if found is not None else 0o755
        return sorted(self._going.items(), key=lambda one: -_depth(one[0]))

    def made(self) -> list[bytes]:
        """Return the directories that are needed and do not exist, or are files that the plan removes."""
        missing = []
        for path in self._needed:
            found = self._look(path)
            if found is None or found.kind != "directory":
                missing.append(path)
        return sorted(missing, key=lambda path: (_depth(path), path))

    def problems(self) -> Iterator[tuple[bytes, str]]:
        for path in sorted(self._puts - self._going.keys()):
            if (found := self._look(path)) is not None and found.kind == "directory":
                yield path, "it is a directory here that contains your files"
        checked: set[bytes] = set()
        for path in sorted(self._puts | self._drops):
            for above in {path.rpartition(b"/")[0], nearest(self._tree, path, self._going)} - checked:
                checked.add(above)
                if not self._is_writable(above):
                    yield path, "its directory is not writable"

    def _is_left_empty(self, path: bytes) -> bool:
        if path in self._needed:
            return False
        found = self._look(path)
        if found is None or found.kind != "directory":
            return False
        above = self._look(path.rpartition(b"/")[0]) if b"/" in path else None
        if above is not None and above.device != found.device:
            return False
        return all(
            below in self._drops or below in self._going
            for below in (path + b"/" + name for name in self._tree.names(path))
        )

    def _is_writable(self, path: bytes) -> bool:
        """Return whether the nearest existing directory above a path is writable."""
        try:
            with self._tree.directory(path) as at:
                return os.access(b".", os.W_OK | os.X_OK, dir_fd=at, effective_ids=True)
        except OSError:
            return True


def above_all(path: bytes) -> Iterator[bytes]:
    """Return the directories above a path, nearest first, without the root."""
    while path := path.rpartition(b"/")[0]:
        yield path


def nearest(tree: Tree, path: bytes, going: Collection[bytes]) -> bytes:
    """Return the nearest directory above a path that exists before and after."""
    for above in above_all(path):
        if above not in going:
            try:
                with tree.directory(above):
                    return above
            except OSError:
                continue
    return b""


def _depth(path: bytes) -> int:
    return path.count(b"/")
