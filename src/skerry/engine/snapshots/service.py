"""Snapshots: a sandbox's files at one moment, each one layer on top of the layers of its sandbox.

Layers are named by records (of snapshots), by specs (of sandboxes) and by images, without reference counts: a layer is
removed with the last object that names it or, after a crash, by the next server."""

from __future__ import annotations

import asyncio
import builtins
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from msgspec import field
from msgspec.structs import replace

from skerry.engine.concurrency import OwnerQuota
from skerry.engine.faults import fault_point
from skerry.engine.hooks import Hook
from skerry.engine.images.layer_users import LayerUser
from skerry.engine.images.service import ImageService
from skerry.engine.pool.pool import Pool
from skerry.engine.sandboxes.record import ENDING_STATES, SandboxRecord, remember_key
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.sandboxes.transitions import Transitions
from skerry.engine.snapshots.capture import CapturedLayer, capture, drop, sync
from skerry.engine.snapshots.table import SnapshotTable, taken
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.storage import image_digest, new_snap, snap_name
from skerry.storage.changes import changes
from skerry.types import (
    NAME,
    Caller,
    ImageInfo,
    SnapshotDiff,
    SnapshotInfo,
    SnapshotRequest,
    Value,
    check_env,
    parse_span,
)

log = logging.getLogger("skerry.engine")
Kind = Literal["kept", "auto", "build"]
LIST_MEASURE_TIMEOUT_S = 0.5  # how long a list may take for unknown sizes; the others come with the next list
MEASURE_TIMEOUT_S = 10.0  # how long a caller waits for the size of one snapshot
MAX_PARALLEL_MEASURES = (
    2  # a tree of millions of files takes minutes; threads are for starting and stopping sandboxes too
)
EXPIRY_TICK_S = 1.0
EXPIRY_RETRY_S = 30.0  # until a needed snapshot is looked at again
MAX_LAYERS = 64  # above so many a start clones the topmost layer instead of stacking on it


class SnapshotKey(Value, frozen=True, kw_only=True):
    """The request that an idempotency key of a snapshot stands for."""

    sandbox: str
    request: SnapshotRequest = field(name="wish")  # the name in databases of earlier versions


@dataclass(frozen=True)
class SnapshotOrder:
    owner: str
    request: SnapshotRequest
    taking: SnapshotKey
    key: str | None

    def remembered(self, snapshot: str) -> Callable[[sqlite3.Cursor], None]:
        return lambda cursor: remember_key(cursor, self.owner, self.key, self.taking, snapshot)


class SnapshotService(Hook, LayerUser):
    """`engine.snapshots`."""

    def __init__(
        self,
        transitions: Transitions,
        registry: SandboxRegistry,
        images: ImageService,
        pool: Pool,
        table: SnapshotTable,
        tasks: Tasks,
    ) -> None:
        self.host, self.table, self.images = transitions.host, table, images
        self._transitions, self._registry, self._pool, self._tasks = transitions, registry, pool, tasks
        self.slots = OwnerQuota(total=8, each=4)
        self._pins: Counter[str] = Counter()  # layers needed by work under way, possibly without another name yet
        self._measuring = asyncio.Semaphore(MAX_PARALLEL_MEASURES)
        self._waiting: set[str] = set()  # pinned layers to collect as soon as they are not pinned any more
        self._expiring: dict[str, float] = {}  # by ID

    # -- taking -------------------------------------------------------------------------------------------------------

    async def take(self, caller: Caller, ref: str, request: SnapshotRequest, key: str | None = None) -> SnapshotInfo:
        """Take a snapshot of a sandbox in any state, which does not change. It belongs to the sandbox's owner,
        whichever caller requested it."""
        sandbox = self._registry.find(caller, ref)
        return await self._tasks.shield(self._take(sandbox, self.order(sandbox, request, key)))

    async def _take(self, sandbox: Sandbox, order: SnapshotOrder) -> SnapshotInfo:
        if (there := self.existing(order)) is not None:
            return there
        self.check_name(order.owner, order.request.name)
        if order.request.env:  # together with the image's variables: they must not grow from one snapshot to the next
            check_env({**sandbox.record.spec.image_env, **order.request.env})
        await self.make_room(order.owner)
        async with self.captured(sandbox, durable=True) as captured:
            if (there := self.existing(order)) is not None:  # taken meanwhile
                await drop(self.host, captured.layer)
                return there
            self._check_count(order.owner)  # checked again: concurrent requests may have been faster
            info = _info(sandbox.record, order.request, captured)
            former = self.table.of_key(order.owner, order.request.key) if order.request.key is not None else None
            self.insert(info, order)
        fault_point("snapshot.record")
        if former is not None and not self._users(former):
            await self._remove(former)
        return info

    def insert(self, info: SnapshotInfo, order: SnapshotOrder) -> None:
        self.table.insert(info, order.request.key, order.remembered(info.id))
        if info.expires_at is not None:
            self._expiring[info.id] = info.expires_at

    def order(self, sandbox: Sandbox, request: SnapshotRequest, key: str | None) -> SnapshotOrder:
        taking = SnapshotKey(sandbox=sandbox.record.id, request=request)
        return SnapshotOrder(sandbox.record.owner, request, taking, key)

    def existing(self, order: SnapshotOrder) -> SnapshotInfo | None:
        """Return the snapshot of the same request sent earlier, or of the same build step."""
        known = self._registry.table.remembered(order.owner, order.key, order.taking) if order.key is not None else None
        if known is not None and (info := self.table.get(known)) is not None:
            return info
        key = None if order.request.replace else order.request.key
        return self._step(order.owner, key) if key is not None else None

    def _step(self, owner: str, key: str) -> SnapshotInfo | None:
        """Return the build step with that key if a sandbox can start from it: a damaged one is taken again."""
        info = self.table.of_key(owner, key)
        try:
            self.check_layers(info.layers if info is not None else ())
        except SkerryError:
            return None
        return info

    async def before_command(self, sandbox: Sandbox) -> None:
        """Take an automatic snapshot (`Options(auto_snapshot=True)`): without it the command does not start. Changes by
        concurrent commands may be in it half done."""
        if sandbox.record.spec.options.auto_snapshot:
            await self._tasks.shield(self._take_step(sandbox))

    async def _take_step(self, sandbox: Sandbox) -> None:
        async with self.captured(sandbox) as captured:
            steps = self.table.steps(sandbox.record.id)
            info = _info(sandbox.record, SnapshotRequest(), captured)
            self.table.insert(replace(info, kind="auto", step=(steps[0].step or 0) + 1 if steps else 1))
        old = steps[self.host.settings["snapshots.max_auto"] - 1 :]
        if old:
            self._tasks.spawn(self._remove(*old))

    @asynccontextmanager
    async def captured(self, sandbox: Sandbox, *, durable: bool = False) -> AsyncIterator[CapturedLayer]:
        """Yield a new layer of a sandbox, under its lock and pinned. The caller names it, or it is removed again."""
        with sandbox.in_use():
            sync_s = await sync(self.host, sandbox)
            async with self._registry.locked(sandbox):
                if sandbox.record.state in ENDING_STATES:
                    await self._transitions.finish(sandbox)
                self.check_layers(sandbox.record.spec.layers)
                layer = new_snap()
                self._transitions.quarantine.expect("snapshot", snap_name(layer))
                with self.pinned(layer):  # before it exists: a collection must not take it for a leftover
                    now = await capture(self.host, sandbox, layer, sync_s, durable=durable)
                    try:
                        yield now
                    except BaseException:
                        await drop(self.host, layer)
                        raise

    @asynccontextmanager
    async def passing(self, sandbox: Sandbox) -> AsyncIterator[tuple[CapturedLayer, SandboxRecord]]:
        """Yield a temporary layer for reading, with the record of that moment: the sandbox is locked only during the
        capture, and the layer is removed at the end."""
        ready: asyncio.Future[tuple[CapturedLayer, SandboxRecord]] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        work = asyncio.ensure_future(self._tasks.shield(self._hold_temporary(sandbox, ready, over)))
        try:
            await asyncio.wait((work, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                work.result()
            yield ready.result()
        finally:
            over.set()
            await asyncio.wait((work,))
            work.exception()

    async def _hold_temporary(
        self, sandbox: Sandbox, ready: asyncio.Future[tuple[CapturedLayer, SandboxRecord]], over: asyncio.Event
    ) -> None:
        async with AsyncExitStack() as stack:
            async with self.captured(sandbox) as captured:
                stack.push_async_callback(drop, self.host, captured.layer)
                stack.enter_context(self.pinned(captured.layer, *sandbox.record.spec.layers))
                taken_of = captured, sandbox.record
            ready.set_result(taken_of)
            await over.wait()

    def check_name(self, owner: str, name: str | None) -> None:
        if name is None:
            return
        if self.table.named(owner, name):
            raise taken(name)
        if name == "base" or any(image.name == name for image in self.images.list()):
            raise Conflict(f"image {name!r} already exists", hint="choose another name", details={"name": name})

    async def enter(self, info: SnapshotInfo) -> None:
        """Store the record of an imported snapshot. Its layers are in the store, and pinned."""
        await self.make_room(info.owner)
        self.check_name(info.owner, info.name)
        self.table.insert(info)

    async def make_room(self, owner: str) -> None:
        """Remove a build step, which can be made again, if that makes room for a requested snapshot."""
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
        """Measure the size on disk, once, on request: every file has to be examined."""
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
        """Measure as many as possible in that time; the current measurement continues in the background."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for info in infos:
                    await self._tasks.shield(self._measure(info))

    # -- reading ------------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, ref: str) -> SnapshotInfo:
        info = self.table.find(caller, ref)
        if info is None:
            raise NotFound(f"snapshot {ref!r} not found", hint="`skerry snapshot ls` lists yours")
        return info

    async def get(self, caller: Caller, ref: str) -> SnapshotInfo:
        info = self.find(caller, ref)
        if info.own is None:
            await self._measured((info,), MEASURE_TIMEOUT_S)
        return self.find(caller, info.id)

    async def list(
        self, caller: Caller, kind: Kind | None = None, key: str | None = None
    ) -> builtins.list[SnapshotInfo]:
        """List the caller's snapshots, an administrator's list has everyone's. Without a kind: those taken by request.
        `key`: the build step with that key."""
        if key is not None:
            found = self._step(caller.owner, key)
            if found is not None:
                self.table.mark_used(found)
            return [found] if found is not None else []
        owner = None if caller.scope == "admin" else caller.owner
        there = self.table.list(owner, kind or "kept")
        unknown = [info for info in there if info.own is None and info.kind == "kept"]
        if not unknown:
            return there
        await self._measured(unknown, LIST_MEASURE_TIMEOUT_S)
        return self.table.list(owner, kind or "kept")

    def sandbox(self, caller: Caller, ref: str) -> Sandbox | None:
        try:
            return self._registry.find(caller, ref)
        except NotFound:
            return None

    def of(self, caller: Caller, ref: str) -> builtins.list[SnapshotInfo]:
        """All that were taken of one sandbox, oldest first."""
        return self.table.list(sandbox_id=self._registry.find(caller, ref).record.id)

    # -- use as an image ----------------------------------------------------------------------------------------------

    def image(self, caller: Caller, ref: str) -> tuple[ImageInfo, str | None]:
        """Return the image that a sandbox starts from: a snapshot of the caller by id or name, or an image. For a
        snapshot with too many layers to add another, also return the layer that the sandbox's upper starts as."""
        info = self.table.find(caller, ref) if NAME.fullmatch(ref) else None
        if info is None:
            return self.images.get(ref), None
        _check_startable(info)
        self.check_layers(info.layers)
        self.table.mark_used(info)
        top, *below = info.layers
        high = len(info.layers) > MAX_LAYERS and top.startswith("snap:")
        image = ImageInfo(
            name=info.name or info.id, digest=info.digest, layers=tuple(below) if high else info.layers,
            size=info.own or 0, created_at=info.created_at, user=info.user, cwd=info.cwd, env=info.env,
            entrypoint=info.entrypoint, cmd=info.cmd,
        )  # fmt: skip
        return image, top if high else None

    def of_digest(self, caller: Caller, digest: str) -> str | None:
        """Return the name of the image with this digest, or the ID of the caller's snapshot with it; None if there is
        neither."""
        images = (image.name for image in self.images.list() if image.digest == digest)
        snapshots = (info.id for info in self.table.list(caller.owner) if info.digest == digest)
        return next(images, None) or next(snapshots, None)

    async def to_image(self, caller: Caller, ref: str, name: str) -> ImageInfo:
        """Make an image for all owners from the caller's snapshot."""
        info = self.find(caller, ref)
        if self.table.named(caller.owner, name):
            raise Conflict(f"snapshot {name!r} already exists", hint="choose another name", details={"name": name})
        _check_startable(info)
        self.check_layers(info.layers)
        return await self._tasks.shield(self._to_image(info, name))

    async def _to_image(self, info: SnapshotInfo, name: str) -> ImageInfo:
        with self.pinned(*info.layers):
            if self.table.get(info.id) is None:  # deleted before its layers were pinned
                raise NotFound(f"snapshot {info.name or info.id!r} was deleted")
            return await self.images.keep(info, name)

    def check_layers(self, layers: tuple[str, ...]) -> None:
        for layer in layers:
            self.host.layers.check(layer)

    # -- removal ------------------------------------------------------------------------------------------------------

    async def delete(self, caller: Caller, ref: str) -> None:
        info = self.find(caller, ref)
        users = self._users(info, caller)
        if users:
            shown = ", ".join(users[:3]) + " and others" * (len(users) > 3)
            raise Conflict(
                f"snapshot {info.name or info.id} is in use by {shown}",
                hint="delete its users first",
                details={"snapshot": info.id, "users": users[:100]},
            )
        await self._tasks.shield(self._remove(info))

    async def _remove(self, *infos: SnapshotInfo) -> None:
        self.table.remove(*infos)
        fault_point("delete_snapshot.record")
        await self._pool.vacate([info.layers[0] for info in infos])
        await self.collect(layer for info in infos for layer in info.layers)
        fault_point("delete_snapshot.layers")

    async def watch(self) -> None:
        """Remove expired snapshots, those of an earlier server too."""
        kept = self.table.list()
        self._expiring |= {info.id: info.expires_at for info in kept if info.expires_at is not None}
        while True:
            await asyncio.sleep(EXPIRY_TICK_S)
            now = time.time()
            for snapshot in [one for one, at in self._expiring.items() if at <= now]:
                try:
                    await self._tasks.shield(self._expire(snapshot))
                except (SkerryError, OSError) as error:
                    log.error("failed to remove a snapshot", extra={"snapshot": snapshot, "error": str(error)})
                    self._expiring[snapshot] = now + EXPIRY_RETRY_S

    async def _expire(self, snapshot: str) -> None:
        """Remove an expired snapshot, unless something needs it."""
        info = self.table.get(snapshot)
        if info is None:
            self._expiring.pop(snapshot, None)
            return
        await self._pool.vacate([info.layers[0]])
        if self._users(info):
            self._expiring[snapshot] = time.time() + EXPIRY_RETRY_S
            return
        await self._remove(info)
        self._expiring.pop(snapshot, None)
        log.info("removed an expired snapshot", extra={"snapshot": snapshot})

    async def prune(self) -> int:
        """Remove build steps that nothing stands on, newest first because they stand on older ones. Return how many
        bytes that freed."""
        freed = 0
        for info in self.table.list(kind="build")[::-1]:
            await self._pool.vacate([info.layers[0]])
            if not self._users(info):
                freed += await asyncio.to_thread(self.host.layers.size, info.layers[0])
                await self._tasks.shield(self._remove(info))
        return freed

    def _users(self, info: SnapshotInfo, caller: Caller | None = None) -> builtins.list[str]:
        """Return the objects that need the snapshot: sandboxes, images, and snapshots of such sandboxes. Objects of
        other owners, which use it through an image, are not named to the caller."""

        def word(kind: str, name: str, owner: str) -> str:
            foreign = caller is not None and caller.scope != "admin" and owner != caller.owner
            return f"a {kind} of another owner" if foreign else f"{kind} {name}"

        layer = info.layers[0]
        if info.path is not None:  # nothing starts from it; an equal directory has the same layer
            return ["work that is under way"] if self._pins[layer] else []
        if info.sandbox is None:  # imported: other objects with the same layers do not depend on it
            names = (info.id, info.name)
            begun = [
                one.record
                for one in self._on(layer)
                if one.record.spec.image in names and one.record.owner == info.owner
            ]
            return [f"sandbox {record.name or record.id}" for record in begun]
        records = [one.record for one in self._on(layer)]
        sandboxes = [word("sandbox", record.name or record.id, record.owner) for record in records]
        others = [one for one in self.table.on(layer) if one.id != info.id]
        snapshots = [word("snapshot", one.name or one.id, one.owner) for one in others]
        images = [f"image {image.name}" for image in self.images.list() if layer in image.layers]
        work = ["work that is under way"] if self._pins[layer] else []
        return [*dict.fromkeys([*sandboxes, *snapshots, *images, *work])]

    def users_of(self, image: ImageInfo) -> builtins.list[str]:
        """Return the sandboxes that stand on the image, and their snapshots. Build steps can be made again, and a
        snapshot with exactly the image's layers loses nothing."""
        layer = image.layers[0]
        sandboxes = [f"sandbox {one.record.name or one.record.id}" for one in self._on(layer)]
        kept = (one for one in self.table.on(layer) if one.kind != "build" and one.layers != image.layers)
        return [*sandboxes, *(f"snapshot {one.name or one.id}" for one in kept)]

    def _on(self, layer: str) -> builtins.list[Sandbox]:
        return [sandbox for sandbox in self._registry if layer in sandbox.record.spec.layers]

    def layers(self) -> set[str]:
        """Every layer that a sandbox or a snapshot stands on, or that work under way needs."""
        return self._needed() | self.table.layers()

    def _needed(self) -> set[str]:
        specs = {layer for sandbox in self._registry for layer in sandbox.record.spec.layers}
        return specs | self._pool.layers() | self._pins.keys()

    @contextmanager
    def pinned(self, *layers: str) -> Iterator[None]:
        """Keep these layers while work under way needs them. A collection that was due meanwhile happens at the end."""
        self._pins.update(layers)
        try:
            yield
        finally:
            self._pins.subtract(layers)
            self._pins = +self._pins
            due = (self._waiting & set(layers)) - self._pins.keys()
            if due:
                self._waiting -= due
                self._tasks.spawn(self.collect(due))

    async def collect(self, layers: Iterable[str]) -> None:
        """Remove the given layers that nothing names any more. A layer without a name can't get one again: names are
        copied from objects that name it."""
        layers = set(layers)
        self._waiting |= layers & self._pins.keys()
        unnamed = self._unnamed(layers)
        for layer in unnamed:
            if layer.startswith("snap:"):
                await drop(self.host, layer)
        if any(not layer.startswith("snap:") for layer in unnamed):  # an image that is being made may name them
            await self.images.collect()

    def _unnamed(self, layers: set[str]) -> set[str]:
        unnamed = layers - self._needed()
        if unnamed:  # rare: most sandboxes share their layers with others
            unnamed -= self.table.layers()
            unnamed = unnamed.difference(*(image.layers for image in self.images.list()))
        return unnamed

    async def on_deleted(self, sandbox: Sandbox) -> None:
        """Remove the automatic snapshots of a deleted sandbox, and the layers that only it used."""
        record, steps = sandbox.record, self.table.steps(sandbox.record.id)
        self.table.remove(*steps)
        try:
            await self.collect((*record.spec.layers, *(layer for info in steps for layer in info.layers)))
        except (SkerryError, OSError) as error:  # the sandbox is deleted all the same
            log.error("failed to collect layers", extra={"sandbox": record.id, "error": str(error)})

    async def sweep(self) -> None:
        """Remove layers that an earlier server left, and records with missing layers. Unknown layers go into
        quarantine."""
        known, quarantine = self._registry.ids(), self._transitions.quarantine
        there = {f"snap:{name}" for name in await asyncio.to_thread(self.host.driver.snapshots)}
        for info in (*self.table.list(kind="auto"), *self.table.list(kind="build")):  # a power cut loses the newest
            if (info.kind == "auto" and info.sandbox not in known) or not there.issuperset(snaps(info.layers)):
                self.table.remove(info)
        unnamed = {snap_name(layer) for layer in self._unnamed(there)}
        leftovers = quarantine.leftovers("snapshot", unnamed)
        for name in unnamed - leftovers:
            await quarantine.take_snapshot(name)
        await self.collect(f"snap:{name}" for name in leftovers)
        quarantine.set_known("snapshot", {snap_name(layer) for layer in there} - unnamed)


def _check_startable(info: SnapshotInfo) -> None:
    name = info.name or info.id
    if info.path is not None:
        raise InvalidRequest(
            f"snapshot {name} is of the directory {info.path}",
            hint="sandbox.restore(snapshot) brings it into a sandbox",
        )
    if info.expires_at is not None and info.expires_at <= time.time():
        raise NotFound(f"snapshot {name} has expired")


def snaps(layers: Iterable[str]) -> set[str]:
    return {layer for layer in layers if layer.startswith("snap:")}


def _info(record: SandboxRecord, request: SnapshotRequest, captured: CapturedLayer) -> SnapshotInfo:
    spec = record.spec
    layers = (captured.layer, *spec.layers)
    env = {**spec.image_env, **(request.env or {})}
    user, cwd = request.user or spec.user, request.cwd or spec.cwd
    return SnapshotInfo(
        id=new_id("sn-"), digest=image_digest(layers, env, user, cwd), layers=layers, created_at=captured.at,
        name=request.name, owner=record.owner, kind="kept" if request.key is None else "build", sandbox=record.id,
        unit=record.upper, image=spec.image, sync_s=captured.sync_s, frozen_s=captured.frozen_s, user=user, cwd=cwd,
        env=env, entrypoint=spec.entrypoint if request.entrypoint is None else request.entrypoint,
        cmd=spec.cmd if request.cmd is None else request.cmd, expires_at=expiry(request, captured.at),
    )  # fmt: skip


def expiry(request: SnapshotRequest, at: float) -> float | None:
    return at + parse_span(request.ttl) if request.ttl is not None else None


# -- differences between two points: snapshots, images, or the current state of sandboxes ----------------------------


@dataclass(frozen=True)
class Point:
    """A stack of layers, top first; the upper that the topmost was captured from, and when."""

    layers: tuple[str, ...]
    unit: str | None
    at: float


async def compare(snapshots: SnapshotService, caller: Caller, ref: str, to: str | None, most: int) -> SnapshotDiff:
    """Compare a snapshot with another point; without one, with the current state of its sandbox."""
    info = snapshots.find(caller, ref)
    if info.path is not None:
        raise InvalidRequest(f"snapshot {info.name or info.id} is of the directory {info.path} only")
    start = Point(info.layers, info.unit, info.created_at)
    with snapshots.slots.taken(caller.owner), snapshots.pinned(*start.layers):
        async with _other_point(snapshots, caller, info, to) as end:
            one, other = ([snapshots.host.layers.check(layer) for layer in point.layers] for point in (start, end))
            # Only for the same upper: files of two uppers that were written at the same time may look alike in all but
            # content.
            settled = min(start.at, end.at) if start.unit is not None and start.unit == end.unit else None
            try:
                return await snapshots.slots.stoppable(
                    lambda check: changes(one, other, settled=settled, max_changes=most, check=check)
                )
            except OSError as error:
                hint = "`skerry image verify` finds damaged layers"
                raise SkerryError(f"the files can't be compared: {error.strerror}", hint=hint) from error


@asynccontextmanager
async def _other_point(
    snapshots: SnapshotService, caller: Caller, info: SnapshotInfo, to: str | None
) -> AsyncIterator[Point]:
    if to is None:
        async with _current_state(snapshots, _own_sandbox(snapshots, caller, info)) as point:
            yield point
        return
    found = snapshots.table.find(caller, to) if NAME.fullmatch(to) else None
    if found is not None:
        with snapshots.pinned(*found.layers):
            yield Point(found.layers, found.unit, found.created_at)
        return
    sandbox = snapshots.sandbox(caller, to) if NAME.fullmatch(to) else None
    if sandbox is not None:
        async with _current_state(snapshots, sandbox) as point:
            yield point
        return
    try:
        image = snapshots.image(caller, to)[0]
    except (NotFound, InvalidRequest):
        raise NotFound(f"to: snapshot, sandbox or image {to[:80]!r} not found") from None
    with snapshots.pinned(*image.layers):
        yield Point(image.layers, None, image.created_at)


def _own_sandbox(snapshots: SnapshotService, caller: Caller, info: SnapshotInfo) -> Sandbox:
    sandbox = snapshots.sandbox(caller, info.sandbox) if info.sandbox is not None else None
    if sandbox is None:
        raise Conflict(
            f"snapshot {info.name or info.id} can't be compared: its sandbox was deleted",
            hint="name another snapshot, a sandbox or an image",
        )
    return sandbox


@asynccontextmanager
async def _current_state(snapshots: SnapshotService, sandbox: Sandbox) -> AsyncIterator[Point]:
    """Yield the current state of a sandbox: a temporary snapshot without a record."""
    async with snapshots.passing(sandbox) as (captured, record):
        yield Point((captured.layer, *record.spec.layers), record.upper, captured.at)
