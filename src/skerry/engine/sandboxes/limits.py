"""Changing the limits of an existing sandbox: running, paused or stopped.

The enforced limits never exceed the record: limits shrink before the record is written and grow afterwards. So a server
that finds a half-made change only has to raise limits up to the record, which no usage can prevent; and the caller has
not yet been answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from msgspec.structs import replace

from skerry.engine.faults import fault_point
from skerry.engine.host import Host
from skerry.engine.sandboxes.record import SandboxRecord, SandboxTable
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import min_limits
from skerry.errors import Conflict, SkerryError
from skerry.runtimes import Runtime
from skerry.types import Isolation, Limits

log = logging.getLogger("skerry.engine")


async def change(host: Host, table: SandboxTable, sandbox: Sandbox, wanted: Limits) -> None:
    """Change all limits or none: after a failure the old ones hold. The caller holds the lock and configures the
    keeper."""
    before = sandbox.record
    was, least = before.spec.limits, min_limits(before.spec.limits, wanted)
    _store(table, sandbox, was, resizing=True)
    try:
        await enforce(host, sandbox, least, disk=least.disk != was.disk)
        fault_point("limits.shrink")
        _store(table, sandbox, wanted, resizing=True)
        fault_point("limits.record")
        await enforce(host, sandbox, wanted, disk=wanted.disk != least.disk)
    except BaseException:
        await _restore(host, table, sandbox, before, disk=was.disk != wanted.disk)
        raise
    _store(table, sandbox, wanted, resizing=False)
    fault_point("limits.grow")


async def enforce(host: Host, sandbox: Sandbox, limits: Limits, *, disk: bool = True) -> None:
    """Enforce these limits from now on. Raise Conflict if the sandbox uses more already, QuotaExceeded if the host has
    no room. Neither the record nor the keeper is changed. The disk comes first, because only the disk can be refused
    while it grows."""
    record = sandbox.record
    if disk:
        await asyncio.to_thread(host.driver.resize, record.upper, limits.disk_bytes)
    if sandbox.runtime is not None and record.init is not None:
        await asyncio.to_thread(sandbox.runtime.set_limits, record.id, record.init, limits)


async def repair(host: Host, table: SandboxTable, sandbox: Sandbox) -> None:
    """Raise limits up to the record after a server died during a change. If that is impossible now, they stay
    smaller."""
    record = sandbox.record
    if not record.spec.resizing:
        return
    try:
        with contextlib.suppress(Conflict):  # it uses all that it may have
            await asyncio.to_thread(host.driver.resize, record.upper, record.spec.limits.disk_bytes)
        await enforce(host, sandbox, record.spec.limits, disk=False)
        _store(table, sandbox, record.spec.limits, resizing=False)
    except (SkerryError, OSError) as error:
        log.warning("failed to repair limits", extra={"sandbox": record.id, "error": str(error)})


def isolation(runtime: Runtime, record: SandboxRecord, limits: Limits) -> Isolation | None:
    """Return the isolation details with these limits."""
    if record.isolation is None:
        return None
    return replace(record.isolation, details={**record.isolation.details, "open_files": runtime.open_files(limits)})


def _store(table: SandboxTable, sandbox: Sandbox, limits: Limits, *, resizing: bool) -> None:
    record = sandbox.record
    found = isolation(sandbox.runtime, record, limits) if sandbox.runtime is not None else record.isolation
    sandbox.record = table.update(record, spec=replace(record.spec, limits=limits, resizing=resizing), isolation=found)


async def _restore(host: Host, table: SandboxTable, sandbox: Sandbox, before: SandboxRecord, *, disk: bool) -> None:
    """Restore the record first, as always before a limit grows; `enforce` reduces a limit that has grown already."""
    try:
        _store(table, sandbox, before.spec.limits, resizing=True)
        await enforce(host, sandbox, before.spec.limits, disk=disk)
        _store(table, sandbox, before.spec.limits, resizing=False)
    except (SkerryError, OSError) as error:
        log.error("failed to restore limits", extra={"sandbox": before.id, "error": str(error)})
