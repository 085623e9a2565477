"""What a terminal's text messages mean. Pure."""

from __future__ import annotations

import msgspec

from skerry.client.responses import ErrorBody, decode
from skerry.types import ProcessInfo, RunResult

REPLAY = 256 << 10
PIECE = 64 << 10  # of input in one message


class Started(msgspec.Struct, frozen=True):
    """First: output begins at `offset`."""

    process: ProcessInfo
    offset: int


class Missing(msgspec.Struct, frozen=True):
    """So many bytes are gone here."""

    missing: int


class Failed(msgspec.Struct, frozen=True):
    """Something could not be done; the last one before a close says why."""

    error: ErrorBody


class Kind(msgspec.Struct, frozen=True):
    type: str


KINDS: dict[str, type[Started | Missing | Failed | RunResult]] = {
    "started": Started,
    "missing": Missing,
    "error": Failed,
    "exit": RunResult,
}
Said = Started | Missing | Failed | RunResult


def understood(text: str) -> Said | None:
    """None: a newer server says something that is not known here."""
    data = text.encode()
    kind = KINDS.get(decode(data, Kind).type)
    return decode(data, kind) if kind is not None else None


def resize(cols: int, rows: int) -> str:
    return msgspec.json.encode({"type": "resize", "cols": cols, "rows": rows}).decode()
