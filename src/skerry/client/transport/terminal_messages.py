"""The text messages of a terminal. Pure."""

from __future__ import annotations

import msgspec

from skerry.client.transport.responses import decode
from skerry.types import ErrorBody, ProcessInfo, RunResult

REPLAY = 256 << 10
PIECE = 64 << 10  # bytes of input in one message


class TerminalStarted(msgspec.Struct, frozen=True):
    """The first message: output begins at `offset`."""

    process: ProcessInfo
    offset: int


class TerminalGap(msgspec.Struct, frozen=True):
    """The number of bytes that are missing here."""

    missing: int


class TerminalError(msgspec.Struct, frozen=True):
    """An operation failed; the last one before a close is its reason."""

    error: ErrorBody


class Kind(msgspec.Struct, frozen=True):
    type: str


KINDS: dict[str, type[TerminalStarted | TerminalGap | TerminalError | RunResult]] = {
    "started": TerminalStarted,
    "missing": TerminalGap,
    "error": TerminalError,
    "exit": RunResult,
}
TerminalMessage = TerminalStarted | TerminalGap | TerminalError | RunResult


def decode_message(text: str) -> TerminalMessage | None:
    """Return the message; None: a newer server sent an unknown one."""
    data = text.encode()
    kind = KINDS.get(decode(data, Kind).type)
    return decode(data, kind) if kind is not None else None


def resize(cols: int, rows: int) -> str:
    return msgspec.json.encode({"type": "resize", "cols": cols, "rows": rows}).decode()
