"""Masking in a WebSocket: frame by frame, and nothing is held back beyond the end of a frame. A message that ends in a
word would otherwise wait for the next one, for which its receiver may first have to ask."""

from __future__ import annotations

from typing import Final

from skerry.network.worker.hooks import Blocked, Refusal
from skerry.network.worker.masking import Mask, Patterns

_RESERVED: Final = 0x70  # extensions, of which none was agreed on
_MASKED: Final = 0x80
_LENGTHS: Final = {126: 2, 127: 8}


class FrameMask:
    """What a server sends after its 101."""

    same_length = True

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._mask = Mask(patterns)
        self._head = bytearray()
        self._left = 0  # of the frame's payload

    def feed(self, data: bytes) -> bytes:
        out = bytearray()
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                out += self._mask.feed(bytes(piece))
                if not self._left:
                    out += self._mask.end()
            else:
                self._head.append(view[0])
                view = view[1:]
                self._begin(out)
        return bytes(out)

    def _begin(self, out: bytearray) -> None:
        """The payload begins once the head is whole."""
        head = self._head
        if len(head) < 2:
            return
        if head[0] & _RESERVED or head[1] & _MASKED:
            raise Blocked(Refusal(why="it sent WebSocket frames in which a secret could not be masked", status=502))
        extra = _LENGTHS.get(head[1], 0)
        if len(head) == 2 + extra:
            self._left = int.from_bytes(head[2:]) if extra else head[1]
            out += head
            head.clear()

    def end(self) -> bytes:
        return self._mask.end()
