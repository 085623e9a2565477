"""Masking in a WebSocket: message by message, and nothing is held back beyond the end of one. A message that ends in a
word would otherwise wait for the next one, for which its receiver may first have to ask. Within a message a secret may
stand across the frames that it comes in."""

from __future__ import annotations

from collections import deque
from typing import Final

from skerry.network.worker.hooks import Blocked, Refusal
from skerry.network.worker.masking import Mask, Patterns

_RESERVED: Final = 0x70  # extensions, of which none was agreed on
_MASKED: Final = 0x80
_FINAL: Final = 0x80
_CONTROL: Final = 0x08
_LENGTHS: Final = {126: 2, 127: 8}
_MARKS_MOST: Final = 1024


class FrameMask:
    """What a server sends after its 101."""

    same_length = True

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._mask = Mask(patterns)
        self._head = bytearray()
        self._left = 0  # of the frame's payload
        self._final = True
        self._control: tuple[bytes, bytearray] | None = None  # head and payload of one that is under way
        self._fed = self._given = 0  # of the message's payload
        # heads and control frames that stand behind so many bytes of it, some of which are held back
        self._marks: deque[tuple[int, bytes]] = deque()

    def feed(self, data: bytes) -> bytes:
        out = bytearray()
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                self._payload(bytes(piece), out)
            else:
                self._head.append(view[0])
                view = view[1:]
                self._begin(out)
        return bytes(out)

    def end(self) -> bytes:
        out = bytearray()
        self._give(self._mask.end(), out)
        return bytes(out)

    def _begin(self, out: bytearray) -> None:
        """The payload begins once the head is whole."""
        head = self._head
        if len(head) < 2:
            return
        if head[0] & _RESERVED or head[1] & _MASKED:
            raise _unmaskable()
        extra = _LENGTHS.get(head[1], 0)
        if len(head) < 2 + extra:
            return
        self._left = int.from_bytes(head[2:]) if extra else head[1]
        if not head[0] & _CONTROL:
            self._final = bool(head[0] & _FINAL)
            self._mark(bytes(head), out)
        elif extra or not head[0] & _FINAL:
            raise _unmaskable()
        else:
            self._control = (bytes(head), bytearray())
        head.clear()
        if not self._left:
            self._ended(out)

    def _payload(self, piece: bytes, out: bytearray) -> None:
        if self._control is not None:
            self._control[1].extend(piece)
        else:
            self._fed += len(piece)
            self._give(self._mask.feed(piece), out)
        if not self._left:
            self._ended(out)

    def _ended(self, out: bytearray) -> None:
        if self._control is not None:
            head, payload = self._control
            self._control = None
            self._mark(head + self._patterns.mask(bytes(payload)), out)
        elif self._final:
            self._give(self._mask.end(), out)
            self._fed = self._given = 0

    def _mark(self, data: bytes, out: bytearray) -> None:
        if self._given == self._fed:
            out += data
            return
        if len(self._marks) >= _MARKS_MOST:
            raise _unmaskable()
        self._marks.append((self._fed, data))

    def _give(self, data: bytes, out: bytearray) -> None:
        while self._marks and self._marks[0][0] <= self._given + len(data):
            at, mark = self._marks.popleft()
            out += data[: at - self._given]
            out += mark
            data, self._given = data[at - self._given :], at
        out += data
        self._given += len(data)


def _unmaskable() -> Blocked:
    return Blocked(Refusal(why="it sent WebSocket frames in which a secret could not be masked", status=502))
