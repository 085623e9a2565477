"""Pieces that a thread makes, for who awaits them one by one: nothing is made ahead of a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any


async def pulled(
    in_thread: Callable[..., Awaitable[Any]], pieces: Generator[bytes, None, None]
) -> AsyncGenerator[bytes, None]:
    """A reader that leaves waits for the piece that is being made: a generator can't be closed meanwhile."""
    making: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            making = asyncio.ensure_future(in_thread(next, pieces, None))
            piece = await asyncio.shield(making)
            if piece is None:
                return
            yield piece
    finally:
        if making is not None and not making.done():
            await asyncio.wait((making,))
        await in_thread(pieces.close)
