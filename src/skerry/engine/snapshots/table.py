"""Snapshots in the database: one row each, with the API's view as its body."""

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
        self._stacks: dict[str, frozenset[str]] = {}  # layers, by id: there are many rows, and they are not short

    def insert(
        self, info: SnapshotInfo, key: str | None = None, also: Callable[[sqlite3.Cursor], None] | None = None
    ) -> None:
        """Insert a snapshot. An earlier snapshot loses the same key. `also` is part of the transaction."""
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
        self, owner: str | None = None, kind: str | None = None, sandbox_id: str | None = None
    ) -> builtins.list[SnapshotInfo]:
        """List snapshots, oldest first; None: of any kind."""
        wanted = {"owner": owner, "kind": kind, "sandbox": sandbox_id}
        given = {column: value for column, value in wanted.items() if value is not None}
        return self._read(" AND ".join((*(f"{column} = ?" for column in given), "true")), *given.values())

    def steps(self, sandbox_id: str) -> builtins.list[SnapshotInfo]:
        """Return the automatic snapshots of a sandbox, newest first."""
        return self._read("sandbox = ? AND kind = 'auto'", sandbox_id, order="step DESC")

    def count(self, owner: str) -> int:
        """Count an owner's snapshots without automatic ones, which have a separate bound."""
        found = self._database.read("SELECT count(*) FROM snapshots WHERE owner = ? AND kind != 'auto'", owner)
        return int(found[0][0])

    def least_used_build(self, owner: str) -> builtins.list[SnapshotInfo]:
        """Steps of builds, longest unused first."""
        return self._read("owner = ? AND kind = 'build'", owner, order="used_at")

    def measured(self, info: SnapshotInfo, own: int) -> None:
        body = msgspec.json.encode(replace(info, own=own))
        with self._database.transaction() as cursor:
            cursor.execute("UPDATE snapshots SET body = ? WHERE id = ?", (body, info.id))

    def mark_used(self, info: SnapshotInfo) -> None:
        with self._database.transaction() as cursor:
            cursor.execute("UPDATE snapshots SET used_at = ? WHERE id = ?", (time.time(), info.id))

    def remove(self, *infos: SnapshotInfo) -> None:
        with self._database.transaction() as cursor:
            forget(infos)(cursor)

    def layers(self) -> set[str]:
        return set().union(*self._known().values())

    def _known(self) -> dict[str, frozenset[str]]:
        """Return the layers of each snapshot. They never change, so only the ids of known ones are read."""
        there = {row["id"] for row in self._database.read("SELECT id FROM snapshots")}
        for gone in self._stacks.keys() - there:
            del self._stacks[gone]
        for snapshot in there - self._stacks.keys():
            if (info := self.get(snapshot)) is not None:
                self._stacks[snapshot] = frozenset(info.layers)
        return self._stacks

    def on(self, layer: str) -> builtins.list[SnapshotInfo]:
        """Return the snapshots that contain the layer."""
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
        f"snapshot {name!r} already exists",
        hint=f"choose another name, or delete that one: `skerry snapshot rm {name}`",
        details={"name": name},
    )
