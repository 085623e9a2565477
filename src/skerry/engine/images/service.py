"""Images: listing, building, pulling, removing. Building and pulling are jobs that several callers can watch."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine import faults
from skerry.engine.images.layer_users import LayerUsers
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.images import build_image, current
from skerry.images.archive.unpack import UnpackLimits
from skerry.images.registry.blobs import Blobs
from skerry.storage import ImageStore, LayerStore
from skerry.types import (
    OWN_IMAGES,
    ImageInfo,
    LayerState,
    Progress,
    PruneResult,
    PullRequest,
    SnapshotInfo,
    VerifyResult,
    parse_size,
    parse_span,
)

_MAX_PARALLEL = 4  # the others wait for their turn


class ImageWork(Protocol):
    """Runs in a thread. `stop`, called from another thread, makes it end soon and raise the given error."""

    def run(self) -> ImageInfo: ...
    def stop(self, why: SkerryError) -> None: ...


class Job:
    """One job and its watchers."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[None]] = set()
        self._last: dict[str, Progress] = {}  # the latest of each stage, for watchers that come later
        self._end: ImageInfo | SkerryError | None = None
        self._loop = asyncio.get_running_loop()

    def report(self, progress: Progress) -> None:
        """Report progress, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is gone: the server is leaving
            self._loop.call_soon_threadsafe(self._store_progress, progress)

    def _store_progress(self, progress: Progress) -> None:
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
        """Yield the newest progress of each stage, as often as it changes and is read; then the image, or raise the
        error."""
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
    """The jobs under way, by key."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, tuple[Job, asyncio.Task[None]]] = {}
        self._works: set[ImageWork] = set()
        self._why: SkerryError | None = None
        # A separate pool: the event loop's threads are few and needed elsewhere, and a pull waits for remote hosts.
        self._threads = ThreadPoolExecutor(_MAX_PARALLEL, thread_name_prefix="images")

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def find(self, key: Hashable) -> Job | None:
        found = self._jobs.get(key)
        return found[0] if found else None

    def begin(self, key: Hashable, make: Callable[[Job], ImageWork], after: Callable[[], Awaitable[None]]) -> Job:
        """Return the job of this key; start it if it is not under way. `after` runs when the work has ended in any way,
        before watchers see the end."""
        if (there := self.find(key)) is not None:
            return there
        job = Job()
        work = make(job)
        self._works.add(work)
        self._jobs[key] = job, asyncio.create_task(self._run(key, job, work, after))
        return job

    async def _run(self, key: Hashable, job: Job, work: ImageWork, after: Callable[[], Awaitable[None]]) -> None:
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


if TYPE_CHECKING:
    from skerry.images.registry.pull import Pull


class ImageService:
    """`engine.images`."""

    def __init__(self, settings: Settings, layers: LayerStore, users: LayerUsers) -> None:
        self._store = ImageStore(settings.state_dir / "images", layers)
        self._layers = layers
        self._cache = settings.state_dir / "cache"
        self._users = users
        self._stall_s = parse_span(settings["registry.stall_timeout"])
        self._min_free = parse_size(settings["storage.min_free_space"])
        self._blobs = Blobs(self._cache / "blobs")
        self._jobs = Jobs()
        self._pins: builtins.list[set[str]] = []  # layers of pulls that are under way
        self._collecting, self._wanted, self._collected = asyncio.Lock(), 0, 0

    async def recover(self) -> None:
        """Remove the remains of pulls that a killed server left. Called once, before anything else."""
        await self.collect()
        await asyncio.to_thread(self._blobs.sweep, self._layers)

    async def close(self) -> None:
        """Stop jobs at their next step. A later pull continues from the downloaded parts."""
        await self._jobs.close(
            SkerryError("the server is stopping", hint="start it again: it continues from its last complete part")
        )

    def list(self) -> builtins.list[ImageInfo]:
        return self._store.list()

    def get(self, name: str) -> ImageInfo:
        return self._store.get(name)

    def trees(self, image: ImageInfo) -> builtins.list[Path]:
        """Return the trees of an image's layers, the lowest first."""
        return [self._layers.path(layer) for layer in image.layers]

    async def shown(self, name: str | None = None) -> builtins.list[ImageInfo]:
        """Return one or all images, with their size on disk and how much of it they share. A list has no descriptors of
        kits, which are long."""
        there = self._store.list()
        wanted = [replace(image, kit=None) for image in there] if name is None else [self.get(name)]
        return await asyncio.to_thread(self._measured, wanted, there)

    def _measured(self, wanted: builtins.list[ImageInfo], there: builtins.list[ImageInfo]) -> builtins.list[ImageInfo]:
        users = Counter(layer for image in there for layer in set(image.layers))
        listed = []
        for image in wanted:
            sizes = {layer: self._layers.size(layer) for layer in image.layers if self._layers.has(layer)}
            shared = sum(size for layer, size in sizes.items() if users[layer] > 1)
            listed.append(replace(image, size=sum(sizes.values()), shared=shared))
        return listed

    @property
    def busy(self) -> bool:
        return self._jobs.busy

    async def remove(self, name: str) -> None:
        image = self.get(name)
        await self._users.vacate(self._own(image))
        if users := self._users.users_of(image):
            shown = ", ".join(users[:3]) + " and others" * (len(users) > 3)
            raise Conflict(
                f"image {name!r} is in use by {shown}", hint="delete these first", details={"users": users[:100]}
            )
        self._store.remove(image.name)
        await self.collect()

    async def keep(self, info: SnapshotInfo, name: str, *, own: bool = False) -> ImageInfo:
        """Store a snapshot's files and settings as an image, replacing an image of that name. The snapshot keeps them
        too. `own`: it may be one of Skerry's own images, from another host."""
        if name in OWN_IMAGES and not own:
            raise Conflict(f"the image {name} is Skerry's own", hint="choose another name")
        size = await asyncio.to_thread(lambda: sum(map(self._layers.size, info.layers)))
        image = ImageInfo(
            name=name, digest=info.digest, layers=info.layers, size=size, created_at=time.time(), user=info.user,
            cwd=info.cwd, env=info.env, entrypoint=info.entrypoint, cmd=info.cmd,
        )  # fmt: skip
        before = {layer for other in self._store.list() if other.name == name for layer in other.layers}
        self._store.put(image)
        faults.fault_point("build.image")
        if gone := before - set(image.layers):
            await self._users.vacate(gone)
            await self.collect()
        return image

    def _own(self, image: ImageInfo) -> set[str]:
        """Return the layers that no other image names."""
        others = {layer for other in self._store.list() if other.name != image.name for layer in other.layers}
        return set(image.layers) - others

    async def prune(self, everything: bool) -> PruneResult:
        """Remove layers that no image names and abandoned downloads; with `everything` also each image that nothing
        stands on, except `base` and `base-slim` below it, and the steps of builds."""
        gone = []
        for image in self._store.list() if everything else ():
            if image.name not in ("base", "base-slim"):
                await self._users.vacate(self._own(image))
                if not self._users.users_of(image):
                    self._store.remove(image.name)
                    gone.append(image.name)
        freed = await self._users.prune() if everything else 0
        sizes = {layer: self._layers.size(layer) for layer in self._layers.digests() if not layer.startswith("snap:")}
        layers = await self.collect()
        freed += sum(sizes.get(layer, 0) for layer in layers)
        if not self._jobs.busy:
            freed += await asyncio.to_thread(self._blobs.sweep, self._layers, True)
        return PruneResult(images=tuple(gone), layers=len(layers), bytes=freed)

    async def verify(self, name: str | None) -> AsyncIterator[Progress | VerifyResult]:
        """Read every byte of an image's layers, or of all layers, and report damaged ones."""
        images = self._store.list()
        wanted = list(self.get(name).layers) if name is not None else self._layers.digests()
        found = []
        for number, layer in enumerate(wanted):
            yield Progress(stage="verify", message=layer[:19], done=number, total=len(wanted))
            ok = self._layers.has(layer) and await asyncio.to_thread(self._layers.verify, layer)
            users = tuple(image.name for image in images if layer in image.layers)
            found.append(LayerState(layer=layer, ok=ok, images=users))
        yield VerifyResult(layers=tuple(found))

    def _named_layers(self) -> set[str]:
        """The layers of all images."""
        return {layer for image in self._store.list() for layer in image.layers}

    async def collect(self) -> builtins.list[str]:
        """Remove layers that nothing names, and return them. One collection at a time, and one for all waiting callers:
        it waits for layers that are being added, and must not occupy all threads."""
        loop = asyncio.get_running_loop()
        self._wanted += 1
        mine = self._wanted

        async def asked() -> set[str]:
            return self._users.layers().union(*(pins.copy() for pins in self._pins))

        def wait() -> set[str]:
            return asyncio.run_coroutine_threadsafe(asked(), loop).result()

        async with self._collecting:
            if self._collected >= mine:
                return []
            covered = self._wanted
            gone = await asyncio.to_thread(self._store.collect, wait)
            self._collected = covered
        return gone

    async def build(self, name: str, rebuild: bool) -> AsyncIterator[Progress | ImageInfo]:
        """Yield progress, then the image. The work continues if the caller leaves; a second caller sees the same work.

        An existing image is returned unchanged, unless its recipe has changed. Sandboxes on the old image keep
        running."""
        if name not in OWN_IMAGES:
            raise NotFound(
                f"no recipe for the image {name!r}",
                hint=f"name one of {', '.join(OWN_IMAGES)}, or a directory with an image.toml or a Dockerfile",
            )
        self._check_own(name)
        there = None if rebuild or self._jobs.find(name) else current(self._store, name)
        if there is not None:
            yield there
            return
        before = self._named_layers()

        async def after() -> None:
            await self._users.vacate(before - self._named_layers())
            await self.collect()  # those of the image that it replaced

        job = self._jobs.begin(name, lambda job: _OwnBuild(name, self._store, self._cache, job.report, rebuild), after)
        async for event in job.watch():
            yield event

    async def pull(self, request: PullRequest) -> AsyncIterator[Progress | ImageInfo]:
        """Pull an image; progress as for `build`. A tag is resolved again each time; an existing digest is returned
        unchanged."""
        if request.name is None and "@" in request.reference and (there := self._existing_pull(request)) is not None:
            yield there
            return
        before, pins = self._named_layers(), set[str]()

        def begin(job: Job) -> Pull:
            from skerry.images.registry.pull import Pull  # httpx2 takes a moment to load, and few servers pull

            self._pins.append(pins)
            return Pull(
                self._store, self._blobs, request, report=job.report, pinned=pins.add, passed=faults.fault_point,
                stall_s=self._stall_s, limits=UnpackLimits(min_free=self._min_free),
            )  # fmt: skip

        async def after() -> None:
            self._pins = [other for other in self._pins if other is not pins]
            await self._users.vacate(before - self._named_layers())
            await self.collect()  # those of the image that it replaced, or of one that it could not finish

        async for event in self._jobs.begin(request, begin, after).watch():
            yield event

    def _existing_pull(self, request: PullRequest) -> ImageInfo | None:
        """Return the complete image that was pulled by this digest for that platform."""
        try:
            image = self._store.get(request.reference)
        except NotFound:
            return None
        whole = all(self._layers.has(layer) and not self._layers.damaged(layer) for layer in image.layers)
        asked = request.platform in (None, image.platform)
        return image if image.source and image.name == request.reference and whole and asked else None

    def _check_own(self, name: str) -> None:
        """Keep an image that a user of an earlier version stored under this name."""
        with contextlib.suppress(NotFound):
            if self._store.get(name).recipe is None and name != "base":
                raise Conflict(
                    f"image {name!r} already exists and is not Skerry's own",
                    hint=f"`skerry image rm {name}` deletes it",
                )


class _OwnBuild:
    """The build of one of Skerry's own images as a job."""

    def __init__(
        self, name: str, store: ImageStore, cache: Path, report: Callable[[Progress], None], rebuild: bool
    ) -> None:
        self._name, self._store, self._cache, self._report, self._rebuild = name, store, cache, report, rebuild
        self._why: SkerryError | None = None

    def run(self) -> ImageInfo:
        layers = self._store.layers
        return build_image(self._name, self._store, layers, self._cache, self._progress, rebuild=self._rebuild)

    def stop(self, why: SkerryError) -> None:
        self._why = why

    def _progress(self, event: Progress) -> None:
        if self._why is not None:
            raise self._why
        self._report(event)
