"""The server's log: one JSON object per line, bounded in size and age, with the ID of the request that caused it.
Callers never pass secrets to it: no token, no header, no query, no body, no value of a variable, and only the first
word of a command."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

FILE_LIMIT = 10 << 20
LOOK_S = 1.0  # how often a moved file is noticed
MAX_AGE_S = 30 * 86400.0
VALUE_LIMIT = 8000
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)  # of the request that is being served
_encoder = msgspec.json.Encoder(enc_hook=str)


def line_of(record: logging.LogRecord) -> bytes:
    stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    entry: dict[str, Any] = {"ts": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
    if record.name != "skerry.server":
        entry["from"] = record.name
    if (request_id := REQUEST_ID.get()) is not None:
        entry["request_id"] = request_id
    for name, value in vars(record).items():
        if name not in _STANDARD and value is not None:
            entry[name] = value[:VALUE_LIMIT] if isinstance(value, str) else value
    if record.exc_info:
        entry["trace"] = logging.Formatter().formatException(record.exc_info)[-VALUE_LIMIT:]
    return _encoder.encode(entry) + b"\n"


class LogHandler(logging.Handler):
    """Write whole lines with one write each. At its limit of size or age, rename the file to `<name>.1` and start a new
    one. At most two files exist: one of twice that age is removed. If another program, such as logrotate, moved or
    removed the file, start a new one too."""

    def __init__(self, path: Path | None, limit: int = FILE_LIMIT, max_age_s: float = MAX_AGE_S) -> None:
        super().__init__()
        self._path = path
        self._limit, self._max_age_s = limit, max_age_s
        self._size, self._began_at = 0, 0.0
        self._looked_at = 0.0
        self._fd = 2
        if path is not None:
            self._open(path)

    def emit(self, record: logging.LogRecord) -> None:
        if "without completing response" in str(record.msg):
            return  # from uvicorn, about a stream that the server ended early and logged itself
        with contextlib.suppress(OSError):  # a full disk or a closed pipe must not fail the logged request
            line = line_of(record)
            if self._path is not None:
                if self._is_moved(self._path, record.created):
                    self._reopen(self._path)
                if self._is_full(len(line), record.created):
                    self._turn_over(self._path)
            os.write(self._fd, line)
            self._size += len(line)

    def close(self) -> None:
        if self._path is not None:
            os.close(self._fd)
            self._path, self._fd = None, 2
        super().close()

    def _open(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._began_at = _first_time(path) or time.time()
        older = _older(path)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - older.stat().st_mtime > self._max_age_s:
                older.unlink()

    def _is_full(self, more: int, now: float) -> bool:
        return self._size > 0 and (self._size + more > self._limit or now - self._began_at > self._max_age_s)

    def _is_moved(self, path: Path, now: float) -> bool:
        if abs(now - self._looked_at) < LOOK_S:
            return False
        self._looked_at = now
        try:
            return not os.path.samestat(os.stat(path), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def _turn_over(self, path: Path) -> None:
        os.rename(path, _older(path))
        self._reopen(path)

    def _reopen(self, path: Path) -> None:
        old = self._fd
        self._open(path)
        os.close(old)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _first_time(path: Path) -> float | None:
    """Return the time of a log's first line; None if the log is empty."""
    with path.open("rb") as file:
        line = file.readline(VALUE_LIMIT)
    try:
        return datetime.fromisoformat(msgspec.json.decode(line)["ts"]).timestamp()
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
        return None


def configure(
    file: Path | None, level: int = logging.INFO, *, limit: int = FILE_LIMIT, max_age_s: float = MAX_AGE_S
) -> None:
    """Log to a file of bounded size and age, or to stderr. Call it only in a server process: it sets global logging
    options."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.raiseExceptions = False
    handler = LogHandler(file, limit, max_age_s)
    for name, lowest in (("skerry", level), ("uvicorn.error", logging.ERROR), ("mcp", logging.ERROR)):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.setLevel(lowest)
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True
