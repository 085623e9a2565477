"""Images as the API sees them; making `base` is a job of the server that several callers can watch."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

from skerry.errors import Conflict, NotFound, SkerryError
from skerry.images import build_base, recipe_digest
from skerry.storage import ImageStore, LayerStore
from skerry.types import ImageInfo, Progress, SnapshotInfo

Event = Progress | ImageInfo | SkerryError


async def nobody(layers: Iterable[str]) -> None:
    """Stands on them."""


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
        self._job: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Queue[Event]] = set()
        self._closing = False
        self.vacate: Callable[[Iterable[str]], Awaitable[None]] = nobody  # the pool's ready sandboxes leave layers
        self.users: Callable[[ImageInfo], builtins.list[str]] = unused  # who stands on one, in words

    async def close(self) -> None:
        """A build that is under way ends at its next step; the next one goes on from what it had fetched."""
        self._closing = True
        if self._job is not None:
            await asyncio.wait((self._job,))

    def list(self) -> list[ImageInfo]:
        return self._store.list()

    def get(self, name: str) -> ImageInfo:
        return self._store.get(name)

    @property
    def busy(self) -> bool:
        return self._job is not None

    async def remove(self, name: str) -> None:
        await self.vacate(self.get(name).layers)
        image = self.get(name)
        if users := self.users(image):
            shown = ", ".join(users[:3]) + " and others" * (len(users) > 3)
            raise Conflict(
                f"image {name!r} is in use by {shown}", hint="delete these first", details={"users": users[:100]}
            )
        self._store.remove(name)
        await self.collect()

    async def keep(self, info: SnapshotInfo, name: str) -> ImageInfo:
        """A snapshot's files and settings as an image, in place of one of that name. They stay the snapshot's too."""
        if name == "base":
            raise Conflict("the image base is Skerry's own", hint="choose another name")
        size = await asyncio.to_thread(lambda: sum(map(self._layers.size, info.layers)))
        image = ImageInfo(
            name=name, digest=info.digest, layers=info.layers, size=size, created_at=time.time(), user=info.user,
            cwd=info.cwd, env=info.env, entrypoint=info.entrypoint, cmd=info.cmd,
        )  # fmt: skip
        before = {layer for other in self._store.list() if other.name == name for layer in other.layers}
        self._store.put(image)
        if gone := before - set(image.layers):
            await self.vacate(gone)
            await self.collect()
        return image

    async def collect(self) -> None:
        """Remove the layers that nothing names."""
        loop = asyncio.get_running_loop()

        async def asked() -> set[str]:
            return self._layers_in_use()

        await asyncio.to_thread(self._store.collect, lambda: asyncio.run_coroutine_threadsafe(asked(), loop).result())

    async def build(self, name: str, rebuild: bool) -> AsyncIterator[Progress | ImageInfo]:
        """Progress, then the image. The work goes on if the caller leaves; a second caller sees the same work.

        One that is there is given as it is, unless its recipe has changed. Sandboxes on the old one live on."""
        if name != "base":
            raise NotFound(f"there is no recipe for an image {name!r}", hint="this version builds `base`")
        if not rebuild and self._job is None and (there := self._as_it_should_be(name)) is not None:
            yield there
            return
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            if self._job is None:
                self._job = asyncio.create_task(self._build())
            while True:
                event = await queue.get()
                if isinstance(event, SkerryError):
                    raise event
                yield event
                if isinstance(event, ImageInfo):
                    return
        finally:
            self._watchers.discard(queue)

    def _as_it_should_be(self, name: str) -> ImageInfo | None:
        """The image, unless another version of Skerry made it otherwise."""
        try:
            image = self._store.get(name)
        except NotFound:
            return None
        return image if image.recipe == recipe_digest() else None

    async def _build(self) -> None:
        loop = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            for queue in self._watchers:
                queue.put_nowait(event)

        def progress(event: Progress) -> None:
            if self._closing:
                raise SkerryError("the server is stopping", hint="start the build again: it goes on where it was")
            loop.call_soon_threadsafe(tell, event)

        try:
            before = {digest for image in self._store.list() if image.name == "base" for digest in image.layers}
            image = await asyncio.to_thread(build_base, self._store, self._layers, self._cache, progress)
            await self.vacate(before - set(image.layers))
            await self.collect()  # those of the image that it replaced
            tell(image)
        except SkerryError as error:
            tell(error)
        except Exception as error:
            tell(SkerryError(f"making the image failed: {error}"))
        finally:
            self._job = None
