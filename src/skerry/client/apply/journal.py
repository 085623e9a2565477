"""The journal of applies to one tree: the changes of each, its progress, and the contents needed to undo it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from skerry.client.apply.content import Contents
from skerry.client.apply.tree import PathState
from skerry.client.host.posix import require_posix
from skerry.errors import Conflict
from skerry.types.values import Value

MAX_RECORDS: Final = 20  # applies of one tree that can be undone
_FILE: Final = "record.json"

State = Literal["staging", "writing", "done", "closed"]
"""`staging`: nothing was changed yet. `writing`: some of it may have been. `done`: all of it, and what it replaced
lies beside it. `closed`: that is cleared up too."""


class FileVersion(Value, frozen=True, kw_only=True):
    """A file or link before or after. `mode`: permission bits; None: those of a new file, subject to the umask."""

    kind: Literal["file", "link"]
    oid: str
    size: int
    executable: bool = False
    mode: int | None = None

    def is_at(self, found: PathState | None) -> bool:
        return found is not None and (found.kind, found.oid, found.executable) == (self.kind, self.oid, self.executable)


class PathChange(Value, frozen=True, kw_only=True):
    """The change of one path. `aside`: the temporary name beside it, first of the new file, then of the replaced one.
    `mark`: identifies the replaced file as it was examined."""

    path: bytes
    how: Literal["written", "merged", "removed"]
    before: FileVersion | None = None
    after: FileVersion | None = None
    aside: bytes = b""
    mark: tuple[int, ...] = ()


class RefUpdate(Value, frozen=True, kw_only=True):
    """The commit of an apply: `ref` moves from `old` ("": it did not exist) to `new`. `entries`: the new index entry of
    each path whose entry equals the old commit's: mode and object of both, or None."""

    ref: str
    old: str
    new: str
    branch: str | None = None
    entries: tuple[tuple[bytes, str | None, str | None, str | None, str | None], ...] = ()


class ApplyRecord(Value, frozen=True, kw_only=True):
    """One apply or one undo (`undoes`: the ID of the apply). `name`: of the sandbox, if any. `made`, `removed`:
    directories, in order. `reported`: the server has been notified."""

    id: str
    sandbox: str
    root: str
    name: str | None = None
    state: State = "staging"
    at: float = 0.0
    digest: str | None = None
    hunks: tuple[str, ...] = ()
    changes: tuple[PathChange, ...] = ()
    same: tuple[bytes, ...] = ()
    made: tuple[bytes, ...] = ()
    removed: tuple[tuple[bytes, int], ...] = ()
    commit: RefUpdate | None = None
    undoes: str | None = None
    reported: bool = msgspec.field(default=False, name="told")  # the name in journals of earlier versions


class Journal:
    """The journal directory of one tree. Every change of the tree happens under its lock."""

    def __init__(self, place: Path) -> None:
        require_posix("applying changes")
        self.place = place
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._records = place / "applies"
        self._records.mkdir(mode=0o700, exist_ok=True)
        self._lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Close the journal. The lock ends with its descriptor, also if this process is killed."""
        os.close(self._lock)

    def try_lock(self) -> bool:
        import fcntl  # Windows lacks it

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def directory(self, id: str) -> Path:  # noqa: A002
        return self._records / id

    def contents(self, id: str) -> Contents:  # noqa: A002
        return Contents(self.directory(id) / "contents")

    def save(self, record: ApplyRecord) -> ApplyRecord:
        """Write a record atomically and durably, before any action that depends on it."""
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

    def records(self) -> list[ApplyRecord]:
        """Return the records, oldest first. A directory without a record belongs to an apply that never started."""
        found = []
        for directory in self._records.iterdir():
            try:
                found.append(msgspec.json.decode((directory / _FILE).read_bytes(), type=ApplyRecord))
            except FileNotFoundError:
                continue
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise Conflict(
                    f"{directory} cannot be read: {error}", hint="another version of skerry wrote it, or it is damaged"
                ) from error
        return sorted(found, key=lambda record: record.at)

    def forget(self, id: str) -> None:  # noqa: A002
        with suppress(FileNotFoundError):
            (self.directory(id) / _FILE).unlink()
        shutil.rmtree(self.directory(id), ignore_errors=True)

    def drop_unused(self, id: str) -> None:  # noqa: A002
        """Remove the contents that were gathered for an apply that did not happen."""
        if not (self.directory(id) / _FILE).exists():
            shutil.rmtree(self.directory(id), ignore_errors=True)

    def sweep(self) -> None:
        """Remove directories without a record, and records too old to undo."""
        records = self.records()
        known = {record.id for record in records}
        for directory in list(self._records.iterdir()):
            if directory.name not in known:
                shutil.rmtree(directory, ignore_errors=True)
        settled = [record for record in records if record.state == "closed" and record.reported]
        for record in settled[:-MAX_RECORDS]:
            self.forget(record.id)

    def last(self, sandbox: str) -> ApplyRecord | None:
        """Return the newest apply of a sandbox, by ID or name, that was not undone."""
        finished = ("done", "closed")
        records = [r for r in self.records() if sandbox in (r.sandbox, r.name) and r.state in finished]
        undone = {record.undoes for record in records if record.undoes}
        standing = [record for record in records if record.undoes is None and record.id not in undone]
        return standing[-1] if standing else None

    def unreported(self, sandbox: str) -> Iterator[ApplyRecord]:
        """Yield the records that the server has not been notified of, oldest first."""
        ours = (record for record in self.records() if record.sandbox == sandbox)
        return (record for record in ours if record.state in ("done", "closed") and not record.reported)

    def next_time(self) -> float:
        """Return a time later than all records, also if the clock was set back."""
        return max([time.time(), *(record.at + 0.001 for record in self.records())])


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
