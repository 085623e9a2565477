"""State on disk: SQLite in WAL mode, one writer, one connection.

A transaction survives the death of the process at any point. It is also safe against a power cut where `durable` asks
for it: named sandboxes and tokens; for the rest, losing the last moments of a machine that lost power loses nothing
that would have survived the power cut anyway.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from skerry.engine.repair.record_files import Key, take_changed, watch_tables
from skerry.engine.repair.record_writer import RecordWriter
from skerry.errors import HostUnsupported
from skerry.storage.kernel import fallocate

_FIRST = """
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT,
    state TEXT NOT NULL,
    reason TEXT,
    spec BLOB NOT NULL,
    isolation BLOB,
    created_at REAL NOT NULL,
    started_at REAL,
    ends_at REAL,
    pid INTEGER,
    start_time INTEGER,
    boot_id TEXT,
    uid_base INTEGER
);
CREATE UNIQUE INDEX sandbox_names ON sandboxes (owner, name) WHERE name IS NOT NULL;
CREATE TABLE creates (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    request BLOB NOT NULL,
    sandbox TEXT NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX create_ages ON creates (created_at);
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    owner TEXT NOT NULL,
    note TEXT NOT NULL,
    created_at REAL NOT NULL
);
"""
_EVENTS = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    type TEXT NOT NULL,
    owner TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    name TEXT,
    reason TEXT,
    process BLOB
);
CREATE INDEX event_owners ON events (owner, seq);
CREATE INDEX event_sandboxes ON events (sandbox, seq);
CREATE TABLE event_floors (owner TEXT PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE heard (sandbox TEXT PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE unended (
    sandbox TEXT NOT NULL,
    process TEXT NOT NULL,
    info BLOB NOT NULL,
    PRIMARY KEY (sandbox, process)
);
"""
_NETWORK = """
CREATE TABLE attempts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox TEXT NOT NULL,
    id TEXT NOT NULL,
    at REAL NOT NULL,
    denied INTEGER NOT NULL,
    process TEXT,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX attempt_ids ON attempts (sandbox, id);
CREATE INDEX attempt_sandboxes ON attempts (sandbox, seq);
CREATE TABLE traffic (sandbox TEXT PRIMARY KEY, sent INTEGER NOT NULL, received INTEGER NOT NULL);
CREATE TABLE previews (
    sandbox TEXT NOT NULL,
    port INTEGER NOT NULL,
    id TEXT NOT NULL,
    public INTEGER NOT NULL,
    token TEXT,
    created_at REAL NOT NULL,
    expires REAL,
    PRIMARY KEY (sandbox, port)
);
"""
_SNAPSHOTS = """
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT,
    kind TEXT NOT NULL,
    sandbox TEXT,
    step INTEGER,
    key TEXT,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX snapshot_names ON snapshots (owner, name) WHERE name IS NOT NULL;
CREATE UNIQUE INDEX snapshot_keys ON snapshots (owner, key) WHERE key IS NOT NULL;
CREATE INDEX snapshot_sandboxes ON snapshots (sandbox, step);
"""
_REVIEWS = """
CREATE TABLE reviews (sandbox TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE decisions (
    sandbox TEXT NOT NULL,
    seq INTEGER NOT NULL,
    path BLOB NOT NULL,
    state TEXT NOT NULL,
    at REAL NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (sandbox, seq)
);
CREATE INDEX decision_paths ON decisions (sandbox, path);
CREATE TABLE applies (
    sandbox TEXT NOT NULL,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    at REAL NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0,
    body BLOB NOT NULL,
    PRIMARY KEY (sandbox, seq)
);
CREATE UNIQUE INDEX apply_ids ON applies (sandbox, id);
"""
_CONTEXTS = """
CREATE TABLE contexts (
    sandbox TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (sandbox, name)
);
"""
_RENAMED_FIELDS = "UPDATE sandboxes SET spec = rename_spec_fields(spec);"
# `identity`: the random id of this database, how often it was rebuilt, and the number of its latest change to an object
# with a record file. `known_data`: names of data on disk that this database created or has seen in use.
_IDENTITY = """
CREATE TABLE identity (id TEXT NOT NULL, generation INTEGER NOT NULL, change INTEGER NOT NULL);
INSERT INTO identity VALUES (lower(hex(randomblob(16))), 1, 0);
CREATE TABLE known_data (kind TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
"""
_WEBHOOKS = """
CREATE TABLE webhook_deliveries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    webhook TEXT NOT NULL,
    state TEXT NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    created_at REAL NOT NULL,
    due REAL NOT NULL,
    attempts INTEGER NOT NULL,
    status INTEGER,
    error TEXT
);
CREATE INDEX webhook_due ON webhook_deliveries (webhook, state, due);
CREATE INDEX webhook_order ON webhook_deliveries (webhook, state, seq);
"""
# Budgets of labels and owners (label ''); the used amounts of these and of sandboxes with a budget, in whole units; and
# the usage of each sandbox that is counted in them.
_BUDGETS = """
CREATE TABLE budgets (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    label TEXT NOT NULL,
    set_by TEXT NOT NULL,
    created_at REAL NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX budget_labels ON budgets (owner, label);
CREATE TABLE budget_use (
    budget TEXT PRIMARY KEY,
    cpu INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    network INTEGER NOT NULL,
    wall INTEGER NOT NULL,
    notified TEXT NOT NULL
);
CREATE TABLE budget_marks (sandbox TEXT PRIMARY KEY, counted BLOB NOT NULL);
"""
_VOLUMES = """
CREATE TABLE volumes (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX volume_names ON volumes (owner, name);
"""
_PREVIEW_NAMES = "ALTER TABLE previews ADD COLUMN name TEXT;"
# The counters of the kernel at the newest event of a sandbox about a reached limit. No row: it had no such event.
# -1: they are not known, because the sandbox is older than this table.
_LIMIT_COUNTERS = """
CREATE TABLE limit_counters (sandbox TEXT PRIMARY KEY, memory INTEGER NOT NULL, pids INTEGER NOT NULL);
INSERT INTO limit_counters SELECT id, -1, -1 FROM sandboxes;
"""
# Bytes of previews and forwarded ports.
_SERVED_TRAFFIC = """
CREATE TABLE served_traffic (sandbox TEXT PRIMARY KEY, sent INTEGER NOT NULL, received INTEGER NOT NULL);
"""
STEPS = (
    _FIRST,
    _EVENTS,
    _NETWORK,
    _SNAPSHOTS,
    _REVIEWS,
    _CONTEXTS,
    _RENAMED_FIELDS,
    _IDENTITY,
    _WEBHOOKS,
    _BUDGETS,
    _VOLUMES,
    _PREVIEW_NAMES,
    _LIMIT_COUNTERS,
    _SERVED_TRAFFIC,
)  # an older database is brought up step by step; a step that was released never changes
SCHEMA_VERSION = len(STEPS)
_SPEC_FIELDS = {
    "lifecycle": {"idle": "idle_timeout", "life": "max_lifetime", "wake": "auto_resume"},
    "options": {"pool": "use_pool", "waive": "waive_guarantees"},
    "network": {
        "ask_timeout": "approval_timeout", "bandwidth": "bytes_per_second", "total": "max_bytes",
        "connections": "max_connections",
    },
}  # fmt: skip


def _rename_spec_fields(spec: bytes) -> bytes:
    """Return a stored spec with the field names of schema 7."""
    values = json.loads(spec)
    for part, names in _SPEC_FIELDS.items():
        fields = values.get(part)
        if isinstance(fields, dict):
            values[part] = {names.get(name, name): value for name, value in fields.items()}
    return json.dumps(values).encode()


SET_ASIDE = 8 << 20
MAX_LOG = 32 << 20  # size of the write-ahead log after a checkpoint; a large transaction may need more for a while
BUSY_TIMEOUT_S = 30.0  # for the transaction of another connection


def _set_aside(file: Path) -> None:
    """Preallocate blocks behind the end of a file: on a full disk events can still be recorded and sandboxes deleted.

    Never call this for an open database: closing any fd of it would drop SQLite's locks. The write-ahead log has
    none."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fallocate(fd, os.fstat(fd).st_size, SET_ASIDE, grow=False)
    except OSError:  # this file system can't, or is full already
        return
    finally:
        os.close(fd)


def _held(database: Path) -> Path:
    """A file that keeps the blocks while no server does: SQLite removes its log, and the next one needs room for it."""
    return database.with_name(f"{database.name}-held")


def release_reserve(path: Path) -> None:
    """Free the blocks that `_held` keeps: SQLite needs some to open the database."""
    _held(path).unlink(missing_ok=True)


def newer_schema(what: object, version: int) -> HostUnsupported:
    return HostUnsupported(
        f"{what} was written by a newer Skerry (schema {version}, this one knows {SCHEMA_VERSION})",
        hint="use that version, or another state directory",
    )


def check_schema(path: Path) -> None:
    """Raise HostUnsupported for a database of a newer version. A server calls this before it changes anything: the
    newer version may also have changed other files of the state directory."""
    if path.exists():
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        ) as connection:
            try:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
            except sqlite3.DatabaseError:  # damaged: the examination reports that
                return
        if version > SCHEMA_VERSION:
            raise newer_schema(path, version)


def migrate(connection: sqlite3.Connection, version: int, target: int = SCHEMA_VERSION) -> None:
    """Bring a database from one schema to another, each step in one transaction."""
    connection.create_function("rename_spec_fields", 1, _rename_spec_fields, deterministic=True)
    for number, step in enumerate(STEPS[version:target], version + 1):
        connection.executescript(f"BEGIN;{step}PRAGMA user_version = {number};COMMIT;")


class Connection:
    """One connection to the database file. Used by one thread at a time. With a writer, committed changes are also
    written to record files."""

    def __init__(self, path: Path, writer: RecordWriter | None = None) -> None:
        self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA temp_store = MEMORY")
        self._connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG}")
        self._writer: RecordWriter | None = None
        self._watch(writer)

    def _watch(self, writer: RecordWriter | None) -> None:
        if writer is not None:
            watch_tables(self._connection)
            self._writer = writer

    @contextmanager
    def transaction(
        self, *, durable: bool = False, begin: str = "BEGIN IMMEDIATE", wait: bool = True
    ) -> Iterator[sqlite3.Cursor]:
        """All of it or nothing. `durable`: on the platter before it returns. Without `wait`, raise `sqlite3.Error` if
        another connection writes (`is_busy`)."""
        if durable:
            self._connection.execute("PRAGMA synchronous = FULL")
        cursor = self._connection.cursor()
        self._begin(cursor, begin, wait)
        try:
            yield cursor
            changed = take_changed(cursor) if self._writer is not None else []
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back already
                cursor.execute("ROLLBACK")
            raise
        finally:
            cursor.close()
            if durable:
                self._connection.execute("PRAGMA synchronous = NORMAL")
        if changed and self._writer is not None:
            self._writer.notify(changed)

    @staticmethod
    def _begin(cursor: sqlite3.Cursor, begin: str, wait: bool) -> None:
        if wait:
            cursor.execute(begin)
            return
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            cursor.execute(begin)
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")

    def forget_record(self, key: Key) -> None:
        """Remove a record file before the change that makes it wrong, for a change that must never be taken back."""
        if self._writer is not None:
            self._writer.files.remove(key)

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        self._connection.close()


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection was writing."""
    return error.sqlite_errorcode == sqlite3.SQLITE_BUSY


class Database(Connection):
    """The connection of the event loop's thread; every statement takes microseconds. Work that takes longer runs in a
    thread, on a connection from `connect`."""

    def __init__(self, path: Path, writer: RecordWriter | None = None) -> None:
        self._path = path
        self._others: list[Connection] = []
        release_reserve(path)
        _set_aside(path)
        super().__init__(path)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._migrate(path)
        _set_aside(path.with_name(f"{path.name}-wal"))
        self._watch(writer)

    def connect(self) -> Connection:
        """Open another connection, for threads. It is closed with this one."""
        other = Connection(self._path, self._writer)
        self._others.append(other)
        return other

    def _migrate(self, path: Path) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise newer_schema(path, version)
        migrate(self._connection, version)

    def close(self) -> None:
        for other in self._others:
            other.close()
        if self._writer is not None:
            self._writer.close()
        super().close()
        _set_aside(_held(self._path))
