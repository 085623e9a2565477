"""Events, in order, kept on disk: callers need no polling, and a listener that was away misses nothing.

An event is written before listeners get it. A sandbox's new state and its event are one transaction; process events are
written in batches, a moment later, so that a run does not wait for the disk. Listeners have no queue: each is a
position in the table, and a slow one reads later."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from skerry.engine.database import Database, is_busy
from skerry.engine.faults import fault_point
from skerry.engine.records.audit.service import AuditService
from skerry.engine.webhooks.alerts import Alerts
from skerry.engine.webhooks.queue import WebhookQueue
from skerry.types import Caller, Event, ProcessInfo

if TYPE_CHECKING:
    from skerry.engine.records.trace.service import TraceService

log = logging.getLogger("skerry.engine")
KEPT = 10_000  # per owner: one owner's flood can't displace another owner's events
SLACK = 1_000  # how far beyond that it may grow before the oldest go
MAX_WAITING = 10_000
BATCH_S = 0.05
MAX_POSTPONED = 20  # batches that are put off while another connection writes; the next one waits for it
RETRY_S = 1.0
PAGE = 256
MAX_REASON = 300  # characters in an audit record
# Recorded in the audit log by KeeperEvents, or as actions of a caller.
_RECORDED = ("process.", "limit.", "review.decided", "review.applied", "review.undone")
_INSERT = "INSERT INTO events (at, type, owner, sandbox, name, reason, process) VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class PendingEvent:
    """An event without a number yet. `heard`: its position among the events of the sandbox's keeper. `counters`: of
    reached limits, as the event reports them."""

    type: str
    owner: str
    sandbox: str
    name: str | None
    at: float
    reason: str | None = None
    process: ProcessInfo | None = None
    heard: int | None = None
    counters: tuple[int, int] | None = None

    def numbered(self, seq: int) -> Event:
        return Event(
            seq=seq, at=self.at, type=self.type, sandbox=self.sandbox, name=self.name, reason=self.reason,
            process=self.process,
        )  # fmt: skip


def _is_recorded(news: PendingEvent) -> bool:
    return not news.type.startswith(_RECORDED)


@dataclass(frozen=True)
class EventFilter:
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

    def __init__(
        self,
        database: Database,
        audit: AuditService | None = None,
        webhooks: WebhookQueue | None = None,
        traces: TraceService | None = None,
        alerts: Alerts | None = None,
        kept: int = KEPT,
        slack: int = SLACK,
    ) -> None:
        self._database, self._audit, self._traces, self._webhooks = database, audit, traces, webhooks
        self._alerts = alerts or Alerts()
        self._kept = kept
        self._slack = slack
        self.written: Counter[str] = Counter()  # by type, since the server started
        self._pending: list[PendingEvent] = []
        self._flushing: asyncio.TimerHandle | None = None
        self._postponed = 0
        self._more = asyncio.Event()
        self._counts: dict[str, int] = {
            row[0]: row[1] for row in database.read("SELECT owner, count(*) FROM events GROUP BY owner")
        }
        self._floors: dict[str, int] = {row[0]: row[1] for row in database.read("SELECT owner, seq FROM event_floors")}
        found = database.read("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        self.last: int = found[0][0] if found else 0

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, news: PendingEvent) -> None:
        """Written with the next batch."""
        self._pending.append(news)
        if len(self._pending) > MAX_WAITING:  # the disk is full, and stays so
            del self._pending[: MAX_WAITING // 2]
        if self._flushing is None:
            self._flush_in(BATCH_S)

    def count(self, news: PendingEvent) -> None:
        """Count an event for the alert rules, and publish the alerts that it raises."""
        for alert in self._alerts.count(news.type, news.owner, news.sandbox, news.reason):
            name = news.name or self.last_name(news.sandbox)
            self.publish(PendingEvent(alert.type, alert.owner, news.sandbox, name, time.time(), alert.reason))

    @contextmanager
    def transaction(self, *news: PendingEvent, durable: bool = False, wait: bool = True) -> Iterator[sqlite3.Cursor]:
        """Write a change and its events, all or nothing. Events published earlier come first."""
        written = [*self._pending, *news]
        with self._database.transaction(durable=durable, wait=wait) as cursor:
            yield cursor
            last = self._write(cursor, written)
            floors = self._trim(cursor, written)
        self._pending.clear()
        if written:
            if any(_is_recorded(news) for news in written):
                fault_point("events.committed")
            self._take_note(written, floors, last)

    def flush(self, wait: bool = True) -> None:
        """Write waiting events. A disk that is full now may have room later. Without `wait`, put them off while a
        thread writes, for example thousands of decisions: the event loop must not wait for it."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if not self._pending:
            return
        wait = wait or self._postponed == MAX_POSTPONED
        try:
            with self.transaction(wait=wait):
                pass
            self._postponed = 0
        except sqlite3.Error as error:
            if is_busy(error) and not wait:
                self._postponed += 1
                self._flush_in(BATCH_S)
            else:
                log.warning("events can't be written", extra={"error": str(error)})
                self._flush_in(RETRY_S)

    def close(self) -> None:
        self.flush()
        self.flush()  # alerts that the first one raised
        if self._flushing is not None:
            self._flushing.cancel()

    def heard(self, sandbox_id: str) -> int:
        """The last of the keeper's own numbers that is written here, in this life of the sandbox."""
        self.flush()
        found = self._database.read("SELECT seq FROM heard WHERE sandbox = ?", sandbox_id)
        return int(found[0][0]) if found else 0

    def limit_counters(self, sandbox_id: str) -> tuple[int, int] | None:
        """Return the counters of memory and processes that are reported, in this life of the sandbox; None: not
        known."""
        self.flush()
        found = self._database.read("SELECT memory, pids FROM limit_counters WHERE sandbox = ?", sandbox_id)
        counters = (found[0]["memory"], found[0]["pids"]) if found else (0, 0)
        return counters if min(counters) >= 0 else None

    def running_processes(self, sandbox_id: str) -> dict[str, ProcessInfo]:
        """Return the processes with a start event and without an end event."""
        self.flush()
        found = self._database.read("SELECT process, info FROM unended WHERE sandbox = ?", sandbox_id)
        return {row["process"]: msgspec.json.decode(row["info"], type=ProcessInfo) for row in found}

    def last_name(self, sandbox_id: str) -> str | None:
        """A sandbox that is on its way out has given its name back."""
        query = "SELECT name FROM events WHERE sandbox = ? AND name IS NOT NULL ORDER BY seq DESC LIMIT 1"
        found = self._database.read(query, sandbox_id)
        return found[0][0] if found else None

    def _flush_in(self, seconds: float) -> None:
        self._flushing = asyncio.get_running_loop().call_later(seconds, self.flush, False)

    def _write(self, cursor: sqlite3.Cursor, written: list[PendingEvent]) -> int:
        """Return the number of the last event. Most commands start and end within one batch, and many batches are of
        one sandbox: rows that a later event of the batch would replace or delete are not written."""
        last, heard, unended = 0, dict[str, int](), dict[tuple[str, str], bytes | None]()
        for news in written:
            process = msgspec.json.encode(news.process) if news.process is not None else None
            values = (news.at, news.type, news.owner, news.sandbox, news.name, news.reason, process)
            last = cursor.execute(_INSERT, values).lastrowid or 0
            if self._webhooks is not None and self._webhooks.wants(news.type):
                self._webhooks.add(cursor, news.owner, news.numbered(last))
            if news.heard is not None:
                heard[news.sandbox] = news.heard
            if news.process is not None and news.type == "process.started":
                unended[news.sandbox, news.process.id] = process
            elif news.process is not None and unended.pop((news.sandbox, news.process.id), None) is None:
                unended[news.sandbox, news.process.id] = None
        cursor.executemany("INSERT OR REPLACE INTO heard VALUES (?, ?)", heard.items())
        limits = {news.sandbox: news.counters for news in written if news.counters is not None}
        rows = [(sandbox, *counters) for sandbox, counters in limits.items()]
        cursor.executemany("INSERT OR REPLACE INTO limit_counters VALUES (?, ?, ?)", rows)
        started = [(*key, info) for key, info in unended.items() if info is not None]
        ended = [key for key, info in unended.items() if info is None]
        cursor.executemany("INSERT OR REPLACE INTO unended VALUES (?, ?, ?)", started)
        cursor.executemany("DELETE FROM unended WHERE sandbox = ? AND process = ?", ended)
        return last

    def _trim(self, cursor: sqlite3.Cursor, written: list[PendingEvent]) -> dict[str, int]:
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

    def _take_note(self, written: list[PendingEvent], floors: dict[str, int], last: int) -> None:
        """Advance after the commit: only now has the event happened for listeners."""
        for seq, news in enumerate(written, last - len(written) + 1):
            self._counts[news.owner] = self._counts.get(news.owner, 0) + 1
            self._record(news, seq)
            self.written[news.type] += 1
        for owner, floor in floors.items():
            self._floors[owner], self._counts[owner] = floor, self._kept
        self.last = last
        if self._webhooks is not None:
            self._webhooks.notify()
        for news in written:
            self.count(news)
        more, self._more = self._more, asyncio.Event()
        more.set()

    def reconcile(self) -> None:
        """Record events that a killed server committed, but did not write into the audit log any more: those after the
        newest one there. Without one, the log is older than these numbers, or new."""
        last = self._audit.last_event() if self._audit is not None else None
        if last is None:
            return
        for row in self._database.read("SELECT * FROM events WHERE seq > ? ORDER BY seq", last):
            news = PendingEvent(row["type"], row["owner"], row["sandbox"], row["name"], row["at"], row["reason"])
            self._record(news, row["seq"], late=True)

    def _record(self, news: PendingEvent, seq: int, *, late: bool = False) -> None:
        """Write changes of a sandbox's state into the audit log too: the server causes some of them by itself. Their
        record names the event, and `late`, also its time: the next server continues after it."""
        if self._audit is not None and _is_recorded(news):
            params = {
                "name": news.name, "reason": news.reason and news.reason[:MAX_REASON], "event": seq,
                "happened_at": round(news.at, 3) if late else None,
            }  # fmt: skip
            given = {key: value for key, value in params.items() if value is not None}
            self._audit.event(news.type, owner=news.owner, sandbox=news.sandbox, params=given)
        if self._traces is not None and news.type.startswith(("sandbox.", "budget.", "alert.")):
            self._traces.state(news.sandbox, news.type, news.reason, news.name)

    # -- listening ----------------------------------------------------------------------------------------------------

    async def read(self, wanted: EventFilter, since: int | None, follow: bool) -> AsyncGenerator[list[Event], None]:
        """Yield pages of events after `since`; None: all that are kept or, with `follow`, new ones only. A follower
        first gets the number from which on it receives every event."""
        position = min(since, self.last) if since is not None else self.last if follow else 0
        reported = 0 if since is not None else self._floor(wanted.caller)
        if follow:
            yield [Event(seq=position, at=time.time(), type="hello")]
        if since is not None and since > self.last:  # of another life of this server, on a disk that is new
            yield [Event(seq=position, at=time.time(), type="lost")]
        while True:
            more, last, floor = self._more, self.last, self._floor(wanted.caller)
            if position < floor and reported < floor:
                reported = floor
                yield [Event(seq=position, at=time.time(), type="lost")]
            page = self._page(wanted, position)
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

    def _page(self, wanted: EventFilter, position: int) -> list[Event]:
        clause, values = wanted.condition()
        query = f"SELECT * FROM events WHERE seq > ?{clause} ORDER BY seq LIMIT {PAGE}"  # noqa: S608 -- ours
        return [_event(row) for row in self._database.read(query, position, *values)]


def forget_counters(cursor: sqlite3.Cursor, sandbox_id: str) -> None:
    """Forget the positions in the events of a sandbox's keeper and of the kernel: their counters begin again."""
    cursor.execute("DELETE FROM heard WHERE sandbox = ?", (sandbox_id,))
    cursor.execute("DELETE FROM limit_counters WHERE sandbox = ?", (sandbox_id,))


def _event(row: sqlite3.Row) -> Event:
    process = msgspec.json.decode(row["process"], type=ProcessInfo) if row["process"] is not None else None
    return Event(
        seq=row["seq"], at=row["at"], type=row["type"], sandbox=row["sandbox"], name=row["name"],
        reason=row["reason"], process=process,
    )  # fmt: skip
