"""The queue of deliveries, in the database: a delivery is written in the transaction of its event, so it exists if and
only if the event does. It is bounded: when too many wait for a target, new ones are dead at once, and of the dead ones
the oldest are dropped."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from skerry.config import Settings
from skerry.engine.database import Database
from skerry.types import Event, WebhookDelivery, parse_span

MAX_WAITING: Final = 10_000  # for each target
MAX_DEAD: Final = 1_000
MAX_DELAY_S: Final = 6 * 3600.0
CHECKPOINTS: Final = "audit.checkpoints"  # the name of the targets of the setting with this name
_CHECKPOINT: Final = "audit.checkpoint"
_FULL: Final = f"{MAX_WAITING:,} deliveries were waiting"


@dataclass(frozen=True)
class Target:
    """A receiver. `secret_file` None: a receiver of checkpoints, which have a signature of their own."""

    name: str
    url: str
    events: tuple[str, ...]
    secret_file: str | None = None
    timeout_s: float = 10.0
    retry_delay_s: float = 5.0
    max_attempts: int = 12

    def wants(self, kind: str) -> bool:
        return kind in self.events or kind.partition(".")[0] in self.events


def targets_of(settings: Settings) -> dict[str, Target]:
    """Return the targets of the settings by name."""
    targets = {
        name: Target(
            name, form.url, form.events, form.secret_file, parse_span(form.timeout), parse_span(form.retry_delay),
            form.max_attempts,
        )
        for name, form in settings["webhooks"].items()
    }  # fmt: skip
    urls = [sink for sink in settings["audit.checkpoints"] if "://" in sink]
    for number, url in enumerate(urls, 1):
        name = CHECKPOINTS if number == 1 else f"{CHECKPOINTS}.{number}"
        targets[name] = Target(name, url, (_CHECKPOINT,))
    return targets


class WebhookQueue:
    """Used from the event loop's thread only. `more` is set, and replaced, when a delivery was added."""

    def __init__(self, database: Database, targets: Mapping[str, Target]) -> None:
        self._database, self.targets = database, targets
        self.more = asyncio.Event()
        with database.transaction() as cursor:
            cursor.execute(
                "UPDATE webhook_deliveries SET state = 'dead', error = 'the webhook is no longer configured' "
                "WHERE state = 'waiting' AND webhook NOT IN (SELECT value FROM json_each(?))",
                (json.dumps(list(targets)),),
            )

    # -- adding -------------------------------------------------------------------------------------------------------

    def wants(self, kind: str) -> bool:
        return any(target.wants(kind) for target in self.targets.values())

    def add(self, cursor: sqlite3.Cursor, owner: str, event: Event) -> None:
        """Add an event in the transaction of its cursor, for all targets that want it. Call `notify` afterwards."""
        body = encode_event(owner, event)
        for target in self.targets.values():
            if target.wants(event.type):
                self._insert(cursor, target.name, event.type, body)

    def add_checkpoint(self, line: bytes) -> None:
        """Add a checkpoint of the audit log for all targets that want it."""
        wanting = [target.name for target in self.targets.values() if target.wants(_CHECKPOINT)]
        if wanting:
            with self._database.transaction() as cursor:
                for name in wanting:
                    self._insert(cursor, name, _CHECKPOINT, line)
            self.notify()

    def _insert(self, cursor: sqlite3.Cursor, webhook: str, kind: str, body: bytes) -> None:
        now, full = time.time(), _count(cursor, webhook, "waiting", MAX_WAITING) >= MAX_WAITING
        cursor.execute(
            "INSERT INTO webhook_deliveries (id, webhook, state, type, body, created_at, due, attempts, error) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)",
            (new_id(), webhook, "dead" if full else "waiting", kind, body, now, now, _FULL if full else None),
        )
        if full:
            _drop_oldest(cursor, webhook)

    def notify(self) -> None:
        """Wake the senders: deliveries were committed."""
        more, self.more = self.more, asyncio.Event()
        more.set()

    # -- sending ------------------------------------------------------------------------------------------------------

    def next(self, webhook: str) -> tuple[WebhookDelivery, float] | None:
        """Return the delivery that is due first, and the seconds until then; None if no delivery waits. A time in the
        far future is from before the clock was set back."""
        query = "SELECT * FROM webhook_deliveries WHERE webhook = ? AND state = 'waiting' ORDER BY due, seq LIMIT 1"
        found = self._database.read(query, webhook)
        if not found:
            return None
        wait = found[0]["due"] - time.time()
        return _delivery(found[0]), wait if 0 < wait <= 2 * MAX_DELAY_S else 0.0

    def sent(self, delivery: WebhookDelivery) -> None:
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM webhook_deliveries WHERE id = ?", (delivery.id,))

    def failed(self, delivery: WebhookDelivery, status: int | None, error: str, retry_in: float | None) -> None:
        """Note a failed attempt. `retry_in` None: the delivery is dead."""
        state, due = ("dead", 0.0) if retry_in is None else ("waiting", time.time() + retry_in)
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE webhook_deliveries SET state = ?, due = ?, attempts = attempts + 1, status = ?, error = ? "
                "WHERE id = ?",
                (state, due, status, error[:300], delivery.id),
            )
            _drop_oldest(cursor, delivery.webhook)

    def bury(self, webhook: str, error: str) -> None:
        """Make all waiting deliveries of a target dead."""
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE webhook_deliveries SET state = 'dead', error = ? WHERE webhook = ? AND state = 'waiting'",
                (error[:300], webhook),
            )
            _drop_oldest(cursor, webhook)

    # -- the dead-letter list -----------------------------------------------------------------------------------------

    def dead(self, webhook: str | None, limit: int) -> list[WebhookDelivery]:
        """Return dead deliveries, newest first."""
        query = (
            "SELECT * FROM webhook_deliveries WHERE state = 'dead' AND (? IS NULL OR webhook = ?) "
            "ORDER BY seq DESC LIMIT ?"
        )
        return [_delivery(row) for row in self._database.read(query, webhook, webhook, limit)]

    def retry(self, webhook: str, ids: Sequence[str]) -> int:
        """Let dead deliveries wait again, those with these IDs or all, and return their number."""
        with self._database.transaction() as cursor:
            cursor.execute(
                "UPDATE webhook_deliveries SET state = 'waiting', due = ?, attempts = 0, error = NULL "
                "WHERE webhook = ? AND state = 'dead' AND (? OR id IN (SELECT value FROM json_each(?)))",
                (time.time(), webhook, not ids, json.dumps(list(ids))),
            )
            retried = cursor.rowcount
        self.notify()
        return retried

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of deliveries by webhook and state."""
        query = "SELECT webhook, state, count(*) FROM webhook_deliveries GROUP BY webhook, state"
        return {(row[0], row[1]): row[2] for row in self._database.read(query)}


def encode_event(owner: str, event: Event) -> bytes:
    """Return the body of an event's deliveries."""
    moment = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = {
        "seq": event.seq, "owner": owner or None, "sandbox": event.sandbox, "name": event.name, "reason": event.reason,
        "process": event.process,
    }  # fmt: skip
    given = {name: value for name, value in data.items() if value is not None}
    return msgspec.json.encode({"type": event.type, "timestamp": moment, "data": given})


def new_id() -> str:
    return "wd-" + base64.b32encode(secrets.token_bytes(15)).decode().lower()[:20]


def _count(cursor: sqlite3.Cursor, webhook: str, state: str, most: int) -> int:
    query = "SELECT count(*) FROM (SELECT 1 FROM webhook_deliveries WHERE webhook = ? AND state = ? LIMIT ?)"
    return int(cursor.execute(query, (webhook, state, most)).fetchone()[0])


def _drop_oldest(cursor: sqlite3.Cursor, webhook: str) -> None:
    cursor.execute(
        "DELETE FROM webhook_deliveries WHERE webhook = ? AND state = 'dead' AND seq <= "
        "(SELECT seq FROM webhook_deliveries WHERE webhook = ? AND state = 'dead' ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (webhook, webhook, MAX_DEAD),
    )


def _delivery(row: sqlite3.Row) -> WebhookDelivery:
    return WebhookDelivery(
        id=row["id"], webhook=row["webhook"], type=row["type"], created_at=row["created_at"], attempts=row["attempts"],
        status=row["status"], error=row["error"], body=bytes(row["body"]).decode(),
    )  # fmt: skip
