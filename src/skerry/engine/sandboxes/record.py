"""Sandboxes as stored in the database: one record each, read and written as frozen values."""

from __future__ import annotations

import hashlib
import posixpath
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from skerry.engine.database import Database
from skerry.engine.events import Events, PendingEvent, forget_counters
from skerry.errors import Conflict, InvalidRequest
from skerry.runtimes import Init
from skerry.types import (
    Budget,
    Caller,
    CreateRequest,
    Isolation,
    Lifecycle,
    Limits,
    Network,
    Options,
    ProcessInfo,
    SandboxInfo,
    Scope,
    SecretForm,
    State,
    Value,
    VolumeMount,
)

# A record can also be on its way to stopped, failed or deleted. A transition that was interrupted, also by the death of
# a server, is continued until it is done. A "ready" sandbox belongs to the pool: it runs, has no owner, and causes no
# events.
RecordState = Literal["creating", "ready", "running", "paused", "stopped", "failed", "stopping", "failing", "deleting"]
REPRODUCIBLE_HOSTNAME = "skerry"  # the same in every sandbox with `Options(reproducible=True)`
POOL_OWNER = ""  # owner of pooled sandboxes
ENDING_STATES = ("stopping", "failing", "deleting")
InTransaction = Callable[[sqlite3.Cursor], None]
KEY_MAX_AGE_S = 24 * 3600.0
_TOLD = ("running", "paused", "stopped", "failed")  # states that cause an event
_COLUMNS = (
    "id", "owner", "name", "state", "reason", "spec", "isolation", "created_at", "started_at", "ends_at",
    "pid", "start_time", "boot_id", "uid_base",
)  # fmt: skip
_INSERT = f"INSERT INTO sandboxes VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 -- nobody else's text
_UPDATE = f"UPDATE sandboxes SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE id = ?"  # noqa: S608


class SandboxSpec(Value, frozen=True, kw_only=True):
    """A resolved request: every default is filled in, and layers are pinned by digest."""

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
    actor: str = ""  # the creator: a token's ID or `uid:N`
    resizing: bool = False  # limits are being changed: the enforced ones may be smaller than these
    # Name of the upper in the storage driver; None: the sandbox's id, until a rollback replaces it. Stored as "unit".
    upper: str | None = msgspec.field(default=None, name="unit")
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    budget: Budget | None = None
    budget_set_by: Scope = "use"  # the scope of the caller that set it
    volumes: tuple[VolumeMount, ...] = ()
    starting: float | None = None  # since when it runs without being ready; None: it is ready

    def begun(self, now: float) -> SandboxSpec:
        """Return the spec of the sandbox when it starts or resumes."""
        starting = now if self.lifecycle.starts_commands else None
        return self if starting == self.starting else msgspec.structs.replace(self, starting=starting)

    @property
    def environment(self) -> dict[str, str]:
        """The image's variables under the sandbox's own, of which None unsets."""
        merged = {**self.image_env, **self.env}
        return {name: value for name, value in merged.items() if value is not None}

    def directory(self, cwd: str | None) -> str:
        """Return the directory of a request; a relative one is below the image's."""
        return self.cwd if cwd is None else posixpath.join(self.cwd, cwd)


@dataclass(frozen=True)
class SandboxRecord:
    id: str
    owner: str
    name: str | None
    state: RecordState
    spec: SandboxSpec
    created_at: float
    reason: str | None = None
    isolation: Isolation | None = None
    started_at: float | None = None
    ends_at: float | None = None
    init: Init | None = None
    uid_base: int | None = None

    @property
    def upper(self) -> str:
        """Where its upper is, in the storage driver."""
        return self.spec.upper or self.id

    @property
    def hostname(self) -> str:
        return REPRODUCIBLE_HOSTNAME if self.spec.options.reproducible else self.name or self.id

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
            budget=spec.budget, volumes={one.path: one.word for one in spec.volumes},
            created_at=self.created_at, started_at=self.started_at, ends_at=self.ends_at,
        )  # fmt: skip


def decode_sandbox(row: sqlite3.Row) -> SandboxRecord:
    isolation = row["isolation"]
    init = None
    if row["pid"] is not None:
        init = Init(pid=row["pid"], start_time=row["start_time"], boot_id=row["boot_id"])
    return SandboxRecord(
        id=row["id"], owner=row["owner"], name=row["name"], state=row["state"], reason=row["reason"],
        spec=msgspec.json.decode(row["spec"], type=SandboxSpec),
        isolation=msgspec.json.decode(isolation, type=Isolation) if isolation else None,
        created_at=row["created_at"], started_at=row["started_at"], ends_at=row["ends_at"],
        init=init, uid_base=row["uid_base"],
    )  # fmt: skip


def _values(record: SandboxRecord) -> tuple[Any, ...]:
    """In the order of _COLUMNS."""
    init = record.init
    return (
        record.id, record.owner, record.name, record.state, record.reason, msgspec.json.encode(record.spec),
        msgspec.json.encode(record.isolation) if record.isolation else None,
        record.created_at, record.started_at, record.ends_at,
        init.pid if init else None, init.start_time if init else None, init.boot_id if init else None,
        record.uid_base,
    )  # fmt: skip


def _digest(request: Value) -> bytes:
    """Return the digest of a request without the values of secrets: a reader of the database must not be able to test
    guesses against it."""
    if isinstance(request, CreateRequest) and request.secrets:
        forms = [secret.form for secret in request.secrets]
        return hashlib.sha256(
            msgspec.json.encode((msgspec.structs.replace(request, secrets=()), forms), order="sorted")
        ).digest()
    return hashlib.sha256(msgspec.json.encode(request, order="sorted")).digest()


def remember_key(cursor: sqlite3.Cursor, owner: str, key: str | None, request: Value, made: str) -> None:
    """Store the result of a request with a key, in the transaction that creates it. Old keys are removed."""
    now = time.time()
    cursor.execute("DELETE FROM creates WHERE created_at < ?", (now - KEY_MAX_AGE_S,))
    if key is not None:
        values = (owner, key, _digest(request), made, now)
        cursor.execute("INSERT OR REPLACE INTO creates VALUES (?, ?, ?, ?, ?)", values)


class SandboxTable:
    """The table of sandboxes, and the idempotency keys of the requests that created them."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events

    def all(self) -> list[SandboxRecord]:
        return [decode_sandbox(row) for row in self._database.read("SELECT * FROM sandboxes ORDER BY created_at")]

    def find(self, caller: Caller, ref: str) -> SandboxRecord | None:
        """By id or name, among the caller's own; an admin also finds another's by its id."""
        found = self._database.read(
            "SELECT * FROM sandboxes WHERE (id = ? OR (name = ? AND owner = ?)) AND state != 'deleting' AND owner != ?",
            ref, ref, caller.owner, POOL_OWNER,
        )  # fmt: skip
        records = [decode_sandbox(row) for row in found]
        mine = [record for record in records if record.is_seen_by(caller)]
        return mine[0] if mine else None

    def has_name(self, record: SandboxRecord) -> bool:
        """Whether its owner has another of its name."""
        query = "SELECT 1 FROM sandboxes WHERE owner = ? AND name = ?"
        return record.name is not None and bool(self._database.read(query, record.owner, record.name))

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

    def insert(self, records: Sequence[SandboxRecord], request: Value, key: str | None) -> None:
        """Insert sandboxes of one owner and the key of their request, in one transaction."""
        with self._made(records, request, key, "created") as cursor:
            cursor.executemany(_INSERT, map(_values, records))

    def claim(self, record: SandboxRecord, request: CreateRequest, key: str | None) -> None:
        """Give a pooled sandbox to an owner, running: its record, the key and the events, in one transaction. The
        record file goes first: a rebuild of a lost database must not take it for a pooled sandbox, which is removed."""
        self._database.forget_record(("sandbox", record.id))
        with self._made((record,), request, key, "created", record.state) as cursor:
            cursor.execute(_UPDATE, (*_values(record), record.id))

    @contextmanager
    def _made(
        self, records: Sequence[SandboxRecord], request: Value, key: str | None, *types: str
    ) -> Iterator[sqlite3.Cursor]:
        events = [_news(what, record) for record in records for what in types if record.owner != POOL_OWNER]
        try:
            with self._events.transaction(*events, durable=any(record.name for record in records)) as cursor:
                remember_key(cursor, records[0].owner, key, request, ",".join(record.id for record in records))
                yield cursor
        except sqlite3.IntegrityError as error:
            raise _taken(records[0].name) from error

    def update(self, record: SandboxRecord, also: InTransaction | None = None, **changes: Any) -> SandboxRecord:
        """Store a new state and its event in one transaction, of which `also` is part."""
        return self.update_all([record], also, **changes)[0]

    def update_all(
        self, records: Sequence[SandboxRecord], also: InTransaction | None = None, **changes: Any
    ) -> list[SandboxRecord]:
        """All of them or none."""
        changed = [replace(record, **changes) for record in records]
        events = [one for old, new in zip(records, changed, strict=True) for one in self._state_events(old, new)]
        with self._events.transaction(*events, durable=any(record.name for record in changed)) as cursor:
            for old, new in zip(records, changed, strict=True):
                cursor.execute(_UPDATE, (*_values(new), old.id))
                if new.init != old.init:  # another keeper and other cgroups, which count from the beginning
                    forget_counters(cursor, old.id)
            if also is not None:
                also(cursor)
        return changed

    def rename(self, record: SandboxRecord, name: str, spec: SandboxSpec) -> SandboxRecord:
        """Store a new name and its event. Raise Conflict if another sandbox of the owner has the name."""
        changed = replace(record, name=name, spec=spec)
        news = replace(_news("renamed", changed), reason=f"was {record.name}" if record.name else None)
        try:
            with self._events.transaction(news, durable=True) as cursor:
                cursor.execute(_UPDATE, (*_values(changed), record.id))
        except sqlite3.IntegrityError as error:
            raise _taken(name) from error
        return changed

    def _state_events(self, old: SandboxRecord, new: SandboxRecord) -> list[PendingEvent]:
        if new.state == old.state == "running" and old.spec.starting is not None and new.spec.starting is None:
            return [_news("ready", new)]
        if new.state == old.state or new.state not in _TOLD:
            return []
        ends = self._process_end_events(new) if new.state in ("stopped", "failed") else []
        return [*ends, _news(new.state, new)]

    def remove(self, record: SandboxRecord) -> None:
        events = []
        if record.owner != POOL_OWNER:
            record = replace(record, name=record.name or self._events.last_name(record.id))
            events = [*self._process_end_events(record), _news("deleted", record)]
        with self._events.transaction(*events, durable=record.name is not None) as cursor:
            cursor.execute("DELETE FROM sandboxes WHERE id = ?", (record.id,))
            forget_counters(cursor, record.id)

    def _process_end_events(self, record: SandboxRecord) -> list[PendingEvent]:
        """Return end events for the processes that still ran when their sandbox ended."""
        now = time.time()
        return [
            PendingEvent(
                "process.ended",
                record.owner,
                record.id,
                record.name,
                now,
                "its sandbox ended",
                _ended_by_kill(process, now),
            )
            for process in self._events.running_processes(record.id).values()
        ]


def _taken(name: str | None) -> Conflict:
    return Conflict(
        f"sandbox {name!r} already exists",
        hint=f"choose another name, delete it (`skerry rm {name}`), or use Sandbox.get_or_create",
        details={"name": name},
    )


def _ended_by_kill(process: ProcessInfo, now: float) -> ProcessInfo:
    return msgspec.structs.replace(process, state="exited", signal="KILL", ended_at=now)


def _news(what: str, record: SandboxRecord) -> PendingEvent:
    return PendingEvent(f"sandbox.{what}", record.owner, record.id, record.name, time.time(), record.reason)
