"""The steps of a sandbox's life: create, start, stop, delete. Each step is named in `faults`; after a kill at any of
them the next server finishes or undoes what is half done (`recovery`). Steps are idempotent wherever recovery repeats
them. The caller holds the sandbox's lock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from skerry.config import Settings, instance_of, run_dir
from skerry.engine import furnishing, identity
from skerry.engine.faults import passed
from skerry.engine.live import Live
from skerry.engine.network import Doors
from skerry.engine.rows import NOBODY, Row, Rows, Spec
from skerry.engine.secrets import Secrets
from skerry.errors import HostUnsupported, SkerryError
from skerry.keeper import Keeper, binary, build_id
from skerry.network.messages import RESOLVER
from skerry.runtimes import Init, Runtime, Wall, pick_runtime, ranges
from skerry.storage import Driver, LayerStore, snap_name
from skerry.types import Isolation, SecretValue, Value, parse_size, parse_span

log = logging.getLogger("skerry.engine")
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
    watch: Callable[[Live], None]  # called when a sandbox has come to run
    doors: Doors

    def __post_init__(self) -> None:
        self.instance = instance_of(self.settings.state_dir)
        self.run_dir = run_dir(self.settings.state_dir)
        self.secrets = Secrets(
            self.settings.state_dir / "secrets", (*self.settings["max.network"], *self.settings["network.deny"])
        )
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
            layers=tuple(map(self.layers.check, row.spec.layers)), unit=self.driver.path(row.unit),
            uid_base=uid_base, limits=row.spec.limits, hostname=row.name or row.id, keeper=binary(),
            waive=frozenset(row.spec.options.waive),
        )  # fmt: skip

    def isolation(self, runtime: Runtime, wall: Wall) -> Isolation:
        """The runtime's guarantees, the disk's, which is the storage driver's to give, and the door's."""
        wall_only = runtime.isolation(wall)
        if self.doors.stands(wall.id):
            wall_only = replace(wall_only, guarantees=(*wall_only.guarantees, "egress_policy"))
        if self.driver.enforces_limit:
            return replace(wall_only, guarantees=(*wall_only.guarantees, "disk_limit"))
        return replace(wall_only, waived=(*wall_only.waived, "disk_limit"))

    def close(self) -> None:
        for runtime in self._runtimes.values():
            runtime.close()

    def keeper(self, runtime: Runtime, sandbox: str) -> Keeper:
        kept = parse_size(self.settings["journal.process"])
        return Keeper(lambda: runtime.connect(sandbox), build_id(), kept=kept)

    def journal(self, spec: Spec) -> tuple[int, int]:
        """How much output is kept of a process and of a sandbox: never more than half of its disk."""
        most = spec.limits.disk_bytes // 2
        process, sandbox = (parse_size(self.settings[f"journal.{name}"]) for name in ("process", "sandbox"))
        return min(process, sandbox, most), min(sandbox, most)

    def check_disk_limit(self, row: Row) -> None:
        if not self.driver.enforces_limit and "disk_limit" not in row.spec.options.waive:
            raise HostUnsupported(
                f"this host's storage driver ({self.driver.name}) can't hold a sandbox to its disk limit",
                hint="`skerry doctor` tells what is missing; --waive disk_limit goes without",
            )


def enter(host: Host, rows: Sequence[Row], request: Value, key: str | None) -> None:
    """The rows of new sandboxes, unless this host can't build them."""
    for row in rows:
        host.check_disk_limit(row)
        host.runtime(row.spec.options.runtime)
    host.rows.insert(rows, request, key)
    passed("create.row")


async def create(host: Host, live: Live, secrets: Sequence[SecretValue] = (), origin: str | None = None) -> None:
    """From a row to running, or to nothing again. `origin`: the snapshot's layer that its upper begins as."""
    try:
        if secrets:
            await asyncio.to_thread(host.secrets.put, live.row.id, secrets)
        await make_unit(host, live.row, origin)
        passed("create.unit")
        await start(host, live)
    except BaseException:
        try:
            await delete(host, live)
        except Exception:  # what was wrong first is told; the reaper takes the delete up again
            log.exception("not undone", extra={"sandbox": live.row.id})
        raise


async def make_unit(host: Host, row: Row, origin: str | None = None) -> None:
    """Empty, or a copy of the snapshot whose layer `origin` is."""
    name = snap_name(origin) if origin is not None else None
    await asyncio.to_thread(host.driver.create, row.unit, row.spec.limits.disk_bytes, name)


async def start(host: Host, live: Live, state: Literal["running", "creating"] = "running") -> None:
    """Raise the wall and hand the sandbox its configuration; on failure, as if it had not been tried. `state` is what
    its row says then: one that has to wait for others is still being created."""
    row = live.row
    runtime = host.runtime(row.spec.options.runtime)
    base = ranges.take(host.instance, row.id)
    passed("start.range")
    furniture = asyncio.ensure_future(furnishing.begin(host.secrets, row, anew=True))  # while the wall is raised
    try:
        wall = host.wall(row, runtime, base)
        init = await runtime.start(wall)
        passed("start.wall")
        now = time.time()
        ends_at = end_of_life(row.spec, now)
        keeper = host.keeper(runtime, row.id)
        async with _door(host, live, runtime, init):
            made = await furniture
            await configure(host, keeper, row, ends_at)
            await furnishing.put(keeper, row, made, renew=False)
            await identity.write(keeper, row.spec.options)
        passed("start.keeper")
        attach(host, live, runtime, keeper, init)  # before the row: a PID 1 that is gone already is no running sandbox
        live.row = host.rows.update(
            row, state=state if row.owner != NOBODY else "ready", reason=None, init=init, uid_base=base, started_at=now,
            ends_at=ends_at, isolation=host.isolation(runtime, wall),
        )  # fmt: skip
        if state != "creating":
            host.watch(live)
        passed("start.row")
    except BaseException:
        furniture.cancel()
        await _undo_start(host, live, runtime, base)
        raise


@contextlib.asynccontextmanager
async def _door(host: Host, live: Live, runtime: Runtime, init: Init) -> AsyncIterator[None]:
    """Made while the keeper is being told: neither needs the other, and no command can run before both are done."""
    pidfd = runtime.pidfd(init)
    making = asyncio.get_running_loop().create_task(host.doors.open(live, pidfd))
    try:
        yield
        await making
        passed("start.door")
    finally:
        making.cancel()
        await asyncio.wait((making,))
        os.close(pidfd)


def attach(host: Host, live: Live, runtime: Runtime, keeper: Keeper, init: Init) -> None:
    live.attach(runtime, keeper, runtime.pidfd(init), lambda: host.ended(live))


async def _undo_start(host: Host, live: Live, runtime: Runtime, base: int) -> None:
    try:
        host.doors.shut(live.row.id)
        await live.detach()
        await runtime.clear(live.row.id)
        ranges.release(host.instance, live.row.id, base)
    except Exception as error:  # the range stays held while anything of it may live; the reaper goes on from here
        log.exception("not undone", extra={"sandbox": live.row.id})
        reason = f"a start could not be undone: {error}"
        live.row = host.rows.update(live.row, state="stopping", reason=reason, uid_base=base)


def end_of_life(spec: Spec, started_at: float) -> float | None:
    return started_at + parse_span(spec.lifecycle.life) if spec.lifecycle.life is not None else None


async def configure(host: Host, keeper: Keeper, row: Row, ends_at: float | None) -> None:
    """Tell the keeper what it works for. Sent again whenever one of these changes."""
    life = max(ends_at - time.time(), 0) + LIFE_GRACE_S if ends_at is not None else None
    await keeper.configure(**configuration(host, row), life_s=life)


def configuration(host: Host, row: Row) -> dict[str, Any]:
    """All of it but the end of its life."""
    spec = row.spec
    return {
        "user": spec.user, "cwd": spec.cwd, "env": furnishing.environment(host.secrets, row),
        "sudo": spec.options.sudo, "open_files": spec.limits.open_files or 0, "pids": spec.limits.pids,
        "journal": host.journal(spec), "resolver": RESOLVER,
    }  # fmt: skip


async def stop(
    host: Host, live: Live, state: Literal["stopped", "failed"], reason: str | None, *, grace: bool = True
) -> None:
    """End every process; keep the files. `state` is what it is afterwards; without `grace`, no process is asked."""
    live.row = host.rows.update(live.row, state="stopping" if state == "stopped" else "failing", reason=reason)
    live.ended_because = reason
    passed("stop.mark")
    if live.keeper is not None and state == "stopped" and grace:
        await _shut_down(live, live.keeper)
    passed("stop.keeper")
    await live.detach()
    host.doors.shut(live.row.id)
    await host.clearer(live.row).clear(live.row.id)
    passed("stop.wall")
    _give_back_range(host, live.row)
    passed("stop.range")
    if live.row.name is not None:
        await _write_out(host, live.row)
    passed("stop.sync")
    live.row = host.rows.update(live.row, state=state, init=None, uid_base=None)
    passed("stop.row")


async def freeze(host: Host, live: Live, runtime: Runtime, reason: str) -> None:
    """The row first: a server that dies in between must not take a frozen keeper for a silent one."""
    live.row = host.rows.update(live.row, state="paused", reason=reason)
    passed("pause.row")
    try:
        await asyncio.to_thread(runtime.freeze, live.row.id)
        passed("pause.freeze")
        live.touch()
    except BaseException:
        with contextlib.suppress(SkerryError):
            await asyncio.to_thread(runtime.thaw, live.row.id)
        live.row = host.rows.update(live.row, state="running", reason=None)
        raise


async def thaw(host: Host, live: Live, runtime: Runtime) -> None:
    await asyncio.to_thread(runtime.thaw, live.row.id)
    passed("resume.thaw")
    live.row = host.rows.update(live.row, state="running", reason=None)
    live.touch()
    passed("resume.row")


async def _write_out(host: Host, row: Row) -> None:
    """What is said to be stopped, and has a name, is there after a power cut. A disk that fails is no reason not to
    stop."""
    try:
        await asyncio.to_thread(host.driver.sync, row.unit)
    except (SkerryError, OSError) as error:
        log.error("not written out", extra={"sandbox": row.id, "error": str(error)})


async def _shut_down(live: Live, keeper: Keeper) -> None:
    """The keeper answers at once and then gives its processes their grace: that has to be waited for."""
    with contextlib.suppress(SkerryError, TimeoutError):
        async with asyncio.timeout(STOP_GRACE_S * 2):
            await keeper.shutdown(STOP_GRACE_S)
            await live.first_process_ended()


async def delete(host: Host, live: Live) -> None:
    """Leave no process, mount, cgroup, directory or uid range behind."""
    live.row = host.rows.update(live.row, state="deleting", name=None)
    live.ended_because = "deleted"
    passed("delete.mark")
    await live.detach()
    host.doors.shut(live.row.id)
    await host.clearer(live.row).clear(live.row.id)
    passed("delete.wall")
    _give_back_range(host, live.row)
    passed("delete.range")
    await asyncio.to_thread(host.driver.delete, live.row.unit)
    passed("delete.unit")
    host.secrets.remove(live.row.id)
    host.doors.forget(live.row.id)
    passed("delete.network")
    host.rows.remove(live.row)
    live.deleted = True
    passed("delete.row")


async def finish(host: Host, live: Live) -> None:
    """Take up again what failed half-way, or what the death of a server cut off."""
    if live.row.state in ("creating", "ready", "deleting"):
        await delete(host, live)
    elif live.row.state == "stopping":
        await stop(host, live, "stopped", live.row.reason)
    elif live.row.state == "failing":
        await stop(host, live, "failed", live.row.reason)


def _give_back_range(host: Host, row: Row) -> None:
    """One that a crash left held, with no row to tell of it, is found by the sweep of the next server."""
    if row.uid_base is not None:
        ranges.release(host.instance, row.id, row.uid_base)
