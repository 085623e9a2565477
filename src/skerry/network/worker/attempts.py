"""What was tried, told to the server: each thing once when it begins and once when it has ended, the same things within
a second as one with a count, and no more than so many a second. A flood costs the server nothing."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from skerry.network.messages import Tried
from skerry.types import Attempt

SPAN: Final = 1.0
TOLD_MOST: Final = 50
_HOST_MOST, _TEXT_MOST, _PATH_MOST = 300, 600, 1024

Kind = Literal["name", "connection", "request", "datagram"]


def safe(text: str | bytes, most: int = _TEXT_MOST) -> str:
    """Printable ASCII, and not too long: it may have been written inside to be read by a model or a terminal."""
    if isinstance(text, bytes):
        text = text[: most + 1].decode("latin-1")
    cut = text[:most]
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(c if " " <= c <= "~" else f"\\x{min(ord(c), 255):02x}" for c in cut)[:most]
    return cut + "..." if len(text) > most else cut


class Record:
    """One thing that was tried, or the same thing several times within a second."""

    def __init__(self, attempt: Attempt, cgroup: int | None, told: bool) -> None:
        self.attempt, self.cgroup, self.told = attempt, cgroup, told
        self.began = time.monotonic()
        self.count, self.open, self.sent, self.received = 1, 0, 0, 0
        self.changed = False

    def value(self) -> Attempt:
        ended = self.open == 0
        took = round(time.monotonic() - self.began, 6) if ended and self.attempt.decision == "allowed" else None
        return msgspec.structs.replace(
            self.attempt, count=self.count, sent=self.sent, received=self.received, ended=ended, duration_s=took
        )


class Attempts:
    def __init__(self, sandbox: str, report: Callable[[Tried], None]) -> None:
        self._sandbox, self._report = sandbox, report
        self._recent: dict[tuple[object, ...], Record] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0
        self._left_out: dict[Literal["allowed", "denied"], int] = {}

    def refused(self, kind: Kind, host: str, why: str, *, cgroup: int | None = None, **more: Any) -> None:
        self._add(kind, host, "denied", why, cgroup, more)

    def begin(self, kind: Kind, host: str, why: str, *, cgroup: int | None = None, **more: Any) -> Record:
        return self._add(kind, host, "allowed", why, cgroup, more)

    def end(self, record: Record, sent: int, received: int, why: str | None = None, *, unreached: bool = False) -> None:
        """`why`: what it ended with, where that was not how such a thing should end. `unreached`: before it began."""
        record.sent += sent
        record.received += received
        record.open = max(0, record.open - 1)
        if why is not None:
            hint = safe(f"it is allowed, but could not be reached: {why}") if unreached else record.attempt.hint
            told = safe(f"{record.attempt.why}; {why}")
            record.attempt = msgspec.structs.replace(record.attempt, why=told, hint=hint)
        if record.open == 0 and (record.count == 1 or record not in self._recent.values()):
            self._tell(record)
        else:
            record.changed = True

    def deny(self, record: Record, why: str, **more: Any) -> None:
        """What was let through before its body was known is refused after all: one record says so."""
        record.attempt = msgspec.structs.replace(record.attempt, decision="denied", why=safe(why), **_safe(more))
        record.open = 0
        self._tell(record)

    def flush(self) -> None:
        """Tells what was only counted so far. After it, everything is told."""
        records, self._recent = self._recent, {}
        for record in records.values():
            if record.changed:
                self._tell(record)
        for decision, count in self._left_out.items():
            why = f"{count} more within a second were not told one by one"
            attempt = _attempt("connection", "(many)", decision, why, {"count": count})
            self._report(Tried(sandbox=self._sandbox, attempt=attempt))
        self._left_out = {}
        self._told = 0

    def close(self) -> None:
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _add(
        self,
        kind: Kind,
        host: str,
        decision: Literal["allowed", "denied"],
        why: str,
        cgroup: int | None,
        more: dict[str, Any],
    ) -> Record:
        key = (kind, host, more.get("port"), decision, why, more.get("method"), more.get("path"), cgroup)
        record = self._recent.get(key)
        if record is not None:
            record.count += 1
            record.open += decision == "allowed"
            record.changed = True
            return record
        told = self._told < TOLD_MOST
        record = Record(_attempt(kind, host, decision, why, more), cgroup, told)
        record.open = int(decision == "allowed")
        if told:
            self._told += 1
            self._recent[key] = record
            self._tell(record)
        else:
            self._left_out[decision] = self._left_out.get(decision, 0) + 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SPAN, self._tick)
        return record

    def _tick(self) -> None:
        self._timer = None
        self.flush()

    def _tell(self, record: Record) -> None:
        record.changed = False
        if record.told:
            self._report(Tried(sandbox=self._sandbox, attempt=record.value(), cgroup=record.cgroup))


def _attempt(kind: Kind, host: str, decision: Literal["allowed", "denied"], why: str, more: dict[str, Any]) -> Attempt:
    return Attempt(
        id=secrets.token_hex(8),
        at=time.time(),
        kind=kind,
        host=safe(host, _HOST_MOST),
        decision=decision,
        why=safe(why),
        **_safe(more),
    )


def _safe(more: dict[str, Any]) -> dict[str, Any]:
    return {k: safe(v, _PATH_MOST if k == "path" else _TEXT_MOST) if isinstance(v, str) else v for k, v in more.items()}
