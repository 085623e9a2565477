"""What a starting server does first: adopt what lives, finish or undo what is half done, sweep what nobody knows.

The host is listed, not only the database: a resource named by an id that no living row accounts for goes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from msgspec.structs import replace

from skerry.engine import furnishing, lifecycle, limits
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.network import WORKER
from skerry.engine.rows import HALF_ENDED
from skerry.errors import SkerryError
from skerry.keeper import Keeper
from skerry.runtimes import ranges

log = logging.getLogger("skerry.engine")
HELLO_LIMIT_S = 5.0
AT_ONCE = 16  # silent keepers must not make a start last for minutes


async def recover(host: Host) -> dict[str, Live]:
    """Every sandbox that the database knows, after repair."""
    lives = [Live(row) for row in host.rows.all()]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(live: Live) -> None:
        async with room:
            await _repaired(host, live)

    await asyncio.gather(*map(one, lives))
    known = {live.row.id: live for live in lives if not live.deleted}
    await _sweep(host, known)
    return known


async def _repaired(host: Host, live: Live) -> None:
    """One that can't be repaired must not keep the others from living: the reaper tries again."""
    try:
        await _repair(host, live)
    except (SkerryError, OSError) as error:
        log.error("not repaired", extra={"sandbox": live.row.id, "error": str(error)})
        if live.row.state not in HALF_ENDED:
            await live.detach()
            live.row = host.rows.update(live.row, state="failing", reason=f"it could not be repaired: {error}")


async def _repair(host: Host, live: Live) -> None:
    if live.row.state in ("creating", "ready") or live.row.state in HALF_ENDED:
        await lifecycle.finish(host, live)
    elif live.row.state in ("running", "paused"):
        why_not = await _adopt(host, live)
        if why_not is not None:
            await _bury(host, live, why_not)
    if not live.deleted:
        await limits.repair(host, live)


async def _adopt(host: Host, live: Live) -> str | None:
    """Take up a sandbox that lived on, or say why it can't be."""
    row = live.row
    runtime = host.clearer(row)
    if row.init is None or not runtime.alive(row.init):
        return "it ended while no server was running, or the host restarted"
    keeper = host.keeper(runtime, row.id)
    try:
        if row.state == "paused":  # a frozen keeper does not answer; and a server may have died before it froze
            await asyncio.to_thread(runtime.freeze, row.id)
            lifecycle.attach(host, live, runtime, keeper, row.init)
            await _door(host, live)
            live.work.left_behind = True
            return None
        await asyncio.to_thread(runtime.thaw, row.id)  # a server may have died while it stood still for a snapshot
        async with asyncio.timeout(HELLO_LIMIT_S):
            await keeper.hello()
            processes = await keeper.processes()
        lifecycle.attach(host, live, runtime, keeper, row.init)
        await _refurnished(host, live, keeper)
        await _door(host, live)
        for process in processes:
            live.tries.whose.note(process.cgroup, process.id, process.started_at)
        live.work.left_behind = any(process.children for process in processes)
        live.work.found(process.id for process in processes if process.state == "running")
        host.watch(live)
    except (SkerryError, TimeoutError, OSError) as error:
        log.warning("not adopted", extra={"sandbox": row.id, "error": str(error)})
        with contextlib.suppress(SkerryError):  # one of another build can still be asked to end well
            lifecycle.attach(host, live, runtime, keeper, row.init)
        told = error.message if isinstance(error, SkerryError) else str(error)
        return f"a starting server could not take it up: {told or 'its keeper does not answer'}"
    return None


async def _refurnished(host: Host, live: Live, keeper: Keeper) -> None:
    """A server that died in the middle of an update may have told the keeper the half of it. The file was first."""
    row = live.row
    forms = host.secrets.forms(row.id)
    if forms is not None and forms != row.spec.secrets:
        live.row = row = host.rows.update(row, spec=replace(row.spec, secrets=forms))
    async with asyncio.timeout(HELLO_LIMIT_S):
        await lifecycle.configure(host, keeper, row, row.ends_at)
        if row.spec.secrets or row.spec.network.presets:
            await furnishing.put(keeper, row, await furnishing.begin(host.secrets, row), renew=True)


async def _door(host: Host, live: Live) -> None:
    """On a fresh port: the inside may sit on the old one. Without a door it lives on, and nothing gets out."""
    try:
        with live.first_process() as pidfd:
            await host.doors.open(live, pidfd)
    except SkerryError as error:
        log.error("no door", extra={"sandbox": live.row.id, "error": error.message})


async def _bury(host: Host, live: Live, reason: str) -> None:
    row = live.row
    over = row.ends_at is not None and time.time() >= row.ends_at
    if over and row.name is None:
        await lifecycle.delete(host, live)
    else:
        await lifecycle.stop(host, live, "stopped", "its life was over" if over else reason)


async def _sweep(host: Host, lives: dict[str, Live]) -> None:
    kept = {sandbox for sandbox, live in lives.items() if live.keeper is not None or live.row.state in HALF_ENDED}
    runtime = host.runtime(None)
    owned = {live.row.unit for live in lives.values()}
    for sandbox in runtime.ids() - kept:
        log.warning("cleared leftovers", extra={"sandbox": sandbox})
        try:
            await runtime.clear(sandbox)
        except (SkerryError, OSError) as error:
            log.error("not cleared", extra={"sandbox": sandbox, "error": str(error)})
            kept.add(sandbox)  # its uid range must not become another's while something of it lives
            owned.add(sandbox)
    for sandbox in await asyncio.to_thread(host.driver.units) - owned:
        log.warning("removed a unit that nobody owns", extra={"sandbox": sandbox})
        try:
            await asyncio.to_thread(host.driver.delete, sandbox)
        except (SkerryError, OSError) as error:
            log.error("not removed", extra={"sandbox": sandbox, "error": str(error)})
    host.secrets.sweep(lives)
    host.doors.sweep(set(lives))
    ranges.sweep(host.instance, kept | {WORKER})
