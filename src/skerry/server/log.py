"""The server's log: one JSON object a line, bounded in size. What must not be in it is never given to it:
no token, no header, no query, no body, no variable's value, no command but its first word."""

from __future__ import annotations

import contextlib
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

FILE_LIMIT = 10 << 20
VALUE_LIMIT = 8000
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_encoder = msgspec.json.Encoder(enc_hook=str)


def line_of(record: logging.LogRecord) -> bytes:
    stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    entry: dict[str, Any] = {"ts": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
    if record.name != "skerry.server":
        entry["from"] = record.name
    for name, value in vars(record).items():
        if name not in _STANDARD and value is not None:
            entry[name] = value[:VALUE_LIMIT] if isinstance(value, str) else value
    if record.exc_info:
        entry["trace"] = logging.Formatter().formatException(record.exc_info)[-VALUE_LIMIT:]
    return _encoder.encode(entry) + b"\n"


class Lines(logging.Handler):
    """Whole lines, one write each. A file that has grown to its limit becomes `<name>.1` and a new one is begun."""

    def __init__(self, path: Path | None, limit: int = FILE_LIMIT) -> None:
        super().__init__()
        self._path = path
        self._limit = limit
        self._size = 0
        self._fd = 2
        if path is not None:
            self._open(path)

    def emit(self, record: logging.LogRecord) -> None:
        if "without completing response" in str(
            record.msg
        ):  # uvicorn, of a stream that we cut short and told of already
            return
        with contextlib.suppress(OSError):  # a full disk or a closed pipe must not end the request that is logged
            line = line_of(record)
            os.write(self._fd, line)
            self._size += len(line)
            if self._path is not None and self._size > self._limit:
                self._turn_over(self._path)

    def close(self) -> None:
        if self._path is not None:
            os.close(self._fd)
            self._path, self._fd = None, 2
        super().close()

    def _open(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _turn_over(self, path: Path) -> None:
        os.rename(path, path.with_name(path.name + ".1"))
        old = self._fd
        self._open(path)
        os.close(old)


def configure(file: Path | None, level: int = logging.INFO) -> None:
    """To a file of bounded size, or to stderr. For a process that is a server: it sets logging's global switches."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.raiseExceptions = False
    handler = Lines(file)
    for name, lowest in (("skerry", level), ("uvicorn.error", logging.ERROR), ("mcp", logging.ERROR)):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.setLevel(lowest)
        logger.propagate = False
    logging.getLogger("uvicorn.access").disabled = True
