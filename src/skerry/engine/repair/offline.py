"""`skerry server repair`: the repair of a state directory that no server uses, and the list of quarantined data."""

from __future__ import annotations

import asyncio
import math

import msgspec

from skerry.config import Settings
from skerry.engine.database import Database, release_reserve
from skerry.engine.host import Host
from skerry.engine.repair.quarantine import Quarantine, QuarantineEntry, read_entries
from skerry.engine.repair.rebuild import RepairAction, examine, record_files, repair
from skerry.engine.state_dir import StateDir


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """`condition` of the database before: ok, empty, behind, foreign or damaged; `problem`: the reason."""

    condition: str = "ok"
    problem: str = ""
    actions: list[RepairAction] = []
    quarantine: list[QuarantineEntry] = []


def listing(settings: Settings) -> RepairReport:
    entries = read_entries(settings.state_dir / "quarantine")
    return RepairReport(quarantine=list(entries.values()))


def repair_now(settings: Settings, *, dry_run: bool = False, purge: bool = False) -> RepairReport:
    """Repair the database, then optionally remove all quarantined data. Raise Conflict if a server runs."""
    return asyncio.run(_repair(settings, dry_run, purge))


async def _repair(settings: Settings, dry_run: bool, purge: bool) -> RepairReport:
    state = StateDir.acquire(settings.state_dir)
    try:
        host = await Host.open(settings)
        try:
            if not dry_run:
                release_reserve(state.database)
            found = examine(state.database, record_files(host))
            actions = repair(state.database, host, found, dry_run=dry_run)
            if purge and not dry_run:
                await _purge(host, state)
        finally:
            await host.release()
            host.close()
    finally:
        state.release()
    return RepairReport(
        condition=found.condition, problem=found.problem, actions=actions, quarantine=listing(settings).quarantine
    )


async def _purge(host: Host, state: StateDir) -> None:
    database = Database(state.database)
    try:
        await Quarantine(host, database).purge(older_than=math.inf)
    finally:
        database.close()
