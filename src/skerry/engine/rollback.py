"""Rollback: a sandbox's files as they were, in place. Its processes end; its id, name, limits and policy stay.

The files come back as a unit of their own, made while the sandbox still runs: it stands still only for its end, one
row and its start. After a kill anywhere it is as before or as asked for, and the unit that lost is swept."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace as changed

from msgspec.structs import replace

from skerry.engine import lifecycle, plan
from skerry.engine.faults import passed
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.reviews import Reviews
from skerry.engine.rows import HALF_ENDED, Spec
from skerry.engine.snapshot_table import forget, together
from skerry.engine.snapshots import Snapshots
from skerry.errors import NotFound, SkerryError
from skerry.types import Caller, RollbackRequest, SandboxInfo, SnapshotInfo

log = logging.getLogger("skerry.engine")


class Rollbacks:
    """`engine.rollbacks`."""

    def __init__(self, snapshots: Snapshots, reviews: Reviews) -> None:
        self._grip = snapshots.grip
        self._snapshots = snapshots
        self._reviews = reviews

    @property
    def _host(self) -> Host:
        return self._snapshots.host

    async def rollback(self, caller: Caller, ref: str, request: RollbackRequest) -> SandboxInfo:
        """To any snapshot of the caller's, or so many commands back. One that ran runs again."""
        live = self._grip.find(caller, ref)
        await self._grip.uncut(self._rollback(caller, live, request))
        return live.row.info()

    async def _rollback(self, caller: Caller, live: Live, request: RollbackRequest) -> None:
        with live.in_use():
            await self._reviews.before_end(live)  # what is given up is in its ledger all the same
            async with self._grip.held(live):
                if live.row.state in HALF_ENDED:
                    await lifecycle.finish(self._host, live)
                target = self._target(caller, live, request)
                undone = self._undone(live, target)
                self._snapshots.check_layers(target.layers)
                loose = {*live.row.spec.layers, *(layer for info in undone for layer in info.layers)}
                try:
                    with self._snapshots.pinned(*target.layers):
                        await self._go_back(live, target, undone)
                finally:
                    await self._snapshots.collect(loose)
        log.info("rolled back", extra={"sandbox": live.row.id, "snapshot": target.id})

    def _target(self, caller: Caller, live: Live, request: RollbackRequest) -> SnapshotInfo:
        if request.snapshot is not None:
            return self._snapshots.find(caller, request.snapshot)
        steps, back = self._snapshots.table.steps(live.row.id), request.steps or 1
        if len(steps) >= back:
            return steps[back - 1]
        if live.row.spec.options.auto_snapshot:
            listed = f"`skerry snapshot ls --sandbox {live.row.name or live.row.id}` lists them"
            hint = f"{listed}; the setting snapshots.auto says how many are kept"
        else:
            hint = "they are taken where auto_snapshot is on; go back to a snapshot by its name"
        raise NotFound(f"{live.row.id} has {len(steps)} snapshots from before its commands, not {back}", hint=hint)

    async def _go_back(self, live: Live, target: SnapshotInfo, undone: list[SnapshotInfo]) -> None:
        spec = _spec(live.row.spec, target, plan.new_id("sb-"), own=target.sandbox == live.row.id)
        origin = target.layers[0] if spec.layers != target.layers else None
        await lifecycle.make_unit(self._host, changed(live.row, spec=spec), origin)
        passed("rollback.unit")
        ran, live.starting = live.row.state in ("running", "paused"), True  # its place stays its own
        try:
            await self._swap(live, spec, target, undone)
            if ran:
                async with self._grip.turn():
                    await lifecycle.start(self._host, live)
        except BaseException:
            if live.row.unit != spec.unit:
                await self._drop(spec.unit or "")
            raise
        finally:
            live.starting = False

    async def _swap(self, live: Live, spec: Spec, target: SnapshotInfo, undone: list[SnapshotInfo]) -> None:
        reason = f"rolled back to {target.name or target.id}"
        if live.row.state in ("running", "paused"):
            await lifecycle.stop(
                self._host, live, "stopped", reason, grace=False
            )  # what they would save is lost anyway
        old = live.row
        also = together(forget(undone), self._reviews.rolling_back(live, reason))
        live.row = self._host.rows.update(old, also, spec=spec, state="stopped", reason=reason)
        passed("rollback.row")
        await self._drop(old.unit)
        passed("rollback.old")

    def _undone(self, live: Live, target: SnapshotInfo) -> list[SnapshotInfo]:
        """Of what was taken before commands, that of commands which are not in its past any more."""
        steps = self._snapshots.table.steps(live.row.id)
        if target.sandbox != live.row.id:
            return steps
        if target.kind == "auto":
            return [info for info in steps if (info.step or 0) >= (target.step or 0)]
        return [info for info in steps if info.created_at >= target.created_at]

    async def _drop(self, unit: str) -> None:
        """One that can't be removed now is swept by the next server."""
        try:
            await asyncio.to_thread(self._host.driver.delete, unit)
        except (SkerryError, OSError) as error:
            log.error("not removed", extra={"unit": unit, "error": str(error)})


def _spec(spec: Spec, target: SnapshotInfo, unit: str, *, own: bool) -> Spec:
    """With the snapshot's files: a copy of its own layer, on those that it stood on; one that was imported is all
    layers. Another sandbox's brings what belongs to its files: user, directory, the image's variables."""
    top, *below = target.layers
    spec = replace(spec, unit=unit, layers=tuple(below) if top.startswith("snap:") else target.layers)
    if own:
        return spec
    return replace(
        spec, image=target.name or target.id, image_digest=target.digest, user=target.user, cwd=target.cwd,
        image_env=target.env, entrypoint=target.entrypoint, cmd=target.cmd,
    )  # fmt: skip
