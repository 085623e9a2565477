"""What is known of each sandbox on disk: one row, read and written as frozen values."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from skerry.engine.database import Database
from skerry.engine.events import Events, News
from skerry.errors import Conflict, InvalidRequest
from skerry.runtimes import Init
from skerry.types import (
    Caller,
    CreateRequest,
    Isolation,
    Lifecycle,
    Limits,
    Network,
    Options,
    ProcessInfo,
    SandboxInfo,
    SecretForm,
    State,
    Value,
)

# A row can also be on its way out: to stopped, to failed, to nothing. What is left of that, also by a server that died,
# is taken up again until it is done.
# One that is "ready" is the pool's: it runs, belongs to nobody, and nobody is told of it.
RowState = Literal["creating", "ready", "running", "paused", "stopped", "failed", "stopping", "failing", "deleting"]
NOBODY = ""  # owns what the pool makes
HALF_ENDED = ("stopping", "failing", "deleting")
Also = Callable[[sqlite3.Cursor], None]
KEY_LIFE_S = 24 * 3600.0
_TOLD = ("running", "paused", "stopped", "failed")  # states whose beginning is an event
_COLUMNS = (
    "id", "owner", "name", "state", "reason", "spec", "isolation", "created_at", "started_at", "ends_at",
    "pid", "start_time", "boot_id", "uid_base",
)  # fmt: skip
_INSERT = f"INSERT INTO sandboxes VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 -- nobody else's text
_UPDATE = f"UPDATE sandboxes SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE id = ?"  # noqa: S608


class Spec(Value, frozen=True, kw_only=True):
    """What was asked for, with every default filled in; the layers are pinned by digest."""

    image: str
    image_digest: str
    layers: tuple[str, ...]
    user: str
    cwd: str
    image_env: dict[str, str]
    env: dict[str, str | None]
    labels: dict[str, str]
    limits: Limits
    lifecycle: Lifecycle
    network: Network
    options: Options
    secrets: tuple[SecretForm, ...] = ()
    resizing: bool = False  # its limits are being changed: what holds may be less than what stands here
    unit: str | None = None  # where its upper is; None: under its own id, until a rollback gives it another
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The image's variables under the sandbox's own, of which None unsets."""
        merged = {**self.image_env, **self.env}
        return {name: value for name, value in merged.items() if value is not None}


@dataclass(frozen=True)
class Row:
    id: str
    owner: str
    name: str | None
    state: RowState
    spec: Spec
    created_at: float
    reason: str | None = None
    isolation: Isolation | None = None
    started_at: float | None = None
    ends_at: float | None = None
    init: Init | None = None
    uid_base: int | None = None

    @property
    def unit(self) -> str:
        """Where its upper is, in the storage driver."""
        return self.spec.unit or self.id

    def is_seen_by(self, caller: Caller) -> bool:
        return self.owner == caller.owner or caller.scope == "admin"

    def info(self) -> SandboxInfo:
        shown: dict[str, State] = {
            "ready": "creating", "stopping": "stopped", "failing": "failed", "deleting": "stopped",
        }  # fmt: skip
        spec = self.spec
        return SandboxInfo(
            id=self.id, name=self.name, owner=self.owner, reason=self.reason, isolation=self.isolation,
            state=shown.get(self.state, self.state),  # type: ignore[arg-type]
            image=spec.image, image_digest=spec.image_digest, env=spec.env, labels=spec.labels, limits=spec.limits,
            lifecycle=spec.lifecycle, network=spec.network, secrets=spec.secrets, options=spec.options,
            created_at=self.created_at, started_at=self.started_at, ends_at=self.ends_at,
        )  # fmt: skip


def _row(record: sqlite3.Row) -> Row:
    isolation = record["isolation"]
    init = None
    if record["pid"] is not None:
        init = Init(pid=record["pid"], start_time=record["start_time"], boot_id=record["boot_id"])
    return Row(
        id=record["id"], owner=record["owner"], name=record["name"], state=record["state"], reason=record["reason"],
        spec=msgspec.json.decode(record["spec"], type=Spec),
        isolation=msgspec.json.decode(isolation, type=Isolation) if isolation else None,
        created_at=record["created_at"], started_at=record["started_at"], ends_at=record["ends_at"],
        init=init, uid_base=record["uid_base"],
    )  # fmt: skip


def _values(row: Row) -> tuple[Any, ...]:
    """In the order of _COLUMNS."""
    init = row.init
    return (
        row.id, row.owner, row.name, row.state, row.reason, msgspec.json.encode(row.spec),
        msgspec.json.encode(row.isolation) if row.isolation else None,
        row.created_at, row.started_at, row.ends_at,
        init.pid if init else None, init.start_time if init else None, init.boot_id if init else None,
        row.uid_base,
    )  # fmt: skip


def _digest(request: Value) -> bytes:
    """Not of secrets' values: who reads the database must not be able to try guesses on it."""
    if isinstance(request, CreateRequest) and request.secrets:
        forms = [secret.form for secret in request.secrets]
        return hashlib.sha256(
            msgspec.json.encode((msgspec.structs.replace(request, secrets=()), forms), order="sorted")
        ).digest()
    return hashlib.sha256(msgspec.json.encode(request, order="sorted")).digest()


def remember(cursor: sqlite3.Cursor, owner: str, key: str | None, request: Value, made: str) -> None:
    """What came of a request with a key, in the transaction that makes it; long-forgotten keys go."""
    now = time.time()
    cursor.execute("DELETE FROM creates WHERE created_at < ?", (now - KEY_LIFE_S,))
    if key is not None:
        values = (owner, key, _digest(request), made, now)
        cursor.execute("INSERT OR REPLACE INTO creates VALUES (?, ?, ?, ?, ?)", values)


class Rows:
    """The table of sandboxes, with the keys of the creates that made them."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events

    def all(self) -> list[Row]:
        return [_row(r) for r in self._database.read("SELECT * FROM sandboxes ORDER BY created_at")]

    def find(self, caller: Caller, ref: str) -> Row | None:
        """By id or name, among the caller's own; an admin also finds another's by its id."""
        found = self._database.read(
            "SELECT * FROM sandboxes WHERE (id = ? OR (name = ? AND owner = ?)) AND state != 'deleting' AND owner != ?",
            ref, ref, caller.owner, NOBODY,
        )  # fmt: skip
        rows = [_row(r) for r in found]
        mine = [row for row in rows if row.is_seen_by(caller)]
        return mine[0] if mine else None

    def is_named(self, row: Row) -> bool:
        """Whether its owner has another of its name."""
        query = "SELECT 1 FROM sandboxes WHERE owner = ? AND name = ?"
        return row.name is not None and bool(self._database.read(query, row.owner, row.name))

    def remembered(self, owner: str, key: str, request: Value) -> str | None:
        """The id, or ids, that this key was given before. The same key for another request is the caller's mistake."""
        found = self._database.read("SELECT request, sandbox FROM creates WHERE owner = ? AND key = ?", owner, key)
        if not found:
            return None
        if found[0]["request"] != _digest(request):
            raise InvalidRequest(
                "Idempotency-Key: this key was used for another request", hint="use a new key for each new request"
            )
        return str(found[0]["sandbox"])

    def insert(self, rows: Sequence[Row], request: Value, key: str | None) -> None:
        """Sandboxes of one owner and the key of what makes them, in one transaction."""
        with self._made(rows, request, key, "created") as cursor:
            cursor.executemany(_INSERT, map(_values, rows))

    def claim(self, row: Row, request: CreateRequest, key: str | None) -> None:
        """One of the pool's becomes somebody's, and runs: its row, the key and what is told, in one transaction."""
        with self._made((row,), request, key, "created", row.state) as cursor:
            cursor.execute(_UPDATE, (*_values(row), row.id))

    @contextmanager
    def _made(self, rows: Sequence[Row], request: Value, key: str | None, *told: str) -> Iterator[sqlite3.Cursor]:
        news = [_news(what, row) for row in rows for what in told if row.owner != NOBODY]
        try:
            with self._events.transaction(*news, durable=any(row.name for row in rows)) as cursor:
                remember(cursor, rows[0].owner, key, request, ",".join(row.id for row in rows))
                yield cursor
        except sqlite3.IntegrityError as error:
            raise Conflict(
                f"there is a sandbox named {rows[0].name!r} already",
                hint=f"choose another name, delete that one (`skerry rm {rows[0].name}`), or use Sandbox.get_or_create",
                details={"name": rows[0].name},
            ) from error

    def update(self, row: Row, also: Also | None = None, **changes: Any) -> Row:
        """A new state and the event that tells of it are one transaction, of which `also` is part."""
        return self.update_all([row], also, **changes)[0]

    def update_all(self, rows: Sequence[Row], also: Also | None = None, **changes: Any) -> list[Row]:
        """All of them or none."""
        changed = [replace(row, **changes) for row in rows]
        news = [one for old, new in zip(rows, changed, strict=True) for one in self._told(old, new)]
        with self._events.transaction(*news, durable=any(row.name for row in rows)) as cursor:
            for old, new in zip(rows, changed, strict=True):
                cursor.execute(_UPDATE, (*_values(new), old.id))
                if new.init != old.init:  # another keeper, which counts from one again
                    cursor.execute("DELETE FROM heard WHERE sandbox = ?", (old.id,))
            if also is not None:
                also(cursor)
        return changed

    def _told(self, old: Row, new: Row) -> list[News]:
        if new.state == old.state or new.state not in _TOLD:
            return []
        ends = self._ends(new) if new.state in ("stopped", "failed") else []
        return [*ends, _news(new.state, new)]

    def remove(self, row: Row) -> None:
        news = []
        if row.owner != NOBODY:
            row = replace(row, name=row.name or self._events.last_name(row.id))
            news = [*self._ends(row), _news("deleted", row)]
        with self._events.transaction(*news, durable=row.name is not None) as cursor:
            cursor.execute("DELETE FROM sandboxes WHERE id = ?", (row.id,))
            cursor.execute("DELETE FROM heard WHERE sandbox = ?", (row.id,))

    def _ends(self, row: Row) -> list[News]:
        """What ran until its sandbox ended, and nobody was left to tell how."""
        now = time.time()
        return [
            News("process.ended", row.owner, row.id, row.name, now, "its sandbox ended", _killed(process, now))
            for process in self._events.unended(row.id).values()
        ]


def _killed(process: ProcessInfo, now: float) -> ProcessInfo:
    return msgspec.structs.replace(process, state="exited", signal="KILL", ended_at=now)


def _news(what: str, row: Row) -> News:
    return News(f"sandbox.{what}", row.owner, row.id, row.name, time.time(), row.reason)
