"""The pool: sandboxes started in advance, for the images that were used last or that the operator names, so that a
create is a claim. Each is claimed once and never returns.

A pooled sandbox runs and has no owner: its record says "ready", it causes no events and counts for no owner, and a
starting server removes those of an earlier one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skerry.config import Settings
from skerry.engine.hooks import Hook, Hooks
from skerry.engine.images.layer_users import LayerUser
from skerry.engine.images.service import ImageService
from skerry.engine.pool.claim import POOLED_LIFETIME_S, can_be_pooled, fits, pooled_spec
from skerry.engine.sandboxes.record import POOL_OWNER, SandboxRecord, SandboxSpec
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import host_maxima, new_id, resolve_spec
from skerry.engine.sandboxes.transitions import Transitions
from skerry.engine.tasks import Tasks
from skerry.errors import NotFound, SkerryError
from skerry.types import CreateRequest, PoolImage, PoolInfo, parse_size, readable_size

log = logging.getLogger("skerry.engine")
CHECK_INTERVAL_S: Final = 5.0
QUIET_S: Final = 0.05  # after a create: its caller wants to use the CPU now
MAX_QUIET_WAIT_S: Final = 1.0  # creates that never cease must not keep the pool empty
MARGIN: Final = 64 << 20  # of memory, so that a new sandbox does not cause its own removal
RENEW_S: Final = POOLED_LIFETIME_S - 600.0


class Pool(Hook, LayerUser):
    """`engine.pool`."""

    def __init__(
        self,
        settings: Settings,
        transitions: Transitions,
        registry: SandboxRegistry,
        images: ImageService,
        hooks: Hooks,
        tasks: Tasks,
    ) -> None:
        self._settings = settings
        self._transitions, self._registry, self._images = transitions, registry, images
        self._hooks, self._tasks = hooks, tasks
        self._image_pools: dict[tuple[str, ...], ImagePool] = {}  # by layers
        self._requested: dict[str, int] = {}  # by image: the numbers that an administrator set
        self._making: set[Sandbox] = set()
        self._leaving: set[Sandbox] = set()  # not gone yet
        self._due = asyncio.Event()
        self._closing = self._drained = False
        self._last_create = 0.0
        self._maxima = host_maxima(transitions.host.driver.capacity)

    def start(self) -> None:
        self._tasks.spawn(self._maintain())

    async def close(self) -> None:
        """None of them outlives the server."""
        self._closing = True
        for sandbox in list(self.ready_sandboxes()):
            self._withdraw(sandbox)
        await asyncio.gather(*map(self._delete, list(self._leaving)))

    # -- claims -------------------------------------------------------------------------------------------------------

    def take(self, record: SandboxRecord) -> Sandbox | None:
        """A ready sandbox that can become that one; it is the caller's from now on."""
        self._last_create = time.monotonic()
        if self._closing or self._off or not can_be_pooled(record.spec):
            return None
        image_pool = self._image_pool(record.spec.image, record.spec)
        image_pool.used_at, image_pool.uses, self._drained = self._last_create, image_pool.uses + 1, False
        self._due.set()
        for sandbox in image_pool.ready:
            if fits(self._transitions, sandbox, record.spec) and not self._registry.table.has_name(record):
                image_pool.ready.remove(sandbox)
                image_pool.hits += 1
                return sandbox
        image_pool.misses += 1
        return None

    def make_room(self, more: int = 1) -> None:
        """Remove pooled sandboxes for sandboxes that are about to be created."""
        ready = list(self.ready_sandboxes())
        for sandbox in ready[: max(self._registry.live_count + len(ready) + more - self._settings["max.sandboxes"], 0)]:
            self.discard(sandbox)

    def on_exit(self, sandbox: Sandbox) -> None:
        if sandbox.record.state == "ready":
            self.discard(sandbox)

    async def on_deleted(self, sandbox: Sandbox) -> None:
        """There may be room again."""
        if sandbox.record.owner != POOL_OWNER:
            self._due.set()

    def discard(self, sandbox: Sandbox) -> None:
        """It is of no use any more."""
        self._withdraw(sandbox)
        self._tasks.spawn(self._tasks.shield(self._delete(sandbox)))
        self._due.set()

    def ready_sandboxes(self) -> Iterator[Sandbox]:
        for image_pool in self._image_pools.values():
            yield from image_pool.ready

    def layers(self) -> set[str]:
        """Those that any of them stands on."""
        return {
            layer
            for sandbox in (*self.ready_sandboxes(), *self._making, *self._leaving)
            for layer in sandbox.record.spec.layers
        }

    async def vacate(self, layers: Iterable[str]) -> None:
        """None stands on one of these layers when it returns."""
        wanted = set(layers)
        await self._clear([image_pool for key, image_pool in self._image_pools.items() if not wanted.isdisjoint(key)])

    async def settle(self) -> None:
        """Replace pooled sandboxes of images that were rebuilt, and add pools for the images that the operator or an
        administrator names."""
        for name in {
            *self._settings["pool.images"],
            *self._requested,
            *(image_pool.image for image_pool in self._image_pools.values()),
        }:
            with contextlib.suppress(NotFound):
                image = self._images.get(name)
                await self._clear(
                    [s for s in self._image_pools.values() if s.image == name and s.spec.layers != image.layers]
                )
                if self._always(name):
                    request = CreateRequest(image=name)
                    self._image_pool(name, resolve_spec(request, image, self._settings, self._maxima))

    async def _clear(self, image_pools: Collection[ImagePool]) -> None:
        for image_pool in image_pools:
            if self._image_pools.get(image_pool.spec.layers) is image_pool:
                del self._image_pools[image_pool.spec.layers]
            for sandbox in list(image_pool.ready):
                image_pool.ready.remove(sandbox)
                self._leaving.add(sandbox)
                await self._tasks.shield(self._delete(sandbox))
            await image_pool.idle.wait()

    # -- administration -----------------------------------------------------------------------------------------------

    def info(self) -> PoolInfo:
        sizes = self._sizes()
        images = [
            PoolImage(
                image=image_pool.image, size=sizes[image_pool], ready=len(image_pool.ready),
                making=image_pool.making, hits=image_pool.hits, misses=image_pool.misses,
            )
            for image_pool in self._image_pools.values()
        ]  # fmt: skip
        failed = next((image_pool.failed for image_pool in self._image_pools.values() if image_pool.failing), None)
        return PoolInfo(size=self._settings["pool.per_image"], images=tuple(images), paused=self._paused() or failed)

    async def set(self, image: str, size: int) -> PoolInfo:
        """From now on, so many of that image, until the server ends."""
        self._images.get(image)
        self._requested[image], self._drained = size, False
        await self.settle()
        self._due.set()
        return self.info()

    async def drain(self) -> PoolInfo:
        """Lets all of them go, and makes none until one is requested again."""
        self._requested.clear()
        self._drained = True
        await self._clear(list(self._image_pools.values()))
        return self.info()

    # -- internals ----------------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        while True:
            try:
                await self.settle()
            except (SkerryError, OSError) as error:  # an image that can't be read, or that nothing can be called
                log.warning("failed to update the pool", extra={"error": str(error)})
            self._trim()
            while (image_pool := self._next_to_fill()) is not None:
                await self._tasks.shield(self._make(image_pool))
                await self._wait_until_quiet()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._due.wait()
            await self._wait_until_quiet()
            self._due.clear()
            for sandbox in list(self._leaving):  # could not be deleted before
                await self._tasks.shield(self._delete(sandbox))

    def _always(self, image: str) -> bool:
        return image in self._settings["pool.images"] or self._requested.get(image, 0) > 0

    def _sizes(self) -> dict[ImagePool, int]:
        """How many of each, those that an admin wants first, then the most recently used, within the total."""
        left, sizes = self._settings["pool.max_total"], {}
        for image_pool in sorted(
            self._image_pools.values(), key=lambda s: (self._always(s.image), s.used_at or 0), reverse=True
        ):
            usual = self._settings["pool.per_image"] if image_pool.worthwhile or self._always(image_pool.image) else 0
            sizes[image_pool] = min(self._requested.get(image_pool.image, usual), left)
            left -= sizes[image_pool]
        return sizes

    def _paused(self) -> str | None:
        """Return why no sandbox is being added, if so."""
        if self._drained:
            return "drained"
        if self._off:
            return "off: pool.per_image is 0"
        least, free = parse_size(self._settings["pool.min_free_memory"]), _available()
        if free < least + MARGIN:
            left = readable_size(free)
            return f"the host has {left} of memory left, and pool.min_free_memory is {readable_size(least)}"
        if self._registry.live_count + sum(1 for _ in self.ready_sandboxes()) >= self._settings["max.sandboxes"]:
            return "max.sandboxes is reached"
        return None

    @property
    def _off(self) -> bool:
        return self._settings["pool.per_image"] == 0 and not self._requested

    def _next_to_fill(self) -> ImagePool | None:
        """Return the image pool with the fewest ready sandboxes below its target."""
        if self._closing or self._paused() is not None:
            return None
        short = [(len(s.ready), s) for s, n in self._sizes().items() if len(s.ready) + s.making < n and not s.failing]
        return min(short, key=lambda pair: pair[0])[1] if short else None

    def _trim(self) -> None:
        """Remove sandboxes that are too many, too old, or too much for a host that is short of memory."""
        short = _available() < parse_size(self._settings["pool.min_free_memory"])
        for image_pool, size in self._sizes().items():
            old = [sandbox for sandbox in image_pool.ready if time.time() - (sandbox.record.started_at or 0) > RENEW_S]
            surplus = image_pool.ready[: max(0, len(image_pool.ready) - (0 if short else size))]
            for sandbox in dict.fromkeys([*old, *surplus]):
                self.discard(sandbox)
            if not size and not image_pool.ready and not image_pool.making and not image_pool.recent:
                del self._image_pools[image_pool.spec.layers]

    async def _wait_until_quiet(self) -> None:
        """Wait until no caller's sandbox is being created, up to a bound."""
        for _ in range(round(MAX_QUIET_WAIT_S / QUIET_S)):
            if not self._registry.is_starting and time.monotonic() - self._last_create >= QUIET_S:
                return
            await asyncio.sleep(QUIET_S)

    async def _make(self, image_pool: ImagePool) -> None:
        record = SandboxRecord(
            id=new_id("sb-"),
            owner=POOL_OWNER,
            name=None,
            state="creating",
            spec=image_pool.spec,
            created_at=time.time(),
        )
        sandbox = Sandbox(record)
        self._making.add(sandbox)
        image_pool.making += 1
        image_pool.idle.clear()
        try:
            self._transitions.enter((record,), CreateRequest(), None)
            async with sandbox.lock, self._transitions.start_slot():
                await self._transitions.create(sandbox)
                if sandbox.keeper is not None:
                    await sandbox.keeper.hello()  # leaves an open connection for the claim
        except Exception as error:  # one failure must not end the pool
            image_pool.note_failure(error)
            log.warning(
                "failed to create a pooled sandbox",
                extra={"sandbox": record.id, "image": image_pool.image, "error": str(error)},
            )
            if not sandbox.deleted:
                self._leaving.add(sandbox)
        else:
            image_pool.failures = 0
            if self._image_pools.get(image_pool.spec.layers) is image_pool and not self._closing:
                image_pool.ready.append(sandbox)
            else:
                self.discard(sandbox)
        finally:
            self._making.discard(sandbox)
            image_pool.making -= 1
            image_pool.idle.set()

    def _image_pool(self, image: str, spec: SandboxSpec) -> ImagePool:
        image_pool = self._image_pools.get(spec.layers)
        if image_pool is None:
            image_pool = ImagePool(image, pooled_spec(spec, self._settings, self._maxima))
            self._image_pools[spec.layers] = image_pool
        return image_pool

    def _withdraw(self, sandbox: Sandbox) -> None:
        for image_pool in self._image_pools.values():
            if sandbox in image_pool.ready:
                image_pool.ready.remove(sandbox)
        self._leaving.add(sandbox)

    async def _delete(self, sandbox: Sandbox) -> None:
        async with sandbox.lock:
            try:
                if not sandbox.deleted:
                    await self._transitions.delete(sandbox)
            except Exception as error:  # repeated at the next check, and by the next server
                log.warning(
                    "failed to delete a pooled sandbox", extra={"sandbox": sandbox.record.id, "error": str(error)}
                )
                return
        self._leaving.discard(sandbox)
        await self._hooks.on_deleted(sandbox)


def _available() -> int:
    """Bytes of memory that the host could still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


RECENT_S: Final = 900.0
RETRY_S: Final = 10.0  # after a failure; twice as long after each that follows
MAX_RETRY_S: Final = 600.0


@dataclass(eq=False)
class ImagePool:
    """The ready sandboxes of one image, the oldest first."""

    image: str
    spec: SandboxSpec
    ready: list[Sandbox] = field(default_factory=list)
    making: int = 0
    hits: int = 0
    misses: int = 0
    uses: int = 0
    used_at: float | None = None
    failures: int = 0
    failed: str = ""
    again_at: float = 0.0
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # none is in the making

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def recent(self) -> bool:
        return self.used_at is not None and time.monotonic() - self.used_at < RECENT_S

    @property
    def failing(self) -> bool:
        return time.monotonic() < self.again_at

    def note_failure(self, error: Exception) -> None:
        self.failed, self.failures = str(error), self.failures + 1
        self.again_at = time.monotonic() + min(RETRY_S * 2 ** (self.failures - 1), MAX_RETRY_S)

    @property
    def worthwhile(self) -> bool:
        """A snapshot is from its second use on: the steps of a build are used once."""
        return self.recent and (self.uses > 1 or not any(layer.startswith("snap:") for layer in self.spec.layers))
