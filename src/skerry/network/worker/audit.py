"""Reports attempts to the server: each once when it begins and once when it has ended, equal ones within a second as
one with a count, and at most MAX_REPORTED in a second. A flood costs the server nothing. Exchanges with mirrored hosts
are reported too."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from skerry.network.messages import AttemptMessage, ExchangeMessage
from skerry.network.worker.http.filters import BodyFilter, Headers, RequestHead, ResponseHead
from skerry.network.worker.http.handlers import decode_headers
from skerry.network.worker.secrets.masking import SecretPatterns, StreamMask
from skerry.types import NetworkAttempt
from skerry.types.handlers import HttpHeaders

WINDOW_S: Final = 1.0
MAX_REPORTED: Final = 50
_MAX_HOST, _MAX_TEXT, _MAX_PATH = 300, 600, 1024
MAX_MIRRORED_BODY: Final = 8 << 10
_MAX_MIRRORED_HEADERS, _MAX_MIRRORED_URL = 6 << 10, 2048

Kind = Literal["name", "connection", "request", "datagram"]


def printable(text: str | bytes, max_length: int = _MAX_TEXT) -> str:
    """Return printable ASCII of limited length: a program inside may have written the text for a model or a terminal to
    read."""
    if isinstance(text, bytes):
        text = text[: max_length + 1].decode("latin-1")
    text_start = text[:max_length]
    if not (text_start.isascii() and text_start.isprintable()):
        text_start = "".join(c if " " <= c <= "~" else f"\\x{min(ord(c), 255):02x}" for c in text_start)[:max_length]
    return text_start + "..." if len(text) > max_length else text_start


class AttemptRecord:
    """One attempt, or several equal ones within a second."""

    def __init__(self, attempt: NetworkAttempt, cgroup: int | None, reported: bool) -> None:
        self.attempt, self.cgroup, self.reported = attempt, cgroup, reported
        self.started_at = time.monotonic()
        self.count, self.open, self.sent, self.received = 1, 0, 0, 0
        self.changed = False

    def value(self) -> NetworkAttempt:
        ended = self.open == 0
        duration_s = (
            round(time.monotonic() - self.started_at, 6) if ended and self.attempt.decision == "allowed" else None
        )
        return msgspec.structs.replace(
            self.attempt, count=self.count, sent=self.sent, received=self.received, ended=ended, duration_s=duration_s
        )


class AttemptReporter:
    def __init__(self, sandbox: str, report: Callable[[AttemptMessage], None]) -> None:
        self._sandbox, self._report = sandbox, report
        self._recent: dict[tuple[object, ...], AttemptRecord] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reported = 0
        self._suppressed: dict[Literal["allowed", "denied"], int] = {}

    def denied(self, kind: Kind, host: str, why: str, *, cgroup: int | None = None, **fields: Any) -> None:
        self._add(kind, host, "denied", why, cgroup, fields)

    def begin(self, kind: Kind, host: str, why: str, *, cgroup: int | None = None, **fields: Any) -> AttemptRecord:
        return self._add(kind, host, "allowed", why, cgroup, fields)

    def end(
        self, record: AttemptRecord, sent: int, received: int, why: str | None = None, *, unreachable: bool = False
    ) -> None:
        """Record the end of an attempt. `why`: the error that ended it, if any. `unreachable`: it ended before it was
        connected."""
        record.sent += sent
        record.received += received
        record.open = max(0, record.open - 1)
        if why is not None:
            hint = printable(f"it is allowed, but could not be reached: {why}") if unreachable else record.attempt.hint
            reported = printable(f"{record.attempt.why}; {why}")
            record.attempt = msgspec.structs.replace(record.attempt, why=reported, hint=hint)
        if record.open == 0 and (record.count == 1 or record not in self._recent.values()):
            self._send(record)
        else:
            record.changed = True

    def deny(self, record: AttemptRecord, why: str, **fields: Any) -> None:
        """Turn an allowed attempt into a denied one, because its body was denied: one record reports both."""
        record.attempt = msgspec.structs.replace(
            record.attempt, decision="denied", why=printable(why), **_printable_fields(fields)
        )
        record.open = 0
        self._send(record)

    def flush(self) -> None:
        """Send counts and records that were not sent yet. After it, everything is reported."""
        records, self._recent = self._recent, {}
        for record in records.values():
            if record.changed:
                self._send(record)
        for decision, count in self._suppressed.items():
            why = f"{count} more within a second were not reported separately"
            attempt = _attempt("connection", "(many)", decision, why, {"count": count})
            self._report(AttemptMessage(sandbox=self._sandbox, attempt=attempt))
        self._suppressed = {}
        self._reported = 0

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
        fields: dict[str, Any],
    ) -> AttemptRecord:
        key = (kind, host, fields.get("port"), decision, why, fields.get("method"), fields.get("path"), cgroup)
        record = self._recent.get(key)
        if record is not None:
            record.count += 1
            record.open += decision == "allowed"
            record.changed = True
            return record
        reported = self._reported < MAX_REPORTED
        record = AttemptRecord(_attempt(kind, host, decision, why, fields), cgroup, reported)
        record.open = int(decision == "allowed")
        if reported:
            self._reported += 1
            self._recent[key] = record
            self._send(record)
        else:
            self._suppressed[decision] = self._suppressed.get(decision, 0) + 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._tick)
        return record

    def _tick(self) -> None:
        self._timer = None
        self.flush()

    def _send(self, record: AttemptRecord) -> None:
        record.changed = False
        if record.reported:
            self._report(AttemptMessage(sandbox=self._sandbox, attempt=record.value(), cgroup=record.cgroup))


def _attempt(
    kind: Kind, host: str, decision: Literal["allowed", "denied"], why: str, fields: dict[str, Any]
) -> NetworkAttempt:
    return NetworkAttempt(
        id=secrets.token_hex(8),
        at=time.time(),
        kind=kind,
        host=printable(host, _MAX_HOST),
        decision=decision,
        why=printable(why),
        **_printable_fields(fields),
    )


def _printable_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        k: printable(v, _MAX_PATH if k == "path" else _MAX_TEXT) if isinstance(v, str) else v for k, v in fields.items()
    }


class _Beginning:
    """The beginning of a body without values of secrets: a value at the cut is held back by the mask."""

    def __init__(self, patterns: SecretPatterns | None) -> None:
        self._mask = StreamMask(patterns) if patterns is not None else None
        self.data = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if len(self.data) < MAX_MIRRORED_BODY:
            self.data += data if self._mask is None else self._mask.feed(data)

    def end(self) -> bytes:
        if self._mask is not None and len(self.data) < MAX_MIRRORED_BODY:
            self.data += self._mask.end()
        return bytes(self.data[:MAX_MIRRORED_BODY])


class _CopiedBody:
    """A filter that passes a request's body and copies it."""

    def __init__(self, inner: BodyFilter | None, copy: _Beginning) -> None:
        self._inner, self._copy = inner, copy
        self.same_length = inner is None or inner.same_length

    def feed(self, data: bytes) -> bytes:
        self._copy.add(data)
        return data if self._inner is None else self._inner.feed(data)

    def end(self) -> bytes:
        return b"" if self._inner is None else self._inner.end()


class MirroredExchange:
    """One exchange for the trace: both heads, and the beginnings of both bodies. The request is copied before secrets
    are injected, the response after they were masked; all secrets of the sandbox are masked once more. It is reported
    once, when it ends."""

    def __init__(
        self, sandbox: str, url: str, request: RequestHead, patterns: SecretPatterns | None, cgroup: int | None,
        report: Callable[[ExchangeMessage], None],
    ) -> None:  # fmt: skip
        self._patterns, self._report = patterns, report
        self._sandbox, self._url, self._head, self._cgroup = sandbox, url, request, cgroup
        self._sent, self._received = _Beginning(patterns), _Beginning(patterns)
        self._status = 0
        self._headers: HttpHeaders = ()
        self._note: str | None = None
        self._reported = False

    def request_filter(self, inner: BodyFilter | None) -> BodyFilter | None:
        return _CopiedBody(inner, self._sent) if self._head.body else inner

    def start(self, head: ResponseHead, length: int | None) -> None:
        self._status, self._headers = head.status, self._shown(head.headers)

    def switched(self, head: ResponseHead) -> None:
        """The connection becomes a WebSocket. Its frames are not copied."""
        self.start(head, None)
        self.close("it is a WebSocket")

    def data(self, data: bytes) -> None:
        self._received.add(data)

    def finish(self, whole: bool) -> None:
        self.close(None)

    def close(self, note: str | None) -> None:
        """Report the exchange; `note`: the reason if it is not complete."""
        if self._reported:
            return
        self._reported = True
        self._report(
            ExchangeMessage(
                sandbox=self._sandbox, method=self._head.method.decode("latin-1"), url=self._masked_url(),
                status=self._status, request_headers=self._shown(self._head.headers), response_headers=self._headers,
                request_body=self._sent.end(), response_body=self._received.end(),
                request_size=self._sent.size, response_size=self._received.size, note=note, cgroup=self._cgroup,
            )
        )  # fmt: skip

    def _masked_url(self) -> str:
        url = self._url.encode("latin-1")
        return (url if self._patterns is None else self._patterns.mask(url)).decode("latin-1")[:_MAX_MIRRORED_URL]

    def _shown(self, headers: Headers) -> HttpHeaders:
        kept, size = [], 0
        for name, value in headers:
            if self._patterns is not None:
                name, value = self._patterns.mask_name(name), self._patterns.mask(value)
            size += len(name) + len(value)
            if size > _MAX_MIRRORED_HEADERS:
                break
            kept.append((name, value))
        return decode_headers(tuple(kept))
