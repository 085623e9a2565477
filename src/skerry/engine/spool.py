"""Contents on their way from a keeper to the ledger: all of them are here before the ledger takes the first, so that no
thread ever waits for a keeper. In memory while they are few, in a file beyond."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from skerry.errors import QuotaExceeded

HELD_MOST = 8 << 20
_PIECE = 1 << 20


class Spool:
    """`room`: how many bytes may come at most."""

    def __init__(self, place: Path, room: int, in_thread: Callable[..., Awaitable[None]] = asyncio.to_thread) -> None:
        self._place, self._room, self._in_thread = place, room, in_thread
        self._held = bytearray()
        self._start = 0  # where the held bytes stand in all of them
        self._file: IO[bytes] | None = None

    @property
    def size(self) -> int:
        return self._start + len(self._held)

    async def add(self, piece: bytes) -> None:
        self._held += piece
        if self.size > self._room:
            raise QuotaExceeded(
                "the ledger of this sandbox's changes is full",
                hint="the setting review.ledger is the most that it may take on disk",
                details={"setting": "review.ledger"},
            )
        if len(self._held) > HELD_MOST:
            held, self._held = self._held, bytearray()
            self._start += len(held)
            await self._in_thread(self._write, held)

    def read(self, start: int, size: int) -> Iterator[bytes]:
        """In any thread, once all is here."""
        end = start + size
        while start < min(end, self._start):
            most = min(_PIECE, min(end, self._start) - start)
            piece = os.pread(self._file.fileno(), most, start) if self._file is not None else b""
            if not piece:
                raise OSError("a spool is shorter than it was")
            yield piece
            start += len(piece)
        if start < end:
            yield bytes(self._held[start - self._start : end - self._start])

    def _write(self, data: bytearray) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._place, buffering=0)  # noqa: SIM115 -- closed with the spool
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
