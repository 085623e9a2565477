"""A sandbox's files, through its keeper: the host never walks a path that the inside controls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from skerry.engine.trees import Trees
from skerry.keeper.files import FileContent
from skerry.types import FileInfo


class Reading:
    """An open file: iterate for its bytes. `size` is what will come, `total` the whole file's."""

    def __init__(self, content: FileContent, stack: AsyncExitStack, start: int, end: int | None) -> None:
        self.total = content.size
        self.size = max(0, min(self.total, self.total if end is None else end) - start)
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
    async def read(
        self, path: str, start: int | None = None, end: int | None = None, user: str | None = None
    ) -> Reading:
        """From byte `start` up to and with byte `end`, as HTTP counts."""
        beyond = None if end is None else end + 1
        async with AsyncExitStack() as stack:
            _, keeper = await stack.enter_async_context(self._use())
            content = await keeper.files.read(path, start=start, end=beyond, user=user)
            return Reading(content, stack.pop_all(), start or 0, beyond)

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], mode: int | None, user: str | None, parents: bool
    ) -> FileInfo:
        async with self._use() as (_, keeper):
            return await keeper.files.write(path, chunks, mode=mode, user=user, parents=parents)

    async def stat(self, path: str, user: str | None = None) -> FileInfo:
        async with self._use() as (_, keeper):
            return await keeper.files.stat(path, user=user)

    async def list(self, path: str, user: str | None = None) -> tuple[list[FileInfo], bool]:
        async with self._use() as (_, keeper):
            return await keeper.files.list(path, user=user)

    async def mkdir(self, path: str, parents: bool, mode: int | None, user: str | None) -> FileInfo:
        async with self._use() as (_, keeper):
            return await keeper.files.mkdir(path, parents=parents, mode=mode, user=user)

    async def remove(self, path: str, recursive: bool, user: str | None) -> None:
        async with self._use() as (_, keeper):
            await keeper.files.remove(path, recursive=recursive, user=user)
