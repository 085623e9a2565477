"""Recovery at start-up: finish or undo interrupted transitions, and remove leftovers. Running sandboxes are adopted
afterwards, while the server already answers (`adoption`).

The host is listed, not only the database. Resources that belong to no record are removed if this database created
them; otherwise they are left running, or go into quarantine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from skerry.engine.network.gateway import WORKER
from skerry.engine.sandboxes import limits
from skerry.engine.sandboxes.record import ENDING_STATES
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.transitions import Transitions
from skerry.errors import SkerryError
from skerry.runtimes import ranges

log = logging.getLogger("skerry.engine")
MAX_PARALLEL = 16


async def recover(transitions: Transitions) -> list[Sandbox]:
    """Return every sandbox of the database after repair. Running and paused sandboxes are not adopted yet."""
    sandboxes = [Sandbox(record) for record in transitions.table.all()]
    room = asyncio.Semaphore(MAX_PARALLEL)

    async def one(sandbox: Sandbox) -> None:
        async with room:
            await repair_safely(transitions, sandbox, _finish(transitions, sandbox))

    await asyncio.gather(*(one(s) for s in sandboxes if s.record.state not in ("running", "paused")))
    known = {sandbox.record.id: sandbox for sandbox in sandboxes if not sandbox.deleted}
    await _sweep(transitions, known)
    return list(known.values())


async def repair_safely(transitions: Transitions, sandbox: Sandbox, work: Coroutine[Any, Any, None]) -> None:
    """One that can't be repaired must not keep the others from living: the reaper tries again."""
    try:
        await work
        if not sandbox.deleted:
            await limits.repair(transitions.host, transitions.table, sandbox)
    except (SkerryError, OSError) as error:
        log.error("failed to repair a sandbox", extra={"sandbox": sandbox.record.id, "error": str(error)})
        if sandbox.record.state not in ENDING_STATES:
            await sandbox.detach()
            sandbox.record = transitions.table.update(
                sandbox.record, state="failing", reason=f"it could not be repaired: {error}"
            )


async def _finish(transitions: Transitions, sandbox: Sandbox) -> None:
    if sandbox.record.state in ("creating", "ready") or sandbox.record.state in ENDING_STATES:
        await transitions.finish(sandbox)


async def _sweep(transitions: Transitions, sandboxes: dict[str, Sandbox]) -> None:
    kept = {
        sandbox_id
        for sandbox_id, sandbox in sandboxes.items()
        if sandbox.record.state in ("running", "paused") or sandbox.record.state in ENDING_STATES
    }
    runtime, quarantine = transitions.host.runtime(None), transitions.quarantine
    owned = {sandbox.record.upper for sandbox in sandboxes.values()}
    for sandbox_id in runtime.ids() - sandboxes.keys():
        if runtime.has_processes(sandbox_id):  # never ended because its record was lost
            quarantine.hold_sandbox(sandbox_id)
            kept.add(sandbox_id)
            owned.add(sandbox_id)
    for sandbox_id in runtime.ids() - kept:
        log.warning("removed leftover containers", extra={"sandbox": sandbox_id})
        try:
            await runtime.clear(sandbox_id)
        except (SkerryError, OSError) as error:
            log.error("failed to remove leftover containers", extra={"sandbox": sandbox_id, "error": str(error)})
            kept.add(sandbox_id)  # its uid range must not be reused while a process of it runs
            owned.add(sandbox_id)
    uppers = await asyncio.to_thread(transitions.host.driver.uppers)
    leftovers = quarantine.leftovers("upper", uppers - owned)
    for upper in uppers - owned - leftovers:
        await quarantine.take_upper(upper)
    for upper in leftovers:
        log.warning("removed an upper without a sandbox", extra={"sandbox": upper})
        try:
            await asyncio.to_thread(transitions.host.driver.delete, upper)
        except (SkerryError, OSError) as error:
            log.error("failed to remove an upper", extra={"sandbox": upper, "error": str(error)})
    quarantine.set_known("upper", uppers & owned)
    known = sandboxes.keys() | quarantine.ids()
    transitions.host.secrets.sweep(known)
    transitions.host.cassettes.sweep(known)
    transitions.gateways.sweep(known)
    ranges.sweep(transitions.host.instance, kept | {WORKER})
