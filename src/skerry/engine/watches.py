"""Changes below a directory of a sandbox, as its keeper tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from skerry.keeper import Keeper
from skerry.keeper.watches import Changes
from skerry.types import FileEvent

Use = Callable[[], AbstractAsyncContextManager[tuple[Any, Keeper]]]


class Watching:
    """Iterate for the changes, until the directory itself is gone. While it is open, its sandbox is in use. `token` is
    where it began."""

    def __init__(self, changes: Changes, stack: AsyncExitStack) -> None:
        self.token = changes.token
        self._changes = changes
        self._stack = stack

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        async with self._stack:  # it has to see what goes wrong: a keeper that lies in the middle fails its sandbox
            async for event in self._changes:
                yield event

    async def aclose(self) -> None:
        await self._changes.aclose()
        await self._stack.aclose()


class Watches:
    def __init__(self, use: Use) -> None:
        self._use = use

    async def watch(
        self,
        path: str,
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        since: str | None = None,
        user: str | None = None,
    ) -> Watching:
        async with AsyncExitStack() as stack:
            _, keeper = await stack.enter_async_context(self._use())
            changes = await keeper.files.watch(
                path, recursive=recursive, include=include, exclude=exclude, since=since, user=user
            )
            return Watching(changes, stack.pop_all())
