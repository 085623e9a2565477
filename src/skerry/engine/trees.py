"""Whole directories in and out of a sandbox, as archives that its keeper packs and unpacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

from skerry.engine.watches import Watches
from skerry.errors import SandboxUnavailable
from skerry.keeper.trees import Archive
from skerry.types import Transfer


class Packing:
    """A directory on its way out: iterate for the archive's bytes, then `moved` is what it was."""

    def __init__(self, archive: Archive, stack: AsyncExitStack) -> None:
        self._archive = archive
        self._stack = stack

    @property
    def moved(self) -> Transfer:
        if self._archive.moved is None:
            raise SandboxUnavailable("the archive has not ended")
        return self._archive.moved

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with self._stack:  # it has to see what goes wrong: a keeper that lies in the middle fails its sandbox
            async for piece in self._archive:
                yield piece

    async def aclose(self) -> None:
        await self._archive.aclose()
        await self._stack.aclose()


class Trees(Watches):
    async def pack(self, path: str, exclude: Sequence[str] = (), user: str | None = None) -> Packing:
        async with AsyncExitStack() as stack:
            _, keeper = await stack.enter_async_context(self._use())
            archive = await keeper.files.pack(path, exclude, user)
            return Packing(archive, stack.pop_all())

    async def unpack(self, path: str, archive: AsyncIterator[bytes], user: str | None = None) -> Transfer:
        async with self._use() as (_, keeper):
            return await keeper.files.unpack(path, archive, user)
