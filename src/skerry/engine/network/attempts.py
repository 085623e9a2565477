"""The network attempts of each sandbox, kept on disk: the newest ten thousand, and the traffic counters.

Attempts are written in batches, a moment later, like events. An update of an attempt takes a new place in the order, so
that a follower sees both and a later reader only the last. Every value from the worker is checked first."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import sqlite3
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from skerry.engine.database import Database
from skerry.engine.events import Events, PendingEvent
from skerry.engine.records.audit.service import AuditService
from skerry.network.messages import AttemptMessage, ExchangeMessage
from skerry.types import NetworkAttempt
from skerry.types.handlers import HttpHeaders

if TYPE_CHECKING:
    from skerry.engine.records.trace.service import TraceService

log = logging.getLogger("skerry.engine")
MAX_PER_SANDBOX: Final = 10_000  # of each sandbox
SLACK: Final = 1_000
MAX_WAITING: Final = 20_000
MAX_RECENT: Final = 1_000  # denials of a sandbox that are still at hand for its commands' results
MAX_OPEN: Final = 2_048  # attempts of a sandbox that have not ended
MAX_NOTED: Final = 16_384  # processes of a sandbox with a known cgroup
MAX_HOSTS: Final = 256  # reported for a command
BATCH_S: Final = 0.05
RETRY_S: Final = 1.0
PAGE: Final = 256
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,40}")
_TEXTS: Final = {"host": 300, "why": 1000, "address": 64, "method": 32, "path": 2048, "rule": 2300, "hint": 1000}
_MAX_COUNT: Final = 1 << 53
MAX_SUBJECTS: Final = 256  # of one sandbox


class WorkerProtocolError(ValueError):
    """A message that no correct worker sends."""


def checked(attempt: NetworkAttempt, now: float) -> NetworkAttempt:
    """Return the attempt as it may be stored and shown: text is printable ASCII, numbers are plausible. The server, not
    the worker, names the process."""
    if not _ID.fullmatch(attempt.id) or not (attempt.port is None or 0 <= attempt.port <= 65535):
        raise WorkerProtocolError("invalid attempt id or port")
    numbers = (attempt.sent, attempt.received, attempt.count)
    if not all(0 <= number < _MAX_COUNT for number in numbers) or not 0 <= attempt.at < 1e11:
        raise WorkerProtocolError("an attempt with impossible numbers")
    if attempt.duration_s is not None and not 0 <= attempt.duration_s < 1e9:
        raise WorkerProtocolError("an attempt that lasted too long")
    texts = {
        name: value for name, most in _TEXTS.items() if (value := _printable(getattr(attempt, name), most)) is not None
    }
    named = tuple(name for name in attempt.secrets[:64] if re.fullmatch(r"[A-Za-z0-9_]{1,128}", name))
    return replace(attempt, **texts, secrets=named, at=min(attempt.at, now), process=None, seq=0)


def _printable(text: str | None, most: int) -> str | None:
    if text is None or (len(text) <= most and text.isascii() and text.isprintable()):
        return text
    return "".join(c if " " <= c <= "~" else "?" for c in text[:most])


def _shown_headers(headers: HttpHeaders) -> list[list[str]]:
    return [[_printable(name, 200) or "", _printable(value, 8192) or ""] for name, value in headers[:500]]


def _shown_body(which: str, body: bytes, size: int) -> dict[str, object]:
    """Return the beginning of a body as text, or as base64, and the size of the whole body."""
    if not size:
        return {}
    try:
        shown: dict[str, object] = {f"{which}_body": body.decode()}
    except UnicodeDecodeError:
        shown = {f"{which}_body_base64": base64.b64encode(body).decode()}
    return {**shown, f"{which}_size": size}


@dataclass(eq=False)
class ProcessByCgroup:
    """Which process was in which cgroup when. A keeper uses a cgroup again, for one command after the other."""

    _of: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    _noted: dict[str, None] = field(default_factory=dict)  # the last processes: each is noted by its call and its event

    def note(self, cgroup: int, process: str, since: float) -> None:
        if not cgroup or process in self._noted:
            return
        self._noted[process] = None
        while len(self._noted) > MAX_NOTED:
            del self._noted[next(iter(self._noted))]
        known = self._of.setdefault(cgroup, [])
        insort(known, (since, process))
        del known[:-256]
        while len(self._of) > 8192:
            del self._of[next(iter(self._of))]

    def find(self, cgroup: int | None, at: float) -> str | None:
        """Return the last process that started there before; without one, a process that started a little later by
        another clock."""
        known = self._of.get(cgroup or 0, [])
        before = [process for since, process in known if since <= at]
        return before[-1] if before else known[0][1] if known and known[0][0] - at < 1.0 else None


@dataclass(eq=False)
class AttemptStats:
    """Recent attempts of one sandbox, in memory."""

    processes: ProcessByCgroup = field(default_factory=ProcessByCgroup)
    denied: deque[tuple[NetworkAttempt, int | None]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    unreached: deque[tuple[NetworkAttempt, int | None]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    open: dict[str, tuple[NetworkAttempt, int | None]] = field(default_factory=dict)  # allowed and not ended, by ID
    recorded: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # in the audit log, by attempt
    subjects: set[str] = field(default_factory=set)
    heard: int = 0  # number of messages, to see whether there were any
    sent: int = 0  # bytes since the sandbox was created
    received: int = 0
    served: tuple[int, int] = (0, 0)  # bytes of previews and forwarded ports, sent and received

    def denied_by(self, process: str) -> tuple[NetworkAttempt, ...]:
        """Return each denied attempt once, in its latest version."""
        return self._of(self.denied, process)

    def unreached_by(self, process: str) -> tuple[NetworkAttempt, ...]:
        """Return attempts that were permitted but failed: the name has no address, or the host does not answer."""
        return self._of(self.unreached, process)

    def _of(self, tries: deque[tuple[NetworkAttempt, int | None]], process: str) -> tuple[NetworkAttempt, ...]:
        mine = (replace(one, process=process) for one, cgroup in tries if self.is_of(one, cgroup, process))
        return tuple({one.id: one for one in mine}.values())

    def subjects_of(self, attempt: NetworkAttempt) -> list[str]:
        """Return the subjects of an allowed attempt whose audit records have a rate limit of their own: the used
        secrets, or the rule. No program can hide them behind a flood of others. A host is none: a program invents any
        number of names."""
        if attempt.decision != "allowed":
            return []
        found = [f"secret {name}" for name in attempt.secrets]
        if not found and attempt.rule:
            found = [f"rule {attempt.rule[:200]}"]
        known = self.subjects
        known.update(name for name in found if len(known) < MAX_SUBJECTS)  # a worker that lies invents names, too
        return [name for name in found if name in known]

    def is_of(self, attempt: NetworkAttempt, cgroup: int | None, process: str) -> bool:
        return cgroup is not None and self.processes.find(cgroup, attempt.at) == process


class AttemptLog:
    """Used from the event loop's thread only."""

    def __init__(
        self,
        database: Database,
        audit: AuditService | None = None,
        traces: TraceService | None = None,
        events: Events | None = None,
        kept: int = MAX_PER_SANDBOX,
        slack: int = SLACK,
    ) -> None:
        self._database, self._audit, self._traces, self._events = database, audit, traces, events
        self._kept, self._slack = kept, slack
        self._tries: dict[str, AttemptStats] = {
            row["sandbox"]: AttemptStats(sent=row["sent"], received=row["received"])
            for row in database.read("SELECT sandbox, sent, received FROM traffic")
        }
        for row in database.read("SELECT sandbox, sent, received FROM served_traffic"):
            self.of(row["sandbox"]).served = row["sent"], row["received"]
        self._served: set[str] = set()  # sandboxes whose served bytes are not stored yet
        self._pending: dict[tuple[str, str], tuple[NetworkAttempt, int | None]] = {}
        self._moved: dict[str, list[int]] = {}
        self._flushing: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()
        self.decisions: Counter[str] = Counter()  # since the server started
        self._counts: dict[str, int] = {
            row[0]: row[1] for row in database.read("SELECT sandbox, count(*) FROM attempts GROUP BY sandbox")
        }

    def of(self, sandbox_id: str) -> AttemptStats:
        return self._tries.setdefault(sandbox_id, AttemptStats())

    # -- writing ------------------------------------------------------------------------------------------------------

    def add(self, tried: AttemptMessage, owner: str = "") -> NetworkAttempt:
        """Store an attempt of a sandbox of that owner. Raise WorkerProtocolError if it is implausible."""
        attempt = checked(tried.attempt, time.time())
        tries = self.of(tried.sandbox)
        tries.heard += 1
        if attempt.decision == "denied":
            tries.denied.append((attempt, tried.cgroup))
        elif attempt.hint is not None and attempt.ended:
            tries.unreached.append((attempt, tried.cgroup))
        tries.open.pop(attempt.id, None)
        if attempt.decision == "allowed" and not attempt.ended and len(tries.open) < MAX_OPEN:
            tries.open[attempt.id] = (attempt, tried.cgroup)
        self._put(tried.sandbox, attempt, tried.cgroup)
        self._record(tries, attempt, tried.cgroup, tried.sandbox, owner)
        return attempt

    def _put(self, sandbox_id: str, attempt: NetworkAttempt, cgroup: int | None) -> None:
        key = (sandbox_id, attempt.id)
        self._pending.pop(key, None)
        self._pending[key] = (attempt, cgroup)
        while len(self._pending) > MAX_WAITING:
            del self._pending[next(iter(self._pending))]
        self._flush_soon()

    def interrupt(self, hint: str) -> int:
        """End all open attempts with that hint, because their connections are reset; return their number."""
        number, now = 0, time.time()
        for sandbox_id, tries in self._tries.items():
            for attempt, cgroup in tries.open.values():
                ended = replace(attempt, ended=True, hint=hint, duration_s=max(0.0, now - attempt.at))
                tries.unreached.append((ended, cgroup))
                self._put(sandbox_id, ended, cgroup)
            tries.heard += len(tries.open)
            number += len(tries.open)
            tries.open.clear()
        return number

    def _record(
        self, tries: AttemptStats, attempt: NetworkAttempt, cgroup: int | None, sandbox_id: str, owner: str
    ) -> None:
        """Write the decision, and the names of used secrets, into the audit log and the trace once, and count it for
        alerts. Names that were allowed are left out: the connection follows."""
        if self._audit is None or (attempt.kind == "name" and attempt.decision == "allowed"):
            return
        mark = (attempt.decision, attempt.secrets)
        if tries.recorded.get(attempt.id) == mark:
            return
        tries.recorded[attempt.id] = mark
        while len(tries.recorded) > MAX_RECENT:
            del tries.recorded[next(iter(tries.recorded))]
        params = {
            "kind": attempt.kind, "host": attempt.host, "port": attempt.port, "method": attempt.method,
            "rule": (attempt.rule or "")[:200] or None, "secrets": attempt.secrets or None,
        }  # fmt: skip
        given = {name: value for name, value in params.items() if value is not None}
        decision = f"network.{attempt.decision}"
        subjects = tries.subjects_of(attempt)
        self._audit.event(decision, owner=owner, sandbox=sandbox_id, params=given, subjects=subjects)
        target = f"{attempt.method or attempt.kind} {attempt.host}" + (f":{attempt.port}" if attempt.port else "")
        if self._events is not None:
            self._events.count(PendingEvent(decision, owner, sandbox_id, None, attempt.at, target))
        if self._traces is not None:
            process = tries.processes.find(cgroup, attempt.at)
            more = {"path": attempt.path, "why": attempt.why, "id": attempt.id}
            self._traces.event(sandbox_id, decision, {**given, **more}, text=target, process=process)

    def add_exchange(self, message: ExchangeMessage) -> None:
        """Write a mirrored exchange into the trace."""
        if self._traces is None:
            return
        if not 0 <= message.status <= 599 or max(map(len, (message.request_body, message.response_body))) > 16 << 10:
            raise WorkerProtocolError("an impossible exchange")
        url, method = _printable(message.url, 2048), _printable(message.method, 32)
        params: dict[str, object] = {
            "method": method, "url": url, "status": message.status or None, "note": _printable(message.note, 1000),
            "request_headers": _shown_headers(message.request_headers),
            "response_headers": _shown_headers(message.response_headers),
            **_shown_body("request", message.request_body, message.request_size),
            **_shown_body("response", message.response_body, message.response_size),
        }  # fmt: skip
        process = self.of(message.sandbox).processes.find(message.cgroup, time.time())
        self._traces.event(message.sandbox, "network.exchange", params, text=f"{method} {url}"[:500], process=process)

    def count(self, sandbox_id: str, sent: int, received: int) -> None:
        if not (0 <= sent < _MAX_COUNT and 0 <= received < _MAX_COUNT):
            raise WorkerProtocolError("impossible numbers of bytes")
        moved = self._moved.setdefault(sandbox_id, [0, 0])
        moved[0] += sent
        moved[1] += received
        stats = self.of(sandbox_id)
        stats.sent, stats.received = stats.sent + sent, stats.received + received
        self._flush_soon()

    def count_served(self, sandbox_id: str, sent: int, received: int) -> None:
        """Count bytes of previews and forwarded ports. No rule of the network policy limits them."""
        if not (0 <= sent < _MAX_COUNT and 0 <= received < _MAX_COUNT):
            raise WorkerProtocolError("impossible numbers of bytes")
        if sent or received:
            stats = self.of(sandbox_id)
            stats.served = stats.served[0] + sent, stats.served[1] + received
            self._served.add(sandbox_id)
            self._flush_soon()

    def served(self, sandbox_id: str) -> tuple[int, int]:
        """Return the bytes of previews and forwarded ports, sent and received since the sandbox was created."""
        stats = self._tries.get(sandbox_id)
        return stats.served if stats is not None else (0, 0)

    def all_traffic(self) -> dict[str, tuple[int, int]]:
        """Return the bytes of each sandbox, sent and received."""
        return {sandbox_id: (stats.sent, stats.received) for sandbox_id, stats in self._tries.items()}

    def traffic(self, sandbox_id: str) -> tuple[int, int]:
        """Return the bytes sent and received since the sandbox was created."""
        stats = self._tries.get(sandbox_id)
        return (stats.sent, stats.received) if stats is not None else (0, 0)

    def forget(self, sandbox_id: str) -> None:
        """The sandbox is gone for good."""
        self._tries.pop(sandbox_id, None)
        self._counts.pop(sandbox_id, None)
        self._moved.pop(sandbox_id, None)
        self._served.discard(sandbox_id)
        for key in [key for key in self._pending if key[0] == sandbox_id]:
            del self._pending[key]
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM attempts WHERE sandbox = ?", (sandbox_id,))
            cursor.execute("DELETE FROM traffic WHERE sandbox = ?", (sandbox_id,))
            cursor.execute("DELETE FROM served_traffic WHERE sandbox = ?", (sandbox_id,))
        self._tell()

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if not self._pending and not self._moved and not self._served:
            return
        try:
            with self._database.transaction() as cursor:
                counts, decisions = self._write(cursor)
        except sqlite3.Error as error:
            log.warning("failed to write network attempts", extra={"error": str(error)})
            self._flush_in(RETRY_S)
            return
        # Only now: a transaction that failed, on a full disk, is written again with the same attempts.
        self._counts.update(counts)
        self.decisions.update(decisions)
        self._pending.clear()
        self._moved.clear()
        self._served.clear()
        self._tell()

    def close(self) -> None:
        self.flush()
        if self._flushing is not None:
            self._flushing.cancel()

    def _write(self, cursor: sqlite3.Cursor) -> tuple[dict[str, int], Counter[str]]:
        """Write all pending attempts and traffic. Return the new number of kept attempts of each sandbox, and the new
        decisions."""
        counts = {sandbox_id: self._counts.get(sandbox_id, 0) for sandbox_id, _ in self._pending}
        decisions: Counter[str] = Counter()
        for (sandbox_id, name), (attempt, cgroup) in self._pending.items():
            process = self.of(sandbox_id).processes.find(cgroup, attempt.at)
            kept = replace(attempt, process=process)
            there = cursor.execute("DELETE FROM attempts WHERE sandbox = ? AND id = ?", (sandbox_id, name)).rowcount
            cursor.execute(
                "INSERT INTO attempts (sandbox, id, at, denied, process, body) VALUES (?, ?, ?, ?, ?, ?)",
                (sandbox_id, name, attempt.at, attempt.decision == "denied", process, msgspec.json.encode(kept)),
            )
            counts[sandbox_id] += 1 - there
            decisions[attempt.decision] += 1 - there
        for sandbox_id, count in counts.items():
            if count > self._kept + self._slack:
                query = "SELECT seq FROM attempts WHERE sandbox = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
                floor = cursor.execute(query, (sandbox_id, self._kept)).fetchone()[0]
                cursor.execute("DELETE FROM attempts WHERE sandbox = ? AND seq <= ?", (sandbox_id, floor))
                counts[sandbox_id] = self._kept
        for sandbox_id, (sent, received) in self._moved.items():
            cursor.execute(
                "INSERT INTO traffic VALUES (?, ?, ?) ON CONFLICT (sandbox) DO UPDATE SET"
                " sent = sent + excluded.sent, received = received + excluded.received",
                (sandbox_id, sent, received),
            )

        rows = [(sandbox_id, *self.of(sandbox_id).served) for sandbox_id in self._served]
        cursor.executemany("INSERT OR REPLACE INTO served_traffic VALUES (?, ?, ?)", rows)
        return counts, decisions

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flush_in(BATCH_S)

    def _flush_in(self, seconds: float) -> None:
        self._flushing = asyncio.get_running_loop().call_later(seconds, self.flush)

    def _tell(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(
        self, sandbox_id: str, since: int, follow: bool, denied: bool
    ) -> AsyncGenerator[list[NetworkAttempt], None]:
        """Yield pages of attempts after number `since`, oldest first."""
        position, tries = since, self.of(sandbox_id)
        while True:
            self.flush()
            more = self._more
            page = self._page(sandbox_id, position, denied)
            if page:
                position = page[-1].seq
                yield page
            if len(page) < PAGE:
                if not follow:
                    return
                await more.wait()
                if self._tries.get(sandbox_id) is not tries:  # it is gone
                    return

    def denied_to(self, sandbox_id: str, process: str, most: int) -> tuple[NetworkAttempt, ...]:
        """Return the stored denials of a process that made attempts before this server started."""
        if not self._counts.get(sandbox_id):
            return ()
        query = "SELECT body FROM attempts WHERE sandbox = ? AND process = ? AND denied = 1 ORDER BY seq LIMIT ?"
        found = self._database.read(query, sandbox_id, process, most)
        return tuple(msgspec.json.decode(row["body"], type=NetworkAttempt) for row in found)

    def contacted_hosts(self, sandbox_id: str, processes: Collection[str]) -> tuple[str, ...]:
        """The hosts that processes were let through to, in the order of their first try."""
        self.flush()
        marks = ", ".join("?" * len(processes))
        query = f"SELECT body FROM attempts WHERE sandbox = ? AND denied = 0 AND process IN ({marks}) ORDER BY seq"  # noqa: S608
        found = self._database.read(query, sandbox_id, *processes)
        reached = (msgspec.json.decode(row["body"], type=NetworkAttempt) for row in found)
        return tuple(dict.fromkeys(one.host for one in reached if one.kind != "name"))[:MAX_HOSTS]

    def _page(self, sandbox_id: str, position: int, denied: bool) -> list[NetworkAttempt]:
        clause = " AND denied = 1" if denied else ""
        query = f"SELECT seq, body FROM attempts WHERE sandbox = ? AND seq > ?{clause} ORDER BY seq LIMIT {PAGE}"  # noqa: S608
        found = self._database.read(query, sandbox_id, position)
        return [replace(msgspec.json.decode(row["body"], type=NetworkAttempt), seq=row["seq"]) for row in found]
