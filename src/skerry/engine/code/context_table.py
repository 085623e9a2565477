"""Contexts in the database: one row each, with the record as its body."""

from __future__ import annotations

import msgspec

from skerry.engine.database import Database


class ContextRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`process`: its kernel; `since`: the start of the sandbox in which it runs, as a restarted sandbox does not have
    it any more. `lost`: why its state is gone; the next run reports it. `made_up`: the name was generated."""

    name: str
    language: str
    user: str
    cwd: str
    created_at: float
    used_at: float
    env: dict[str, str | None] = {}
    default: bool = False
    made_up: bool = False
    version: str | None = None
    process: str | None = None
    since: float | None = None
    runs: int = 0
    lost: str | None = None


_decode = msgspec.json.Decoder(ContextRecord).decode


class ContextTable:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[tuple[str, ContextRecord]]:
        return [(row["sandbox"], _decode(row["body"])) for row in self._database.read("SELECT * FROM contexts")]

    def put(self, sandbox_id: str, row: ContextRecord) -> None:
        with self._database.transaction() as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO contexts VALUES (?, ?, ?)", (sandbox_id, row.name, msgspec.json.encode(row))
            )

    def remove(self, sandbox_id: str, name: str | None = None) -> None:
        """One, or all of a sandbox."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM contexts WHERE sandbox = ? AND ? IN (name, '')", (sandbox_id, name or ""))
