"""The server's log: one JSON object a line, bounded in size. What must not be in it is never given to it:
no token, no header, no query, no body, no variable's value, no command but its first word."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

FILE_LIMIT = 10 << 20
FILES_KEPT = 2
VALUE_LIMIT = 2000
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"ts": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        if record.name != "skerry.server":
            entry["from"] = record.name
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)[-4 * VALUE_LIMIT :]
        return msgspec.json.encode({name: _bounded(value) for name, value in entry.items()}, enc_hook=str).decode()


def _bounded(value: Any) -> Any:
    return value[:VALUE_LIMIT] + "…" if isinstance(value, str) and len(value) > 4 * VALUE_LIMIT else value


class _NotTwice(logging.Filter):
    """A stream that we cut short on purpose is in the log already."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()


def configure(file: Path | None, level: int = logging.INFO) -> None:
    """To a file of bounded size, or to stderr."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        handler = RotatingFileHandler(file, maxBytes=FILE_LIMIT, backupCount=FILES_KEPT, encoding="utf-8")
    handler.setFormatter(JsonLines())
    for name, lowest in (("skerry", level), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.setLevel(lowest)
        logger.propagate = False
    handler.addFilter(_NotTwice())
    logging.getLogger("uvicorn.access").disabled = True
