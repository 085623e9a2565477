"""Images and snapshots as archives: out to other machines and tools, and in again."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from skerry.engine import plan
from skerry.engine.faults import passed
from skerry.engine.slots import Slots
from skerry.engine.snapshots import Snapshots
from skerry.errors import Conflict, QuotaExceeded, SkerryError
from skerry.images.intake import Intake, Taken
from skerry.images.layout import About
from skerry.images.pack import PIECE, Packing
from skerry.images.unpack import Bounds
from skerry.storage import check_image_name, image_digest, tree
from skerry.types import (
    Caller,
    ImageInfo,
    ImportedImage,
    ImportedSnapshot,
    SnapshotInfo,
    Transfer,
    check_name,
    format_size,
    parse_size,
    parse_span,
)

T = TypeVar("T")


class Export:
    """An archive on its way out: iterate for its bytes, then `moved` is what it was. `aclose` in every case."""

    moved: Transfer

    def __init__(self, packing: Packing, slots: Slots, stack: ExitStack, patience_s: float) -> None:
        self._packing = packing
        self._slots = slots
        self._stack = stack
        self._patience_s = patience_s
        self._closing: asyncio.Task[None] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """One who reads no more, and does not leave either, loses the slot."""
        loop = asyncio.get_running_loop()
        while piece := await self._slots.run(self._packing.read):
            patience = loop.call_later(self._patience_s, self._give_up)
            try:
                yield piece
            finally:
                patience.cancel()
            if self._closing is not None:
                raise SkerryError("the archive was not read for too long", hint="fetch it again")
        self.moved = await self._slots.run(self._packing.finish)

    def _give_up(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.aclose())

    async def aclose(self) -> None:
        await asyncio.shield(asyncio.to_thread(self._packing.close))
        self._stack.close()


class Archives:
    """`engine.archives`."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._slots = snapshots.slots

    async def recover(self) -> None:
        """Once, before anything else: clears what a server that was killed left of its imports."""
        await asyncio.to_thread(tree.remove, self._place)

    @property
    def _place(self) -> Path:
        return self._snapshots.host.settings.state_dir / "cache" / "imports"

    @property
    def _patience_s(self) -> float:
        return parse_span(self._snapshots.host.settings["archive.timeout"])

    # -- out ----------------------------------------------------------------------------------------------------------

    async def snapshot(self, caller: Caller, ref: str) -> Export:
        return await self._export(caller, self._snapshots.find(caller, ref))

    async def image(self, caller: Caller, name: str) -> Export:
        return await self._export(caller, self._snapshots.images.get(name))

    async def _export(self, caller: Caller, source: SnapshotInfo | ImageInfo) -> Export:
        with ExitStack() as stack:
            stack.enter_context(self._slots.taken(caller.owner))
            stack.enter_context(self._snapshots.pinned(*source.layers))
            paths = [self._snapshots.host.layers.check(layer) for layer in source.layers]
            about = About(
                name=source.name, created_at=source.created_at, user=source.user, cwd=source.cwd, env=source.env,
                entrypoint=source.entrypoint, cmd=source.cmd,
            )  # fmt: skip
            starting = asyncio.ensure_future(self._slots.run(Packing, paths, about))
            try:
                return Export(await asyncio.shield(starting), self._slots, stack.pop_all(), self._patience_s)
            except asyncio.CancelledError:
                starting.add_done_callback(_nobody_wants)
                raise

    # -- in -----------------------------------------------------------------------------------------------------------

    async def import_snapshot(self, caller: Caller, name: str | None, chunks: AsyncIterator[bytes]) -> ImportedSnapshot:
        check_name(name)
        self._snapshots.check_name(caller.owner, name)

        async def enter(taken: Taken) -> ImportedSnapshot:
            info = await self._info(caller, name, taken)
            await self._snapshots.enter(info)
            return ImportedSnapshot(snapshot=info, notices=taken.notices)

        return await self._import(caller, self._room(caller), chunks, enter)

    def _room(self, caller: Caller) -> int:
        """What an owner imports lies beside the pool, and is bounded as that is."""
        most = parse_size(self._snapshots.host.settings["storage.pool_size"])
        mine = self._snapshots.table.list(caller.owner)
        room = most - sum(info.own or 0 for info in mine if info.sandbox is None)
        if room <= 0:
            raise QuotaExceeded(
                f"what you have imported takes {format_size(most)}, and storage.pool_size allows no more",
                hint="delete some (`skerry snapshot ls`, `skerry snapshot rm`), or have the operator raise it",
                details={"maximum": most, "setting": "storage.pool_size"},
            )
        return min(room, Bounds().bytes)

    async def import_image(
        self, caller: Caller, name: str, replace: bool, chunks: AsyncIterator[bytes]
    ) -> ImportedImage:
        check_image_name(name)
        self._check_free(caller, name, replace)

        async def enter(taken: Taken) -> ImportedImage:
            self._check_free(caller, name, replace)
            info = await self._info(caller, None, taken)
            image = await self._snapshots.images.keep(info, name, base=True)
            return ImportedImage(image=image, notices=taken.notices)

        return await self._import(caller, Bounds().bytes, chunks, enter)

    def _check_free(self, caller: Caller, name: str, replace: bool) -> None:
        if self._snapshots.table.named(caller.owner, name):
            raise Conflict(f"there is a snapshot named {name!r}", hint="choose another name", details={"name": name})
        if not replace and any(image.name == name for image in self._snapshots.images.list()):
            raise Conflict(
                f"there is an image named {name!r}", hint="choose another name, or --replace it", details={"name": name}
            )

    async def _info(self, caller: Caller, name: str | None, taken: Taken) -> SnapshotInfo:
        store, env = self._snapshots.host.layers, taken.env or {}
        own = await asyncio.to_thread(lambda: sum(map(store.size, taken.layers)))
        digest = image_digest(taken.layers, env, taken.user, taken.cwd, taken.entrypoint, taken.cmd)
        return SnapshotInfo(
            id=plan.new_id("sn-"), digest=digest, layers=taken.layers, created_at=time.time(), name=name,
            owner=caller.owner, own=own, user=taken.user, cwd=taken.cwd, env=env, entrypoint=taken.entrypoint,
            cmd=taken.cmd,
        )  # fmt: skip

    async def _import(
        self, caller: Caller, most: int, chunks: AsyncIterator[bytes], enter: Callable[[Taken], Awaitable[T]]
    ) -> T:
        """A caller who leaves in the middle leaves nothing; one who leaves when all has been read may still get it."""
        over = threading.Event()
        source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(source, True)
        with suppress(OSError):  # a user's pipes may be bounded
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIECE)
        with ExitStack() as stack:
            stack.callback(os.close, sink)
            work = asyncio.ensure_future(self._snapshots.grip.uncut(self._take_in(caller, most, source, over, enter)))
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                await _feed(sink, _in_time(chunks, self._patience_s))
                stack.close()
                return await work
            except BaseException:
                over.set()
                raise

    async def _take_in(
        self,
        caller: Caller,
        most: int,
        source: int,
        over: threading.Event,
        enter: Callable[[Taken], Awaitable[T]],
    ) -> T:
        try:
            with ExitStack() as stack:
                stack.callback(os.close, source)
                stack.enter_context(self._slots.taken(caller.owner))
                taken = await self._slots.run(self._intake(stack, over, most).run, source)
                if over.is_set():
                    raise _left()
                answer = await enter(taken)
        except BaseException:
            await self._snapshots.images.collect()  # what it had added, and nothing names
            raise
        passed("import.named")
        return answer

    def _intake(self, stack: ExitStack, over: threading.Event, most: int) -> Intake:
        host, loop = self._snapshots.host, asyncio.get_running_loop()

        def pin(layer: str) -> None:
            """From its thread, while it holds the store: whoever collects asks this loop later."""
            loop.call_soon_threadsafe(lambda: stack.enter_context(self._snapshots.pinned(layer)))

        def check() -> None:
            if over.is_set():
                raise _left()

        return Intake(
            host.layers,
            tree.private_directory(self._place) / secrets.token_hex(8),
            bounds=Bounds(bytes=most, reserve=parse_size(host.settings["storage.reserve"])),
            pinned=pin,
            passed=passed,
            check=check,
        )


def _nobody_wants(starting: asyncio.Future[Packing]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()


def _left() -> SkerryError:
    return SkerryError("whoever sent the archive has gone")


async def _in_time(chunks: AsyncIterator[bytes], patience_s: float) -> AsyncIterator[bytes]:
    """One who sends no more, and does not leave either, loses the slot."""
    while True:
        try:
            async with asyncio.timeout(patience_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise SkerryError("nothing more of the archive came for too long", hint="send it again") from None
        yield chunk


async def _feed(sink: int, chunks: AsyncIterator[bytes]) -> None:
    """Into the pipe, at the reader's speed; one that reads no more has its reasons, and tells them."""
    async for chunk in chunks:
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(sink, view) :]
            except BlockingIOError:
                await _writable(sink)
            except BrokenPipeError:
                return


async def _writable(sink: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sink, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sink)
