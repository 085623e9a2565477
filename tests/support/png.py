"""PNG pictures looked at, with the standard library alone."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cached_property

CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    channels: int
    rows: bytes  # as they are packed: each with a byte that says how

    @property
    def blank(self) -> bool:
        """Of one colour, every row is packed into the same few values."""
        return len(set(self.rows)) < 10

    @cached_property
    def colours(self) -> set[tuple[int, ...]]:
        """Without the alpha channel. Slow."""
        stride = self.width * self.channels
        above, found = bytearray(stride), set()
        for at in range(0, len(self.rows), stride + 1):
            line = bytearray(self.rows[at + 1 : at + 1 + stride])
            _undo(self.rows[at], line, above, self.channels)
            above = line
            shown = range(3 if self.channels > 2 else 1)
            found |= set(zip(*(line[channel :: self.channels] for channel in shown), strict=True))
        return found


def decode_png(data: bytes) -> Picture:
    """Of 8 bits a channel, not interlaced. Each piece's checksum is looked at."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, head = 8, b"", b""
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + content) == struct.unpack_from(">I", data, at + 8 + size)[0]
        head = content if kind == b"IHDR" else head
        packed += content if kind == b"IDAT" else b""
        at += 12 + size
    width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", head)
    assert (depth, interlaced) == (8, 0)
    picture = Picture(width, height, CHANNELS[colour], zlib.decompress(packed))
    assert len(picture.rows) == (width * picture.channels + 1) * height
    return picture


def _undo(kind: int, line: bytearray, above: bytearray, channels: int) -> None:
    """A row is stored as its difference from the left, the upper, or both neighbours."""
    for at in range(len(line)) if kind else ():
        left = line[at - channels] if at >= channels else 0
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = above[at]
        elif kind == 3:
            guess = (left + above[at]) // 2
        else:
            guess = _nearest(left, above[at], above[at - channels] if at >= channels else 0)
        line[at] = (line[at] + guess) & 255


def _nearest(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda one: abs(guess - one))
