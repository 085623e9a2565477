"""Newline-separated JSON as it arrives. Pure and bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from skerry.errors import SkerryError

MAX_LINE = 1 << 20


def _endless() -> SkerryError:
    return SkerryError("the server sent a line that does not end")


class LineDecoder:
    """Split bytes into lines. `error` makes the exception for a line longer than `max_line`. With `blank`, blank lines
    are yielded too, for a reader that rejects them."""

    def __init__(
        self, max_line: int = MAX_LINE, error: Callable[[], SkerryError] = _endless, *, blank: bool = False
    ) -> None:
        self.rest = bytearray()  # the beginning of the next line
        self._max_line = max_line
        self._error, self._blank = error, blank

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes and yield the lines that they complete."""
        whole: list[bytes] = []
        if b"\n" in data:
            *whole, data = (bytes(self.rest) + data).split(b"\n")
            self.rest.clear()
        self.rest += data
        if len(self.rest) > self._max_line:
            raise self._error()
        yield from (line for line in whole if self._blank or line.strip())
