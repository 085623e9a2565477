"""The steps of a sandbox's life: create, start, stop, delete. Each step is named in `faults`; after a kill at any of
them the next server finishes or undoes what is half done (`recovery`). Steps are idempotent wherever recovery repeats
them. The caller holds the sandbox's lock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from skerry.config import Settings, instance_of, run_dir
from skerry.engine.faults import passed
from skerry.engine.live import Live
from skerry.engine.rows import Row, Rows
from skerry.errors import HostUnsupported, SkerryError
from skerry.keeper import Keeper, binary, build_id
from skerry.runtimes import Init, Runtime, Wall, pick_runtime, ranges
from skerry.storage import Driver, LayerStore
from skerry.types import CreateRequest, parse_span

STOP_GRACE_S = 2.0
# The server ends a life first, and orderly; the keeper's own end is for when there is no server.
LIFE_GRACE_S = 5.0


@dataclass
class Host:
    """What the engine builds with: the parts of this host, found once."""

    settings: Settings
    rows: Rows
    layers: LayerStore
    driver: Driver
    ended: Callable[[Live], None]  # called when a sandbox's first process is gone

    def __post_init__(self) -> None:
        self.instance = instance_of(self.settings.state_dir)
        self.run_dir = run_dir(self.settings.state_dir)
        self._runtimes: dict[str | None, Runtime] = {}

    def runtime(self, wish: str | None) -> Runtime:
        wish = wish or self.settings["runtime"]
        if wish not in self._runtimes:
            self._runtimes[wish] = pick_runtime(self.run_dir, wish)
        return self._runtimes[wish]

    def clearer(self, row: Row) -> Runtime:
        """What can clear a sandbox away: its own runtime, or, where that was uninstalled, the one that is left."""
        try:
            return self.runtime(row.spec.options.runtime)
        except SkerryError:
            return self.runtime(None)

    def wall(self, row: Row, runtime: Runtime, uid_base: int) -> Wall:
        return Wall(
            id=row.id, run_dir=self.run_dir, cgroup_root=runtime.cgroup_root,
            layers=tuple(self.layers.path(digest) for digest in row.spec.layers), unit=self.driver.path(row.id),
            uid_base=uid_base, limits=row.spec.limits, hostname=row.name or row.id, keeper=binary(),
            waive=frozenset(row.spec.options.waive),
        )  # fmt: skip

    def keeper(self, runtime: Runtime, sandbox: str) -> Keeper:
        return Keeper(lambda: runtime.connect(sandbox), build_id())

    def check_disk_limit(self, row: Row) -> None:
        if not self.driver.enforces_limit and "disk_limit" not in row.spec.options.waive:
            raise HostUnsupported(
                f"this host's storage driver ({self.driver.name}) can't hold a sandbox to its disk limit",
                hint="`skerry doctor` tells what is missing; --waive disk_limit goes without",
            )


async def create(host: Host, live: Live, request: CreateRequest, key: str | None) -> None:
    """From nothing to running, or to nothing again."""
    row = live.row
    host.check_disk_limit(row)
    host.runtime(row.spec.options.runtime)
    host.rows.insert(row, request, key)
    passed("create.row")
    try:
        await asyncio.to_thread(host.driver.create, row.id, row.spec.limits.disk_bytes)
        passed("create.unit")
        await start(host, live)
    except BaseException:
        await asyncio.shield(delete(host, live))
        raise


async def start(host: Host, live: Live) -> None:
    """Raise the wall and hand the sandbox its configuration; on failure, as if it had not been tried."""
    row = live.row
    runtime = host.runtime(row.spec.options.runtime)
    base = ranges.take(host.instance, row.id)
    passed("start.range")
    try:
        wall = host.wall(row, runtime, base)
        init = await runtime.start(wall)
        passed("start.wall")
        keeper = host.keeper(runtime, row.id)
        await configure(keeper, row)
        passed("start.keeper")
        now = time.time()
        live.row = host.rows.update(
            row, state="running", reason=None, init=init, uid_base=base, started_at=now,
            ends_at=now + parse_span(row.spec.lifecycle.life) if row.spec.lifecycle.life else None,
            isolation=runtime.isolation(wall),
        )  # fmt: skip
        passed("start.row")
        attach(host, live, runtime, keeper, init)
    except BaseException:
        await asyncio.shield(_undo_start(host, live, runtime, base))
        raise


def attach(host: Host, live: Live, runtime: Runtime, keeper: Keeper, init: Init) -> None:
    live.attach(runtime, keeper, runtime.pidfd(init), lambda: host.ended(live))


async def _undo_start(host: Host, live: Live, runtime: Runtime, base: int) -> None:
    await live.detach()
    await runtime.clear(live.row.id)
    ranges.release(host.instance, live.row.id, base)


async def configure(keeper: Keeper, row: Row) -> None:
    """Tell the keeper what it works for. Sent again whenever one of these changes."""
    spec = row.spec
    life = (row.ends_at - time.time()) if row.ends_at else parse_span(spec.lifecycle.life or 0.001)
    await keeper.configure(
        user=spec.user, cwd=spec.cwd, env={**spec.image_env, **spec.env}, sudo=spec.options.sudo,
        life_s=max(life, 0) + LIFE_GRACE_S if spec.lifecycle.life else None, open_files=spec.limits.open_files or 0,
    )  # fmt: skip


async def stop(host: Host, live: Live, state: str = "stopped", reason: str | None = None) -> None:
    """End every process; keep the files. `state` is what it is afterwards: stopped or failed."""
    live.row = host.rows.update(live.row, state="stopping", reason=reason)
    passed("stop.mark")
    if live.keeper is not None and state == "stopped":
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S * 2):
                await live.keeper.shutdown(STOP_GRACE_S)
    passed("stop.keeper")
    await live.detach()
    await host.clearer(live.row).clear(live.row.id)
    passed("stop.wall")
    _give_back_range(host, live.row)
    passed("stop.range")
    live.row = host.rows.update(live.row, state=state, init=None, uid_base=None)
    passed("stop.row")


async def delete(host: Host, live: Live) -> None:
    """Leave no process, mount, cgroup, directory or uid range behind."""
    live.row = host.rows.update(live.row, state="deleting", name=None)
    passed("delete.mark")
    await live.detach()
    await host.clearer(live.row).clear(live.row.id)
    passed("delete.wall")
    _give_back_range(host, live.row)
    passed("delete.range")
    await asyncio.to_thread(host.driver.delete, live.row.id)
    passed("delete.unit")
    host.rows.remove(live.row)
    passed("delete.row")


def _give_back_range(host: Host, row: Row) -> None:
    """One that a crash left held, with no row to tell of it, is found by the sweep of the next server."""
    if row.uid_base is not None:
        ranges.release(host.instance, row.id, row.uid_base)
