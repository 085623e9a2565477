"""A sandbox's files, through its keeper: the host never walks a path that the inside controls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skerry.engine.records.trace.recorder import Step
from skerry.engine.records.trace.service import TraceService
from skerry.engine.review.service import ReviewService
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.errors import SandboxUnavailable
from skerry.keeper import Keeper
from skerry.keeper.archive import ArchiveStream
from skerry.keeper.files import FileContent
from skerry.keeper.files import Files as KeeperFiles
from skerry.keeper.watch import ChangeStream
from skerry.types import Caller, FileEvent, TransferResult

T = TypeVar("T")

# The iterators below enter the stack of their call (`async with self._stack`) so that it sees errors in the middle: a
# keeper that misbehaves there fails its sandbox.


class FileReader:
    """An open file: iterate for its bytes. `total` is the whole file's size, `size` how many bytes will come; `part`:
    that is only a part of the file, from `start` on; `beyond`: the requested range is outside the file."""

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
        async with self._stack:
            async for chunk in self._content:
                yield chunk
            self._read = True

    async def aclose(self) -> None:
        if not self._read:  # else its connection is in use again
            await self._content.aclose()
        await self._stack.aclose()


class ArchiveReader:
    """A directory on its way out: iterate for the archive's bytes; afterwards `moved` describes the transfer."""

    def __init__(self, archive: ArchiveStream, stack: AsyncExitStack) -> None:
        self._archive = archive
        self._stack = stack

    @property
    def moved(self) -> TransferResult:
        if self._archive.moved is None:
            raise SandboxUnavailable("the archive has not ended")
        return self._archive.moved

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with self._stack:
            async for piece in self._archive:
                yield piece

    async def aclose(self) -> None:
        await self._archive.aclose()
        await self._stack.aclose()


class FileWatch:
    """Iterate for the changes, until the directory itself is gone. While it is open, its sandbox is in use. `token` is
    the position at which it began."""

    def __init__(self, changes: ChangeStream, stack: AsyncExitStack) -> None:
        self.token = changes.token
        self._changes = changes
        self._stack = stack

    async def __aiter__(self) -> AsyncIterator[FileEvent]:
        async with self._stack:
            async for event in self._changes:
                yield event

    async def aclose(self) -> None:
        await self._changes.aclose()
        await self._stack.aclose()


@dataclass
class FileStep:
    """A change by the files API, as the sandbox's trace records it. `params`: the arguments of the call. `inputs`:
    bytes that came with it; a body that is streamed goes through `tee`."""

    kind: str
    params: Any
    path: str
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    begun: Step | None = None

    async def tee(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the chunks; record them once the step has begun."""
        async for chunk in self.begun.tee(chunks) if self.begun is not None else chunks:
            yield chunk


class FileService:
    """`engine.files`."""

    def __init__(
        self, registry: SandboxRegistry, lifecycle: Lifecycle, reviews: ReviewService, traces: TraceService
    ) -> None:
        self._registry, self._lifecycle, self._reviews, self._traces = registry, lifecycle, reviews, traces

    def of(self, caller: Caller, ref: str, step: FileStep | None = None) -> SandboxFiles:
        """Return the sandbox's files. `step`: the operation changes files, which a review and a trace record."""
        self._registry.find(caller, ref)
        return SandboxFiles(self._lifecycle, self._reviews, self._traces, caller, ref, step)


class SandboxFiles:
    """One sandbox's files. Each operation uses the sandbox for one call."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        reviews: ReviewService,
        traces: TraceService,
        caller: Caller,
        ref: str,
        step: FileStep | None,
    ) -> None:
        self._lifecycle, self._reviews, self._traces = lifecycle, reviews, traces
        self._caller, self._ref, self._step = caller, ref, step

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Keeper]:
        async with self._lifecycle.use(self._caller, self._ref) as (sandbox, keeper):
            if (step := self._step) is None:
                yield keeper
                return
            async with self._reviews.writing(sandbox):
                step.begun = self._traces.begin(sandbox, step.kind, step.params, text=step.path, inputs=step.inputs)
                with step.begun.ending():
                    yield keeper

    async def read(
        self, path: str, start: int | None = None, end: int | None = None, user: str | None = None
    ) -> FileReader:
        """Read from byte `start` through byte `end`, inclusive, as HTTP ranges count."""
        beyond = None if end is None else end + 1
        async with AsyncExitStack() as stack:
            keeper = await stack.enter_async_context(self._use())
            content = await keeper.files.read(path, start=start, end=beyond, user=user)
            return FileReader(content, stack.pop_all(), start or 0, beyond)

    async def do(self, work: Callable[[KeeperFiles], Awaitable[T]]) -> T:
        """Run any operation that is over when it returns."""
        async with self._use() as keeper:
            return await work(keeper.files)

    async def pack(self, path: str, exclude: Sequence[str] = (), user: str | None = None) -> ArchiveReader:
        async with AsyncExitStack() as stack:
            keeper = await stack.enter_async_context(self._use())
            archive = await keeper.files.pack(path, exclude, user)
            return ArchiveReader(archive, stack.pop_all())

    async def unpack(self, path: str, archive: AsyncIterator[bytes], user: str | None = None) -> TransferResult:
        async with self._use() as keeper:
            return await keeper.files.unpack(path, archive, user)

    async def watch(
        self,
        path: str,
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        since: str | None = None,
        user: str | None = None,
    ) -> FileWatch:
        async with AsyncExitStack() as stack:
            keeper = await stack.enter_async_context(self._use())
            changes = await keeper.files.watch(
                path, recursive=recursive, include=include, exclude=exclude, since=since, user=user
            )
            return FileWatch(changes, stack.pop_all())
