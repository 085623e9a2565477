"""What a starting server does first: adopt what lives, finish or undo what is half done, sweep what nobody knows.

The host is listed, not only the database: a resource named by an id that no living row accounts for goes."""

from __future__ import annotations

import asyncio
import logging
import time

from skerry.engine import lifecycle
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.errors import SkerryError
from skerry.runtimes import ranges

log = logging.getLogger("skerry.engine")
HELLO_LIMIT_S = 5.0


async def recover(host: Host) -> dict[str, Live]:
    """Every sandbox that the database knows, after repair."""
    lives: dict[str, Live] = {}
    for row in host.rows.all():
        live = Live(row)
        try:
            kept = await _repair(host, live)
        except (SkerryError, OSError) as error:  # one that can't be repaired must not keep the others from living
            log.error("not repaired", extra={"sandbox": row.id, "error": str(error)})
            live.row = host.rows.update(live.row, state="failed", reason=f"it could not be repaired: {error}")
            kept = True
        if kept:
            lives[row.id] = live
    await _sweep(host, lives)
    return lives


async def _repair(host: Host, live: Live) -> bool:
    row = live.row
    if row.state in ("creating", "deleting"):
        await lifecycle.delete(host, live)
        return False
    if row.state == "stopping":
        await lifecycle.stop(host, live, reason=row.reason)
    elif row.state in ("running", "paused") and not await _adopt(host, live):
        await _bury(host, live)
        return host.rows.by_id(row.id) is not None
    return True


async def _adopt(host: Host, live: Live) -> bool:
    """Take up a sandbox that lived on. False: it is dead, or its keeper is not ours."""
    row = live.row
    runtime = host.clearer(row)
    if row.init is None or not runtime.alive(row.init):
        return False
    keeper = host.keeper(runtime, row.id)
    if row.state == "paused":  # a frozen keeper does not answer
        lifecycle.attach(host, live, runtime, keeper, row.init)
        return True
    try:
        async with asyncio.timeout(HELLO_LIMIT_S):
            await keeper.hello()
    except (SkerryError, TimeoutError, OSError) as error:
        log.warning("not adopted", extra={"sandbox": row.id, "error": str(error)})
        await keeper.close()
        return False
    lifecycle.attach(host, live, runtime, keeper, row.init)
    return True


async def _bury(host: Host, live: Live) -> None:
    """It ended while no server was watching."""
    row = live.row
    over = row.ends_at is not None and time.time() >= row.ends_at
    if over and row.name is None:
        await lifecycle.delete(host, live)
    else:
        reason = "its life was over" if over else "it ended while no server was running, or the host restarted"
        await lifecycle.stop(host, live, reason=reason)


async def _sweep(host: Host, lives: dict[str, Live]) -> None:
    running = {sandbox for sandbox, live in lives.items() if live.keeper is not None}
    runtime = host.runtime(None)
    for sandbox in runtime.ids() - running:
        log.warning("cleared leftovers", extra={"sandbox": sandbox})
        await runtime.clear(sandbox)
    for sandbox in await asyncio.to_thread(host.driver.units) - lives.keys():
        log.warning("removed a unit that nobody owns", extra={"sandbox": sandbox})
        await asyncio.to_thread(host.driver.delete, sandbox)
    ranges.sweep(host.instance, running)
