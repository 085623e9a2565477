"""The index of the audit log: finds the lines of a filter. It holds places in segments, never the records themselves,
and is made again from the segments if it is lost, damaged or behind.

A page looks at a bounded number of rows: with filters that rarely agree, it is short and names the next page.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry.engine.records.audit.chain import RESULT, SEAL, Line, decode
from skerry.engine.records.audit.verification import Place, Segment
from skerry.errors import AuditUnavailable
from skerry.types import AuditPage, AuditRecord, AuditResult

log = logging.getLogger("skerry.engine")
VERSION: Final = 1
MAX_SCANNED: Final = 10_000  # rows of a page
BATCH: Final = 2_000
MAX_NAMES: Final = 10_000  # in memory
_SCHEMA: Final = """
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    latest INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    type INTEGER NOT NULL,
    family INTEGER NOT NULL,
    owner INTEGER,
    actor INTEGER,
    sandbox INTEGER,
    result_segment INTEGER,
    result_offset INTEGER
);
CREATE INDEX by_type ON records (type);
CREATE INDEX by_family ON records (family);
CREATE INDEX by_owner ON records (owner);
CREATE INDEX by_actor ON records (actor);
CREATE INDEX by_sandbox ON records (sandbox) WHERE sandbox IS NOT NULL;
CREATE TABLE position (segment INTEGER NOT NULL, offset INTEGER NOT NULL, latest INTEGER NOT NULL);
INSERT INTO position VALUES (0, 0, 0);
"""
_COLUMNS: Final = ("sandbox", "actor", "type", "family", "owner")  # the first that is given selects the index


@dataclass(frozen=True)
class AuditFilter:
    """Which records a page has. `type`: a type, or the part before its dot. `owner` None: of all owners."""

    owner: str | None = None
    sandbox: str | None = None
    actor: str | None = None
    type: str | None = None
    since: float | None = None


class AuditIndex:
    """Used by one thread at a time, under its lock; never by the event loop's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}
        self._database = self._connect()

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._prepare()
        except sqlite3.OperationalError:  # a full disk is no damage
            raise
        except sqlite3.DatabaseError as error:
            log.warning("the index of the audit log is made again", extra={"error": str(error)})
            for suffix in ("", "-wal", "-shm", "-journal"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            return self._prepare()

    def _prepare(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = OFF")  # it can be made again
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError(f"version {version}")
            if not version:
                database.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
            self._names.clear()
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        with self._lock:
            self._database.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def update(self, segments: Sequence[Segment]) -> None:
        """Add the lines that the segments have beyond the index. Raise AuditUnavailable if the disk is full."""
        with self._lock:
            try:
                self._update_or_replace(segments)
            except sqlite3.OperationalError as error:
                raise AuditUnavailable(f"the index of the audit log cannot be written: {error}") from error

    def _update_or_replace(self, segments: Sequence[Segment]) -> None:
        try:
            self._update(segments)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            with suppress(sqlite3.Error):
                self._database.close()
            self._path.unlink(missing_ok=True)
            self._database = self._connect()
            self._update(segments)

    def _update(self, segments: Sequence[Segment]) -> None:
        segment, offset, latest = self._database.execute("SELECT * FROM position").fetchone()
        if segment and not _is_there(segments, segment, offset):  # the log is another one
            self._database.executescript(
                "DELETE FROM records; UPDATE position SET segment = 0, offset = 0, latest = 0;"
            )
            segment, offset, latest = 0, 0, 0
        if (
            segments
            and self._database.execute("SELECT 1 FROM records WHERE seq < ? LIMIT 1", (segments[0].first,)).fetchone()
        ):
            self._database.execute("DELETE FROM records WHERE seq < ?", (segments[0].first,))
        for one in segments:
            if one.first >= segment:
                start = offset if one.first == segment else 0
                latest = self._add(one, start, latest)

    def _add(self, segment: Segment, offset: int, latest: int) -> int:
        try:
            opened = segment.path.open("rb", buffering=1 << 20)
        except FileNotFoundError:  # retention has just removed it
            return latest
        with closing(opened) as file:
            file.seek(offset)
            while batch := _batch(file):
                cursor = self._database.cursor()
                cursor.execute("BEGIN")
                try:
                    for data in batch:
                        latest = self._insert(cursor, data, Place(segment.first, offset), latest)
                        offset += len(data)
                    cursor.execute(
                        "UPDATE position SET segment = ?, offset = ?, latest = ?", (segment.first, offset, latest)
                    )
                    cursor.execute("COMMIT")
                except BaseException:
                    if self._database.in_transaction:  # a full disk has rolled it back already
                        cursor.execute("ROLLBACK")
                    self._names.clear()
                    raise
        return latest

    def _insert(self, cursor: sqlite3.Cursor, data: bytes, place: Place, latest: int) -> int:
        try:
            line = decode(data[:-1])
        except ValueError:  # verification reports it
            return latest
        latest = max(latest, int(line.at * 1000))
        if line.type == RESULT:
            cursor.execute(
                "UPDATE records SET result_segment = ?, result_offset = ?, sandbox = coalesce(sandbox, ?)"
                " WHERE seq = ?",
                (place.segment, place.offset, self._name(cursor, line.sandbox), line.of),
            )
        elif line.type != SEAL:
            family = line.type.partition(".")[0]
            texts = (line.type, family, line.owner, line.actor, line.sandbox)
            numbers = [self._name(cursor, text) for text in texts]
            cursor.execute(
                "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                (line.seq, latest, place.segment, place.offset, *numbers),
            )
        return latest

    def _name(self, cursor: sqlite3.Cursor, text: str | None) -> int | None:
        if text is None:
            return None
        number = self._number(text)
        if number is None:
            cursor.execute("INSERT INTO names (name) VALUES (?)", (text,))
            number = self._names[text] = cursor.lastrowid or 0
        return number

    def _number(self, text: str) -> int | None:
        """Return the number of a name that has occurred. Sandboxes come and go, so few names are kept in memory."""
        if text not in self._names:
            found = self._database.execute("SELECT id FROM names WHERE name = ?", (text,)).fetchone()
            if found is None:
                return None
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            self._names[text] = found[0]
        return self._names[text]

    # -- reading ------------------------------------------------------------------------------------------------------

    def page(self, wanted: AuditFilter, before: int | None, limit: int, segments: Sequence[Segment]) -> AuditPage:
        """Return records below number `before`, newest first."""
        with self._lock:
            found = self._find(wanted, before, limit)
        if found is None:
            return AuditPage(records=())
        rows, following = found
        paths = {segment.first: segment.path for segment in segments}
        with _Reader(paths) as reader:
            records = tuple(record for row in rows if (record := reader.record(row)) is not None)
        if wanted.since is not None:
            records = tuple(record for record in records if record.at >= wanted.since)
        return AuditPage(records=records, next=following)

    def _find(
        self, wanted: AuditFilter, before: int | None, limit: int
    ) -> tuple[list[tuple[int, ...]], int | None] | None:
        terms = self._terms(wanted)
        if terms is None:
            return None
        floor = self._floor(wanted.since) if wanted.since is not None else 0
        first = [f"{terms[0][0]} = ?"] if terms else []
        index = f"INDEXED BY by_{terms[0][0]}" if terms else "NOT INDEXED"
        bounds = " AND ".join([*first, "seq < ?", "seq >= ?"])
        inner = f"SELECT * FROM records {index} WHERE {bounds} ORDER BY seq DESC LIMIT {MAX_SCANNED}"  # noqa: S608
        values = [number for _, number in terms[:1]] + [before or 1 << 62, floor]
        others = " AND ".join(f"{column} = ?" for column, _ in terms[1:]) or "1"
        rows = self._database.execute(
            f"SELECT seq, segment, offset, result_segment, result_offset FROM ({inner}) WHERE {others} LIMIT ?",  # noqa: S608
            (*values, *(number for _, number in terms[1:]), limit),
        ).fetchall()
        if len(rows) == limit:
            return rows, rows[-1][0]
        last = f"SELECT seq FROM records {index} WHERE {bounds} ORDER BY seq DESC LIMIT 1 OFFSET {MAX_SCANNED - 1}"  # noqa: S608
        lowest = self._database.execute(last, values).fetchone()  # of the index alone: a tenth of the time of the rows
        return rows, lowest[0] if lowest is not None else None

    def _terms(self, wanted: AuditFilter) -> list[tuple[str, int]] | None:
        """Return columns with the numbers of their values; None if a value never occurred."""
        terms = []
        for column in _COLUMNS:
            text = wanted.type if column == "family" else getattr(wanted, column)
            if column in ("type", "family") and text is not None and ("." in text) != (column == "type"):
                continue
            if text is not None:
                number = self._number(text)
                if number is None:
                    return None
                terms.append((column, number))
        return terms

    def _floor(self, since: float) -> int:
        """Return a number below which all records are older. `latest` never falls, also if the clock was set back."""
        (low,) = self._database.execute("SELECT min(seq) FROM records").fetchone()
        (last,) = self._database.execute("SELECT max(seq) FROM records").fetchone()  # both at once would read all rows
        if low is None:
            return 0
        high, limit = last + 1, int(since * 1000)
        while low < high:
            middle = (low + high) // 2
            row = self._database.execute("SELECT seq, latest FROM records WHERE seq >= ? LIMIT 1", (middle,)).fetchone()
            if row is None or row[1] >= limit:
                high = middle
            else:
                low = row[0] + 1
        return int(low)


class _Reader:
    """Reads lines of segments for one page."""

    def __init__(self, paths: dict[int, Path]) -> None:
        self._paths, self._files = paths, dict[int, object]()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()  # type: ignore[attr-defined]

    def line(self, segment: int, offset: int) -> Line | None:
        file = self._files.get(segment)
        if file is None:
            try:
                file = self._files[segment] = self._paths[segment].open("rb", buffering=1024)
            except (KeyError, OSError):  # retention has just removed it
                return None
        file.seek(offset)  # type: ignore[attr-defined]
        with suppress(ValueError):
            return decode(file.readline().rstrip(b"\n"))  # type: ignore[attr-defined]
        return None

    def record(self, row: tuple[int, ...]) -> AuditRecord | None:
        seq, segment, offset, result_segment, result_offset = row
        line = self.line(segment, offset)
        if line is None or line.seq != seq:
            return None
        ended = self.line(result_segment, result_offset) if result_segment is not None else None
        return _record(line, ended)


def _record(line: Line, ended: Line | None) -> AuditRecord:
    params = dict(line.params or {})
    if line.reason is not None:
        params["reason"] = line.reason
    if line.first is not None:
        params["first"] = line.first
    result = None
    if ended is not None:
        result = AuditResult(at=ended.at, status=ended.status or 0, code=ended.code, details=ended.params or {})
    sandbox = line.sandbox or (ended.sandbox if ended is not None else None)
    return AuditRecord(
        seq=line.seq, at=line.at, type=line.type, owner=line.owner, actor=line.actor, source=line.source,
        sandbox=sandbox, params=params, result=result,
    )  # fmt: skip


def _is_there(segments: Sequence[Segment], first: int, offset: int) -> bool:
    """Return whether the indexed position exists, or retention has removed its segment."""
    for segment in segments:
        if segment.first == first:
            with suppress(FileNotFoundError):  # retention has just removed it
                return segment.path.stat().st_size >= offset
            return True
    return bool(segments) and segments[0].first > first


def _batch(file: Iterable[bytes]) -> list[bytes]:
    lines = []
    for data in file:
        if not data.endswith(b"\n"):
            break
        lines.append(data)
        if len(lines) == BATCH:
            break
    return lines
