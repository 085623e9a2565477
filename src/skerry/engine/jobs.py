"""Work that the server does for whoever asked first, and shows to whoever else asks for the same: making an image.

It goes on if they all leave, and ends at its next step when the server closes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from skerry.errors import SkerryError
from skerry.types import ImageInfo, Progress

_AT_ONCE = 4  # the others wait for their turn


class Work(Protocol):
    """Runs in a thread. `stop`, from another one, makes it end soon and raise what was given."""

    def run(self) -> ImageInfo: ...
    def stop(self, why: SkerryError) -> None: ...


class Job:
    """One piece of work and those who watch it."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[None]] = set()
        self._last: dict[str, Progress] = {}  # of each stage: one who comes later sees how far it is
        self._end: ImageInfo | SkerryError | None = None
        self._loop = asyncio.get_running_loop()

    def tell(self, progress: Progress) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is gone: the server is leaving
            self._loop.call_soon_threadsafe(self._told, progress)

    def _told(self, progress: Progress) -> None:
        self._last[progress.stage if progress.stage != "notice" else f"notice {progress.message}"] = progress
        self._wake()

    def end(self, how: ImageInfo | SkerryError) -> None:
        self._end = how
        self._wake()

    def _wake(self) -> None:
        for queue in self._watchers:
            if queue.empty():
                queue.put_nowait(None)

    async def watch(self) -> AsyncIterator[Progress | ImageInfo]:
        """The newest of each stage, as often as it changes and can be taken; then the image, or what went wrong."""
        seen: dict[str, Progress] = {}
        queue: asyncio.Queue[None] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                for stage, progress in list(self._last.items()):
                    if seen.get(stage) is not progress:
                        seen[stage] = progress
                        yield progress
                if isinstance(self._end, SkerryError):
                    raise self._end
                if self._end is not None:
                    yield self._end
                    return
                await queue.get()
        finally:
            self._watchers.discard(queue)


class Jobs:
    """What is under way, by what it is."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, tuple[Job, asyncio.Task[None]]] = {}
        self._works: set[Work] = set()
        self._why: SkerryError | None = None
        # Not the loop's own threads: there are few, all else needs them, and a pull waits for strangers.
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="images")

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def find(self, key: Hashable) -> Job | None:
        found = self._jobs.get(key)
        return found[0] if found else None

    def begin(self, key: Hashable, make: Callable[[Job], Work], after: Callable[[], Awaitable[None]]) -> Job:
        """The job of this key, begun if it is not under way. `after` is done when the work has ended, however it did,
        and before anyone is told."""
        if (there := self.find(key)) is not None:
            return there
        job = Job()
        work = make(job)
        self._works.add(work)
        self._jobs[key] = job, asyncio.create_task(self._run(key, job, work, after))
        return job

    async def _run(self, key: Hashable, job: Job, work: Work, after: Callable[[], Awaitable[None]]) -> None:
        how: ImageInfo | SkerryError
        try:
            if self._why is not None:
                raise self._why
            try:
                how = await asyncio.get_running_loop().run_in_executor(self._threads, work.run)
            finally:
                await after()
        except SkerryError as error:
            how = error
        except Exception as error:
            how = SkerryError(f"making the image failed: {error}")
        self._works.discard(work)
        del self._jobs[key]
        job.end(how)

    async def close(self, why: SkerryError) -> None:
        self._why = why
        for work in list(self._works):
            await asyncio.to_thread(work.stop, why)
        if tasks := [task for _, task in self._jobs.values()]:
            await asyncio.wait(tasks)
        self._threads.shutdown(wait=False)
