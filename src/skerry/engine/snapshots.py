"""Snapshots: sandboxes' files as they were at one moment, each a layer of its own on the layers that its sandbox has.

A layer is named by rows (of snapshots), by specs (of sandboxes) and by images; nobody counts: what none of them names
is removed when the last one that did goes, and, after a crash, by the next server."""

from __future__ import annotations

import asyncio
import builtins
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from msgspec.structs import replace

from skerry.engine import lifecycle, plan
from skerry.engine.capture import Captured, capture, drop, sync
from skerry.engine.faults import passed
from skerry.engine.images import Images, nobody
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.rows import HALF_ENDED, Row, remember
from skerry.engine.slots import Slots
from skerry.engine.snapshot_table import SnapshotTable, taken
from skerry.errors import Conflict, NotFound, QuotaExceeded, SkerryError
from skerry.storage import image_digest, new_snap
from skerry.types import NAME, Caller, ImageInfo, SnapshotInfo, SnapshotRequest, Value, check_env

T = TypeVar("T")
log = logging.getLogger("skerry.engine")
Kind = Literal["kept", "auto", "build"]
MEASURING_S = 0.5  # how long a list takes for sizes that are not known yet; the others come with the next one
MEASURING_ONE_S = 10.0  # and how long who asks for one of them waits
MEASURED_AT_ONCE = 2  # a tree of millions of files takes minutes; threads are for starting and stopping sandboxes too
LAYERS_MOST = 64  # above so many a start clones the topmost layer instead of stacking on it


class Uncut(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]: ...


@dataclass(frozen=True)
class Grip:
    """What the engine lends to those who work on its sandboxes: how one is found, held, worked on uncut, started in
    turn within the operator's maximum, and forgotten once it was deleted."""

    find: Callable[[Caller, str], Live]
    held: Callable[[Live], AbstractAsyncContextManager[None]]
    uncut: Uncut
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    turn: Callable[[], AbstractAsyncContextManager[None]]
    make_room: Callable[[str, int], None]
    forget: Callable[[Live], Awaitable[None]]
    lives: dict[str, Live]


class Taking(Value, frozen=True, kw_only=True):
    """What an Idempotency-Key of a snapshot stands for."""

    sandbox: str
    wish: SnapshotRequest


@dataclass(frozen=True)
class Wish:
    owner: str
    request: SnapshotRequest
    taking: Taking
    key: str | None

    def remembered(self, snapshot: str) -> Callable[[sqlite3.Cursor], None]:
        return lambda cursor: remember(cursor, self.owner, self.key, self.taking, snapshot)


class Snapshots:
    """`engine.snapshots`."""

    def __init__(self, grip: Grip) -> None:
        self.grip = grip
        self.slots = Slots(total=8, each=4)
        self.ready: Callable[[], set[str]] = set  # layers that the pool's sandboxes stand on
        self.vacate: Callable[[Iterable[str]], Awaitable[None]] = nobody  # has the pool leave layers
        self._pins: Counter[str] = Counter()  # layers that work under way needs, and that nothing else may name yet
        self._measuring = asyncio.Semaphore(MEASURED_AT_ONCE)
        self._waiting: set[str] = set()  # pinned layers that nothing may name any more

    def begin(self, host: Host, table: SnapshotTable, images: Images) -> None:
        self.host, self.table, self._images = host, table, images
        images.users, images.forget_steps = self._users_of_image, self._forget_steps

    @property
    def images(self) -> Images:
        return self._images

    # -- taking -------------------------------------------------------------------------------------------------------

    async def take(self, caller: Caller, ref: str, request: SnapshotRequest, key: str | None = None) -> SnapshotInfo:
        """Of a sandbox in any state, which that does not change. It belongs to the sandbox's owner, whoever asked."""
        live = self.grip.find(caller, ref)
        wish = Wish(live.row.owner, request, Taking(sandbox=live.row.id, wish=request), key)
        return await self.grip.uncut(self._take(live, wish))

    async def _take(self, live: Live, wish: Wish) -> SnapshotInfo:
        if (there := self._taken_before(wish)) is not None:
            return there
        self.check_name(wish.owner, wish.request.name)
        if wish.request.env:  # with those that it adds to: they must not grow from one snapshot to the next
            check_env({**live.row.spec.image_env, **wish.request.env})
        await self._make_room(wish.owner)
        async with self.captured(live, durable=True) as captured:
            if (there := self._taken_before(wish)) is not None:  # meanwhile
                await drop(self.host, captured.layer)
                return there
            self._check_count(wish.owner)  # again: others of the same moment may have got there first
            info = _info(live.row, wish.request, captured)
            former = self.table.of_key(wish.owner, wish.request.key) if wish.request.key is not None else None
            self.table.insert(info, wish.request.key, wish.remembered(info.id))
        passed("snapshot.row")
        if former is not None and not self._users(former):
            await self._remove(former)
        return info

    def _taken_before(self, wish: Wish) -> SnapshotInfo | None:
        """The same request, sent again; or the same step of a build."""
        known = self.host.rows.remembered(wish.owner, wish.key, wish.taking) if wish.key is not None else None
        if known is not None and (info := self.table.get(known)) is not None:
            return info
        key = None if wish.request.replace else wish.request.key
        return self._step(wish.owner, key) if key is not None else None

    def _step(self, owner: str, key: str) -> SnapshotInfo | None:
        """The step of a build with that key, if something can start from it: one that is damaged is taken again."""
        info = self.table.of_key(owner, key)
        try:
            self.check_layers(info.layers if info is not None else ())
        except SkerryError:
            return None
        return info

    async def before_command(self, live: Live) -> None:
        """Of a sandbox that asked for it (`Options(auto_snapshot=True)`): without one no command of it begins. What
        others do at that moment is in it half done."""
        if live.row.spec.options.auto_snapshot:
            await self.grip.uncut(self._take_step(live))

    async def _take_step(self, live: Live) -> None:
        async with self.captured(live) as captured:
            steps = self.table.steps(live.row.id)
            info = _info(live.row, SnapshotRequest(), captured)
            self.table.insert(replace(info, kind="auto", step=(steps[0].step or 0) + 1 if steps else 1))
        old = steps[self.host.settings["snapshots.auto"] - 1 :]
        if old:
            self.grip.spawn(self._remove(*old))

    @asynccontextmanager
    async def captured(self, live: Live, *, durable: bool = False) -> AsyncIterator[Captured]:
        """A new layer of a sandbox, under its lock and pinned. Whoever asked for it names it, or it goes again."""
        with live.in_use():
            sync_s = await sync(self.host, live)
            async with self.grip.held(live):
                if live.row.state in HALF_ENDED:
                    await lifecycle.finish(self.host, live)
                self.check_layers(live.row.spec.layers)
                layer = new_snap()
                with self.pinned(layer):  # before it is there: whoever collects layers must not take it for left behind
                    now = await capture(self.host, live, layer, sync_s, durable=durable)
                    try:
                        yield now
                    except BaseException:
                        await drop(self.host, layer)
                        raise

    @asynccontextmanager
    async def passing(self, live: Live) -> AsyncIterator[tuple[Captured, Row]]:
        """The same for one that only looks: the sandbox is held no longer than it takes, and the layer goes again.
        With it comes the row as it was then."""
        ready: asyncio.Future[tuple[Captured, Row]] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        work = asyncio.ensure_future(self.grip.uncut(self._pass(live, ready, over)))
        try:
            await asyncio.wait((work, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                work.result()
            yield ready.result()
        finally:
            over.set()
            await asyncio.wait((work,))
            work.exception()

    async def _pass(self, live: Live, ready: asyncio.Future[tuple[Captured, Row]], over: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            async with self.captured(live) as captured:
                stack.push_async_callback(drop, self.host, captured.layer)
                stack.enter_context(self.pinned(captured.layer, *live.row.spec.layers))
                taken_of = captured, live.row
            ready.set_result(taken_of)
            await over.wait()

    def check_name(self, owner: str, name: str | None) -> None:
        if name is None:
            return
        if self.table.named(owner, name):
            raise taken(name)
        if name == "base" or any(image.name == name for image in self._images.list()):
            raise Conflict(f"there is an image named {name!r}", hint="choose another name", details={"name": name})

    async def enter(self, info: SnapshotInfo) -> None:
        """One that came from elsewhere; its layers are in the store, and pinned."""
        await self._make_room(info.owner)
        self.check_name(info.owner, info.name)
        self.table.insert(info)

    async def _make_room(self, owner: str) -> None:
        """Steps of builds make room for what is asked for by hand: they can be made again."""
        if self.table.count(owner) < self.host.settings["snapshots.per_owner"]:
            return
        for info in self.table.least_used_build(owner):
            if not self._users(info):
                await self._remove(info)
                break
        self._check_count(owner)

    def _check_count(self, owner: str) -> None:
        most = self.host.settings["snapshots.per_owner"]
        if self.table.count(owner) >= most:
            raise QuotaExceeded(
                f"there are {most} snapshots, and snapshots.per_owner allows no more",
                hint="delete some (`skerry snapshot ls`, `skerry snapshot rm`), or have the operator raise it",
                details={"maximum": most, "setting": "snapshots.per_owner"},
            )

    async def _measure(self, info: SnapshotInfo) -> None:
        """What it takes on disk: every file is looked at, so that is done when somebody wants to know, once."""
        async with self._measuring:
            now = self.table.get(info.id)
            if now is None or now.own is not None:  # meanwhile
                return
            try:
                own = await asyncio.to_thread(self.host.layers.size, info.layers[0])
            except (SkerryError, OSError):  # deleted meanwhile
                return
            self.table.measured(now, own)

    async def _measured(self, infos: Iterable[SnapshotInfo], seconds: float) -> None:
        """As many of them as can be in that time; the one that is under way then goes on by itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for info in infos:
                    await self.grip.uncut(self._measure(info))

    # -- looking ------------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, ref: str) -> SnapshotInfo:
        info = self.table.find(caller, ref)
        if info is None:
            raise NotFound(f"there is no snapshot {ref!r}", hint="`skerry snapshot ls` lists yours")
        return info

    async def get(self, caller: Caller, ref: str) -> SnapshotInfo:
        info = self.find(caller, ref)
        if info.own is None:
            await self._measured((info,), MEASURING_ONE_S)
        return self.find(caller, info.id)

    async def list(
        self, caller: Caller, kind: Kind | None = None, key: str | None = None
    ) -> builtins.list[SnapshotInfo]:
        """The caller's own, an admin's everyone's; without a kind those kept by hand. `key`: the step of a build."""
        if key is not None:
            found = self._step(caller.owner, key)
            if found is not None:
                self.table.touch(found)
            return [found] if found is not None else []
        owner = None if caller.scope == "admin" else caller.owner
        there = self.table.list(owner, kind or "kept")
        unknown = [info for info in there if info.own is None and info.kind == "kept"]
        if not unknown:
            return there
        await self._measured(unknown, MEASURING_S)
        return self.table.list(owner, kind or "kept")

    def sandbox(self, caller: Caller, ref: str) -> Live | None:
        try:
            return self.grip.find(caller, ref)
        except NotFound:
            return None

    def of(self, caller: Caller, ref: str) -> builtins.list[SnapshotInfo]:
        """All that were taken of one sandbox, oldest first."""
        return self.table.list(sandbox=self.grip.find(caller, ref).row.id)

    # -- starting from one --------------------------------------------------------------------------------------------

    def image(self, caller: Caller, ref: str) -> tuple[ImageInfo, str | None]:
        """What a sandbox can start from: a snapshot of the caller's by id or name, or an image. With it, of a snapshot
        that stands too high to be stacked on, the layer that the sandbox's upper begins as."""
        info = self.table.find(caller, ref) if NAME.fullmatch(ref) else None
        if info is None:
            return self._images.get(ref), None
        self.check_layers(info.layers)
        self.table.touch(info)
        top, *below = info.layers
        high = len(info.layers) > LAYERS_MOST and top.startswith("snap:")
        image = ImageInfo(
            name=info.name or info.id, digest=info.digest, layers=tuple(below) if high else info.layers,
            size=info.own or 0, created_at=info.created_at, user=info.user, cwd=info.cwd, env=info.env,
            entrypoint=info.entrypoint, cmd=info.cmd,
        )  # fmt: skip
        return image, top if high else None

    async def to_image(self, caller: Caller, ref: str, name: str) -> ImageInfo:
        """An image for everyone, of one's own snapshot."""
        info = self.find(caller, ref)
        if self.table.named(caller.owner, name):
            raise Conflict(f"there is a snapshot named {name!r}", hint="choose another name", details={"name": name})
        self.check_layers(info.layers)
        return await self.grip.uncut(self._to_image(info, name))

    async def _to_image(self, info: SnapshotInfo, name: str) -> ImageInfo:
        with self.pinned(*info.layers):
            if self.table.get(info.id) is None:  # deleted before its layers were pinned
                raise NotFound(f"there is no snapshot {info.name or info.id!r} any more")
            return await self._images.keep(info, name)

    def check_layers(self, layers: tuple[str, ...]) -> None:
        for layer in layers:
            self.host.layers.check(layer)

    # -- going --------------------------------------------------------------------------------------------------------

    async def delete(self, caller: Caller, ref: str) -> None:
        info = self.find(caller, ref)
        users = self._users(info, caller)
        if users:
            shown = ", ".join(users[:3]) + " and others" * (len(users) > 3)
            raise Conflict(
                f"snapshot {info.name or info.id} is in use by {shown}",
                hint="delete what stands on it first",
                details={"snapshot": info.id, "users": users[:100]},
            )
        await self.grip.uncut(self._remove(info))

    async def _remove(self, *infos: SnapshotInfo) -> None:
        self.table.remove(*infos)
        passed("unsnapshot.row")
        await self.vacate([info.layers[0] for info in infos])
        await self.collect(layer for info in infos for layer in info.layers)
        passed("unsnapshot.layers")

    async def _forget_steps(self) -> int:
        """The steps of builds that nothing stands on, the newest first, as they stand on older ones. Gives how many
        bytes that freed."""
        freed = 0
        for info in self.table.list(kind="build")[::-1]:
            await self.vacate([info.layers[0]])
            if not self._users(info):
                freed += await asyncio.to_thread(self.host.layers.size, info.layers[0])
                await self.grip.uncut(self._remove(info))
        return freed

    def _users(self, info: SnapshotInfo, caller: Caller | None = None) -> builtins.list[str]:
        """What would lose its ground with it: sandboxes, images, snapshots that were taken of such sandboxes. Those of
        others, who came to it by an image, are not told to the caller by name."""

        def word(kind: str, name: str, owner: str) -> str:
            foreign = caller is not None and caller.scope != "admin" and owner != caller.owner
            return f"a {kind} of another owner" if foreign else f"{kind} {name}"

        layer = info.layers[0]
        if info.sandbox is None:  # from elsewhere: what has its layers by chance has them for itself
            names = (info.id, info.name)
            begun = [one.row for one in self._on(layer) if one.row.spec.image in names and one.row.owner == info.owner]
            return [f"sandbox {row.name or row.id}" for row in begun]
        rows = [one.row for one in self._on(layer)]
        sandboxes = [word("sandbox", row.name or row.id, row.owner) for row in rows]
        others = [one for one in self.table.on(layer) if one.id != info.id]
        snapshots = [word("snapshot", one.name or one.id, one.owner) for one in others]
        images = [f"image {image.name}" for image in self._images.list() if layer in image.layers]
        work = ["work that is under way"] if self._pins[layer] else []
        return [*dict.fromkeys([*sandboxes, *snapshots, *images, *work])]

    def _users_of_image(self, image: ImageInfo) -> builtins.list[str]:
        """Sandboxes, and snapshots of them. The steps of builds can be made again, and one that is the image itself
        loses nothing."""
        layer = image.layers[0]
        sandboxes = [f"sandbox {one.row.name or one.row.id}" for one in self._on(layer)]
        kept = (one for one in self.table.on(layer) if one.kind != "build" and one.layers != image.layers)
        return [*sandboxes, *(f"snapshot {one.name or one.id}" for one in kept)]

    def _on(self, layer: str) -> builtins.list[Live]:
        return [live for live in self.grip.lives.values() if layer in live.row.spec.layers]

    def in_use(self) -> set[str]:
        """Every layer that a sandbox or a snapshot stands on, or that work under way needs."""
        return self._needed() | self.table.layers()

    def _needed(self) -> set[str]:
        specs = {layer for live in self.grip.lives.values() for layer in live.row.spec.layers}
        return specs | self.ready() | self._pins.keys()

    @contextmanager
    def pinned(self, *layers: str) -> Iterator[None]:
        """Work under way needs these; what would have been collected meanwhile is collected then."""
        self._pins.update(layers)
        try:
            yield
        finally:
            self._pins.subtract(layers)
            self._pins = +self._pins
            due = (self._waiting & set(layers)) - self._pins.keys()
            if due:
                self._waiting -= due
                self.grip.spawn(self.collect(due))

    async def collect(self, layers: Iterable[str]) -> None:
        """Remove those of these layers that nothing names any more. A layer that nothing names can't come to be named
        again: names are copied from what names it."""
        layers = set(layers)
        self._waiting |= layers & self._pins.keys()
        unnamed = layers - self._needed()
        if unnamed:  # rarely: most sandboxes stand on what others stand on
            unnamed -= self.table.layers()
            unnamed = unnamed.difference(*(image.layers for image in self._images.list()))
        for layer in unnamed:
            if layer.startswith("snap:"):
                await drop(self.host, layer)
        if any(not layer.startswith("snap:") for layer in unnamed):  # which an image being made may want to name
            await self._images.collect()

    async def gone(self, row: Row) -> None:
        """A sandbox was deleted: what was taken before its commands goes with it, and what only it stood on."""
        steps = self.table.steps(row.id)
        self.table.remove(*steps)
        try:
            await self.collect((*row.spec.layers, *(layer for info in steps for layer in info.layers)))
        except (SkerryError, OSError) as error:  # the sandbox is deleted all the same
            log.error("layers not collected", extra={"sandbox": row.id, "error": str(error)})

    async def sweep(self) -> None:
        """At the start of a server: what an earlier one took and did not name, and what it did not get to remove."""
        known = self.grip.lives
        there = {f"snap:{name}" for name in await asyncio.to_thread(self.host.driver.snapshots)}
        for info in (*self.table.list(kind="auto"), *self.table.list(kind="build")):  # a power cut takes the newest
            if (info.kind == "auto" and info.sandbox not in known) or not there.issuperset(snaps(info.layers)):
                self.table.remove(info)
        await self.collect(there)


def snaps(layers: Iterable[str]) -> set[str]:
    return {layer for layer in layers if layer.startswith("snap:")}


def _info(row: Row, request: SnapshotRequest, captured: Captured) -> SnapshotInfo:
    spec = row.spec
    layers = (captured.layer, *spec.layers)
    env = {**spec.image_env, **(request.env or {})}
    user, cwd = request.user or spec.user, request.cwd or spec.cwd
    return SnapshotInfo(
        id=plan.new_id("sn-"), digest=image_digest(layers, env, user, cwd), layers=layers, created_at=captured.at,
        name=request.name, owner=row.owner, kind="kept" if request.key is None else "build", sandbox=row.id,
        unit=row.unit, image=spec.image, sync_s=captured.sync_s, frozen_s=captured.frozen_s, user=user, cwd=cwd,
        env=env, entrypoint=spec.entrypoint if request.entrypoint is None else request.entrypoint,
        cmd=spec.cmd if request.cmd is None else request.cmd,
    )  # fmt: skip
