"""A sandbox's files, through its keeper: the host never walks a path that the inside controls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from skerry.keeper import FileReader, Keeper
from skerry.types import FileInfo

Use = Callable[[], AbstractAsyncContextManager[tuple[Any, Keeper]]]


class Reading:
    """An open file: iterate for its bytes. `size` is what will come, `total` the whole file's."""

    def __init__(self, reader: FileReader, stack: AsyncExitStack) -> None:
        self.size = reader.size
        self.total = reader.total
        self._reader = reader
        self._stack = stack

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._reader:
                yield chunk
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        await self._reader.aclose()
        await self._stack.aclose()


class Files:
    def __init__(self, use: Use) -> None:
        self._use = use

    async def read(
        self, path: str, start: int | None = None, end: int | None = None, user: str | None = None
    ) -> Reading:
        async with AsyncExitStack() as stack:
            _, keeper = await stack.enter_async_context(self._use())
            reader = await keeper.read(path, start=start, end=end, user=user)
            return Reading(reader, stack.pop_all())
        raise AssertionError("unreachable")

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], mode: int | None, user: str | None, parents: bool
    ) -> FileInfo:
        async with self._use() as (_, keeper):
            return await keeper.write(path, chunks, mode=mode, user=user, parents=parents)

    async def stat(self, path: str, user: str | None = None) -> FileInfo:
        async with self._use() as (_, keeper):
            return await keeper.stat(path, user=user)

    async def list(self, path: str, user: str | None = None) -> tuple[list[FileInfo], bool]:
        async with self._use() as (_, keeper):
            return await keeper.list(path, user=user)

    async def mkdir(self, path: str, parents: bool, mode: int | None, user: str | None) -> FileInfo:
        async with self._use() as (_, keeper):
            return await keeper.mkdir(path, parents=parents, mode=mode, user=user)

    async def remove(self, path: str, recursive: bool, user: str | None) -> None:
        async with self._use() as (_, keeper):
            await keeper.remove_file(path, recursive=recursive, user=user)
