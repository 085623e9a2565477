"""What was decided about reviews and what was applied of them, on disk.

Of each path there is one row with all that is decided about it, packed. Row 0 is the key that a review's ids are made
with. An apply goes through states: `offered` (somebody asked what would land), `landing` (it has landed at the client,
the base is about to move), `landed`, `leaving`, `undone`."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skerry.engine.database import Database

LANDED, UNDONE, OFFERED, LANDING, LEAVING = range(5)
OFFERS_MOST: Final = 64
_KEY: Final = 0


@dataclass(frozen=True)
class Apply:
    id: str
    state: int
    body: bytes


class DecisionTable:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def key(self, sandbox: str) -> bytes:
        query = "SELECT body FROM decisions WHERE sandbox = ? AND seq = ?"
        if not (found := self._database.read(query, sandbox, _KEY)):
            with self._database.transaction() as cursor:
                values = (sandbox, _KEY, b"", "key", time.time(), secrets.token_bytes(32))
                cursor.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?)", values)
            found = self._database.read(query, sandbox, _KEY)
        return bytes(found[0]["body"])

    def decided(self, sandbox: str) -> dict[bytes, bytes]:
        query = "SELECT path, body FROM decisions WHERE sandbox = ? AND seq > ?"
        return {bytes(row["path"]): bytes(row["body"]) for row in self._database.read(query, sandbox, _KEY)}

    def put(self, sandbox: str, decided: Mapping[bytes, bytes], apply: tuple[str, int] | None = None) -> None:
        """In place of what was decided about these paths; and the new state of an apply. On the platter when it
        returns."""
        with self._database.transaction(durable=True) as cursor:
            for path, body in decided.items():
                cursor.execute(
                    "DELETE FROM decisions WHERE sandbox = ? AND path = ? AND seq > ?", (sandbox, path, _KEY)
                )
                if body:
                    values = (sandbox, _next(cursor, "decisions", sandbox), path, "decided", time.time(), body)
                    cursor.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?)", values)
            if apply is not None:
                cursor.execute(
                    "UPDATE applies SET undone = ? WHERE sandbox = ? AND id = ?", (apply[1], sandbox, apply[0])
                )

    # -- what was applied ---------------------------------------------------------------------------------------------

    def offer(self, sandbox: str, digest: str, body: bytes) -> None:
        """What would land now, to be known again when it has; the newest few."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM applies WHERE sandbox = ? AND id = ?", (sandbox, f"offer-{digest}"))
            _insert(cursor, sandbox, Apply(f"offer-{digest}", OFFERED, body))
            cursor.execute(
                "DELETE FROM applies WHERE sandbox = ? AND undone = ? AND seq NOT IN "
                "(SELECT seq FROM applies WHERE sandbox = ? AND undone = ? ORDER BY seq DESC LIMIT ?)",
                (sandbox, OFFERED, sandbox, OFFERED, OFFERS_MOST),
            )

    def offered(self, sandbox: str, digest: str) -> bytes | None:
        found = self._read(sandbox, "id = ? AND undone = ?", f"offer-{digest}", OFFERED)
        return found[0].body if found else None

    def begin(self, sandbox: str, apply: Apply) -> None:
        with self._database.transaction(durable=True) as cursor:
            cursor.execute("DELETE FROM applies WHERE sandbox = ? AND id = ?", (sandbox, apply.id))
            _insert(cursor, sandbox, apply)

    def apply(self, sandbox: str, name: str) -> Apply | None:
        found = self._read(sandbox, "id = ?", name)
        return found[0] if found else None

    def applies(self, sandbox: str, *states: int) -> list[Apply]:
        """Oldest first."""
        marks = ", ".join("?" * len(states))
        return self._read(sandbox, f"undone IN ({marks})", *states)

    def _read(self, sandbox: str, where: str, *values: object) -> list[Apply]:
        query = f"SELECT id, undone, body FROM applies WHERE sandbox = ? AND {where} ORDER BY seq"  # noqa: S608
        return [
            Apply(row["id"], row["undone"], bytes(row["body"])) for row in self._database.read(query, sandbox, *values)
        ]


def _insert(cursor: sqlite3.Cursor, sandbox: str, apply: Apply) -> None:
    values = (sandbox, _next(cursor, "applies", sandbox), apply.id, time.time(), apply.state, apply.body)
    cursor.execute("INSERT INTO applies VALUES (?, ?, ?, ?, ?, ?)", values)


def _next(cursor: sqlite3.Cursor, table: str, sandbox: str) -> int:
    query = f"SELECT COALESCE(MAX(seq), 0) + 1 FROM {table} WHERE sandbox = ?"  # noqa: S608
    (number,) = cursor.execute(query, (sandbox,)).fetchone()
    return int(number)
