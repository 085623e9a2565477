"""Ready sandboxes: made ahead of need, for the images that were used last or that the operator names, so that a create
is a claim. Each is claimed once and never comes back.

A ready sandbox runs and belongs to nobody: its row says "ready", nobody is told of it, it counts for no owner, and a
starting server removes what an earlier one left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skerry.config import Settings
from skerry.engine import claims, lifecycle, plan
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.rows import NOBODY, Row, Spec
from skerry.errors import NotFound, SkerryError
from skerry.types import CreateRequest, ImageInfo, PoolImage, PoolInfo, format_size, parse_size

log = logging.getLogger("skerry.engine")
LOOK_S: Final = 5.0
QUIET_S: Final = 0.05  # after a create: whoever made it wants to use it now
PATIENCE_S: Final = 1.0  # creates that never cease must not keep the pool empty
RECENT_S: Final = 900.0
RETRY_S: Final = 10.0
RENEW_S: Final = claims.LIFE_S - 600.0


@dataclass(eq=False)
class Shelf:
    """The ready sandboxes of one image, the oldest first."""

    image: str
    spec: Spec
    ready: list[Live] = field(default_factory=list)
    making: int = 0
    hits: int = 0
    misses: int = 0
    uses: int = 0
    used_at: float | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # none is in the making

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def recent(self) -> bool:
        return self.used_at is not None and time.monotonic() - self.used_at < RECENT_S

    @property
    def worthwhile(self) -> bool:
        """A snapshot is from its second use on: the steps of a build are used once."""
        return self.recent and (self.uses > 1 or not any(layer.startswith("snap:") for layer in self.spec.layers))


class Pool:
    """`spawn` does work beside, `uncut` work that no close may cut in half, `turn` bounds how many start at once,
    `starting` says whether somebody's sandbox is being made, `live` how many there are."""

    def __init__(
        self,
        settings: Settings,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        uncut: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        starting: Callable[[], bool],
        live: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._spawn = spawn
        self._uncut = uncut
        self._turn = turn
        self._starting = starting
        self._live = live
        self._shelves: dict[tuple[str, ...], Shelf] = {}  # by layers
        self._wishes: dict[str, int] = {}  # by image: what an admin said
        self._making: set[Live] = set()
        self._leaving: set[Live] = set()  # not gone yet
        self._due = asyncio.Event()
        self._closing = self._drained = False
        self._touched = 0.0
        self._failed, self._again_at = "", 0.0
        self._maxima = plan.host_maxima()

    def begin(self, host: Host, image: Callable[[str], ImageInfo], gone: Callable[[Row], Awaitable[None]]) -> None:
        """`image`: what everybody's sandboxes of that name start from; `gone` is called for each that was let go."""
        self._host = host
        self._image = image
        self._gone = gone
        self._spawn(self._keep())

    async def close(self) -> None:
        """None of them outlives the server."""
        self._closing = True
        for live in list(self.lives()):
            self._take_away(live)
        await asyncio.gather(*map(self._delete, list(self._leaving)))

    # -- for creates --------------------------------------------------------------------------------------------------

    def take(self, row: Row) -> Live | None:
        """A ready sandbox that can become that one; it is the caller's from now on."""
        self._touched = time.monotonic()
        if self._closing or not claims.possible(row.spec):
            return None
        shelf = self._shelf(row.spec.image, row.spec)
        shelf.used_at, shelf.uses, self._drained = self._touched, shelf.uses + 1, False
        self._due.set()
        for live in shelf.ready:
            if claims.fits(self._host, live, row.spec) and not self._host.rows.is_named(row):
                shelf.ready.remove(live)
                shelf.hits += 1
                return live
        shelf.misses += 1
        return None

    def make_room(self, more: int = 1) -> None:
        """For those that are about to be made."""
        ready = list(self.lives())
        for live in ready[: max(self._live() + len(ready) + more - self._settings["max.sandboxes"], 0)]:
            self.drop(live)

    def look(self) -> None:
        """There may be room again."""
        self._due.set()

    def drop(self, live: Live) -> None:
        """It is of no use any more."""
        self._take_away(live)
        self._spawn(self._uncut(self._delete(live)))
        self._due.set()

    def lives(self) -> Iterator[Live]:
        for shelf in self._shelves.values():
            yield from shelf.ready

    def layers(self) -> set[str]:
        """Those that any of them stands on."""
        return {layer for live in (*self.lives(), *self._making, *self._leaving) for layer in live.row.spec.layers}

    async def vacate(self, layers: Iterable[str]) -> None:
        """None stands on one of these layers when it returns."""
        gone = [shelf for key, shelf in self._shelves.items() if not set(layers).isdisjoint(key)]
        await self._clear(gone)

    async def settle(self) -> None:
        """Of an image that was made anew, or that an admin wants ready ones of, the ones of today."""
        for name in {*self._settings["pool.images"], *self._wishes, *(shelf.image for shelf in self._shelves.values())}:
            with contextlib.suppress(NotFound):
                image = self._image(name)
                await self._clear(
                    [s for s in self._shelves.values() if s.image == name and s.spec.layers != image.layers]
                )
                if self._always(name):
                    request = CreateRequest(image=name)
                    self._shelf(name, plan.resolve(request, image, self._settings, self._maxima))

    async def _clear(self, shelves: Collection[Shelf]) -> None:
        for shelf in shelves:
            del self._shelves[shelf.spec.layers]
            for live in list(shelf.ready):
                shelf.ready.remove(live)
                self._leaving.add(live)
                await self._uncut(self._delete(live))
            await shelf.idle.wait()

    # -- for admins ---------------------------------------------------------------------------------------------------

    def info(self) -> PoolInfo:
        wanted = self._wanted()
        images = [
            PoolImage(
                image=shelf.image, wanted=wanted[shelf], ready=len(shelf.ready), making=shelf.making, hits=shelf.hits,
                misses=shelf.misses,
            )
            for shelf in self._shelves.values()
        ]  # fmt: skip
        return PoolInfo(size=self._settings["pool.size"], images=tuple(images), paused=self._paused())

    async def set(self, image: str, wanted: int) -> PoolInfo:
        """From now on, so many of that image, until the server ends."""
        self._image(image)
        self._wishes[image], self._drained = wanted, False
        await self.settle()
        self._due.set()
        return self.info()

    async def drain(self) -> PoolInfo:
        """Lets all of them go, and makes none until one is wanted again."""
        self._wishes.clear()
        self._drained = True
        await self._clear(list(self._shelves.values()))
        return self.info()

    # -- inner workings -----------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await self.settle()
            self._thin()
            while (shelf := self._lacking()) is not None:
                await self._uncut(self._make(shelf))
                await self._quiet()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._due.wait()
            await self._quiet()
            self._due.clear()
            for live in list(self._leaving):  # could not be deleted before
                await self._uncut(self._delete(live))

    def _always(self, image: str) -> bool:
        return image in self._settings["pool.images"] or self._wishes.get(image, 0) > 0

    def _wanted(self) -> dict[Shelf, int]:
        """How many of each, those that an admin wants first, then the most recently used, within the total."""
        left, wanted = self._settings["pool.total"], {}
        for shelf in sorted(
            self._shelves.values(), key=lambda s: (self._always(s.image), s.used_at or 0), reverse=True
        ):
            usual = self._settings["pool.size"] if shelf.worthwhile or self._always(shelf.image) else 0
            wanted[shelf] = min(self._wishes.get(shelf.image, usual), left)
            left -= wanted[shelf]
        return wanted

    def _paused(self) -> str | None:
        """Why none is made just now."""
        if self._drained:
            return "drained"
        if not self._wishes and self._settings["pool.size"] == 0:
            return "off: pool.size is 0"
        if time.monotonic() < self._again_at:
            return self._failed
        least, free = parse_size(self._settings["pool.memory"]), _available()
        if free < least:
            return (
                f"the host has {format_size(free >> 20 << 20)} of memory left, and pool.memory is {format_size(least)}"
            )
        if self._live() + sum(1 for _ in self.lives()) >= self._settings["max.sandboxes"]:
            return "max.sandboxes is reached"
        return None

    def _lacking(self) -> Shelf | None:
        """The one that has fewest of what it wants."""
        if self._closing or self._paused() is not None:
            return None
        lacking = [(len(s.ready), s) for s, wanted in self._wanted().items() if len(s.ready) + s.making < wanted]
        return min(lacking, key=lambda pair: pair[0])[1] if lacking else None

    def _thin(self) -> None:
        """Lets go what is too many, too old, or in the way of a host that is short of memory."""
        short = _available() < parse_size(self._settings["pool.memory"])
        for shelf, wanted in self._wanted().items():
            old = [live for live in shelf.ready if time.time() - (live.row.started_at or 0) > RENEW_S]
            surplus = shelf.ready[: max(0, len(shelf.ready) - (0 if short else wanted))]
            for live in dict.fromkeys([*old, *surplus]):
                self.drop(live)
            if not wanted and not shelf.ready and not shelf.making and not shelf.recent:
                del self._shelves[shelf.spec.layers]

    async def _quiet(self) -> None:
        """Waits until nobody's sandbox is being made, if that comes soon."""
        for _ in range(round(PATIENCE_S / QUIET_S)):
            if not self._starting() and time.monotonic() - self._touched >= QUIET_S:
                return
            await asyncio.sleep(QUIET_S)

    async def _make(self, shelf: Shelf) -> None:
        row = Row(
            id=plan.new_id("sb-"), owner=NOBODY, name=None, state="creating", spec=shelf.spec, created_at=time.time()
        )
        live = Live(row)
        self._making.add(live)
        shelf.making += 1
        shelf.idle.clear()
        try:
            lifecycle.enter(self._host, (row,), CreateRequest(), None)
            async with live.lock, self._turn():
                await lifecycle.create(self._host, live)
                if live.keeper is not None:
                    await live.keeper.hello()  # leaves a connection for who claims it
        except (SkerryError, OSError) as error:
            self._failed, self._again_at = str(error), time.monotonic() + RETRY_S
            log.warning("none made ready", extra={"sandbox": row.id, "image": shelf.image, "error": str(error)})
            if not live.deleted:
                self._leaving.add(live)
        else:
            if self._shelves.get(shelf.spec.layers) is shelf and not self._closing:
                shelf.ready.append(live)
            else:
                self.drop(live)
        finally:
            self._making.discard(live)
            shelf.making -= 1
            shelf.idle.set()

    def _shelf(self, image: str, spec: Spec) -> Shelf:
        shelf = self._shelves.get(spec.layers)
        if shelf is None:
            shelf = Shelf(image, claims.plain(spec, self._settings, self._maxima))
            self._shelves[spec.layers] = shelf
        return shelf

    def _take_away(self, live: Live) -> None:
        for shelf in self._shelves.values():
            if live in shelf.ready:
                shelf.ready.remove(live)
        self._leaving.add(live)

    async def _delete(self, live: Live) -> None:
        async with live.lock:
            if live.deleted:
                return
            try:
                await lifecycle.delete(self._host, live)
            except (SkerryError, OSError) as error:  # tried again at the next look, and by the next server
                log.warning("not deleted", extra={"sandbox": live.row.id, "error": str(error)})
                return
        self._leaving.discard(live)
        await self._gone(live.row)


def _available() -> int:
    """Bytes of memory that the host could still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
