"""What is known of each context of code on disk: one row, whose body is its record."""

from __future__ import annotations

import msgspec

from skerry.engine.database import Database


class ContextRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`process`: its kernel; `since`: when the sandbox that it runs in was started, for one that was started again has
    it no more. `lost`: why what it remembered is gone; the next run tells. `made_up`: nobody named it."""

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


_decode = msgspec.json.Decoder(ContextRow).decode


class ContextTable:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[tuple[str, ContextRow]]:
        return [(row["sandbox"], _decode(row["body"])) for row in self._database.read("SELECT * FROM contexts")]

    def put(self, sandbox: str, row: ContextRow) -> None:
        with self._database.transaction() as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO contexts VALUES (?, ?, ?)", (sandbox, row.name, msgspec.json.encode(row))
            )

    def remove(self, sandbox: str, name: str | None = None) -> None:
        """One, or all of a sandbox."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM contexts WHERE sandbox = ? AND ? IN (name, '')", (sandbox, name or ""))
