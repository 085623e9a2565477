"""Examine the database at start, and rebuild it from the record files if it lost data.

A missing or empty database, and one that is older than the record files, are rebuilt by the starting server. A damaged
database, or the database of another state directory, needs `skerry server repair`. The former database is kept under
another name in every case.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import msgspec

from skerry.config import Settings
from skerry.engine.code.context_table import ContextRecord
from skerry.engine.database import SCHEMA_VERSION, Database, migrate, newer_schema, release_reserve
from skerry.engine.host import Host
from skerry.engine.repair.quarantine import Quarantine, QuarantineEntry, read_entries, write_entry
from skerry.engine.repair.record_files import (
    TABLES,
    FoundRecords,
    Key,
    RecordFile,
    RecordFiles,
    all_keys,
    blob,
    insert_record,
    read_record,
    remove_rows,
    schema_order,
)
from skerry.engine.repair.record_writer import RecordWriter
from skerry.engine.review.tables import ReviewRecord
from skerry.engine.sandboxes.record import POOL_OWNER, RecordState, decode_sandbox
from skerry.engine.state_dir import StateDir
from skerry.errors import Conflict
from skerry.storage import tree
from skerry.types import Budget, SnapshotInfo, VolumeInfo

log = logging.getLogger("skerry.engine")
REPAIR_HINT = (
    "`skerry server repair --dry-run` lists the repairs; `skerry server repair` makes them and keeps the database"
)
MAX_CHECKED = 32 << 20  # bytes: a larger file is checked row by row only
Condition = Literal["ok", "empty", "behind", "foreign", "damaged"]
_DRAFT = "state.db.new"


class RepairAction(msgspec.Struct, frozen=True):
    """One change of a repair: rebuild, insert, replace, drop, rename, skip or quarantine."""

    action: str
    kind: str
    id: str
    detail: str = ""


@dataclass
class Findings:
    """The state of a database and its record files before a repair."""

    condition: Condition
    problem: str = ""
    change: int = 0
    bad_rows: dict[Key, str] = field(default_factory=dict)
    records: FoundRecords = field(default_factory=FoundRecords)

    @property
    def is_automatic(self) -> bool:
        """Return whether a starting server makes the repair."""
        return self.condition in ("empty", "behind") and not self.bad_rows


def open_database(path: Path, host: Host) -> Database:
    """Open the database of a state directory. Rebuild it if it was lost; raise Conflict if it is damaged."""
    release_reserve(path)
    files = record_files(host)
    found = examine(path, files)
    if found.condition in ("foreign", "damaged") or found.bad_rows:
        raise Conflict(f"the database {path} can't be used: {found.problem}", hint=REPAIR_HINT)
    if found.condition == "behind" or (found.condition == "empty" and found.records.files):
        for action in repair(path, host, found):
            log.warning("rebuilt the database", extra=msgspec.structs.asdict(action))
    writer = RecordWriter(path, files)
    database = Database(path, writer)
    writer.compare(found.records.files)
    return database


def record_files(host: Host) -> RecordFiles:
    return RecordFiles(host.driver.records, host.settings.state_dir / "ledgers")


# -- examination ------------------------------------------------------------------------------------------------------


def examine(path: Path, files: RecordFiles) -> Findings:
    """Compare the database with the record files. Changes nothing but leftovers of a killed writer."""
    records = files.load()
    if not path.exists() or path.stat().st_size == 0:
        return Findings("empty", "it is missing or empty", records=records)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            return _compare(connection, path, records)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
            raise  # for example, the disk is full: the database itself is not damaged
        return Findings("damaged", str(error), records=records)


def _compare(connection: sqlite3.Connection, path: Path, records: FoundRecords) -> Findings:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    newest = max([version, *(record.schema for record in records.files.values())])
    if newest > SCHEMA_VERSION:
        raise newer_schema(path, newest)
    if path.stat().st_size <= MAX_CHECKED:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            return Findings("damaged", answer, records=records)
    if version == 0 and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        return Findings("empty", "it has no tables", records=records)
    if version < SCHEMA_VERSION:  # older than identities, or than a column that rows are checked for
        return _compare_older(records)
    found = Findings("ok", records=records, bad_rows=bad_rows(connection))
    if found.bad_rows:
        found.problem = "; ".join(f"the row of {kind} {name}: {why}" for (kind, name), why in found.bad_rows.items())
    identity, found.change = connection.execute("SELECT id, change FROM identity").fetchone()
    owners = {record.database for record in records.files.values()}
    if owners - {identity}:
        found.condition, found.problem = "foreign", "the data beside it belongs to another database"
    elif max((record.change for record in records.files.values()), default=0) > found.change:
        found.condition, found.problem = "behind", "it is older than the record files"
    return found


def _compare_older(records: FoundRecords) -> Findings:
    if any(record.schema == SCHEMA_VERSION for record in records.files.values()):
        return Findings("foreign", "its schema is older than the record files", records=records)
    return Findings("ok", records=records)


def bad_rows(connection: sqlite3.Connection) -> dict[Key, str]:
    """Return the objects with rows that can't be decoded, with the reason."""
    bodies: tuple[tuple[str, str, type], ...] = (
        ("snapshot", "SELECT id, body FROM snapshots", SnapshotInfo),
        ("volume", "SELECT id, body FROM volumes", VolumeInfo),
        ("review", "SELECT sandbox, body FROM reviews", ReviewRecord),
        ("sandbox", "SELECT sandbox, body FROM contexts", ContextRecord),
        ("budget", "SELECT id, body FROM budgets", Budget),
    )
    found: dict[Key, str] = {}

    def check(kind: str, name: str, decode: Callable[[], object]) -> None:
        try:
            decode()
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            found[kind, name] = str(error)

    for row in connection.execute("SELECT * FROM sandboxes"):
        check("sandbox", row["id"], lambda row=row: _check_sandbox(row))  # type: ignore[misc]
    for kind, query, value in bodies:
        for name, body in connection.execute(query):
            check(kind, name, lambda body=body, value=value: msgspec.json.decode(body, type=value))  # type: ignore[misc]
    return found


def _check_sandbox(row: sqlite3.Row) -> None:
    if decode_sandbox(row).state not in get_args(RecordState):
        raise ValueError(f"unknown state {row['state']!r}")


# -- repair -----------------------------------------------------------------------------------------------------------


def repair(path: Path, host: Host, found: Findings, *, dry_run: bool = False) -> list[RepairAction]:
    """Build a repaired database beside the present one and put it in its place. Return the changes."""
    draft = path.with_name(_DRAFT)
    draft.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            work = _Repair(connection, host, found)
            work.run(path)
        if not dry_run and work.actions:
            for entry in work.quarantined:
                write_entry(tree.private_directory(host.settings.state_dir / "quarantine"), entry)
            swap_database(path, draft, "corrupt" if found.condition == "damaged" else "replaced")
        return work.actions
    finally:
        draft.unlink(missing_ok=True)


def swap_database(path: Path, draft: Path, word: str) -> None:
    """Keep the old files together: the write-ahead log may have changes that the file lacks."""
    os.chmod(draft, 0o600)
    tree.sync(draft)
    aside = path.with_name(f"{path.name}.{word}-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}")
    for ending in ("-wal", "-shm", ""):
        old = path.with_name(path.name + ending)
        if old.exists() and old.stat().st_size > 0:
            os.rename(old, aside.with_name(aside.name + ending))
        old.unlink(missing_ok=True)
    os.rename(draft, path)
    tree.sync(path.parent)


class _Repair:
    """One repair, on the draft of a database."""

    def __init__(self, connection: sqlite3.Connection, host: Host, found: Findings) -> None:
        self._connection, self._found = connection, found
        self._layers, self._ledgers = host.layers, host.settings.state_dir / "ledgers"
        self._uppers, self._volumes = host.driver.uppers(), host.driver.volumes()
        self.actions: list[RepairAction] = []
        self.quarantined: list[QuarantineEntry] = []

    def run(self, path: Path) -> None:
        if self._found.condition in ("ok", "behind"):
            self._copy(path)
        else:
            self._build()
        self._connection.execute("BEGIN")
        self._set_bad_rows_aside()
        if self.actions:
            self._identify()
            # Not known: the next limit that is reached counts from then on.
            self._connection.execute("INSERT OR REPLACE INTO limit_counters SELECT id, -1, -1 FROM sandboxes")
        self._connection.execute("COMMIT")

    def _build(self) -> None:
        """Insert each record at the schema that it was written with: later steps of the schema change its rows too."""
        version = 0
        if self._found.condition != "empty" or self._found.records.files:
            self._note("rebuild", "database", "state.db", self._found.problem)
        for record in schema_order(self._found.records.files.values()):
            migrate(self._connection, version, record.schema)
            version = record.schema
            self._insert(record, "insert")
        migrate(self._connection, version)

    def _copy(self, path: Path) -> None:
        """Start from the present database: newer record files win, and rows without data and record file go."""
        with closing(sqlite3.connect(path)) as present:
            present.backup(self._connection)
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        migrate(self._connection, version)
        records = self._found.records.files
        if self._found.condition == "behind":
            for key in all_keys(self._connection) - records.keys():
                record = read_record(self._connection, key)
                if record is not None and (record.kind in ("token", "budget") or not self._has_data(record)):
                    remove_rows(self._connection.cursor(), key)
                    self._note("drop", *key, "it was deleted after this state of the database")
        for record in schema_order(records.values()):
            if record.key in self._found.bad_rows or record.change > self._found.change:
                self._insert(record, "replace")

    def _insert(self, record: RecordFile, word: str) -> None:
        if not self._has_data(record):
            self._note("skip", *record.key, "its data does not exist")
        elif record.kind == "sandbox" and record.row["state"] == "creating" and record.row["owner"] != POOL_OWNER:
            self._set_aside(record, "its state is unknown: it was being created")
        else:
            self._insert_row(record, word)

    def _insert_row(self, record: RecordFile, word: str) -> None:
        cursor = self._connection.cursor()
        cursor.execute("SAVEPOINT one")
        try:
            try:
                insert_record(cursor, record)
            except sqlite3.IntegrityError:
                record = _renamed(record)
                cursor.execute("ROLLBACK TO one")
                insert_record(cursor, record)
                self._note("rename", *record.key, f"another {record.kind} has its name; now {record.row.get('name')}")
            self._note(word, *record.key, str(record.row.get("name") or ""))
        except (sqlite3.Error, ValueError) as error:
            cursor.execute("ROLLBACK TO one")
            self._set_aside(record, f"its record file can't be used: {error}")
        finally:
            cursor.execute("RELEASE one")

    def _set_bad_rows_aside(self) -> None:
        for (kind, name), why in bad_rows(self._connection).items():
            if (record := read_record(self._connection, (kind, name))) is not None:
                self._set_aside(record, f"its row can't be read: {why}")
            remove_rows(self._connection.cursor(), (kind, name))

    def _set_aside(self, record: RecordFile, why: str) -> None:
        """Keep the record in the quarantine. The next server moves its data there, because it has no row."""
        content = msgspec.json.encode(record).decode()
        name = f"{record.kind}-{record.id}"
        self.quarantined.append(QuarantineEntry(kind="row", id=name, found_at=time.time(), reason=why, content=content))
        self._note("quarantine", *record.key, f"{why}; its data is kept")

    def _identify(self) -> None:
        """Keep the identity of the record files; a database of several gets a new one, and its files are rewritten."""
        owners = {record.database for record in self._found.records.files.values()}
        identity = owners.pop() if len(owners) == 1 else secrets.token_hex(16)
        change = max([self._found.change, *(r.change for r in self._found.records.files.values())]) + 1
        self._connection.execute(
            "UPDATE identity SET id = ?, generation = generation + 1, change = ?", (identity, change)
        )

    def _has_data(self, record: RecordFile) -> bool:
        try:
            if record.kind == "sandbox":
                spec = msgspec.json.decode(blob(record.row["spec"]), type=dict)
                return (spec.get("unit") or record.id) in self._uppers or record.row["state"] == "deleting"
            if record.kind == "volume":
                return record.id in self._volumes
            if record.kind == "snapshot":
                body = msgspec.json.decode(blob(record.row["body"]), type=SnapshotInfo)
                return all(self._layers.has(layer) for layer in body.layers if layer.startswith("snap:"))
        except (msgspec.MsgspecError, ValueError):
            return True  # the row is checked afterwards
        return record.kind != "review" or (self._ledgers / record.id).is_dir()

    def _note(self, action: str, kind: str, name: str, detail: str = "") -> None:
        self.actions.append(RepairAction(action, kind, name, detail))


def _renamed(record: RecordFile) -> RecordFile:
    """Return the record with another name and without a build key, for a row that has these already."""
    table = TABLES[record.kind][0].name
    row = dict(record.row)
    if row.get("name") is not None:
        row["name"] = f"{str(row['name'])[:50]}-{record.id[3:9]}"
    if record.kind in ("snapshot", "volume"):
        kind: type[SnapshotInfo] | type[VolumeInfo] = SnapshotInfo if record.kind == "snapshot" else VolumeInfo
        info = msgspec.json.decode(blob(row["body"]), type=kind)
        row["body"] = msgspec.json.encode(msgspec.structs.replace(info, name=str(row["name"]))).hex()
    if record.kind == "snapshot":
        row["key"] = None
    return msgspec.structs.replace(record, tables={**record.tables, table: [row]})


# -- `skerry server repair`: a state directory that no server uses ------------------------------------------------


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """`condition` of the database before: ok, empty, behind, foreign or damaged; `problem`: the reason."""

    condition: str = "ok"
    problem: str = ""
    actions: list[RepairAction] = []
    quarantine: list[QuarantineEntry] = []


def listing(settings: Settings) -> RepairReport:
    entries = read_entries(settings.state_dir / "quarantine")
    return RepairReport(quarantine=list(entries.values()))


def repair_now(settings: Settings, *, dry_run: bool = False, purge: bool = False) -> RepairReport:
    """Repair the database, then optionally remove all quarantined data. Raise Conflict if a server runs."""
    return asyncio.run(_repair(settings, dry_run, purge))


async def _repair(settings: Settings, dry_run: bool, purge: bool) -> RepairReport:
    state = StateDir.acquire(settings.state_dir)
    try:
        host = await Host.open(settings)
        try:
            if not dry_run:
                release_reserve(state.database)
            found = examine(state.database, record_files(host))
            actions = repair(state.database, host, found, dry_run=dry_run)
            if purge and not dry_run:
                await _purge(host, state)
        finally:
            await host.release()
            host.close()
    finally:
        state.release()
    return RepairReport(
        condition=found.condition, problem=found.problem, actions=actions, quarantine=listing(settings).quarantine
    )


async def _purge(host: Host, state: StateDir) -> None:
    database = Database(state.database)
    try:
        await Quarantine(host, database).purge(older_than=math.inf)
    finally:
        database.close()
