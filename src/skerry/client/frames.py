"""The frames of a command's output: one byte kind, four bytes big-endian length, payload. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.errors import SkerryError

STDOUT, STDERR, EXIT, STARTED, ERROR, MISSING, PAUSE, RESULT = 1, 2, 3, 4, 5, 6, 7, 8
OUTPUT = (STDOUT, STDERR)
LARGEST = 1 << 20
LARGEST_RESULT = 64 << 20  # of code: pictures are in it, and in its end the files that it made
MEDIA_TYPE = "application/vnd.skerry.frames"
_HEADER = 5
_KINDS = frozenset((STDOUT, STDERR, EXIT, STARTED, ERROR, MISSING, PAUSE, RESULT))


class FrameDecoder:
    """Bytes in as they come, frames out. Output comes as it does, a frame perhaps in parts, so that nothing waits and
    little is copied; all else comes whole. Holds at most one unfinished frame that is not output."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._kind = 0
        self._left = 0  # of an output frame

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        at, size = 0, len(data)
        while at < size:
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                yield self._kind, part
                continue
            held = self._held
            need = _HEADER if len(held) < _HEADER else _HEADER + int.from_bytes(held[1:_HEADER])
            held += data[at : (at := at + need - len(held))]
            if len(held) >= _HEADER and (frame := self._frame()) is not None:
                yield frame

    def _frame(self) -> tuple[int, bytes] | None:
        """What is held, if it is a whole frame; an output frame's head is only noted."""
        held = self._held
        kind, length = held[0], int.from_bytes(held[1:_HEADER])
        if kind not in _KINDS or length > (LARGEST_RESULT if kind in (RESULT, EXIT) else LARGEST):
            raise SkerryError(
                f"the server sent a frame of kind {kind} and {length} bytes, which is none",
                hint="is the server of the same version? `skerry server status` shows it",
            )
        if kind in OUTPUT:
            self._kind, self._left = kind, length
            held.clear()
            return None
        if len(held) < _HEADER + length:
            return None
        payload = bytes(held[_HEADER:])
        held.clear()
        return kind, payload

    @property
    def unfinished(self) -> bool:
        return bool(self._held or self._left)


def encode(kind: int, payload: bytes) -> bytes:
    return bytes((kind,)) + len(payload).to_bytes(4) + payload
