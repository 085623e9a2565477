"""Searches for a pattern in output that arrives in pieces. No I/O; uses a bounded window."""

from __future__ import annotations

import codecs
import re
from typing import AnyStr, Generic

from skerry.errors import InvalidRequest

WINDOW = 64 << 10
MAX_QUOTED = 500


class OutputSearch(Generic[AnyStr]):
    """`pattern`: a regular expression as str, bytes or compiled. A str pattern is searched in the decoded UTF-8 text; a
    match must lie within the last 64 KiB."""

    def __init__(self, pattern: AnyStr | re.Pattern[AnyStr]) -> None:
        try:
            self.pattern: re.Pattern[AnyStr] = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise InvalidRequest(
                f"pattern: {pattern!r:.200} is not a regular expression: {error}",
                hint="use re.escape() for a literal text",
            ) from error
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._empty: AnyStr = self.pattern.pattern[:0]
        self._window: AnyStr = self._empty

    def add(self, data: bytes, after_gap: bool = False) -> re.Match[AnyStr] | None:
        """Return the first match so far; data before a gap is not joined with data behind it."""
        if after_gap:
            self._decoder.reset()
            self._window = self._empty
        piece: AnyStr = data if isinstance(self._empty, bytes) else self._decoder.decode(data)
        window = self._window + piece
        found = self.pattern.search(window)
        self._window = window[-WINDOW:]
        return found

    def __str__(self) -> str:
        return repr(self.pattern.pattern)[:200]

    @property
    def seen_last(self) -> str:
        """The end of the output, for a message."""
        last = self._window[-MAX_QUOTED:]
        return last.decode("utf-8", "replace") if isinstance(last, bytes) else last
