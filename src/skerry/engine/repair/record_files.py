"""Record files: a copy of the database's rows beside the data that they describe.

<storage>/r/<id>.json        a sandbox (with its previews and contexts), a snapshot, a volume, a token, or a budget
<state>/ledgers/<id>/record.json   a review: its state, decisions and applies

A record file holds everything that is needed to insert its rows into a new database. `change` is the database's
counter when the rows were read: a record file with a higher number than the database's proves that the database lost
changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from skerry.engine.faults import fault_point
from skerry.storage import tree
from skerry.types import SANDBOX_ID

Kind = Literal["sandbox", "snapshot", "volume", "review", "token", "budget"]
Key = tuple[str, str]  # kind and id
Row = dict[str, str | int | float | None]
VERSION: Final = 1
LEDGER_RECORD: Final = "record.json"
_ID: Final = re.compile(r"[a-z]{2}-[a-z0-9]{1,60}")
_PREFIX: Final = {"sandbox": "sb-", "snapshot": "sn-", "volume": "vl-", "token": "tk-", "budget": "bu-"}


@dataclass(frozen=True)
class RecordedTable:
    """A table of which record files have the rows with `column` = id, except those that `left_out` selects."""

    name: str
    column: str
    left_out: str = "0"


# The first table of each kind has one row per object: without it, the object does not exist. Offered patch sets are
# large, and a client can request them again.
TABLES: Final[dict[str, tuple[RecordedTable, ...]]] = {
    "sandbox": (
        RecordedTable("sandboxes", "id"), RecordedTable("previews", "sandbox"), RecordedTable("contexts", "sandbox"),
    ),
    "snapshot": (RecordedTable("snapshots", "id"),),
    "volume": (RecordedTable("volumes", "id"),),
    "review": (
        RecordedTable("reviews", "sandbox"), RecordedTable("decisions", "sandbox"),
        RecordedTable("applies", "sandbox", "undone = 2"),
    ),
    "token": (RecordedTable("tokens", "id"),),
    "budget": (RecordedTable("budgets", "id"),),
}  # fmt: skip


class RecordFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    database: str  # the identity of the database
    schema: int
    change: int
    kind: Kind
    id: str
    tables: dict[str, list[Row]]  # columns of type BLOB in hexadecimal digits

    @property
    def key(self) -> Key:
        return self.kind, self.id

    @property
    def row(self) -> Row:
        """Return the row of the object itself."""
        return self.tables[TABLES[self.kind][0].name][0]


_decoder = msgspec.json.Decoder(RecordFile)


@dataclass(frozen=True)
class FoundRecords:
    """The record files on disk. `damaged`: files that can't be read, with the reason."""

    files: dict[Key, RecordFile] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)


class RecordFiles:
    """The record files of one state directory."""

    def __init__(self, directory: Path, ledgers: Path) -> None:
        self._directory, self._ledgers = tree.private_directory(directory), ledgers

    def path(self, key: Key) -> Path:
        kind, name = key
        if not _ID.fullmatch(name):
            raise ValueError(f"{name!r} is not the id of a {kind}")
        return self._ledgers / name / LEDGER_RECORD if kind == "review" else self._directory / f"{name}.json"

    def load(self) -> FoundRecords:
        """Read all record files. Remove those that a killed server was still writing."""
        found = FoundRecords()
        for path in sorted(self._paths()):
            if path.name.startswith("."):
                path.unlink()
                continue
            try:
                record = _checked(_decoder.decode(path.read_bytes()))
                if self.path(record.key) != path:
                    raise ValueError(f"it describes the {record.kind} {record.id}")
                found.files[record.key] = record
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                found.damaged[path] = str(error)
        return found

    def _paths(self) -> Iterator[Path]:
        yield from self._directory.iterdir()
        with contextlib.suppress(FileNotFoundError):
            for ledger in os.listdir(self._ledgers):
                if SANDBOX_ID.fullmatch(ledger):
                    place = self._ledgers / ledger
                    yield from (path for path in (place / LEDGER_RECORD, place / f".{LEDGER_RECORD}") if path.exists())

    def write(self, key: Key, data: bytes, *, durable: bool) -> None:
        """Replace a record file: complete or not at all, also after a power failure if it is `durable`. A review whose
        ledger is gone needs none."""
        path = self.path(key)
        draft = path.with_name(f".{path.name}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(draft, flags, 0o600)
        except FileNotFoundError:
            return
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(fd)
        fault_point("record.written")
        with contextlib.suppress(FileNotFoundError):  # the ledger was removed meanwhile
            os.rename(draft, path)
            fault_point("record.renamed")
            if durable:
                tree.sync(path.parent)
        fault_point("record.synced")

    def remove(self, key: Key) -> None:
        self.path(key).unlink(missing_ok=True)


def _checked(record: RecordFile) -> RecordFile:
    if record.id[:3] != _PREFIX.get(record.kind, "sb-"):
        raise ValueError(f"{record.id!r} is not the id of a {record.kind}")
    wanted = {table.name for table in TABLES[record.kind]}
    if record.tables.keys() != wanted or len(record.tables[TABLES[record.kind][0].name]) != 1:
        raise ValueError("its tables are incomplete")
    for table in TABLES[record.kind]:
        if any(row.get(table.column) != record.id for row in record.tables[table.name]):
            raise ValueError(f"a row of {table.name} belongs to another object")
    return record


# -- rows -------------------------------------------------------------------------------------------------------------


def encode_record(connection: sqlite3.Connection, key: Key) -> bytes | None:
    """Return the record file of an object; None if it does not exist. The caller has begun a transaction.

    SQLite builds the JSON: it works without the GIL, and a review may have tens of thousands of rows."""
    kind, name = key
    rows = {table.name: _rows(connection, table, name) for table in TABLES[kind]}
    if rows[TABLES[kind][0].name] == "[]":
        return None
    identity, change = connection.execute("SELECT id, change FROM identity").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    head = {"version": VERSION, "database": identity, "schema": schema, "change": change, "kind": kind, "id": name}
    tables = ",".join(f'"{table}":{text}' for table, text in rows.items())
    return msgspec.json.encode(head)[:-1] + f',"tables":{{{tables}}}}}'.encode()


def read_record(connection: sqlite3.Connection, key: Key) -> RecordFile | None:
    data = encode_record(connection, key)
    return _decoder.decode(data) if data is not None else None


def _rows(connection: sqlite3.Connection, table: RecordedTable, name: str) -> str:
    columns = _column_types(connection, table.name)
    pairs = ", ".join(f"'{column}', {_json_value(column, kind)}" for column, kind in columns.items())
    where = f"{table.column} = ? AND NOT ({table.left_out}) ORDER BY rowid"
    query = f"SELECT json_group_array(json_object({pairs})) FROM (SELECT * FROM {table.name} WHERE {where})"  # noqa: S608
    return str(connection.execute(query, (name,)).fetchone()[0])


def _json_value(column: str, kind: str) -> str:
    if kind == "BLOB":
        return f"iif({column} IS NULL, NULL, hex({column}))"
    if kind == "REAL":  # json_object would round it
        return f"iif({column} IS NULL, NULL, json(printf('%!.17g', {column})))"
    return column


def insert_record(cursor: sqlite3.Cursor, record: RecordFile) -> None:
    """Replace the rows of an object by those of its record file. The database has the record's schema."""
    for table in TABLES[record.kind]:
        cursor.execute(f"DELETE FROM {table.name} WHERE {table.column} = ?", (record.id,))  # noqa: S608
        types = _column_types(cursor, table.name)
        for row in record.tables[table.name]:
            if unknown := row.keys() - types.keys():
                raise ValueError(f"{table.name} has no column {min(unknown)!r}")
            names = ", ".join(f'"{name}"' for name in row)
            values = [blob(v) if types.get(n) == "BLOB" and v is not None else v for n, v in row.items()]
            marks = ", ".join("?" * len(values))
            cursor.execute(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", values)  # noqa: S608


def remove_rows(cursor: sqlite3.Cursor, key: Key) -> None:
    for table in TABLES[key[0]]:
        cursor.execute(f"DELETE FROM {table.name} WHERE {table.column} = ?", (key[1],))  # noqa: S608


def all_keys(connection: sqlite3.Connection | sqlite3.Cursor) -> set[Key]:
    """Return every object of the database that has a record file."""
    found: set[Key] = set()
    for kind, (first, *_) in TABLES.items():
        found |= {(kind, row[0]) for row in connection.execute(f"SELECT {first.column} FROM {first.name}")}  # noqa: S608
    return found


def watch_tables(connection: sqlite3.Connection) -> None:
    """Collect the keys of changed objects in the temporary table `changed`."""
    connection.execute("CREATE TEMP TABLE changed (kind TEXT, id TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID")
    for kind, tables in TABLES.items():
        for table in tables:
            for event, names in (("INSERT", ("NEW",)), ("UPDATE", ("OLD", "NEW")), ("DELETE", ("OLD",))):
                work = "".join(
                    f"INSERT OR IGNORE INTO changed VALUES ('{kind}', {name}.{table.column});"  # noqa: S608
                    for name in names
                )
                connection.execute(
                    f"CREATE TEMP TRIGGER {table.name}_{event} AFTER {event} ON main.{table.name} BEGIN {work} END"
                )


def take_changed(cursor: sqlite3.Cursor) -> list[Key]:
    """Return the objects that this transaction changed, and count the change."""
    changed = [(row[0], row[1]) for row in cursor.execute("SELECT kind, id FROM changed").fetchall()]
    if changed:
        cursor.execute("DELETE FROM changed")
        cursor.execute("UPDATE identity SET change = change + 1")
    return changed


def is_durable(connection: sqlite3.Connection, key: Key) -> bool:
    """Return whether the record must survive a power failure: unnamed sandboxes end with the host anyway."""
    query = "SELECT 1 FROM sandboxes WHERE id = ? AND name IS NULL"
    return key[0] != "sandbox" or connection.execute(query, (key[1],)).fetchone() is None


def schema_order(records: Iterable[RecordFile]) -> list[RecordFile]:
    """Return records by schema and, within one, the latest change first: of two with one name, that keeps it."""
    return sorted(records, key=lambda record: (record.schema, -record.change, record.id))


def blob(value: object) -> bytes:
    """Return the bytes of a BLOB in a record file."""
    return bytes.fromhex(str(value))


def _column_types(connection: sqlite3.Connection | sqlite3.Cursor, table: str) -> dict[str, str]:
    return {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()}
