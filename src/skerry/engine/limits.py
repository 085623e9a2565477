"""Other limits for a sandbox that is there, running, paused or stopped.

What holds is never more than what the row says: what shrinks does so before the row is written, what grows does so
after. So a server that finds a change half made has only to let things grow up to the row, which no use can stand
against; and its caller was not told yet which of the two it would be."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from msgspec.structs import replace

from skerry.engine.faults import passed
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.plan import lesser
from skerry.engine.rows import Row
from skerry.errors import Conflict, SkerryError
from skerry.runtimes import Runtime
from skerry.types import Isolation, Limits

log = logging.getLogger("skerry.engine")


async def change(host: Host, live: Live, wanted: Limits) -> None:
    """All of them, or none: after a refusal it is as it was. The keeper is told by the caller, who holds the lock."""
    before = live.row
    was, least = before.spec.limits, lesser(before.spec.limits, wanted)
    _note(host, live, was, resizing=True)
    try:
        await hold(host, live, least, disk=least.disk != was.disk)
        passed("limits.shrink")
        _note(host, live, wanted, resizing=True)
        passed("limits.row")
        await hold(host, live, wanted, disk=wanted.disk != least.disk)
    except BaseException:
        await _put_back(host, live, before, disk=was.disk != wanted.disk)
        raise
    _note(host, live, wanted, resizing=False)
    passed("limits.grow")


async def hold(host: Host, live: Live, limits: Limits, *, disk: bool = True) -> None:
    """Hold a sandbox to these from now on: Conflict if it uses more already, QuotaExceeded if the host has no room.
    Neither its row nor its keeper is told. The disk is first, since it alone can be refused when it grows."""
    row = live.row
    if disk:
        await asyncio.to_thread(host.driver.resize, row.unit, limits.disk_bytes)
    if live.runtime is not None and row.init is not None:
        await asyncio.to_thread(live.runtime.set_limits, row.id, row.init, limits)


async def repair(host: Host, live: Live) -> None:
    """What the death of a server left smaller than the row says. Where that can't be now, it stays smaller."""
    row = live.row
    if not row.spec.resizing:
        return
    try:
        with contextlib.suppress(Conflict):  # it uses all that it may have
            await asyncio.to_thread(host.driver.resize, row.unit, row.spec.limits.disk_bytes)
        await hold(host, live, row.spec.limits, disk=False)
        _note(host, live, row.spec.limits, resizing=False)
    except (SkerryError, OSError) as error:
        log.warning("limits not repaired", extra={"sandbox": row.id, "error": str(error)})


def isolation(runtime: Runtime, row: Row, limits: Limits) -> Isolation | None:
    """What isolates it once it is held to these."""
    if row.isolation is None:
        return None
    return replace(row.isolation, details={**row.isolation.details, "open_files": runtime.open_files(limits)})


def _note(host: Host, live: Live, limits: Limits, *, resizing: bool) -> None:
    row = live.row
    told = isolation(live.runtime, row, limits) if live.runtime is not None else row.isolation
    live.row = host.rows.update(row, spec=replace(row.spec, limits=limits, resizing=resizing), isolation=told)


async def _put_back(host: Host, live: Live, before: Row, *, disk: bool) -> None:
    """The row first, as always when something is about to grow; what has grown already is cut by `hold`."""
    try:
        _note(host, live, before.spec.limits, resizing=True)
        await hold(host, live, before.spec.limits, disk=disk)
        _note(host, live, before.spec.limits, resizing=False)
    except (SkerryError, OSError) as error:
        log.error("limits not put back", extra={"sandbox": before.id, "error": str(error)})
