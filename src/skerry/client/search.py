"""Looking for a pattern in output that comes piece by piece. No I/O; holds a bounded window."""

from __future__ import annotations

import codecs
import re
from typing import AnyStr, Generic

from skerry.errors import InvalidRequest

WINDOW = 64 << 10
QUOTED = 500


class Search(Generic[AnyStr]):
    """`pattern` is a regular expression, as text or bytes or compiled. Text is searched in what the bytes mean as
    UTF-8; a match must lie within the last 64 KiB."""

    def __init__(self, pattern: AnyStr | re.Pattern[AnyStr]) -> None:
        try:
            self.pattern: re.Pattern[AnyStr] = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise InvalidRequest(
                f"pattern: {pattern!r:.200} is no regular expression: {error}", hint="re.escape() takes a text as it is"
            ) from error
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._empty: AnyStr = self.pattern.pattern[:0]
        self._window: AnyStr = self._empty

    def add(self, data: bytes, after_gap: bool = False) -> re.Match[AnyStr] | None:
        """The first match in what was seen so far; what stands before a gap is not next to what stands behind it."""
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
        """The end of what came, for a message."""
        last = self._window[-QUOTED:]
        return last.decode("utf-8", "replace") if isinstance(last, bytes) else last
