"""Reviews in the database: one row each with its state, and the tables of decisions and applies."""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec

from skerry.engine.database import Database
from skerry.types import SandboxInfo

_TABLES = ("reviews", "decisions", "applies")


class LargeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is too large for the ledger, which has a pointer in its place."""

    sha256: str
    size: int


class DeletedMark(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of the review is deleted: when, and what it was. `accepted`: accepted hunks that were not applied;
    `files`: files that differ from the user's; `size`: bytes of the ledger."""

    at: float
    info: SandboxInfo
    accepted: int
    files: int
    size: int


class ReviewRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`path`, `origin`, `head`, `known`, `ignore`, `tracked`, `exclude`: the parameters of the start. `large`: the
    large files by the blobs of their pointers. `rolled_back`: the reason of a rollback that the ledger does not contain
    yet. `base_size`: the size of the ledger at the start. `deleted`: its sandbox is deleted, or about to be.
    `copied_at`: when the user's files were read last, by the client's clock."""

    path: str
    begun_at: float
    origin: str | None = None
    head: str | None = None
    known: tuple[str, ...] = ()
    ignore: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tracked: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    large: dict[str, LargeFile] = {}
    rolled_back: str | None = None
    base_size: int = 0
    deleted: DeletedMark | None = None
    copied_at: float | None = None


_decode = msgspec.json.Decoder(ReviewRecord).decode


class ReviewTable:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, ReviewRecord]:
        return {row["sandbox"]: _decode(row["body"]) for row in self._database.read("SELECT * FROM reviews")}

    def put(self, sandbox_id: str, state: ReviewRecord) -> None:
        with self._database.transaction(durable=True) as cursor:
            putting(sandbox_id, state)(cursor)

    def copy(self, source: str, copies: Iterable[str]) -> None:
        """Copy a review with its decisions and applies."""
        with self._database.transaction() as cursor:
            for sandbox_id in copies:
                for table in _TABLES:
                    names = [row["name"] for row in cursor.execute(f"PRAGMA table_info({table})")]
                    others = ", ".join(names[1:])  # the first is the sandbox
                    cursor.execute(
                        f"INSERT INTO {table} ({names[0]}, {others}) SELECT ?, {others} FROM {table} WHERE sandbox = ?",  # noqa: S608
                        (sandbox_id, source),
                    )

    def remove(self, sandbox_id: str) -> None:
        with self._database.transaction() as cursor:
            for table in _TABLES:
                cursor.execute(f"DELETE FROM {table} WHERE sandbox = ?", (sandbox_id,))  # noqa: S608


def putting(sandbox_id: str, state: ReviewRecord) -> Callable[[sqlite3.Cursor], None]:
    """Return a function that stores the record inside a caller's transaction."""
    body = msgspec.json.encode(state)

    def work(cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT OR REPLACE INTO reviews VALUES (?, ?)", (sandbox_id, body))

    return work


class ApplyState(IntEnum):
    """The numbers are stored, in the column `undone`, whose name is historical."""

    APPLIED = 0
    UNDONE = 1
    STORED = 2  # a patch set that is not applied yet
    APPLYING = 3
    UNDOING = 4


MAX_PATCH_SETS: Final = 64
_KEY: Final = 0


@dataclass(frozen=True)
class Apply:
    id: str
    state: int
    body: bytes


class DecisionTable:
    """Blocking: call it in threads. A review may contain decisions about tens of thousands of files, so this has its
    own connection. The lock serializes the threads."""

    def __init__(self, database: Database) -> None:
        self._connection, self._lock = database.connect(), threading.Lock()

    def state(self, sandbox_id: str) -> tuple[bytes, dict[bytes, bytes]]:
        """Return the key of the review and the decisions by path."""
        key = "SELECT body FROM decisions WHERE sandbox = ? AND seq = ?"
        decided = "SELECT path, body FROM decisions WHERE sandbox = ? AND seq > ?"
        with self._lock:
            if not (found := self._connection.read(key, sandbox_id, _KEY)):
                with self._connection.transaction() as cursor:
                    values = (sandbox_id, _KEY, b"", "key", time.time(), secrets.token_bytes(32))
                    cursor.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?)", values)
                found = self._connection.read(key, sandbox_id, _KEY)
            rows = self._connection.read(decided, sandbox_id, _KEY)
        return bytes(found[0]["body"]), {bytes(path): bytes(body) for path, body in rows}

    def put(self, sandbox_id: str, decided: Mapping[bytes, bytes], apply: tuple[str, int] | None = None) -> None:
        """Replace the decisions about these paths, and set the state of an apply. Durable when it returns.

        The rows are first put into a temporary table, which needs no lock on the database: a thread needs the GIL for
        each row and can wait long for it, and meanwhile the event loop could not write. The first statement after
        that takes the lock."""
        with self._lock, self._connection.transaction(durable=True, begin="BEGIN DEFERRED") as cursor:
            cursor.execute("CREATE TEMP TABLE IF NOT EXISTS decided (path BLOB PRIMARY KEY, body BLOB NOT NULL)")
            cursor.execute("DELETE FROM temp.decided")
            cursor.executemany("INSERT INTO temp.decided VALUES (?, ?)", decided.items())
            cursor.execute(
                "DELETE FROM decisions WHERE sandbox = ? AND path IN (SELECT path FROM temp.decided) AND seq > ?",
                (sandbox_id, _KEY),
            )
            cursor.execute(
                "INSERT INTO decisions SELECT ?, ? + ROW_NUMBER() OVER (ORDER BY path), path, 'decided', ?, body "
                "FROM temp.decided WHERE LENGTH(body) > 0",
                (sandbox_id, _next(cursor, "decisions", sandbox_id) - 1, time.time()),
            )
            if apply is not None:
                cursor.execute(
                    "UPDATE applies SET undone = ? WHERE sandbox = ? AND id = ?", (apply[1], sandbox_id, apply[0])
                )
            cursor.execute("DELETE FROM temp.decided")

    # -- applies ------------------------------------------------------------------------------------------------------

    def store_patch_set(self, sandbox_id: str, digest: str, body: bytes) -> None:
        """Store a patch set, to recognize it when it was applied. The newest few are kept."""
        with self._lock, self._connection.transaction() as cursor:
            cursor.execute("DELETE FROM applies WHERE sandbox = ? AND id = ?", (sandbox_id, f"offer-{digest}"))
            _insert(cursor, sandbox_id, Apply(f"offer-{digest}", ApplyState.STORED, body))
            cursor.execute(
                "DELETE FROM applies WHERE sandbox = ? AND undone = ? AND seq NOT IN "
                "(SELECT seq FROM applies WHERE sandbox = ? AND undone = ? ORDER BY seq DESC LIMIT ?)",
                (sandbox_id, ApplyState.STORED, sandbox_id, ApplyState.STORED, MAX_PATCH_SETS),
            )

    def stored_patch_set(self, sandbox_id: str, digest: str) -> bytes | None:
        found = self._read(sandbox_id, "id = ? AND undone = ?", f"offer-{digest}", ApplyState.STORED)
        return found[0].body if found else None

    def begin(self, sandbox_id: str, apply: Apply) -> None:
        with self._lock, self._connection.transaction(durable=True) as cursor:
            cursor.execute("DELETE FROM applies WHERE sandbox = ? AND id = ?", (sandbox_id, apply.id))
            _insert(cursor, sandbox_id, apply)

    def apply(self, sandbox_id: str, name: str) -> Apply | None:
        found = self._read(sandbox_id, "id = ?", name)
        return found[0] if found else None

    def applies(self, sandbox_id: str, *states: int) -> list[Apply]:
        """Oldest first."""
        marks = ", ".join("?" * len(states))
        return self._read(sandbox_id, f"undone IN ({marks})", *states)

    def _read(self, sandbox_id: str, where: str, *values: object) -> list[Apply]:
        query = f"SELECT id, undone, body FROM applies WHERE sandbox = ? AND {where} ORDER BY seq"  # noqa: S608
        with self._lock:
            rows = self._connection.read(query, sandbox_id, *values)
        return [Apply(row["id"], row["undone"], bytes(row["body"])) for row in rows]


def _insert(cursor: sqlite3.Cursor, sandbox_id: str, apply: Apply) -> None:
    values = (sandbox_id, _next(cursor, "applies", sandbox_id), apply.id, time.time(), apply.state, apply.body)
    cursor.execute("INSERT INTO applies VALUES (?, ?, ?, ?, ?, ?)", values)


def _next(cursor: sqlite3.Cursor, table: str, sandbox_id: str) -> int:
    query = f"SELECT COALESCE(MAX(seq), 0) + 1 FROM {table} WHERE sandbox = ?"  # noqa: S608
    (number,) = cursor.execute(query, (sandbox_id,)).fetchone()
    return int(number)
