"""Archives of images and snapshots: export to other machines and tools, and import."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from skerry.engine.concurrency import OwnerQuota
from skerry.engine.faults import fault_point
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.snapshots.service import SnapshotService, expiry
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, InvalidRequest, QuotaExceeded, SkerryError
from skerry.images.archive.intake import ArchivedImage, Intake
from skerry.images.archive.layout import About
from skerry.images.archive.pack import PIECE, PackProcess
from skerry.images.archive.unpack import UnpackLimits
from skerry.storage import check_image_name, image_digest, tree
from skerry.types import (
    Caller,
    ImageInfo,
    ImportedImage,
    ImportedSnapshot,
    SnapshotInfo,
    SnapshotRequest,
    TransferResult,
    check_name,
    parse_size,
    parse_span,
    readable_size,
)

T = TypeVar("T")


class ArchiveExport:
    """An archive on its way out: iterate for its bytes; afterwards `moved` describes the transfer. Call `aclose` in
    every case."""

    moved: TransferResult

    def __init__(self, packing: PackProcess, slots: OwnerQuota, stack: ExitStack, stall_timeout_s: float) -> None:
        self._packing = packing
        self._slots = slots
        self._stack = stack
        self._stall_timeout_s = stall_timeout_s
        self._closing: asyncio.Task[None] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the archive. A reader that stops reading without closing the connection loses its slot."""
        loop = asyncio.get_running_loop()
        while piece := await self._slots.run(self._packing.read):
            stall_timer = loop.call_later(self._stall_timeout_s, self._close_stalled)
            try:
                yield piece
            finally:
                stall_timer.cancel()
            if self._closing is not None:
                raise SkerryError("the archive was not read for too long", hint="fetch it again")
        self.moved = await self._slots.run(self._packing.finish)

    def _close_stalled(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.aclose())

    async def aclose(self) -> None:
        await asyncio.shield(asyncio.to_thread(self._packing.close))
        self._stack.close()


class ArchiveService:
    """`engine.archives`."""

    def __init__(self, snapshots: SnapshotService, tasks: Tasks) -> None:
        self._snapshots = snapshots
        self._tasks = tasks
        self._slots = snapshots.slots

    async def recover(self) -> None:
        """Remove the remains of imports that a killed server left. Called once, before anything else."""
        await asyncio.to_thread(tree.remove, self._import_dir)

    @property
    def _import_dir(self) -> Path:
        return self._snapshots.host.settings.state_dir / "cache" / "imports"

    @property
    def _stall_timeout_s(self) -> float:
        return parse_span(self._snapshots.host.settings["archive.stall_timeout"])

    # -- export -------------------------------------------------------------------------------------------------------

    async def snapshot(self, caller: Caller, ref: str) -> ArchiveExport:
        return await self._export(caller, self._snapshots.find(caller, ref))

    async def image(self, caller: Caller, name: str) -> ArchiveExport:
        return await self._export(caller, self._snapshots.images.get(name))

    async def _export(self, caller: Caller, source: SnapshotInfo | ImageInfo) -> ArchiveExport:
        about = About(
            name=source.name, created_at=source.created_at, user=source.user, cwd=source.cwd, env=source.env,
            entrypoint=source.entrypoint, cmd=source.cmd,
        )  # fmt: skip
        return await self._pack(caller, source.layers, about)

    async def _pack(self, caller: Caller, layers: tuple[str, ...], about: About) -> ArchiveExport:
        with ExitStack() as stack:
            stack.enter_context(self._slots.taken(caller.owner))
            stack.enter_context(self._snapshots.pinned(*layers))
            paths = [self._snapshots.host.layers.check(layer) for layer in layers]
            return await start_export(paths, about, self._slots, stack.pop_all(), self._stall_timeout_s)

    # -- directories --------------------------------------------------------------------------------------------------

    async def take_directory(
        self, caller: Caller, sandbox: Sandbox, request: SnapshotRequest, key: str | None
    ) -> SnapshotInfo:
        """Take a snapshot of one directory of a sandbox in any state: a layer with a copy of its files."""
        order = self._snapshots.order(sandbox, request, key)
        if (there := self._snapshots.existing(order)) is not None:
            return there
        self._snapshots.check_name(order.owner, request.name)
        owner = replace(caller, owner=order.owner)
        quota = self._import_quota(owner)
        async with self._snapshots.passing(sandbox) as (captured, record):
            path = _absolute(record.spec.cwd, request.path or "")
            spec = record.spec
            about = About(
                name=None, created_at=captured.at, user="root", cwd="/", env={}, entrypoint=(), cmd=(), directory=path
            )
            packing = await self._pack(owner, (captured.layer, *spec.layers), about)

            async def enter(taken: ArchivedImage) -> SnapshotInfo:
                await self._snapshots.make_room(order.owner)
                self._snapshots.check_name(order.owner, request.name)
                info = replace(
                    await self._info(owner, request.name, taken), path=path, sandbox=record.id, image=spec.image,
                    created_at=captured.at, expires_at=expiry(request, captured.at), sync_s=captured.sync_s,
                    frozen_s=captured.frozen_s,
                )  # fmt: skip
                self._snapshots.insert(info, order)
                return info

            try:
                return await self._import(owner, quota, aiter(packing), enter)
            finally:
                await packing.aclose()

    async def directory(self, caller: Caller, ref: str) -> tuple[str, ArchiveExport]:
        """Return the path of the caller's snapshot of a directory, and its files as a plain archive."""
        info = self._snapshots.find(caller, ref)
        if info.path is None:
            raise InvalidRequest(
                f"snapshot {info.name or info.id} is not of a directory",
                hint="start a sandbox from it, or roll back to it; sandbox.snapshot(path=…) takes one of a directory",
            )
        about = About(name=None, created_at=0, user="", cwd="", env={}, entrypoint=(), cmd=(), plain=True)
        return info.path, await self._pack(caller, info.layers, about)

    # -- import -------------------------------------------------------------------------------------------------------

    async def import_snapshot(self, caller: Caller, name: str | None, chunks: AsyncIterator[bytes]) -> ImportedSnapshot:
        check_name(name)
        self._snapshots.check_name(caller.owner, name)

        async def enter(taken: ArchivedImage) -> ImportedSnapshot:
            info = await self._info(caller, name, taken)
            await self._snapshots.enter(info)
            return ImportedSnapshot(snapshot=info, notices=taken.notices)

        return await self._import(caller, self._import_quota(caller), chunks, enter)

    def _import_quota(self, caller: Caller) -> int:
        """Return how many bytes the owner may import: imports lie outside the storage pool, and have the same bound."""
        most = parse_size(self._snapshots.host.settings["storage.pool_size"])
        mine = self._snapshots.table.list(caller.owner)
        room = most - sum(info.own or 0 for info in mine if info.sandbox is None or info.path is not None)
        if room <= 0:
            raise QuotaExceeded(
                f"your imports take {readable_size(most)}, the maximum of storage.pool_size",
                hint="delete some (`skerry snapshot ls`, `skerry snapshot rm`), or have the operator raise it",
                details={"maximum": most, "setting": "storage.pool_size"},
            )
        return min(room, UnpackLimits().bytes)

    async def import_image(
        self, caller: Caller, name: str, replace: bool, chunks: AsyncIterator[bytes]
    ) -> ImportedImage:
        check_image_name(name)
        self._check_free(caller, name, replace)

        async def enter(taken: ArchivedImage) -> ImportedImage:
            self._check_free(caller, name, replace)
            info = await self._info(caller, None, taken)
            image = await self._snapshots.images.keep(info, name, own=True)
            return ImportedImage(image=image, notices=taken.notices)

        return await self._import(caller, UnpackLimits().bytes, chunks, enter)

    def _check_free(self, caller: Caller, name: str, replace: bool) -> None:
        if self._snapshots.table.named(caller.owner, name):
            raise Conflict(f"snapshot {name!r} already exists", hint="choose another name", details={"name": name})
        if not replace and any(image.name == name for image in self._snapshots.images.list()):
            raise Conflict(
                f"image {name!r} already exists", hint="choose another name, or --replace it", details={"name": name}
            )

    async def _info(self, caller: Caller, name: str | None, taken: ArchivedImage) -> SnapshotInfo:
        store, env = self._snapshots.host.layers, taken.env or {}
        own = await asyncio.to_thread(lambda: sum(map(store.size, taken.layers)))
        digest = image_digest(taken.layers, env, taken.user, taken.cwd, taken.entrypoint, taken.cmd)
        return SnapshotInfo(
            id=new_id("sn-"), digest=digest, layers=taken.layers, created_at=time.time(), name=name,
            owner=caller.owner, own=own, user=taken.user, cwd=taken.cwd, env=env, entrypoint=taken.entrypoint,
            cmd=taken.cmd,
        )  # fmt: skip

    async def _import(
        self, caller: Caller, most: int, chunks: AsyncIterator[bytes], enter: Callable[[ArchivedImage], Awaitable[T]]
    ) -> T:
        """Import an archive. If the caller leaves in the middle, nothing is kept; after the last byte was read, the
        import may still complete."""

        async def work(source: int, over: threading.Event) -> T:
            return await self._unpack_import(caller, most, source, over, enter)

        return await through_pipe(self._tasks, chunks, self._stall_timeout_s, work)

    async def _unpack_import(
        self,
        caller: Caller,
        most: int,
        source: int,
        over: threading.Event,
        enter: Callable[[ArchivedImage], Awaitable[T]],
    ) -> T:
        try:
            with ExitStack() as stack:
                stack.enter_context(self._slots.taken(caller.owner))
                taken = await self._slots.run(self._intake(stack, over, most).run, source)
                if over.is_set():
                    raise disconnected()
                answer = await enter(taken)
        except BaseException:
            await self._snapshots.images.collect()  # layers that it added and that nothing names
            raise
        fault_point("import.named")
        return answer

    def _intake(self, stack: ExitStack, over: threading.Event, most: int) -> Intake:
        host, loop = self._snapshots.host, asyncio.get_running_loop()

        def pin(layer: str) -> None:
            """Pin a layer. Called from the importing thread while it holds the store; a collection asks this event loop
            later."""
            loop.call_soon_threadsafe(lambda: stack.enter_context(self._snapshots.pinned(layer)))

        def check() -> None:
            if over.is_set():
                raise disconnected()

        return Intake(
            host.layers,
            tree.private_directory(self._import_dir) / secrets.token_hex(8),
            limits=UnpackLimits(bytes=most, min_free=parse_size(host.settings["storage.min_free_space"])),
            pinned=pin,
            passed=fault_point,
            check=check,
        )


async def start_export(
    layers: Sequence[Path], about: About | None, slots: OwnerQuota, stack: ExitStack, stall_timeout_s: float
) -> ArchiveExport:
    """Start the export of a tree. `stack` is closed with it, also if it cannot start."""
    starting = asyncio.ensure_future(slots.run(PackProcess, layers, about))
    try:
        return ArchiveExport(await asyncio.shield(starting), slots, stack, stall_timeout_s)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            starting.add_done_callback(_close_unused)
        stack.close()
        raise


async def through_pipe(
    tasks: Tasks,
    chunks: AsyncIterator[bytes],
    stall_timeout_s: float,
    work: Callable[[int, threading.Event], Awaitable[T]],
) -> T:
    """Run `work` with a pipe that receives the chunks, and an event that is set when the caller has left. The work
    continues then: it must look at the event before it keeps anything."""
    over = threading.Event()
    source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(source, True)
    with suppress(OSError):  # a user's pipes may be bounded
        fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIECE)

    async def run() -> T:
        try:
            return await work(source, over)
        finally:
            os.close(source)

    with ExitStack() as stack:
        stack.callback(os.close, sink)
        running = asyncio.ensure_future(tasks.shield(run()))
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await _feed(sink, _with_timeout(chunks, stall_timeout_s))
            stack.close()
            return await running
        except BaseException:
            over.set()
            raise


def _absolute(cwd: str, path: str) -> str:
    return os.path.normpath(os.path.join(cwd, path))


def _close_unused(starting: asyncio.Future[PackProcess]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()


def disconnected() -> SkerryError:
    return SkerryError("the sender of the archive disconnected")


async def _with_timeout(chunks: AsyncIterator[bytes], stall_timeout_s: float) -> AsyncIterator[bytes]:
    """Yield chunks. A sender that stops sending without closing the connection loses its slot."""
    while True:
        try:
            async with asyncio.timeout(stall_timeout_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise SkerryError(f"the archive stalled: no data for {stall_timeout_s:g} s", hint="send it again") from None
        yield chunk


async def _feed(sink: int, chunks: AsyncIterator[bytes]) -> None:
    """Write chunks into the pipe at the reader's speed. If the reader stops reading, it reports the reason itself."""
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
