"""Directories that come and go with the files in them, as git has it: none is kept empty."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from skerry.client.applying.record import Change
from skerry.client.applying.tree import Seen, Tree


class Directories:
    def __init__(self, tree: Tree, look: Callable[[bytes], Seen | None], changes: Sequence[Change]) -> None:
        self._tree, self._look = tree, look
        self._puts = {change.path for change in changes if change.after is not None}
        self._drops = {change.path for change in changes if change.after is None}
        self._needed = {above for path in self._puts for above in above_all(path)}
        self._going: dict[bytes, int] = {}

    def removed(self) -> list[tuple[bytes, int]]:
        """Those that are empty once all is gone that is to go, the deepest first, with their modes."""
        for path in sorted(self._drops, key=_depth, reverse=True):
            for above in above_all(path):
                if above not in self._going and not self._is_left_empty(above):
                    break
                found = self._look(above)
                self._going[above] = found.mode if found is not None else 0o755
        return sorted(self._going.items(), key=lambda one: -_depth(one[0]))

    def made(self) -> list[bytes]:
        """Those that are needed, and are not there, or are files that are to go."""
        missing = []
        for path in self._needed:
            found = self._look(path)
            if found is None or found.kind != "directory":
                missing.append(path)
        return sorted(missing, key=lambda path: (_depth(path), path))

    def troubles(self) -> Iterator[tuple[bytes, str]]:
        for path in sorted(self._puts - self._going.keys()):
            if (found := self._look(path)) is not None and found.kind == "directory":
                yield path, "it is a directory here, with files of yours"
        checked: set[bytes] = set()
        for path in sorted(self._puts | self._drops):
            for above in {path.rpartition(b"/")[0], nearest(self._tree, path, self._going)} - checked:
                checked.add(above)
                if not self._is_writable(above):
                    yield path, "its directory can't be written to"

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
        """What is not there yet is looked at where it is made."""
        try:
            with self._tree.directory(path) as at:
                return os.access(b".", os.W_OK | os.X_OK, dir_fd=at, effective_ids=True)
        except OSError:
            return True


def above_all(path: bytes) -> Iterator[bytes]:
    """The directories that a path stands in, the nearest first, without the root."""
    while path := path.rpartition(b"/")[0]:
        yield path


def nearest(tree: Tree, path: bytes, going: Collection[bytes]) -> bytes:
    """The directory above a path that is there before and after."""
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
