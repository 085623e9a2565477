"""A directory of this host as a tar archive, read as it is sent. What can't be read, or has no place in an archive, is
left out and told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from skerry.client import gitignore
from skerry.client.packed import MOST_TOLD, PIECE, Sizes, Things
from skerry.client.patterns import Patterns
from skerry.client.tar import END
from skerry.client.walking import Listing, Walk
from skerry.errors import InvalidRequest
from skerry.types import Progress, Transfer

Watcher = Callable[[Progress], None]
FLUSH = b""  # among the parts of an archive: what there is goes out now


class Archive:
    """Iterate for its bytes, once; then `told` adds what was left out here to what became of the rest."""

    def __init__(self, directory: str | os.PathLike[str], progress: Watcher | None) -> None:
        self._progress = progress
        self._things = Things()
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._begun = False

    def _parts(self, things: Things | Sizes) -> Iterator[bytes]:
        """All that is in it, from the directory open as `_root`."""
        raise NotImplementedError

    def _release(self) -> None:
        os.close(self._root)

    def close(self) -> None:
        """For one that nobody iterated: else the iteration closes what it uses, maybe still in a thread of its own."""
        if not self._begun:
            self._begun = True
            self._release()

    def __iter__(self) -> Iterator[bytes]:
        if self._begun:
            raise InvalidRequest("an archive is packed once")
        self._begun = True
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        try:
            yield from self._archive()
        finally:
            self._release()

    def _archive(self) -> Iterator[bytes]:
        total = self._measured() if self._progress is not None else 0
        done, out = 0, bytearray()
        for data in self._parts(self._things):
            out += data
            if len(out) >= PIECE or (out and not data):
                yield bytes(out)
                done += len(out)
                self._say(done, total)
                out.clear()
        yield bytes(out) + END
        self._say(total, total)

    def _measured(self) -> int:
        sizes = Sizes()
        for _ in self._parts(sizes):
            pass
        return sizes.total

    def _say(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(Progress(stage="upload", done=min(done, total), total=total))

    def told(self, moved: Transfer) -> Transfer:
        mine = self._things
        skipped = (*mine.skipped, *readable(moved).skipped)
        more = mine.more + moved.more + max(0, len(skipped) - MOST_TOLD)
        return replace(moved, skipped=skipped[:MOST_TOLD], more=more)


class Packer(Archive):
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        exclude: Sequence[str] = (),
        ignoring: bool = False,
        progress: Watcher | None = None,
    ) -> None:
        self._exclude = Patterns(exclude)
        self._ignoring = ignoring
        super().__init__(directory, progress)

    def _parts(self, things: Things | Sizes) -> Iterator[bytes]:
        if self._ignoring:
            with gitignore.listed(self._root) as paths:
                yield from Listing(things, self._exclude).of(self._root, paths)
        else:
            yield from Walk(things, self._exclude).below(self._root)


def is_file(path: str | os.PathLike[str]) -> bool:
    return os.path.isfile(path)


def readable(moved: Transfer) -> Transfer:
    """With the paths that are not UTF-8 as Python has them."""
    skipped = [
        replace(one, path=os.fsdecode(one.raw_path), raw_path=None) if one.raw_path is not None else one
        for one in moved.skipped
    ]
    return replace(moved, skipped=tuple(skipped))
