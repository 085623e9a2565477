"""What is known of each snapshot on disk: one row, whose body is what the API shows."""

from __future__ import annotations

import builtins
import sqlite3
import time
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from skerry.engine.database import Database
from skerry.errors import Conflict
from skerry.types import Caller, SnapshotInfo

_INSERT = "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_decode = msgspec.json.Decoder(SnapshotInfo).decode


class SnapshotTable:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stacks: dict[str, frozenset[str]] = {}  # layers, by id: rows are many, and not short

    def insert(
        self, info: SnapshotInfo, key: str | None = None, also: Callable[[sqlite3.Cursor], None] | None = None
    ) -> None:
        """Whoever had its key is no longer found by it. `also` is part of the transaction."""
        values = (
            info.id, info.owner, info.name, info.kind, info.sandbox, info.step, key, info.created_at, info.created_at,
            msgspec.json.encode(info),
        )  # fmt: skip
        try:
            with self._database.transaction(durable=info.kind == "kept") as cursor:
                cursor.execute("UPDATE snapshots SET key = NULL WHERE owner = ? AND key = ?", (info.owner, key))
                cursor.execute(_INSERT, values)
                if also is not None:
                    also(cursor)
        except sqlite3.IntegrityError as error:
            raise taken(info.name) from error

    def find(self, caller: Caller, ref: str) -> SnapshotInfo | None:
        """By id or name, among the caller's own; an admin also finds another's by its id."""
        found = self._read("(id = ? OR (name = ? AND owner = ?))", ref, ref, caller.owner)
        mine = [info for info in found if info.owner == caller.owner or caller.scope == "admin"]
        return mine[0] if mine else None

    def get(self, snapshot: str) -> SnapshotInfo | None:
        found = self._read("id = ?", snapshot)
        return found[0] if found else None

    def of_key(self, owner: str, key: str) -> SnapshotInfo | None:
        found = self._read("owner = ? AND key = ?", owner, key)
        return found[0] if found else None

    def named(self, owner: str, name: str) -> bool:
        return bool(self._read("owner = ? AND name = ?", owner, name))

    def list(
        self, owner: str | None = None, kind: str | None = None, sandbox: str | None = None
    ) -> builtins.list[SnapshotInfo]:
        """Oldest first; None: whatever it is."""
        wanted = {"owner": owner, "kind": kind, "sandbox": sandbox}
        given = {column: value for column, value in wanted.items() if value is not None}
        return self._read(" AND ".join((*(f"{column} = ?" for column in given), "true")), *given.values())

    def steps(self, sandbox: str) -> builtins.list[SnapshotInfo]:
        """Those that were taken before each command, the newest first."""
        return self._read("sandbox = ? AND kind = 'auto'", sandbox, order="step DESC")

    def count(self, owner: str) -> int:
        """Without those before commands, which have a bound of their own."""
        found = self._database.read("SELECT count(*) FROM snapshots WHERE owner = ? AND kind != 'auto'", owner)
        return int(found[0][0])

    def least_used_build(self, owner: str) -> builtins.list[SnapshotInfo]:
        """Steps of builds, longest unused first."""
        return self._read("owner = ? AND kind = 'build'", owner, order="used_at")

    def measured(self, info: SnapshotInfo, own: int) -> None:
        body = msgspec.json.encode(replace(info, own=own))
        with self._database.transaction() as cursor:
            cursor.execute("UPDATE snapshots SET body = ? WHERE id = ?", (body, info.id))

    def touch(self, info: SnapshotInfo) -> None:
        with self._database.transaction() as cursor:
            cursor.execute("UPDATE snapshots SET used_at = ? WHERE id = ?", (time.time(), info.id))

    def remove(self, *infos: SnapshotInfo) -> None:
        with self._database.transaction() as cursor:
            forget(infos)(cursor)

    def layers(self) -> set[str]:
        return set().union(*self._known().values())

    def _known(self) -> dict[str, frozenset[str]]:
        """The layers of each one. They never change, so of those that were read once only the ids are looked at."""
        there = {row["id"] for row in self._database.read("SELECT id FROM snapshots")}
        for gone in self._stacks.keys() - there:
            del self._stacks[gone]
        for snapshot in there - self._stacks.keys():
            if (info := self.get(snapshot)) is not None:
                self._stacks[snapshot] = frozenset(info.layers)
        return self._stacks

    def on(self, layer: str) -> builtins.list[SnapshotInfo]:
        """Those that stand on a layer, or are it."""
        found = [self.get(snapshot) for snapshot, layers in self._known().items() if layer in layers]
        return sorted((info for info in found if info is not None), key=lambda info: (info.created_at, info.id))

    def _read(self, condition: str, *values: object, order: str = "created_at") -> builtins.list[SnapshotInfo]:
        query = f"SELECT body FROM snapshots WHERE {condition} ORDER BY {order}, id"  # noqa: S608 -- nobody else's text
        return [_decode(row["body"]) for row in self._database.read(query, *values)]


def forget(infos: Iterable[SnapshotInfo]) -> Callable[[sqlite3.Cursor], None]:
    """As part of another transaction."""
    ids = [(info.id,) for info in infos]

    def work(cursor: sqlite3.Cursor) -> None:
        cursor.executemany("DELETE FROM snapshots WHERE id = ?", ids)

    return work


def together(*works: Callable[[sqlite3.Cursor], None]) -> Callable[[sqlite3.Cursor], None]:
    """Several parts of one transaction."""

    def work(cursor: sqlite3.Cursor) -> None:
        for one in works:
            one(cursor)

    return work


def taken(name: str | None) -> Conflict:
    return Conflict(
        f"there is a snapshot named {name!r} already",
        hint=f"choose another name, or delete that one: `skerry snapshot rm {name}`",
        details={"name": name},
    )
