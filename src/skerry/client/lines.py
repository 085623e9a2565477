"""Newline-separated JSON as it comes. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.errors import SkerryError

LONGEST = 1 << 20


class LineDecoder:
    def __init__(self, longest: int = LONGEST) -> None:
        self._held = b""
        self._longest = longest

    def feed(self, data: bytes) -> Iterator[bytes]:
        *whole, self._held = (self._held + data).split(b"\n")
        if len(self._held) > self._longest:
            raise SkerryError("the server sent a line that does not end")
        yield from (line for line in whole if line.strip())
