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
from pathlib import Path
from typing import Any, Final

from skerry.config import Settings
from skerry.engine import claims, lifecycle, plan
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.rows import NOBODY, Row, Spec
from skerry.engine.shelf import Shelf
from skerry.errors import NotFound, SkerryError
from skerry.types import CreateRequest, ImageInfo, PoolImage, PoolInfo, format_size, parse_size

log = logging.getLogger("skerry.engine")
LOOK_S: Final = 5.0
QUIET_S: Final = 0.05  # after a create: whoever made it wants to use it now
PATIENCE_S: Final = 1.0  # creates that never cease must not keep the pool empty
MARGIN: Final = 64 << 20  # of memory, so that what is made is not let go for its own sake
RENEW_S: Final = claims.LIFE_S - 600.0


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
        if self._closing or self._off or not claims.possible(row.spec):
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
        wanted = set(layers)
        await self._clear([shelf for key, shelf in self._shelves.items() if not wanted.isdisjoint(key)])

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
            if self._shelves.get(shelf.spec.layers) is shelf:
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
        failed = next((shelf.failed for shelf in self._shelves.values() if shelf.failing), None)
        return PoolInfo(size=self._settings["pool.size"], images=tuple(images), paused=self._paused() or failed)

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
            try:
                await self.settle()
            except (SkerryError, OSError) as error:  # an image that can't be read, or that nothing can be called
                log.warning("the pool is not settled", extra={"error": str(error)})
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
        if self._off:
            return "off: pool.size is 0"
        least, free = parse_size(self._settings["pool.memory"]), _available()
        if free < least + MARGIN:
            return (
                f"the host has {format_size(free >> 20 << 20)} of memory left, and pool.memory is {format_size(least)}"
            )
        if self._live() + sum(1 for _ in self.lives()) >= self._settings["max.sandboxes"]:
            return "max.sandboxes is reached"
        return None

    @property
    def _off(self) -> bool:
        return self._settings["pool.size"] == 0 and not self._wishes

    def _lacking(self) -> Shelf | None:
        """The one that has fewest of what it wants."""
        if self._closing or self._paused() is not None:
            return None
        wanted = [(len(s.ready), s) for s, n in self._wanted().items() if len(s.ready) + s.making < n and not s.failing]
        return min(wanted, key=lambda pair: pair[0])[1] if wanted else None

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
        except Exception as error:  # whatever is wrong with one must not end the pool
            shelf.note_failure(error)
            log.warning("none made ready", extra={"sandbox": row.id, "image": shelf.image, "error": str(error)})
            if not live.deleted:
                self._leaving.add(live)
        else:
            shelf.failures = 0
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
            try:
                if not live.deleted:
                    await lifecycle.delete(self._host, live)
            except Exception as error:  # tried again at the next look, and by the next server
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
