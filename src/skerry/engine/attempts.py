"""What each sandbox tried to reach, kept on disk: the newest ten thousand of each, and how much went through.

Written in batches, a moment later, like events; told again under the same id, a record takes a new place in the order,
so that who follows sees both and who reads later the last. Nothing that the worker says is kept without a look."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import time
from collections import deque
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from skerry.engine.database import Database
from skerry.network.messages import Tried
from skerry.types import Attempt

log = logging.getLogger("skerry.engine")
KEPT: Final = 10_000  # of each sandbox
SLACK: Final = 1_000
WAITING_MOST: Final = 20_000
RECENT_MOST: Final = 1_000  # denials of a sandbox that are still at hand for its commands' results
HOSTS_MOST: Final = 256  # that are told of a command
BATCH_S: Final = 0.05
RETRY_S: Final = 1.0
PAGE: Final = 256
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,40}")
_TEXTS: Final = {"host": 300, "why": 1000, "address": 64, "method": 32, "path": 2048, "rule": 2300, "hint": 1000}
_COUNT_MOST: Final = 1 << 53


class Lie(ValueError):
    """What no honest worker says."""


def checked(attempt: Attempt, now: float) -> Attempt:
    """As it may be kept and shown: text is printable ASCII, numbers are possible. Who tried is ours to say."""
    if not _ID.fullmatch(attempt.id) or not (attempt.port is None or 0 <= attempt.port <= 65535):
        raise Lie("an attempt that can't be")
    numbers = (attempt.sent, attempt.received, attempt.count)
    if not all(0 <= number < _COUNT_MOST for number in numbers) or not 0 <= attempt.at < 1e11:
        raise Lie("an attempt with impossible numbers")
    if attempt.duration_s is not None and not 0 <= attempt.duration_s < 1e9:
        raise Lie("an attempt that lasted too long")
    texts = {name: value for name, most in _TEXTS.items() if (value := _safe(getattr(attempt, name), most)) is not None}
    named = tuple(name for name in attempt.secrets[:64] if re.fullmatch(r"[A-Za-z0-9_]{1,128}", name))
    return replace(attempt, **texts, secrets=named, at=min(attempt.at, now), process=None, seq=0)


def _safe(text: str | None, most: int) -> str | None:
    if text is None or (len(text) <= most and text.isascii() and text.isprintable()):
        return text
    return "".join(c if " " <= c <= "~" else "?" for c in text[:most])


@dataclass(eq=False)
class Whose:
    """Which process was in which cgroup when. A keeper uses a cgroup again, for one command after the other."""

    _of: dict[int, list[tuple[float, str]]] = field(default_factory=dict)

    def note(self, cgroup: int, process: str, since: float) -> None:
        if not cgroup:
            return
        known = self._of.setdefault(cgroup, [])
        if not any(process == other for _, other in known):
            known.append((since, process))
            known.sort()
            del known[:-256]
        while len(self._of) > 8192:
            del self._of[next(iter(self._of))]

    def find(self, cgroup: int | None, at: float) -> str | None:
        """The last that began there before; one that began a little later, by another clock, if there is no other."""
        known = self._of.get(cgroup or 0, [])
        before = [process for since, process in known if since <= at]
        return before[-1] if before else known[0][1] if known and known[0][0] - at < 1.0 else None


@dataclass(eq=False)
class Tries:
    """What is at hand of one sandbox's."""

    whose: Whose = field(default_factory=Whose)
    denied: deque[tuple[Attempt, int | None]] = field(default_factory=lambda: deque(maxlen=RECENT_MOST))
    unreached: deque[tuple[Attempt, int | None]] = field(default_factory=lambda: deque(maxlen=RECENT_MOST))
    heard: int = 0  # how many were told, for who wants to know whether there was anything

    def denied_by(self, process: str) -> tuple[Attempt, ...]:
        """Each once: one that was told again is there as it was told last."""
        return self._of(self.denied, process)

    def unreached_by(self, process: str) -> tuple[Attempt, ...]:
        """What was allowed, but has no address or does not answer."""
        return self._of(self.unreached, process)

    def _of(self, tries: deque[tuple[Attempt, int | None]], process: str) -> tuple[Attempt, ...]:
        mine = (replace(one, process=process) for one, cgroup in tries if self.is_of(one, cgroup, process))
        return tuple({one.id: one for one in mine}.values())

    def is_of(self, attempt: Attempt, cgroup: int | None, process: str) -> bool:
        return cgroup is not None and self.whose.find(cgroup, attempt.at) == process


class Attempts:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database, kept: int = KEPT, slack: int = SLACK) -> None:
        self._database = database
        self._kept, self._slack = kept, slack
        self._tries: dict[str, Tries] = {}
        self._pending: dict[tuple[str, str], tuple[Attempt, int | None]] = {}
        self._moved: dict[str, list[int]] = {}
        self._flushing: asyncio.TimerHandle | None = None
        self._more = asyncio.Event()
        self._counts: dict[str, int] = {
            row[0]: row[1] for row in database.read("SELECT sandbox, count(*) FROM attempts GROUP BY sandbox")
        }

    def of(self, sandbox: str) -> Tries:
        return self._tries.setdefault(sandbox, Tries())

    # -- telling ------------------------------------------------------------------------------------------------------

    def add(self, tried: Tried) -> Attempt:
        """Raises Lie."""
        attempt = checked(tried.attempt, time.time())
        tries = self.of(tried.sandbox)
        tries.heard += 1
        if attempt.decision == "denied":
            tries.denied.append((attempt, tried.cgroup))
        elif attempt.hint is not None and attempt.ended:
            tries.unreached.append((attempt, tried.cgroup))
        key = (tried.sandbox, attempt.id)
        self._pending.pop(key, None)
        self._pending[key] = (attempt, tried.cgroup)
        while len(self._pending) > WAITING_MOST:
            del self._pending[next(iter(self._pending))]
        self._flush_soon()
        return attempt

    def count(self, sandbox: str, sent: int, received: int) -> None:
        if not (0 <= sent < _COUNT_MOST and 0 <= received < _COUNT_MOST):
            raise Lie("impossible numbers of bytes")
        moved = self._moved.setdefault(sandbox, [0, 0])
        moved[0] += sent
        moved[1] += received
        self._flush_soon()

    def traffic(self, sandbox: str) -> tuple[int, int]:
        """Bytes sent and received since the sandbox was made."""
        found = self._database.read("SELECT sent, received FROM traffic WHERE sandbox = ?", sandbox)
        sent, received = (found[0]["sent"], found[0]["received"]) if found else (0, 0)
        moved = self._moved.get(sandbox, (0, 0))
        return sent + moved[0], received + moved[1]

    def forget(self, sandbox: str) -> None:
        """The sandbox is gone for good."""
        self._tries.pop(sandbox, None)
        self._counts.pop(sandbox, None)
        self._moved.pop(sandbox, None)
        for key in [key for key in self._pending if key[0] == sandbox]:
            del self._pending[key]
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM attempts WHERE sandbox = ?", (sandbox,))
            cursor.execute("DELETE FROM traffic WHERE sandbox = ?", (sandbox,))
        self._tell()

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if not self._pending and not self._moved:
            return
        try:
            with self._database.transaction() as cursor:
                self._write(cursor)
        except sqlite3.Error as error:
            log.warning("attempts can't be written", extra={"error": str(error)})
            self._flush_in(RETRY_S)
            return
        self._pending.clear()
        self._moved.clear()
        self._tell()

    def close(self) -> None:
        self.flush()
        if self._flushing is not None:
            self._flushing.cancel()

    def _write(self, cursor: sqlite3.Cursor) -> None:
        for (sandbox, name), (attempt, cgroup) in self._pending.items():
            process = self.of(sandbox).whose.find(cgroup, attempt.at)
            kept = replace(attempt, process=process)
            there = cursor.execute("DELETE FROM attempts WHERE sandbox = ? AND id = ?", (sandbox, name)).rowcount
            cursor.execute(
                "INSERT INTO attempts (sandbox, id, at, denied, process, body) VALUES (?, ?, ?, ?, ?, ?)",
                (sandbox, name, attempt.at, attempt.decision == "denied", process, msgspec.json.encode(kept)),
            )
            self._counts[sandbox] = self._counts.get(sandbox, 0) + 1 - there
        for sandbox in {sandbox for sandbox, _ in self._pending}:
            if self._counts.get(sandbox, 0) > self._kept + self._slack:
                query = "SELECT seq FROM attempts WHERE sandbox = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
                floor = cursor.execute(query, (sandbox, self._kept)).fetchone()[0]
                cursor.execute("DELETE FROM attempts WHERE sandbox = ? AND seq <= ?", (sandbox, floor))
                self._counts[sandbox] = self._kept
        for sandbox, (sent, received) in self._moved.items():
            cursor.execute(
                "INSERT INTO traffic VALUES (?, ?, ?) ON CONFLICT (sandbox) DO UPDATE SET"
                " sent = sent + excluded.sent, received = received + excluded.received",
                (sandbox, sent, received),
            )

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flush_in(BATCH_S)

    def _flush_in(self, seconds: float) -> None:
        self._flushing = asyncio.get_running_loop().call_later(seconds, self.flush)

    def _tell(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read(self, sandbox: str, since: int, follow: bool, denied: bool) -> AsyncGenerator[list[Attempt], None]:
        """Pages of what was tried after number `since`, oldest first."""
        position, tries = since, self.of(sandbox)
        while True:
            self.flush()
            more = self._more
            page = self._page(sandbox, position, denied)
            if page:
                position = page[-1].seq
                yield page
            if len(page) < PAGE:
                if not follow:
                    return
                await more.wait()
                if self._tries.get(sandbox) is not tries:  # it is gone
                    return

    def denied_to(self, sandbox: str, process: str, most: int) -> tuple[Attempt, ...]:
        """What is kept of a process's denials: for one that tried before this server was there."""
        if not self._counts.get(sandbox):
            return ()
        query = "SELECT body FROM attempts WHERE sandbox = ? AND process = ? AND denied = 1 ORDER BY seq LIMIT ?"
        found = self._database.read(query, sandbox, process, most)
        return tuple(msgspec.json.decode(row["body"], type=Attempt) for row in found)

    def contacted(self, sandbox: str, processes: Collection[str]) -> tuple[str, ...]:
        """The hosts that processes were let through to, in the order of their first try."""
        self.flush()
        marks = ", ".join("?" * len(processes))
        query = f"SELECT body FROM attempts WHERE sandbox = ? AND denied = 0 AND process IN ({marks}) ORDER BY seq"  # noqa: S608
        found = self._database.read(query, sandbox, *processes)
        reached = (msgspec.json.decode(row["body"], type=Attempt) for row in found)
        return tuple(dict.fromkeys(one.host for one in reached if one.kind != "name"))[:HOSTS_MOST]

    def _page(self, sandbox: str, position: int, denied: bool) -> list[Attempt]:
        clause = " AND denied = 1" if denied else ""
        query = f"SELECT seq, body FROM attempts WHERE sandbox = ? AND seq > ?{clause} ORDER BY seq LIMIT {PAGE}"  # noqa: S608
        found = self._database.read(query, sandbox, position)
        return [replace(msgspec.json.decode(row["body"], type=Attempt), seq=row["seq"]) for row in found]
