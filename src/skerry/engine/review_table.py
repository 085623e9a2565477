"""What is known of each review on disk: one row, whose body is its state; what was decided and applied beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable

import msgspec

from skerry.engine.database import Database

_TABLES = ("reviews", "decisions", "applies")


class Large(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is too large for the ledger, which has a pointer in its place."""

    sha256: str
    size: int


class ReviewState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`path`, `origin`, `head`, `known`, `ignore`, `tracked`: as the review was begun with. `large`: what the blobs of
    pointers stand for. `rolled_back`: the sandbox's files are others, and the ledger does not know yet; why."""

    path: str
    begun_at: float
    origin: str | None = None
    head: str | None = None
    known: tuple[str, ...] = ()
    ignore: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tracked: tuple[str, ...] = ()
    large: dict[str, Large] = {}
    rolled_back: str | None = None


_decode = msgspec.json.Decoder(ReviewState).decode


class ReviewTable:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, ReviewState]:
        return {row["sandbox"]: _decode(row["body"]) for row in self._database.read("SELECT * FROM reviews")}

    def put(self, sandbox: str, state: ReviewState) -> None:
        with self._database.transaction(durable=True) as cursor:
            putting(sandbox, state)(cursor)

    def copy(self, source: str, copies: Iterable[str]) -> None:
        """A review with all that was decided about it."""
        with self._database.transaction() as cursor:
            for sandbox in copies:
                for table in _TABLES:
                    names = [row["name"] for row in cursor.execute(f"PRAGMA table_info({table})")]
                    others = ", ".join(names[1:])  # the first is the sandbox
                    cursor.execute(
                        f"INSERT INTO {table} ({names[0]}, {others}) SELECT ?, {others} FROM {table} WHERE sandbox = ?",  # noqa: S608
                        (sandbox, source),
                    )

    def remove(self, sandbox: str) -> None:
        with self._database.transaction() as cursor:
            for table in _TABLES:
                cursor.execute(f"DELETE FROM {table} WHERE sandbox = ?", (sandbox,))  # noqa: S608


def putting(sandbox: str, state: ReviewState) -> Callable[[sqlite3.Cursor], None]:
    """As part of another transaction."""
    body = msgspec.json.encode(state)

    def work(cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT OR REPLACE INTO reviews VALUES (?, ?)", (sandbox, body))

    return work
