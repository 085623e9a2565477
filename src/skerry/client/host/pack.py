"""A directory of this host as a tar archive, read while it is sent. Entries that cannot be read, or have no form in an
archive, are skipped and reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from skerry.client.host import gitignore
from skerry.client.host.archive_entry import MAX_SKIPPED, PIECE, EntryArchiver, EntryCounter
from skerry.client.host.patterns import Patterns
from skerry.client.host.posix import open_root
from skerry.client.host.walk import NamedWalk, Walk
from skerry.codecs.tar import END
from skerry.errors import InvalidRequest
from skerry.types import Progress, TransferResult

Watcher = Callable[[Progress], None]
FLUSH = b""  # in the parts of an archive: send the buffered bytes now


class DirectoryArchive:
    """An iterator over its bytes that can be used once; then `with_skipped` adds the entries skipped here to the
    result."""

    def __init__(self, directory: str | os.PathLike[str], progress: Watcher | None) -> None:
        self._progress = progress
        self._things = EntryArchiver()
        self._root = open_root(directory, "the upload of a directory")
        self._begun = False

    def _parts(self, archiver: EntryArchiver | EntryCounter) -> Iterator[bytes]:
        """Yield all entries, from the directory open as `_root`."""
        raise NotImplementedError

    def _release(self) -> None:
        os.close(self._root)

    def close(self) -> None:
        """Release the resources if nothing was iterated; otherwise the iteration does, possibly still in its own
        thread."""
        if not self._begun:
            self._begun = True
            self._release()

    def __iter__(self) -> Iterator[bytes]:
        if self._begun:
            raise InvalidRequest("an archive can be iterated only once")
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
        sizes = EntryCounter()
        for _ in self._parts(sizes):
            pass
        return sizes.total

    def _say(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(Progress(stage="upload", done=min(done, total), total=total))

    def with_skipped(self, moved: TransferResult) -> TransferResult:
        mine = self._things
        skipped = (*mine.skipped, *with_readable_paths(moved).skipped)
        more = mine.more + moved.more + max(0, len(skipped) - MAX_SKIPPED)
        return replace(moved, skipped=skipped[:MAX_SKIPPED], more=more)


class Packer(DirectoryArchive):
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

    def _parts(self, archiver: EntryArchiver | EntryCounter) -> Iterator[bytes]:
        if self._ignoring:
            with gitignore.listed(self._root) as paths:
                yield from NamedWalk(archiver, self._exclude).of(self._root, paths)
        else:
            yield from Walk(archiver, self._exclude).below(self._root)


def is_file(path: str | os.PathLike[str]) -> bool:
    return os.path.isfile(path)


def with_readable_paths(moved: TransferResult) -> TransferResult:
    """Return the transfer with paths that are not UTF-8 in Python's form."""
    skipped = [
        replace(one, path=os.fsdecode(one.raw_path), raw_path=None) if one.raw_path is not None else one
        for one in moved.skipped
    ]
    return replace(moved, skipped=tuple(skipped))
