"""Usage on disk, in a separate database: one row for each sandbox, which outlives it, and one for each of its days.

The state of an account and the usage since it was stored last are written in one transaction: after the death of a
server at any point, the next one continues from the same counters, and counts nothing twice."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from skerry.engine.records.usage.account import DAY_S, Phase, Sample
from skerry.errors import HostUnsupported
from skerry.types import MAX_USAGE_ROWS, UsageRow, UsageTotals

log = logging.getLogger("skerry.engine")
VERSION: Final = 1
MAX_GAP_S: Final = 366 * DAY_S  # between two boots
_FIGURES: Final = tuple(field.name for field in msgspec.structs.fields(UsageTotals))
_SUMS: Final = ", ".join(f"{'max' if name == 'memory_peak' else 'total'}(d.{name}) AS {name}" for name in _FIGURES)
_COLUMNS: Final = ",\n    ".join(f"{name} NOT NULL DEFAULT 0" for name in _FIGURES)
_SCHEMA: Final = f"""
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    actor TEXT NOT NULL,
    image TEXT NOT NULL,
    name TEXT,
    labels TEXT NOT NULL,
    created_at REAL NOT NULL,
    deleted_at REAL,
    state BLOB,
    {_COLUMNS}
);
CREATE INDEX by_owner ON sandboxes (owner);
CREATE INDEX open_accounts ON sandboxes (id) WHERE deleted_at IS NULL;
CREATE TABLE days (
    day TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    {_COLUMNS},
    PRIMARY KEY (day, sandbox)
) WITHOUT ROWID;
CREATE INDEX by_sandbox ON days (sandbox);
"""
_SETS: Final = ", ".join(f"{name} = excluded.{name}" for name in ("labels", "image", "deleted_at", "state", *_FIGURES))
_ADDS: Final = ", ".join(
    f"{name} = {f'max({name}, excluded.{name})' if name == 'memory_peak' else f'{name} + excluded.{name}'}"
    for name in _FIGURES
)
_SAVE: Final = (
    "INSERT INTO sandboxes (id, owner, actor, image, name, labels, created_at, deleted_at, state,"  # noqa: S608
    f" {', '.join(_FIGURES)}) VALUES ({', '.join('?' * (9 + len(_FIGURES)))}) ON CONFLICT (id) DO UPDATE SET"
    f" name = coalesce(excluded.name, name), {_SETS}"
)
_ADD: Final = (
    f"INSERT INTO days (day, sandbox, {', '.join(_FIGURES)}) VALUES ({', '.join('?' * (2 + len(_FIGURES)))})"  # noqa: S608
    f" ON CONFLICT (day, sandbox) DO UPDATE SET {_ADDS}"
)


class StoredState(msgspec.Struct, frozen=True):
    """The counters of an account's last sample. `at`: by the clock; `monotonic`: of the boot `boot_id`. `init`: the
    process that the counters belong to."""

    phase: Phase
    at: float
    monotonic: float
    boot_id: str
    init: str | None
    sample: Sample

    def resumed(self, boot_id: str, init: str) -> Sample:
        """Return the sample from which another server continues. Its counters count if they are of the same processes.
        The clock matters only if the host has restarted since: it may be wrong, or set back."""
        now, at = time.monotonic(), self.monotonic
        if self.boot_id != boot_id or at > now:
            at = now - min(max(time.time() - self.at, 0.0), MAX_GAP_S)
        last = replace(self.sample, at=at, active_s=0.0)  # the counter of another server
        return last if self.init == init else replace(last, cpu_s=None, memory=None, memory_peak=0)


@dataclass(frozen=True)
class AccountRow:
    """A stored account. `state` None: it is closed."""

    id: str
    owner: str
    actor: str
    image: str
    name: str | None
    labels: dict[str, str]
    created_at: float
    totals: UsageTotals
    state: StoredState | None
    deleted_at: float | None = None


@dataclass(frozen=True)
class UsageFilter:
    """Which usage counts. `owner` None: of all owners. Days are inclusive. `label`: sandboxes with this label."""

    owner: str | None = None
    since: str | None = None
    until: str | None = None
    sandbox: str | None = None
    label: tuple[str, str] | None = None


class UsageStore:
    """Used in threads, under its lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._database = self._connect()

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._prepare()
        except sqlite3.OperationalError:  # a full disk is no damage
            raise
        except sqlite3.DatabaseError as error:
            kept = self._path.with_name(f"{self._path.name}.damaged-{int(time.time())}")
            log.error(
                "the record of usage is damaged and was set aside", extra={"error": str(error), "path": str(kept)}
            )
            os.rename(self._path, kept)
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            return self._prepare()

    def _prepare(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            os.chmod(self._path, 0o600)
            database.row_factory = sqlite3.Row
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise HostUnsupported(
                    f"{self._path} was written by a newer Skerry (schema {version}, this one knows {VERSION})",
                    hint="use that version, or another state directory",
                )
            if not version:
                database.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        with self._lock:
            self._database.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def save(self, rows: Iterable[tuple[AccountRow, dict[str, UsageTotals]]], *, durable: bool = False) -> None:
        """Store accounts, and add the usage of each to its days. `durable`: on the disk when it returns."""
        with self._transaction(durable) as cursor:
            for row, days in rows:
                state = msgspec.json.encode(row.state) if row.state is not None else None
                cursor.execute(_SAVE, (
                    row.id, row.owner, row.actor, row.image, row.name, msgspec.json.encode(row.labels).decode(),
                    row.created_at, row.deleted_at, state, *_values(row.totals),
                ))  # fmt: skip
                cursor.executemany(_ADD, ((day, row.id, *_values(used)) for day, used in days.items()))

    def close_account(self, sandbox_id: str) -> None:
        """Close the account of a sandbox that is gone since its last sample."""
        with self._transaction(durable=False) as cursor:
            cursor.execute(
                "UPDATE sandboxes SET deleted_at = ?, state = NULL WHERE id = ? AND deleted_at IS NULL",
                (time.time(), sandbox_id),
            )

    def forget(self, before: str) -> None:
        """Remove days before that one, and deleted sandboxes without any day left."""
        with self._transaction(durable=False) as cursor:
            cursor.execute("DELETE FROM days WHERE day < ?", (before,))
            cursor.execute(
                "DELETE FROM sandboxes WHERE deleted_at IS NOT NULL AND date(deleted_at, 'unixepoch') < ?"
                " AND NOT EXISTS (SELECT 1 FROM days WHERE sandbox = sandboxes.id)",
                (before,),
            )

    @contextmanager
    def _transaction(self, durable: bool) -> Iterator[sqlite3.Cursor]:
        with self._lock:
            if durable:
                self._database.execute("PRAGMA synchronous = FULL")
            cursor = self._database.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk has rolled it back already
                    cursor.execute("ROLLBACK")
                raise
            finally:
                cursor.close()
                if durable:
                    self._database.execute("PRAGMA synchronous = NORMAL")

    # -- reading ------------------------------------------------------------------------------------------------------

    def open_accounts(self) -> list[AccountRow]:
        """Return the accounts of sandboxes that were not deleted."""
        return [_account(row) for row in self._read("SELECT * FROM sandboxes WHERE deleted_at IS NULL")]

    def find(self, sandbox_id: str) -> AccountRow | None:
        """Return the account of a sandbox, also of a deleted one."""
        found = self._read("SELECT * FROM sandboxes WHERE id = ?", sandbox_id)
        return _account(found[0]) if found else None

    def totals(self, wanted: UsageFilter) -> UsageTotals:
        """Return the usage of sandboxes since each was created, also of deleted ones. Days do not count here."""
        where, values = _where(wanted)
        found = self._read(f"SELECT {_SUMS} FROM sandboxes AS d JOIN sandboxes AS s ON s.id = d.id {where}", *values)  # noqa: S608
        return _totals(found[0])

    def groups(self, by: str, wanted: UsageFilter, most: int = MAX_USAGE_ROWS) -> tuple[list[UsageRow], UsageRow, int]:
        """Return the usage of each group, the largest use of CPU first, days in order; then of all, and the number of
        groups that were left out."""
        where, values = _where(wanted)
        key = _KEYS.get(by, "(SELECT value FROM json_each(s.labels) WHERE key = ?)")
        first = () if by in _KEYS else (by.removeprefix("label:"),)
        source = f"FROM days AS d JOIN sandboxes AS s ON s.id = d.sandbox {where}"
        count = "count(DISTINCT d.sandbox) AS sandboxes, max(s.name) AS name"
        order = "key" if by == "day" else "cpu_s DESC, key"
        rows = self._read(
            f"SELECT {key} AS key, {count}, {_SUMS} {source} GROUP BY 1 ORDER BY {order} LIMIT ?",
            *first, *values, -1 if by == "day" else most,
        )  # fmt: skip
        all_ = self._read(f"SELECT NULL AS key, {count}, {_SUMS} {source}", *values)[0]
        groups = self._read(f"SELECT count(*) FROM (SELECT {key} AS key {source} GROUP BY 1)", *first, *values)[0][0]  # noqa: S608
        named = [_row(row, row["name"] if by == "sandbox" else None) for row in rows]
        return named, _row(all_, None), max(groups - len(named), 0)

    def _read(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._lock:
            return self._database.execute(query, values).fetchall()


_KEYS: Final = {"sandbox": "d.sandbox", "actor": "s.actor", "image": "s.image", "owner": "s.owner", "day": "d.day"}


def _where(wanted: UsageFilter) -> tuple[str, list[Any]]:
    tests = [
        (test, value)
        for test, value in (
            ("s.owner = ?", wanted.owner), ("d.day >= ?", wanted.since), ("d.day <= ?", wanted.until),
            ("s.id = ?", wanted.sandbox),
        )
        if value is not None
    ]  # fmt: skip
    values: list[Any] = [value for _, value in tests]
    texts = [test for test, _ in tests]
    if wanted.label is not None:
        texts.append("EXISTS (SELECT 1 FROM json_each(s.labels) WHERE key = ? AND value = ?)")
        values += wanted.label
    return (f"WHERE {' AND '.join(texts)}" if texts else ""), values


def _values(used: UsageTotals) -> tuple[float, ...]:
    return msgspec.structs.astuple(used)


def _totals(row: sqlite3.Row) -> UsageTotals:
    return msgspec.convert({name: row[name] or 0 for name in _FIGURES}, UsageTotals, strict=False)


def _row(row: sqlite3.Row, name: str | None) -> UsageRow:
    return UsageRow(key=row["key"], usage=_totals(row), sandboxes=row["sandboxes"], name=name)


def _account(row: sqlite3.Row) -> AccountRow:
    state = msgspec.json.decode(row["state"], type=StoredState) if row["state"] is not None else None
    return AccountRow(
        id=row["id"], owner=row["owner"], actor=row["actor"], image=row["image"], name=row["name"],
        labels=msgspec.json.decode(row["labels"], type=dict[str, str]), created_at=row["created_at"],
        totals=_totals(row), state=state, deleted_at=row["deleted_at"],
    )  # fmt: skip
