"""State on disk: SQLite in WAL mode, one writer, one connection.

A transaction survives the death of the process at any point. It is also safe against a power cut where `durable` asks
for it: named sandboxes and tokens; for the rest, losing the last moments of a machine that lost power loses nothing
that would have survived the power cut anyway.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
STEPS = (
    _FIRST,
    _EVENTS,
    _NETWORK,
    _SNAPSHOTS,
    _REVIEWS,
    _CONTEXTS,
)  # an older database is brought up step by step; a step that was released never changes
SCHEMA_VERSION = len(STEPS)


SET_ASIDE = 8 << 20


def _set_aside(file: Path) -> None:
    """Blocks behind the end of a file: on a full disk what runs goes on being recorded, and a sandbox can be deleted.

    Never of an open database: closing any fd of it would drop SQLite's locks. The log beside it has none."""
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


class Database:
    """Used from the event loop's thread only; every statement takes microseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _held(path).unlink(missing_ok=True)
        _set_aside(path)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._migrate(path)
        _set_aside(path.with_name(f"{path.name}-wal"))

    def _migrate(self, path: Path) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise HostUnsupported(
                f"{path} was written by a newer Skerry (schema {version}, this one knows {SCHEMA_VERSION})",
                hint="use that version, or another state directory",
            )
        for number, step in enumerate(STEPS[version:], version + 1):
            self._connection.executescript(f"BEGIN;{step}PRAGMA user_version = {number};COMMIT;")

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Cursor]:
        """All of it or nothing. `durable`: on the platter before it returns."""
        if durable:
            self._connection.execute("PRAGMA synchronous = FULL")
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back already
                cursor.execute("ROLLBACK")
            raise
        finally:
            cursor.close()
            if durable:
                self._connection.execute("PRAGMA synchronous = NORMAL")

    def read(self, query: str, *values: object) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        self._connection.close()
        _set_aside(_held(self._path))
