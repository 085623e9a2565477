"""Count the values of a JSON text before it is decoded. Pure.

A body of a megabyte can hold half a million values. Making and checking objects for all of them would hold the event
loop for seconds; counting them takes a few milliseconds per megabyte, in pieces as they arrive.
"""

from __future__ import annotations


class JsonCounter:
    """Counts values outside of strings. `values` is exact for valid JSON, and at least the number of commas and opening
    brackets before the first error of any other text."""

    def __init__(self) -> None:
        self.values = 0
        self._in_string = False
        self._escaping = False

    def feed(self, piece: bytes | bytearray) -> None:
        if not piece:
            return
        data = bytes(piece[1:] if self._escaping else piece).replace(b"\\\\", b"")
        self._escaping = data.endswith(b"\\")
        data = data.replace(b'\\"', b"")
        parts = data.split(b'"')
        outside = b"".join(parts[1 if self._in_string else 0 :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self.values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
