"""Frames: one byte of type, four of length (big-endian), the payload. Bytes in, frames out; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skerry.keeper.failures import KeeperLied

STDOUT: Final = 1
STDERR: Final = 2
EXIT: Final = 3
STARTED: Final = 4
MISSING: Final = 5
PAUSE: Final = 6
STDIN: Final = 10
STDIN_EOF: Final = 11
SIGNAL: Final = 12
RESIZE: Final = 13

HEAD: Final = 5
MAX_PAYLOAD: Final = 1 << 20
OUTPUT: Final = {STDOUT: "stdout", STDERR: "stderr"}
_FROM_KEEPER: Final = frozenset((STDOUT, STDERR, EXIT, STARTED, MISSING, PAUSE))


def encode(kind: int, payload: bytes = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise ValueError("a frame holds at most 1 MiB")
    return kind.to_bytes(1, "big") + len(payload).to_bytes(4, "big") + payload


def encode_stdin(data: bytes) -> Iterator[bytes]:
    """As many frames as the data needs; none for none."""
    view = memoryview(data)
    for start in range(0, len(view), MAX_PAYLOAD):
        yield encode(STDIN, bytes(view[start : start + MAX_PAYLOAD]))


def decode(buffer: bytearray) -> tuple[int, bytes] | None:
    """Takes the next frame off the buffer's front, or returns None if it is not whole yet. A bad head raises at once,
    so the buffer never has to hold more than one payload."""
    if len(buffer) < HEAD:
        return None
    kind = buffer[0]
    size = int.from_bytes(buffer[1:HEAD], "big")
    if kind not in _FROM_KEEPER or size > MAX_PAYLOAD or size == 0:
        raise KeeperLied(f"the keeper sent a bad frame (type {kind}, {size} bytes)")
    if len(buffer) < HEAD + size:
        return None
    payload = bytes(memoryview(buffer)[HEAD : HEAD + size])
    del buffer[: HEAD + size]
    return kind, payload
