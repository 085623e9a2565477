"""The engine: the one place through which every effect on a sandbox passes."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from skerry._version import __version__
from skerry.config import Settings
from skerry.engine import egress, furnishing, lifecycle, limits, place, plan, recovery
from skerry.engine.archives import Archives
from skerry.engine.attempts import Attempts
from skerry.engine.code import Code
from skerry.engine.creation import Creation
from skerry.engine.database import Database
from skerry.engine.decisions import Decisions
from skerry.engine.events import Events
from skerry.engine.files import Files
from skerry.engine.forks import Forks
from skerry.engine.images import Images
from skerry.engine.languages import Languages
from skerry.engine.live import IDLE, Live
from skerry.engine.network import Doors
from skerry.engine.policies import Policies
from skerry.engine.pool import Pool
from skerry.engine.ports import Ports
from skerry.engine.preview_listener import PreviewListener
from skerry.engine.previews import Previews
from skerry.engine.processes import Processes
from skerry.engine.reach import Reach
from skerry.engine.reaper import Ends, Reaper
from skerry.engine.remotes import Remotes
from skerry.engine.review_table import ReviewTable
from skerry.engine.reviews import Reviews
from skerry.engine.rollback import Rollbacks
from skerry.engine.rows import HALF_ENDED, Rows
from skerry.engine.sessions import Sessions
from skerry.engine.snapshot_table import SnapshotTable
from skerry.engine.snapshots import Grip, Snapshots
from skerry.engine.terminals import Terminals
from skerry.engine.tokens import Tokens
from skerry.engine.watcher import Watcher
from skerry.errors import Conflict, HostUnsupported, NotFound, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper, KeeperSilent, build_id
from skerry.keeper.client import TIME_LIMIT
from skerry.storage import ImageStore, LayerStore, pick_driver
from skerry.types import Caller, CreateRequest, SandboxInfo, UpdateRequest, Usage, parse_size, parse_span

log = logging.getLogger("skerry.engine")
T = TypeVar("T")


class Engine:
    """Owns a state directory while it is open. Sandboxes outlive it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._locks: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: set[asyncio.Task[Any]] = set()
        self._lives: dict[str, Live] = {}
        self._starts = asyncio.Semaphore((os.cpu_count() or 1) + 2)
        self._closing = False
        self._maxima = plan.host_maxima()
        self._opened_at = time.time()
        self._reach = Reach(self._awake)
        self.doors = Doors(settings, self._lives, self._reach, self._spawn)
        self.ports = Ports(self._use, self._find, self._reach)
        self.previews = Previews(PreviewListener(settings), self._find, self._lives, self._reach, self._spawn)
        self.pool = Pool(settings, self._spawn, self._uncut, self._turn, self._is_starting, self._count)
        self._creation = Creation(settings, self._lives, self.pool, self._turn, self._forget_if_deleted, self._spawn)
        hands = (self._find, self._held, self._uncut, self._spawn, self._turn, self._creation.make_room)
        self.snapshots = Snapshots(Grip(*hands, self._forget_if_deleted, self._lives))
        self.archives = Archives(self.snapshots)
        self.reviews = Reviews(settings, self.snapshots.grip, self._use, self._fail)
        self.remotes = Remotes(self.reviews)
        self.forks, self.rollbacks = Forks(self.snapshots, self.reviews), Rollbacks(self.snapshots, self.reviews)
        self.processes = Processes(self._find, self._use, self._fail, self._spawn, self._before_command)
        self.sessions = Sessions(self._use, self.processes, self._spawn)
        self.languages = Languages(settings["languages"], self._use)
        inside = (self._find, self._use, self._fail, self._spawn, self._before_command)
        self.code = Code(settings, *inside, self.languages, self.processes, self.sessions)
        self.contexts, self.terminals = self.code.contexts, Terminals(self.processes)
        self.network = Policies(settings, self._find, self._held, self._uncut, lambda sandbox: self._lives.get(sandbox))

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lock the state directory, find the host's parts, repair what an earlier server left."""
        if os.geteuid() != 0:
            raise HostUnsupported("the server must run as root", hint="sudo skerry setup makes it a service")
        egress.check_settings(self.settings)
        state = self.settings.state_dir
        place.make_directories(state)
        self._locks = place.lock(state)
        self.database = Database(state / "state.db")
        self.tokens = Tokens(self.database)
        self.events = Events(self.database)
        sizes = {name: parse_size(self.settings[f"storage.{name}"]) for name in ("pool_size", "reserve", "headroom")}
        driver = await asyncio.to_thread(pick_driver, state, self.settings["storage.driver"], **sizes)
        await asyncio.to_thread(driver.prepare)
        layers = LayerStore(state / "layers", driver)
        self.images = Images(ImageStore(state / "images", layers), layers, state / "cache", self.snapshots.in_use)
        self.images.stall_s, self.images.reserve = parse_span(self.settings["registry.timeout"]), sizes["reserve"]
        rows = Rows(self.database, self.events)
        self._watcher = Watcher(self.events, self._spawn, self._fail)
        self.doors.begin(Attempts(self.database))
        self._reach.begin(self.doors.namespaces)
        self.host = lifecycle.Host(
            self.settings, rows, layers, driver, self._first_process_ended, self._watch, self.doors
        )
        self.snapshots.begin(self.host, SnapshotTable(self.database), self.images)
        self.snapshots.ready = self.pool.layers
        self.snapshots.vacate = self.images.vacate = self.pool.vacate
        self.network.begin(rows, self.doors, self._configure)
        self.doors.secrets, self.doors.ask = self.host.secrets.brokered, self.network.ask
        self.doors.shared, self.doors.used = self.previews.shared, self.previews.used
        self._lives.update(await recovery.recover(self.host))
        self.decisions = Decisions(self.reviews, self.database, self._use, self._uncut)
        await self.reviews.open(ReviewTable(self.database), self.doors.contacted)
        await self.snapshots.sweep()
        await self.images.recover()
        await self.archives.recover()
        await self.previews.begin(self.database, self.doors.tell)
        self.doors.renew = self.previews.greet
        self.previews.greet()
        self._creation.begin(self.host, self.snapshots, self.network.peers)
        self.pool.begin(self.host, self.images.get, self.snapshots.gone)
        self.code.begin(self.database, self._lives)
        ends = Ends(self._end_life, self._end_idle, self._finish, self._fail)
        self._spawn(Reaper(self._lives, ends, self._spawn).watch())

    async def close(self) -> None:
        """Let go of everything; every sandbox lives on."""
        self._closing = True
        while pending := self._tasks | self._changes:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(pending)
        await self.reviews.close()
        await self.pool.close()
        await self.images.close()
        for live in self._lives.values():
            await live.detach()
        with contextlib.suppress(OSError):  # busy while sandboxes live; adopted by the next server
            await asyncio.to_thread(self.host.driver.close)
        await self.doors.close()
        self.host.close()
        self.previews.close()
        self.events.close()
        self.database.close()
        for fd in self._locks:
            os.close(fd)

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    async def create(self, caller: Caller, request: CreateRequest, key: str | None = None) -> SandboxInfo:
        return await self._uncut(self._creation.create(caller, request, key))

    def get(self, caller: Caller, ref: str) -> SandboxInfo:
        return self._find(caller, ref).row.info()

    def list(self, caller: Caller, labels: dict[str, str], state: str | None) -> builtins.list[SandboxInfo]:
        """The caller's own; an admin sees everyone's."""
        found = []
        for live in self._lives.values():
            info = live.row.info()
            if live.row.state == "deleting" or not live.row.is_seen_by(caller):
                continue
            if labels.items() <= info.labels.items() and state in (None, info.state):
                found.append(info)
        return sorted(found, key=lambda info: info.created_at)

    async def update(self, caller: Caller, ref: str, request: UpdateRequest) -> SandboxInfo:
        return await self._uncut(self._update(self._find(caller, ref), request))

    async def _update(self, live: Live, request: UpdateRequest) -> SandboxInfo:
        async with self._held(live):
            if live.row.state in HALF_ENDED:
                await lifecycle.finish(self.host, live)
            spec = plan.changed(live.row.spec, request, self.settings, self._maxima, live.row.name)
            if spec.limits != live.row.spec.limits:
                await limits.change(self.host, live, spec.limits)
            row = live.row
            ends_at = lifecycle.end_of_life(spec, row.started_at) if row.started_at is not None else None
            if request.secrets is not None:
                await asyncio.to_thread(self.host.secrets.put, row.id, request.secrets)
            live.row = self.host.rows.update(row, spec=spec, ends_at=ends_at)
            if request.lifecycle is not None:
                self.host.secrets.renew(live.row)
            try:
                if row.state == "running":
                    await self._configure(live)
            finally:  # whatever goes wrong inside, a secret that was taken away is not given any more
                if request.secrets is not None or request.lifecycle is not None:
                    await self.doors.changed(live)
        return live.row.info()

    async def delete(self, caller: Caller, ref: str) -> None:
        await self._delete(self._find(caller, ref))

    async def _delete(self, live: Live, still: Callable[[], bool] = lambda: True) -> None:
        async def whole() -> None:
            async with live.lock:
                if not live.deleted and still():
                    await lifecycle.delete(self.host, live)
                    await self._forget_if_deleted(live)

        await self._uncut(whole())

    async def stop(self, caller: Caller, ref: str) -> SandboxInfo:
        live = self._find(caller, ref)
        await self._stop(live, "asked for")
        return self.get(caller, live.row.id)

    async def _stop(
        self,
        live: Live,
        reason: str,
        state: Literal["stopped", "failed"] = "stopped",
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        async def whole() -> None:
            if state == "stopped":
                await self.reviews.before_end(live)
            async with live.lock:
                if live.row.state in ("running", "paused") and still():
                    if live.row.state == "paused" and live.runtime is not None:
                        with contextlib.suppress(SkerryError):  # what can't be thawed can still be killed
                            await asyncio.to_thread(live.runtime.thaw, live.row.id)
                    await lifecycle.stop(self.host, live, state, reason)
                    log.info("stopped", extra={"sandbox": live.row.id, "reason": reason})

        await self._uncut(whole())

    async def pause(self, caller: Caller, ref: str) -> SandboxInfo:
        live = self._find(caller, ref)
        await self._pause(live, "asked for")
        return live.row.info()

    async def _pause(self, live: Live, reason: str, still: Callable[[], bool] = lambda: True) -> None:
        async def whole() -> None:
            await self.reviews.before_end(live)
            async with self._held(live):
                if live.row.state == "running" and live.runtime is not None and still():
                    await lifecycle.freeze(self.host, live, live.runtime, reason)
                elif live.row.state == "paused" and reason != IDLE:
                    live.row = self.host.rows.update(live.row, reason=reason)
                elif live.row.state not in ("running", "paused"):
                    raise Conflict(f"{live.row.id} is {live.row.info().state}: only a running sandbox can be paused")

        await self._uncut(whole())

    async def resume(self, caller: Caller, ref: str) -> SandboxInfo:
        live = self._find(caller, ref)
        await self._awake(live, asked=True)
        return live.row.info()

    async def usage(self, caller: Caller, ref: str) -> Usage:
        live = self._find(caller, ref)
        disk = None
        with contextlib.suppress(NotFound, OSError):  # being made, or being deleted
            disk = await asyncio.to_thread(self.host.driver.usage, live.row.unit)
        used = live.runtime.usage(live.row.id) if live.runtime is not None and live.keeper is not None else Usage()
        return replace(used, disk=disk)

    # -- what runs inside ---------------------------------------------------------------------------------------------

    async def files(self, caller: Caller, ref: str, *, writes: bool = False) -> Files:
        """The sandbox's files; each operation on it is a call of its own."""
        self._find(caller, ref)
        return Files(lambda: self._writing(caller, ref) if writes else self._use(caller, ref))

    # -- the host -----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return {
            "version": __version__, "build": build_id(), "pid": os.getpid(), "started_at": self._opened_at,
            "uptime_s": time.time() - self._opened_at, "state_dir": str(self.settings.state_dir),
            "runtime": self.host.runtime(None).name, "storage": self.host.driver.name, "sandboxes": len(self._lives),
            "network": self.doors.state,
        }  # fmt: skip

    @property
    def empty(self) -> bool:
        """No sandbox takes up this host and no image is being made: a background server may leave."""
        return not self.images.busy and not self._count()

    # -- inner workings -----------------------------------------------------------------------------------------------

    def _find(self, caller: Caller, ref: str) -> Live:
        live = self._lives.get(ref)
        if live is None or live.row.state == "deleting" or not live.row.is_seen_by(caller):
            row = self.host.rows.find(caller, ref)
            live = self._lives.get(row.id) if row is not None else None
        if live is None:
            raise NotFound(f"there is no sandbox {ref!r}", hint="`skerry ls` lists yours", details={"sandbox": ref})
        return live

    @asynccontextmanager
    async def _use(self, caller: Caller, ref: str) -> AsyncIterator[tuple[Live, Keeper]]:
        """A running sandbox for one call: woken if need be, not idle meanwhile, failed if its keeper lies."""
        live = self._find(caller, ref)
        with live.in_use():
            await self._awake(live)
            await live.moving.wait()
            keeper = live.keeper
            if keeper is None:
                raise SandboxUnavailable(f"{live.row.id} has just ended", details={"state": live.row.info().state})
            try:
                yield live, keeper
            except SandboxUnavailable as error:
                await self._fail(live, keeper, error)
                raise

    @asynccontextmanager
    async def _writing(self, caller: Caller, ref: str) -> AsyncIterator[tuple[Live, Keeper]]:
        async with self._use(caller, ref) as (live, keeper), self.reviews.writing(live):
            yield live, keeper

    async def _before_command(self, live: Live) -> None:
        await self.snapshots.before_command(live)
        await self.reviews.before_command(live)

    def _watch(self, live: Live) -> None:
        """It has come to run."""
        self._watcher.watch(live)
        self.reviews.follow(live)

    @asynccontextmanager
    async def _held(self, live: Live) -> AsyncIterator[None]:
        """A sandbox under its lock, if it is still there once the lock is ours."""
        async with live.lock:
            if live.row.state == "deleting":
                raise NotFound(f"there is no sandbox {live.row.id!r}", details={"sandbox": live.row.id})
            yield

    async def _uncut(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that a caller who leaves must not cut in half; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _forget_if_deleted(self, live: Live) -> None:
        if live.deleted:
            del self._lives[live.row.id]
            self.previews.gone(live.row.id)
            self.network.gone(live.row.id)
            self.contexts.gone(live.row.id)
            await self.reviews.gone(live)
            await self.snapshots.gone(live.row)
            self.pool.look()
            log.info("deleted", extra={"sandbox": live.row.id})

    async def _awake(self, live: Live, asked: bool = False) -> None:
        if live.row.state != "running" or live.keeper is None:
            await self._uncut(self._wake(live, asked))

    async def _wake(self, live: Live, asked: bool) -> None:
        async with self._held(live):
            if live.row.state in HALF_ENDED:
                await lifecycle.finish(self.host, live)
            row = live.row
            if row.state == "running":
                return
            if row.state == "failed" and not asked:
                raise SandboxUnavailable(
                    f"{row.id} has failed: {row.reason}",
                    hint=f"its files are kept: `skerry resume {row.name or row.id}` starts it again",
                    details={"state": "failed", "reason": row.reason},
                )
            if not (asked or row.spec.lifecycle.wake):
                raise SandboxUnavailable(
                    f"{row.id} is {row.info().state}",
                    hint=f"skerry resume {row.name or row.id}",
                    details={"state": row.info().state},
                )
            if row.state == "paused" and live.runtime is not None:
                await lifecycle.thaw(self.host, live, live.runtime)
                await self._configure(live)  # what was changed meanwhile
                self.host.watch(live)
            else:
                await self._start(live)

    async def _start(self, live: Live) -> None:
        self._creation.check_room(live.row.owner)
        self.pool.make_room()
        live.starting = True
        try:
            async with self._turn():
                await lifecycle.start(self.host, live)
        finally:
            live.starting = False

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Few start at once, and none once the server closes: the next one removes the rows of such creates."""
        async with self._starts:
            if self._closing:
                raise SandboxUnavailable("the server is stopping", hint="try again in a moment")
            yield

    async def _configure(self, live: Live) -> None:
        """The sandbox's lock is held."""
        if live.keeper is not None:
            try:
                await lifecycle.configure(self.host, live.keeper, live.row, live.row.ends_at)
                furniture = await furnishing.begin(self.host.secrets, live.row)
                await furnishing.put(live.keeper, live.row, furniture, renew=True)
            except SandboxUnavailable as error:
                await lifecycle.stop(self.host, live, "failed", error.message)
                raise

    async def _fail(self, live: Live, keeper: Keeper, error: SandboxUnavailable) -> None:
        """Its keeper lied or fell silent: the sandbox is ended, nothing else is touched."""
        if live.row.state == "ready":
            self.pool.drop(live)
            return
        if live.keeper is not keeper or live.row.state != "running":  # not its fault: somebody ended or paused it
            raise live.cut_off() from error
        if isinstance(error, KeeperSilent) and live.stood_still_within(TIME_LIMIT):  # for a snapshot that took long
            return
        log.warning("failed", extra={"sandbox": live.row.id, "error": error.message})
        await self._stop(live, error.message, "failed", still=lambda: live.keeper is keeper)

    def _first_process_ended(self, live: Live) -> None:
        """From the event loop: a sandbox's first process is gone."""
        if live.row.state in ("running", "paused"):
            self._spawn(self._bury(live))
        elif live.row.state == "ready":
            self.pool.drop(live)

    async def _bury(self, live: Live) -> None:
        if live.life_over:
            await self._end_life(live)
        else:
            keeper = live.keeper
            reason = "its first process ended unexpectedly"
            await self._stop(live, reason, "failed", still=lambda: live.keeper is keeper)

    async def _finish(self, live: Live) -> None:
        async def whole() -> None:
            async with live.lock:
                if not live.deleted:
                    await lifecycle.finish(self.host, live)
                    await self._forget_if_deleted(live)

        await self._uncut(whole())

    async def _end_life(self, live: Live) -> None:
        if live.row.name is None:
            await self._delete(live, still=lambda: live.life_over)
        else:
            await self._stop(live, "its life was over", still=lambda: live.life_over)

    async def _end_idle(self, live: Live) -> None:
        """A call may have come in the meantime: then it is not idle any more."""
        action = live.row.spec.lifecycle.on_idle
        if live.row.state == "paused":
            await self._stop(live, IDLE, still=lambda: live.idle_due)
        elif action == "delete":
            await self._delete(live, still=lambda: live.idle_due)
        elif action == "pause":
            with contextlib.suppress(Conflict, NotFound):
                await self._pause(live, IDLE, still=lambda: live.idle_due)
        else:
            await self._stop(live, IDLE, still=lambda: live.idle_due)

    def _count(self) -> int:
        return sum(live.takes_room for live in self._lives.values())

    def _is_starting(self) -> bool:
        return any(live.starting or live.row.state == "creating" for live in self._lives.values())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())
