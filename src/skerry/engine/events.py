"""What happened, in order, kept on disk: long work needs no polling, and a listener that was away misses nothing.

An event is written before anyone is told of it. What a sandbox's row says and the event that tells of it are one
transaction; what processes do is written in batches, a moment later, so that a run waits for no disk. Listeners have no
queue: each is a position in the table, and one that is slow reads later.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from skerry.engine.database import Database
from skerry.types import Caller, Event, ProcessInfo

log = logging.getLogger("skerry.engine")
KEPT = 10_000  # of each owner: nobody's flood can wash away what another wants to know
SLACK = 1_000  # how far beyond that it may grow before the oldest go
WAITING_MOST = 10_000
BATCH_S = 0.05
RETRY_S = 1.0
PAGE = 256
_INSERT = "INSERT INTO events (at, type, owner, sandbox, name, reason, process) VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class News:
    """An event before it has its number. `heard`: where it stood among those of the sandbox's keeper."""

    type: str
    owner: str
    sandbox: str
    name: str | None
    at: float
    reason: str | None = None
    process: ProcessInfo | None = None
    heard: int | None = None


@dataclass(frozen=True)
class Wish:
    """Which events a listener wants. `type` is one of them, or all below one: `process` is process.started and .ended;
    `sandbox` is an id or a name, also of one that is gone."""

    caller: Caller
    sandbox: str | None = None
    type: str | None = None

    def condition(self) -> tuple[str, list[object]]:
        terms: list[tuple[str, list[object]]] = []
        if self.caller.scope != "admin":
            terms.append(("owner = ?", [self.caller.owner]))
        if self.sandbox is not None:
            terms.append(("(sandbox = ? OR name = ?)", [self.sandbox, self.sandbox]))
        if self.type is not None:
            terms.append(("(type = ? OR substr(type, 1, ?) = ?)", [self.type, len(self.type) + 1, f"{self.type}."]))
        clause = "".join(f" AND {term}" for term, _ in terms)
        return clause, [value for _, values in terms for value in values]


class Events:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database, kept: int = KEPT, slack: int = SLACK) -> None:
        self._database = database
        self._kept = kept
        self._slack = slack
        self._pending: list[News] = []
        self._flushing: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()
        self._counts: dict[str, int] = {
            row[0]: row[1] for row in database.read("SELECT owner, count(*) FROM events GROUP BY owner")
        }
        self._floors: dict[str, int] = {row[0]: row[1] for row in database.read("SELECT owner, seq FROM event_floors")}
        found = database.read("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        self.last: int = found[0][0] if found else 0

    # -- telling ------------------------------------------------------------------------------------------------------

    def tell(self, news: News) -> None:
        """Written with the next batch."""
        self._pending.append(news)
        if len(self._pending) > WAITING_MOST:  # the disk is full, and stays so
            del self._pending[: WAITING_MOST // 2]
        if self._flushing is None:
            self._flush_in(BATCH_S)

    @contextmanager
    def transaction(self, *news: News, durable: bool = False) -> Iterator[sqlite3.Cursor]:
        """A change and the news of it, all or nothing; what was told before it comes before it."""
        written = [*self._pending, *news]
        with self._database.transaction(durable=durable) as cursor:
            yield cursor
            last = [self._write(cursor, one) for one in written][-1:]
            floors = self._trim(cursor, written)
        self._pending.clear()
        if written:
            self._take_note(written, floors, *last)

    def flush(self) -> None:
        """Write what waits. A disk that is full now may not be later."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if not self._pending:
            return
        try:
            with self.transaction():
                pass
        except sqlite3.Error as error:
            log.warning("events can't be written", extra={"error": str(error)})
            self._flush_in(RETRY_S)

    def close(self) -> None:
        self.flush()
        if self._flushing is not None:
            self._flushing.cancel()

    def heard(self, sandbox: str) -> int:
        """The last of the keeper's own numbers that is written here, in this life of the sandbox."""
        self.flush()
        found = self._database.read("SELECT seq FROM heard WHERE sandbox = ?", sandbox)
        return int(found[0][0]) if found else 0

    def unended(self, sandbox: str) -> dict[str, ProcessInfo]:
        """The processes whose start was told and whose end was not."""
        self.flush()
        found = self._database.read("SELECT process, info FROM unended WHERE sandbox = ?", sandbox)
        return {row["process"]: msgspec.json.decode(row["info"], type=ProcessInfo) for row in found}

    def last_name(self, sandbox: str) -> str | None:
        """A sandbox that is on its way out has given its name back."""
        query = "SELECT name FROM events WHERE sandbox = ? AND name IS NOT NULL ORDER BY seq DESC LIMIT 1"
        found = self._database.read(query, sandbox)
        return found[0][0] if found else None

    def _flush_in(self, seconds: float) -> None:
        self._flushing = asyncio.get_running_loop().call_later(seconds, self.flush)

    @staticmethod
    def _write(cursor: sqlite3.Cursor, news: News) -> int:
        process = msgspec.json.encode(news.process) if news.process is not None else None
        values = (news.at, news.type, news.owner, news.sandbox, news.name, news.reason, process)
        seq = cursor.execute(_INSERT, values).lastrowid or 0
        if news.heard is not None:
            cursor.execute("INSERT OR REPLACE INTO heard VALUES (?, ?)", (news.sandbox, news.heard))
        if news.process is not None and news.type == "process.started":
            cursor.execute("INSERT OR REPLACE INTO unended VALUES (?, ?, ?)", (news.sandbox, news.process.id, process))
        elif news.process is not None:
            cursor.execute("DELETE FROM unended WHERE sandbox = ? AND process = ?", (news.sandbox, news.process.id))
        return seq

    def _trim(self, cursor: sqlite3.Cursor, written: list[News]) -> dict[str, int]:
        """The new floor of each owner that has grown beyond its room."""
        floors = {}
        for owner in {news.owner for news in written}:
            grown = self._counts.get(owner, 0) + sum(news.owner == owner for news in written)
            if grown <= self._kept + self._slack:
                continue
            query = "SELECT seq FROM events WHERE owner = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
            floor: int = cursor.execute(query, (owner, self._kept)).fetchone()[0]
            cursor.execute("DELETE FROM events WHERE owner = ? AND seq <= ?", (owner, floor))
            cursor.execute("INSERT OR REPLACE INTO event_floors VALUES (?, ?)", (owner, floor))
            floors[owner] = floor
        return floors

    def _take_note(self, written: list[News], floors: dict[str, int], last: int) -> None:
        """After the commit: only now it has happened for those who listen."""
        for news in written:
            self._counts[news.owner] = self._counts.get(news.owner, 0) + 1
        for owner, floor in floors.items():
            self._floors[owner], self._counts[owner] = floor, self._kept
        self.last = last
        more, self._more = self._more, asyncio.Event()
        more.set()

    # -- listening ----------------------------------------------------------------------------------------------------

    async def read(self, wish: Wish, since: int | None, follow: bool) -> AsyncGenerator[list[Event], None]:
        """Pages of events after `since`; None: all that are kept, or, to follow, from now on. A follower is first
        greeted, with the number from which on it hears everything."""
        position = min(since, self.last) if since is not None else self.last if follow else 0
        told_of = 0 if since is not None else self._floor(wish.caller)
        if follow:
            yield [Event(seq=position, at=time.time(), type="hello")]
        if since is not None and since > self.last:  # of another life of this server, on a disk that is new
            yield [Event(seq=position, at=time.time(), type="lost")]
        while True:
            more, last, floor = self._more, self.last, self._floor(wish.caller)
            if position < floor and told_of < floor:
                told_of = floor
                yield [Event(seq=position, at=time.time(), type="lost")]
            page = self._page(wish, position)
            if page:
                yield page
            position = page[-1].seq if len(page) == PAGE else max(position, last)
            if len(page) < PAGE:
                if not follow:
                    return
                await more.wait()

    def _floor(self, caller: Caller) -> int:
        if caller.scope == "admin":
            return max(self._floors.values(), default=0)
        return self._floors.get(caller.owner, 0)

    def _page(self, wish: Wish, position: int) -> list[Event]:
        clause, values = wish.condition()
        query = f"SELECT * FROM events WHERE seq > ?{clause} ORDER BY seq LIMIT {PAGE}"  # noqa: S608 -- ours
        return [_event(row) for row in self._database.read(query, position, *values)]


def _event(row: sqlite3.Row) -> Event:
    process = msgspec.json.decode(row["process"], type=ProcessInfo) if row["process"] is not None else None
    return Event(
        seq=row["seq"], at=row["at"], type=row["type"], sandbox=row["sandbox"], name=row["name"],
        reason=row["reason"], process=process,
    )  # fmt: skip
