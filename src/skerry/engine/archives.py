"""Images and snapshots as archives: out to other machines and tools, and in again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

from skerry.engine.snapshots import Snapshots
from skerry.errors import QuotaExceeded
from skerry.images.layout import About
from skerry.images.pack import Packing
from skerry.types import Caller, ImageInfo, SnapshotInfo, Transfer

AT_ONCE = 4  # each is a process that reads as fast as it can


class Export:
    """An archive on its way out: iterate for its bytes, then `moved` is what it was. `aclose` in every case."""

    moved: Transfer

    def __init__(self, packing: Packing, stack: ExitStack) -> None:
        self._packing = packing
        self._stack = stack

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self._packing.read):
            yield piece
        self.moved = await asyncio.to_thread(self._packing.finish)

    async def aclose(self) -> None:
        await asyncio.shield(asyncio.to_thread(self._packing.close))
        self._stack.close()


class Archives:
    """`engine.archives`."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._under_way = 0

    async def snapshot(self, caller: Caller, ref: str) -> Export:
        return await self._export(self._snapshots.find(caller, ref))

    async def image(self, name: str) -> Export:
        return await self._export(self._snapshots.images.get(name))

    async def _export(self, source: SnapshotInfo | ImageInfo) -> Export:
        with ExitStack() as stack:
            self._begin(stack)
            stack.enter_context(self._snapshots.pinned(*source.layers))
            paths = [self._snapshots.host.layers.check(layer) for layer in source.layers]
            about = About(
                name=source.name, created_at=source.created_at, user=source.user, cwd=source.cwd, env=source.env,
                entrypoint=source.entrypoint, cmd=source.cmd,
            )  # fmt: skip
            packing = await asyncio.to_thread(Packing, paths, about)
            return Export(packing, stack.pop_all())

    def _begin(self, stack: ExitStack) -> None:
        if self._under_way >= AT_ONCE:
            raise QuotaExceeded(f"{AT_ONCE} archives are on their way already", hint="try again when one is done")
        self._under_way += 1
        stack.callback(self._end)

    def _end(self) -> None:
        self._under_way -= 1
