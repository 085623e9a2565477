"""Images as the API sees them; making or pulling one is a job of the server that several callers can watch."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skerry.engine import faults
from skerry.engine.jobs import Job, Jobs
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.images import build_base, recipe_digest
from skerry.images.blobs import Blobs
from skerry.images.unpack import Bounds
from skerry.storage import ImageStore, LayerStore
from skerry.storage.driver import DEFAULT_RESERVE
from skerry.types import ImageInfo, LayerState, Progress, Pruned, PullRequest, SnapshotInfo, Verified

if TYPE_CHECKING:
    from skerry.images.pull import Pull


async def nobody(layers: Iterable[str]) -> None:
    """Stands on them."""


async def no_steps() -> int:
    return 0


def unused(image: ImageInfo) -> builtins.list[str]:
    return []


class Images:
    def __init__(
        self, store: ImageStore, layers: LayerStore, cache: Path, layers_in_use: Callable[[], set[str]]
    ) -> None:
        self._store = store
        self._layers = layers
        self._cache = cache
        self._layers_in_use = layers_in_use
        self._blobs = Blobs(cache / "blobs")
        self._jobs = Jobs()
        self._pins: builtins.list[set[str]] = []  # layers of pulls that are under way
        self.vacate: Callable[[Iterable[str]], Awaitable[None]] = nobody  # the pool's ready sandboxes leave layers
        self.users: Callable[[ImageInfo], builtins.list[str]] = unused  # who stands on one, in words
        self.forget_steps: Callable[[], Awaitable[int]] = no_steps  # of builds, that nothing stands on
        self.stall_s, self.reserve = 30.0, DEFAULT_RESERVE
        self._collecting, self._wanted, self._collected = asyncio.Lock(), 0, 0

    async def recover(self) -> None:
        """Once, before anything else: clears what a server that was killed left of its pulls."""
        await self.collect()
        await asyncio.to_thread(self._blobs.sweep, self._layers)

    async def close(self) -> None:
        """What is under way ends at its next step; the next one goes on from what it had fetched."""
        await self._jobs.close(SkerryError("the server is stopping", hint="start it again: it goes on where it was"))

    def list(self) -> builtins.list[ImageInfo]:
        return self._store.list()

    def get(self, name: str) -> ImageInfo:
        return self._store.get(name)

    async def shown(self, name: str | None = None) -> builtins.list[ImageInfo]:
        """One or all, with what they take on disk and what of it they share."""
        there = self._store.list()
        wanted = there if name is None else [self.get(name)]
        return await asyncio.to_thread(self._measured, wanted, there)

    def _measured(self, wanted: builtins.list[ImageInfo], there: builtins.list[ImageInfo]) -> builtins.list[ImageInfo]:
        users = Counter(layer for image in there for layer in set(image.layers))
        told = []
        for image in wanted:
            sizes = {layer: self._layers.size(layer) for layer in image.layers if self._layers.has(layer)}
            shared = sum(size for layer, size in sizes.items() if users[layer] > 1)
            told.append(replace(image, size=sum(sizes.values()), shared=shared))
        return told

    @property
    def busy(self) -> bool:
        return self._jobs.busy

    async def remove(self, name: str) -> None:
        image = self.get(name)
        await self.vacate(self._own(image))
        if users := self.users(image):
            shown = ", ".join(users[:3]) + " and others" * (len(users) > 3)
            raise Conflict(
                f"image {name!r} is in use by {shown}", hint="delete these first", details={"users": users[:100]}
            )
        self._store.remove(image.name)
        await self.collect()

    async def keep(self, info: SnapshotInfo, name: str, *, base: bool = False) -> ImageInfo:
        """A snapshot's files and settings as an image, in place of one of that name. They stay the snapshot's too.
        `base`: it may be Skerry's own, from another host."""
        if name == "base" and not base:
            raise Conflict("the image base is Skerry's own", hint="choose another name")
        size = await asyncio.to_thread(lambda: sum(map(self._layers.size, info.layers)))
        image = ImageInfo(
            name=name, digest=info.digest, layers=info.layers, size=size, created_at=time.time(), user=info.user,
            cwd=info.cwd, env=info.env, entrypoint=info.entrypoint, cmd=info.cmd,
        )  # fmt: skip
        before = {layer for other in self._store.list() if other.name == name for layer in other.layers}
        self._store.put(image)
        faults.passed("build.image")
        if gone := before - set(image.layers):
            await self.vacate(gone)
            await self.collect()
        return image

    def _own(self, image: ImageInfo) -> set[str]:
        """Its layers that no other image names."""
        others = {layer for other in self._store.list() if other.name != image.name for layer in other.layers}
        return set(image.layers) - others

    async def prune(self, everything: bool) -> Pruned:
        """Removes what nothing needs: layers that no image names, downloads that were not gone on with; and with
        `everything` each image but `base` that nothing stands on, and the steps of builds."""
        gone = []
        for image in self._store.list() if everything else ():
            if image.name != "base":
                await self.vacate(self._own(image))
                if not self.users(image):
                    self._store.remove(image.name)
                    gone.append(image.name)
        freed = await self.forget_steps() if everything else 0
        sizes = {layer: self._layers.size(layer) for layer in self._layers.digests() if not layer.startswith("snap:")}
        layers = await self.collect()
        freed += sum(sizes.get(layer, 0) for layer in layers)
        if not self._jobs.busy:
            freed += await asyncio.to_thread(self._blobs.sweep, self._layers, True)
        return Pruned(images=tuple(gone), layers=len(layers), bytes=freed)

    async def verify(self, name: str | None) -> AsyncIterator[Progress | Verified]:
        """Reads every byte of an image's layers, or of all layers, and tells which are not what they were."""
        images = self._store.list()
        wanted = list(self.get(name).layers) if name is not None else self._layers.digests()
        found = []
        for number, layer in enumerate(wanted):
            yield Progress(stage="verify", message=layer[:19], done=number, total=len(wanted))
            ok = self._layers.has(layer) and await asyncio.to_thread(self._layers.verify, layer)
            users = tuple(image.name for image in images if layer in image.layers)
            found.append(LayerState(layer=layer, ok=ok, images=users))
        yield Verified(layers=tuple(found))

    def _named(self) -> set[str]:
        """The layers of all images."""
        return {layer for image in self._store.list() for layer in image.layers}

    async def collect(self) -> builtins.list[str]:
        """Remove the layers that nothing names; gives what went. One at a time, and one for all who wait: it waits for
        layers that are being added, and must not take all threads with it."""
        loop = asyncio.get_running_loop()
        self._wanted += 1
        mine = self._wanted

        async def asked() -> set[str]:
            return self._layers_in_use().union(*(pins.copy() for pins in self._pins))

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
        """Progress, then the image. The work goes on if the caller leaves; a second caller sees the same work.

        One that is there is given as it is, unless its recipe has changed. Sandboxes on the old one live on."""
        if name != "base":
            raise NotFound(
                f"there is no recipe for an image {name!r}",
                hint="name `base`, or a directory with an image.toml or a Dockerfile",
            )
        there = None if rebuild or self._jobs.find(name) else self._as_it_should_be(name)
        if there is not None:
            yield there
            return
        before = self._named()

        async def after() -> None:
            await self.vacate(before - self._named())
            await self.collect()  # those of the image that it replaced

        job = self._jobs.begin(name, lambda job: _BaseBuild(self._store, self._cache, job.tell), after)
        async for event in job.watch():
            yield event

    async def pull(self, request: PullRequest) -> AsyncIterator[Progress | ImageInfo]:
        """As `build`. A tag is asked for again each time; a digest that is here is given as it is."""
        if request.name is None and "@" in request.reference and (there := self._there(request)) is not None:
            yield there
            return
        before, pins = self._named(), set[str]()

        def begin(job: Job) -> Pull:
            from skerry.images.pull import Pull  # httpx takes a moment to load, and few servers pull

            self._pins.append(pins)
            return Pull(
                self._store, self._blobs, request, tell=job.tell, pinned=pins.add, passed=faults.passed,
                stall_s=self.stall_s, bounds=Bounds(reserve=self.reserve),
            )  # fmt: skip

        async def after() -> None:
            self._pins = [other for other in self._pins if other is not pins]
            await self.vacate(before - self._named())
            await self.collect()  # those of the image that it replaced, or of one that it could not finish

        async for event in self._jobs.begin(request, begin, after).watch():
            yield event

    def _there(self, request: PullRequest) -> ImageInfo | None:
        """What was pulled by this digest, for that machine, and is whole."""
        try:
            image = self._store.get(request.reference)
        except NotFound:
            return None
        whole = all(self._layers.has(layer) and not self._layers.damaged(layer) for layer in image.layers)
        asked = request.platform in (None, image.platform)
        return image if image.source and image.name == request.reference and whole and asked else None

    def _as_it_should_be(self, name: str) -> ImageInfo | None:
        """The image, unless another version of Skerry made it otherwise."""
        try:
            image = self._store.get(name)
        except NotFound:
            return None
        return image if image.recipe == recipe_digest() else None


class _BaseBuild:
    """The building of `base`, as a piece of work."""

    def __init__(self, store: ImageStore, cache: Path, tell: Callable[[Progress], None]) -> None:
        self._store, self._cache, self._tell = store, cache, tell
        self._why: SkerryError | None = None

    def run(self) -> ImageInfo:
        return build_base(self._store, self._store.layers, self._cache, self._progress)

    def stop(self, why: SkerryError) -> None:
        self._why = why

    def _progress(self, event: Progress) -> None:
        if self._why is not None:
            raise self._why
        self._tell(event)
