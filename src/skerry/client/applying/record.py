"""The journal of applies to one tree: what each does, how far it came, and what takes it back."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from skerry.client.applying.content import Contents
from skerry.client.applying.tree import Seen
from skerry.errors import Conflict
from skerry.types.values import Value

KEPT: Final = 20  # applies that can be taken back, of one tree
_FILE: Final = "record.json"

State = Literal["staging", "writing", "done", "closed"]
"""`staging`: nothing was changed yet. `writing`: some of it may have been. `done`: all of it, and what it replaced
lies beside it. `closed`: that is cleared up too."""


class Entry(Value, frozen=True, kw_only=True):
    """A file or link as it was or is to be. `mode`: permission bits; None: a new file's, as the umask makes it."""

    kind: Literal["file", "link"]
    oid: str
    size: int
    executable: bool = False
    mode: int | None = None

    def is_at(self, found: Seen | None) -> bool:
        return found is not None and (found.kind, found.oid, found.executable) == (self.kind, self.oid, self.executable)


class Change(Value, frozen=True, kw_only=True):
    """One path. `aside`: a name of ours beside it: first what is to come, then what was there. `mark`: of what was
    there when it was looked at."""

    path: bytes
    how: Literal["written", "merged", "removed"]
    before: Entry | None = None
    after: Entry | None = None
    aside: bytes = b""
    mark: tuple[int, ...] = ()


class Committed(Value, frozen=True, kw_only=True):
    """A commit that goes with it: `ref` moves from `old` ("": there was none) to `new`. `entries`: what the index is
    to have for each path that it has as the old commit had it: mode and object of both, or None."""

    ref: str
    old: str
    new: str
    branch: str | None = None
    entries: tuple[tuple[bytes, str | None, str | None, str | None, str | None], ...] = ()


class Record(Value, frozen=True, kw_only=True):
    """One apply, or one undo (`undoes`: of which). `name`: the sandbox's, if it has one. `made`, `removed`:
    directories, in the order of the doing. `told`: the server knows."""

    id: str
    sandbox: str
    root: str
    name: str | None = None
    state: State = "staging"
    at: float = 0.0
    digest: str | None = None
    hunks: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    same: tuple[bytes, ...] = ()
    made: tuple[bytes, ...] = ()
    removed: tuple[tuple[bytes, int], ...] = ()
    commit: Committed | None = None
    undoes: str | None = None
    told: bool = False


class Journal:
    """A directory of ours, one for a tree. Whoever changes the tree holds its lock."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._records = place / "applies"
        self._records.mkdir(mode=0o700, exist_ok=True)
        self._lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """The lock goes with its descriptor, also if this process is killed."""
        os.close(self._lock)

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def directory(self, id: str) -> Path:  # noqa: A002
        return self._records / id

    def contents(self, id: str) -> Contents:  # noqa: A002
        return Contents(self.directory(id) / "contents")

    def save(self, record: Record) -> Record:
        """As a whole, and for good, before anything that stands on it is done."""
        directory = self.directory(record.id)
        directory.mkdir(mode=0o700, exist_ok=True)
        part = directory / "record.part"
        with part.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, directory / _FILE)
        for above in (directory, self._records):
            _sync(above)
        return record

    def records(self) -> list[Record]:
        """Oldest first. A directory without a record never came to anything."""
        found = []
        for directory in self._records.iterdir():
            try:
                found.append(msgspec.json.decode((directory / _FILE).read_bytes(), type=Record))
            except FileNotFoundError:
                continue
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise Conflict(
                    f"{directory} can't be read: {error}", hint="another version of skerry wrote it, or it is damaged"
                ) from error
        return sorted(found, key=lambda record: record.at)

    def forget(self, id: str) -> None:  # noqa: A002
        with suppress(FileNotFoundError):
            (self.directory(id) / _FILE).unlink()
        shutil.rmtree(self.directory(id), ignore_errors=True)

    def drop_unused(self, id: str) -> None:  # noqa: A002
        """What was gathered for an apply that did not come to be."""
        if not (self.directory(id) / _FILE).exists():
            shutil.rmtree(self.directory(id), ignore_errors=True)

    def sweep(self) -> None:
        """What was begun and never came to a record, and what is too old to be taken back."""
        records = self.records()
        known = {record.id for record in records}
        for directory in list(self._records.iterdir()):
            if directory.name not in known:
                shutil.rmtree(directory, ignore_errors=True)
        settled = [record for record in records if record.state == "closed" and record.told]
        for record in settled[:-KEPT]:
            self.forget(record.id)

    def last(self, sandbox: str) -> Record | None:
        """The newest apply of a sandbox, by id or name, that was not taken back."""
        finished = ("done", "closed")
        records = [r for r in self.records() if sandbox in (r.sandbox, r.name) and r.state in finished]
        undone = {record.undoes for record in records if record.undoes}
        standing = [record for record in records if record.undoes is None and record.id not in undone]
        return standing[-1] if standing else None

    def untold(self, sandbox: str) -> Iterator[Record]:
        """What the server was not told yet, oldest first."""
        ours = (record for record in self.records() if record.sandbox == sandbox)
        return (record for record in ours if record.state in ("done", "closed") and not record.told)

    def next_moment(self) -> float:
        """Later than all that is recorded, also where the clock was set back."""
        return max([time.time(), *(record.at + 0.001 for record in self.records())])


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
