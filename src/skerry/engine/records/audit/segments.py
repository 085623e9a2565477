"""The segments: append-only files of lines. One server writes them, from the event loop's thread.

A line is in the kernel when `append` returns, so it survives the server; after `sync` it survives the host. Blocks are
reserved ahead of the end of the file: a full disk is noticed before an effect, not after it. A write that fails changes
nothing, and the next one tries again.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from skerry.engine.records.audit.chain import (
    GAP,
    KEY,
    SEAL,
    START,
    TRIM,
    Checkpoint,
    Line,
    decode,
    digest,
    encode,
)
from skerry.engine.records.audit.chain import sign as sign_seal
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.verification import Place, Segment, list_segments
from skerry.engine.webhooks.queue import WebhookQueue
from skerry.errors import AuditUnavailable
from skerry.storage import tree
from skerry.storage.kernel import fallocate

log = logging.getLogger("skerry.engine")
SEGMENT_SIZE: Final = 16 << 20
SEGMENT_AGE_S: Final = 86_400.0
RESERVE: Final = 1 << 20  # bytes that are allocated ahead
MIN_RESERVE: Final = 128 << 10  # always left for the results of actions that have begun
MAX_SEARCHED: Final = 4  # segments
FREEING_RESERVE: Final = 512 << 10  # left on a full disk for actions that free space


class SealedLog(NamedTuple):
    """The log up to a seal."""

    segments: tuple[Segment, ...]
    end: Place
    seal: Checkpoint


class AuditLog:
    """The log of one state directory."""

    def __init__(
        self, directory: Path, keys: KeyStore, *, keep_s: float | None, sinks: Sequence[Path] = (),
        webhooks: WebhookQueue | None = None, segment_size: int = SEGMENT_SIZE,
    ) -> None:  # fmt: skip
        self._directory, self._keys, self._keep_s = directory, keys, keep_s
        self._sinks, self._webhooks = sinks, webhooks
        self._segment_size = segment_size
        self.segments: list[Segment] = []
        self.seq, self._hash, self._size, self._reserved, self._fd = 0, START, 0, 0, -1
        self._seal: Checkpoint | None = None  # the newest one of this server
        self._published = 0  # the number of the newest published one
        self._readers = 0  # that read segments which retention must keep
        self._waiting: list[dict[str, Any]] = []  # of the opening; a server also starts on a full disk
        self.log = ""
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            self.segments += list_segments(directory)
            self._open()
        except OSError as error:
            raise _unavailable(error, directory) from error

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        point = self._keys.checkpoint()
        torn = self._resume() if self.segments else None
        if torn is None:
            self._begin(point)
            return
        if self._keys.created:
            self._introduce_key("the old private key was lost")
        missing = point is not None and point.log == self.log and point.seq > self.seq
        if missing and point is not None:
            first, self.seq = self.seq + 1, point.seq
            self._waiting.append({"type": GAP, "first": first, "reason": f"the checkpoint has record {point.seq}"})
            log.error("audit records are missing", extra={"first": first, "last": point.seq})
        self._waiting.append({"type": "audit.open", "params": {"torn_bytes": torn} if torn else None})

    def _begin(self, point: Checkpoint | None) -> None:
        """Start a new log. A checkpoint of an earlier log is evidence that its files were removed."""
        self.log = secrets.token_hex(8)
        self._create_segment()
        self._introduce_key("new log")
        if point is not None:
            reason = f"log {point.log} with {point.seq} records is gone"
            self.append(type=GAP, actor="server", first=1, reason=reason)
            log.error("the audit log is gone, and a new one was started", extra={"log": point.log, "last": point.seq})

    def _resume(self) -> int | None:
        """Continue the newest segment. Return the size of a torn last line, which is removed: the power failed while it
        was written. None: the log is empty."""
        while self.segments:
            newest = self.segments[-1]
            content = newest.path.read_bytes()
            end = content.rfind(b"\n") + 1
            if end:
                break
            newest.path.unlink()
            self.segments.pop()
        else:
            return None
        lines = content[:end].splitlines()
        self._hash, self.seq = digest(lines[-1]), newest.first + len(lines) - 1
        with contextlib.suppress(ValueError):
            self.seq = decode(lines[-1]).seq
        self.log = _log_id(lines) or secrets.token_hex(8)
        self._fd = os.open(newest.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        if end < len(content):  # to the same size, it would free what is allocated ahead
            os.ftruncate(self._fd, end)
        self._size, self._reserved = end, max(end, os.fstat(self._fd).st_blocks * 512)
        return len(content) - end

    def _create_segment(self) -> None:
        path = self._directory / f"{self.seq + 1:016d}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        tree.sync(self._directory)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._reserved = fd, 0, 0
        self.segments.append(Segment(self.seq + 1, path, self._now()))

    # -- writing ------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return round(time.time(), 3)

    def append(self, **fields: Any) -> tuple[Line, Place]:
        """Write a line and return it with its place. Raise AuditUnavailable if that is impossible; nothing is changed
        then."""
        while self._waiting:
            self._append({"actor": "server", **self._waiting[0]})
            del self._waiting[0]
        return self._append(fields)

    def _append(self, fields: dict[str, Any]) -> tuple[Line, Place]:
        line = Line(seq=self.seq + 1, prev=self._hash, at=self._now(), **fields)
        place = Place(self.segments[-1].first, self._size)
        self._write([line])
        return line, place

    def reserve(self, size: int, *, freeing: bool = False) -> None:
        """Make sure that so many bytes can be written, and that the results of begun actions can be written after them.
        Raise AuditUnavailable if the disk is full. freeing: the action frees space."""
        kept = MIN_RESERVE if freeing else MIN_RESERVE + FREEING_RESERVE
        if self._reserved - self._size >= size + kept:
            return
        try:
            fallocate(self._fd, self._size, RESERVE + size, grow=False)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise _unavailable(error, self._directory) from error
            self._reserved = 1 << 62  # this file system cannot reserve: a full disk is noticed by the write
            return
        self._reserved = self._size + RESERVE + size

    def has_room(self, size: int) -> bool:
        """Return whether the disk has space for so many bytes."""
        try:
            self.reserve(size)
        except AuditUnavailable:
            return False
        return True

    def last_event(self) -> int | None:
        """Return the number in `params` of the newest record of an event that has one; look at the newest segments."""
        for segment in self.segments[: -MAX_SEARCHED - 1 : -1]:
            data = segment.path.read_bytes()
            end = len(data)
            while (at := data.rfind(b'"event":', 0, end)) >= 0:  # quotation marks in values are escaped
                end = data.rfind(b"\n", 0, at) + 1
                with contextlib.suppress(ValueError):
                    line = decode(data[end : data.find(b"\n", at)])
                    found = (line.params or {}).get("event")
                    if line.actor == "sandbox" and isinstance(found, int):
                        return found
        return None

    def _write(self, lines: list[Line]) -> None:
        data = [encode(line) for line in lines]
        content = b"".join(data)
        try:
            written = os.write(self._fd, content)
        except OSError as error:
            raise _unavailable(error, self._directory) from error
        if written != len(content):
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise _unavailable(OSError("the disk is full"), self._directory)
        self._size += written
        self.seq, self._hash = lines[-1].seq, digest(data[-1][:-1])

    def position(self) -> Place:
        """Return the end of the log."""
        return Place(self.segments[-1].first, self._size)

    def descriptor(self) -> int:
        """Return a duplicate of the file's descriptor, for `os.fdatasync` in a thread; the caller closes it."""
        return os.dup(self._fd)

    def sync(self) -> OSError | None:
        """Sync in this thread. Return the error, if any."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            return error
        return None

    # -- seals --------------------------------------------------------------------------------------------------------

    @property
    def unsealed(self) -> int:
        """Return the number of lines after the last seal."""
        return self.seq - (self._seal.seq if self._seal is not None else 0)

    def _seal_line(self, seq: int, prev: str) -> Line:
        signature = sign_seal(self._keys.private, self.log, seq, prev)
        return Line(seq=seq, prev=prev, at=self._now(), type=SEAL, log=self.log, key=self._keys.id, sig=signature)

    def _note_seal(self, line: Line) -> Checkpoint:
        self._seal = Checkpoint(
            log=self.log, seq=line.seq, hash=self._hash, prev=line.prev, at=line.at, key=line.key or "",
            sig=line.sig or "",
        )  # fmt: skip
        return self._seal

    def seal(self) -> Checkpoint:
        """Sign everything up to here and return the seal. The checkpoint is published after `sync`."""
        if self._seal is not None and not self.unsealed:
            return self._seal
        line = self._seal_line(self.seq + 1, self._hash)
        self._write([line])
        return self._note_seal(line)

    @contextlib.contextmanager
    def sealed(self) -> Iterator[SealedLog]:
        """Seal the log and yield it up to the seal: later records are behind its end. Retention removes none of its
        segments meanwhile."""
        seal = self.seal()
        self._readers += 1
        try:
            yield SealedLog(tuple(self.segments), self.position(), seal)
        finally:
            self._readers -= 1

    def _introduce_key(self, reason: str, public: str | None = None) -> None:
        """Write a key and a seal at once, so that no other line can come between them."""
        key = public or self._public()
        known = Line(seq=self.seq + 1, prev=self._hash, at=self._now(), type=KEY, actor="server", log=self.log, key=key,
                     reason=reason)  # fmt: skip
        seal = self._seal_line(known.seq + 1, digest(encode(known)[:-1]))
        self._write([known, seal])
        self._note_seal(seal)

    def _public(self) -> str:
        return next(key.public for key in self._keys.list() if key.current)

    def rotate_key(self) -> None:
        """Let the old key introduce a new one, then use the new one."""
        self.seal()
        private = self._keys.generate()
        raw = private.public_key().public_bytes_raw()
        self._introduce_key("rotated", _base64(raw))
        os.fdatasync(self._fd)
        self._keys.replace(private)
        self.append(type="audit.open", actor="server", reason="new key")
        self.seal()

    def publish_checkpoint(self, synced: int) -> None:
        """Store the newest seal outside of the data directory, after a sync. A failure is logged: the log itself is
        complete."""
        point = self._seal
        if point is None or not self._published < point.seq <= synced:  # it must not be newer than the disk
            return
        self._published = point.seq
        line = msgspec.json.encode(point) + b"\n"
        try:
            self._keys.put_checkpoint(point)
            if self._webhooks is not None:
                self._webhooks.add_checkpoint(line)
        except (OSError, sqlite3.Error) as error:
            log.error("failed to store an audit checkpoint", extra={"error": str(error)})
        for sink in self._sinks:
            try:
                _append(sink, line)
            except OSError as error:
                log.error("failed to write an audit checkpoint", extra={"sink": str(sink), "error": str(error)})

    # -- rotation and retention ---------------------------------------------------------------------------------------

    def maintain(self) -> int | None:
        """Start a new segment if the current one is large or old, and remove segments beyond the retention time. Return
        the number of the oldest line if some were removed."""
        current = self.segments[-1]
        if self._size < self._segment_size and time.time() - current.at < SEGMENT_AGE_S:
            return None
        if self.seq == current.first:
            return None
        try:
            self._finish_segment()
            os.ftruncate(self._fd, self._size)  # gives reserved blocks back; not at a stop: the disk may be full then
            self._create_segment()
            self.append(type="audit.segment", actor="server", log=self.log)
            return self._trim()
        except OSError as error:
            raise _unavailable(error, self._directory) from error

    def _finish_segment(self) -> None:
        self.seal()
        os.fdatasync(self._fd)
        self.publish_checkpoint(self.seq)

    def _trim(self) -> int | None:
        """Remove old segments, after a sealed record of the removal is on disk. While they are read, they are left for
        the next time."""
        if self._keep_s is None or self._readers:
            return None
        limit = time.time() - self._keep_s
        old = [segment for segment, later in zip(self.segments, self.segments[1:], strict=False) if later.at < limit]
        if not old:
            return None
        first = self.segments[len(old)].first
        self.append(type=TRIM, actor="server", first=first)
        self.seal()
        os.fdatasync(self._fd)
        self.publish_checkpoint(self.seq)
        for segment in old:
            segment.path.unlink(missing_ok=True)
        del self.segments[: len(old)]
        return first

    def close(self) -> None:
        if self._fd < 0:
            return
        try:
            self._finish_segment()
        except (OSError, AuditUnavailable) as error:
            log.error("failed to seal the audit log", extra={"error": str(error)})
        finally:
            os.close(self._fd)
            self._fd = -1


def _log_id(lines: list[bytes]) -> str | None:
    for data in reversed(lines):
        if b'"log":' in data:
            with contextlib.suppress(ValueError):
                if found := decode(data).log:
                    return found
    return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _append(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _unavailable(error: OSError, directory: Path) -> AuditUnavailable:
    return AuditUnavailable(
        f"the audit log cannot be written: {error.strerror or error}",
        hint=f"nothing was done; free space on the disk of {directory}, then try again",
    )
