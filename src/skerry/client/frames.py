"""The frames of a command's output: one byte kind, four bytes big-endian length, payload. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.errors import SkerryError

STDOUT, STDERR, EXIT, STARTED, ERROR, MISSING, PAUSE = 1, 2, 3, 4, 5, 6, 7
OUTPUT = (STDOUT, STDERR)
LARGEST = 1 << 20
MEDIA_TYPE = "application/vnd.skerry.frames"
_HEADER = 5
_KINDS = frozenset((STDOUT, STDERR, EXIT, STARTED, ERROR, MISSING, PAUSE))


class FrameDecoder:
    """Bytes in as they come, whole frames out. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        held = self._held
        held += data
        at = 0
        try:
            while len(held) - at >= _HEADER:
                kind, length = held[at], int.from_bytes(held[at + 1 : at + _HEADER])
                if kind not in _KINDS or length > LARGEST:
                    raise SkerryError(
                        f"the server sent a frame of kind {kind} and {length} bytes, which is none",
                        hint="is the server of the same version? `skerry server status` shows it",
                    )
                if len(held) - at < _HEADER + length:
                    return
                payload = bytes(held[at + _HEADER : at + _HEADER + length])
                at += _HEADER + length
                yield kind, payload
        finally:
            del held[:at]

    @property
    def unfinished(self) -> bool:
        return bool(self._held)


def encode(kind: int, payload: bytes) -> bytes:
    return bytes((kind,)) + len(payload).to_bytes(4) + payload
