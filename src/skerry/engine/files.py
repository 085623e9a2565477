"""A sandbox's files, through its keeper: the host never walks a path that the inside controls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from skerry.engine.trees import Trees
from skerry.keeper.files import FileContent
from skerry.keeper.files import Files as KeeperFiles

T = TypeVar("T")


class Reading:
    """An open file: iterate for its bytes. `total` is the whole file's size, `size` what will come; `part`: that is
    only a part of it, from `start` on; `beyond`: there is nothing at the place that was asked for."""

    def __init__(self, content: FileContent, stack: AsyncExitStack, start: int, end: int | None) -> None:
        self.total = content.size
        self.start = start
        self.part = content.part
        self.beyond = content.beyond
        self.size = max(0, min(self.total, self.total if end is None else end) - start) if self.part else self.total
        self._content = content
        self._stack = stack
        self._read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with self._stack:  # it has to see what goes wrong: a keeper that lies in the middle fails its sandbox
            async for chunk in self._content:
                yield chunk
            self._read = True

    async def aclose(self) -> None:
        if not self._read:  # else its connection is in use again
            await self._content.aclose()
        await self._stack.aclose()


class Files(Trees):
    """One sandbox's; each operation is a call of its own."""

    async def read(
        self, path: str, start: int | None = None, end: int | None = None, user: str | None = None
    ) -> Reading:
        """From byte `start` up to and with byte `end`, as HTTP counts."""
        beyond = None if end is None else end + 1
        async with AsyncExitStack() as stack:
            _, keeper = await stack.enter_async_context(self._use())
            content = await keeper.files.read(path, start=start, end=beyond, user=user)
            return Reading(content, stack.pop_all(), start or 0, beyond)

    async def do(self, work: Callable[[KeeperFiles], Awaitable[T]]) -> T:
        """Anything that is over when it returns."""
        async with self._use() as (_, keeper):
            return await work(keeper.files)
