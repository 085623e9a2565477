"""Lines of JSON in the body of a keeper's response."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from skerry.codecs.ndjson import LineDecoder
from skerry.keeper.errors import KeeperProtocolError

MAX_LINE: Final = 1 << 20


def _endless() -> KeeperProtocolError:
    return KeeperProtocolError("the keeper sent a line without end")


class LineReader:
    """Read the lines of a body that arrives in pieces. With `blank`, blank lines are returned, and the caller's decoder
    rejects them; otherwise they are skipped."""

    def __init__(self, pieces: AsyncIterator[bytes], max_line: int = MAX_LINE, *, blank: bool = True) -> None:
        self._pieces = pieces
        self._decoder = LineDecoder(max_line, _endless, blank=blank)
        self._lines: deque[bytes] = deque()

    async def next(self, within: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None) -> bytes | None:
        """Return the next line, or None at the end of the body. `within` bounds the time until each piece arrives."""
        while not self._lines:
            piece = anext(self._pieces, None)
            data = await (piece if within is None else within(piece))
            if data is None:
                return None
            self._lines.extend(self._decoder.feed(data))
        return self._lines.popleft()

    @property
    def rest(self) -> bytes:
        """Text after the last line break."""
        return bytes(self._decoder.rest)

    async def finished(self, within: Callable[[Awaitable[Any]], Awaitable[Any]]) -> bool:
        """Return whether the body ends here: no line is left, and no other piece arrives, not even a blank one."""
        return not self._lines and not self._decoder.rest.strip() and await within(anext(self._pieces, None)) is None
