"""Rollback: restore a sandbox's files in place. Its processes end; its id, name, limits and policy stay.

The files come back as a new upper, which is made while the sandbox still runs: the sandbox is down only for its stop,
one transaction and its start. After a kill anywhere it has either the old or the requested files, and the other upper
is swept."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace as changed

from msgspec.structs import replace

from skerry.engine.faults import fault_point
from skerry.engine.hooks import Hooks
from skerry.engine.review.service import ReviewService
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.record import ENDING_STATES, SandboxSpec
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.sandboxes.transitions import Transitions
from skerry.engine.snapshots.service import SnapshotService
from skerry.engine.snapshots.table import forget, together
from skerry.engine.tasks import Tasks
from skerry.errors import InvalidRequest, NotFound, SkerryError
from skerry.types import Caller, RollbackRequest, SandboxInfo, SnapshotInfo

log = logging.getLogger("skerry.engine")


class RollbackService:
    """`engine.rollbacks`."""

    def __init__(
        self,
        snapshots: SnapshotService,
        reviews: ReviewService,
        transitions: Transitions,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        hooks: Hooks,
        tasks: Tasks,
    ) -> None:
        self._snapshots, self._reviews = snapshots, reviews
        self._transitions, self._registry, self._lifecycle = transitions, registry, lifecycle
        self._host, self._hooks, self._tasks = transitions.host, hooks, tasks

    async def rollback(self, caller: Caller, ref: str, request: RollbackRequest) -> SandboxInfo:
        """Roll back to any snapshot of the caller, or by so many commands. A sandbox that ran is started again."""
        sandbox = self._registry.find(caller, ref)
        await self._tasks.shield(self._rollback(caller, sandbox, request))
        await self._lifecycle.wait_ready(sandbox)
        return sandbox.record.info()

    async def _rollback(self, caller: Caller, sandbox: Sandbox, request: RollbackRequest) -> None:
        with sandbox.in_use():
            await self._hooks.before_stop(sandbox)  # the ledger keeps the changes that are given up
            async with self._registry.locked(sandbox):
                if sandbox.record.state in ENDING_STATES:
                    await self._transitions.finish(sandbox)
                target = self._target(caller, sandbox, request)
                if sandbox.record.state in ("running", "paused"):  # it is started again
                    self._hooks.before_start(sandbox.record)
                undone = self._undone(sandbox, target)
                self._snapshots.check_layers(target.layers)
                loose = {*sandbox.record.spec.layers, *(layer for info in undone for layer in info.layers)}
                try:
                    with self._snapshots.pinned(*target.layers):
                        await self._restore(sandbox, target, undone)
                finally:
                    await self._snapshots.collect(loose)
        log.info("rolled back", extra={"sandbox": sandbox.record.id, "snapshot": target.id})

    def _target(self, caller: Caller, sandbox: Sandbox, request: RollbackRequest) -> SnapshotInfo:
        if request.snapshot is not None:
            found = self._snapshots.find(caller, request.snapshot)
            if found.path is not None:
                raise InvalidRequest(
                    f"snapshot {found.name or found.id} is of the directory {found.path}",
                    hint="sandbox.restore(snapshot) brings it into a sandbox",
                )
            return found
        steps, back = self._snapshots.table.steps(sandbox.record.id), request.steps or 1
        if len(steps) >= back:
            return steps[back - 1]
        if sandbox.record.spec.options.auto_snapshot:
            listed = f"`skerry snapshot ls --sandbox {sandbox.record.name or sandbox.record.id}` lists them"
            hint = f"{listed}; the setting snapshots.max_auto says how many are kept"
        else:
            hint = "they are taken where auto_snapshot is on; go back to a snapshot by its name"
        raise NotFound(
            f"{sandbox.record.id} has {len(steps)} snapshots from before its commands, not {back}", hint=hint
        )

    async def _restore(self, sandbox: Sandbox, target: SnapshotInfo, undone: list[SnapshotInfo]) -> None:
        spec = _spec(sandbox.record.spec, target, new_id("sb-"), own=target.sandbox == sandbox.record.id)
        origin = target.layers[0] if spec.layers != target.layers else None
        self._transitions.quarantine.expect("upper", sandbox.record.upper, spec.upper or "")
        await self._transitions.create_upper(changed(sandbox.record, spec=spec), origin)
        fault_point("rollback.upper")
        ran, sandbox.starting = sandbox.record.state in ("running", "paused"), True  # it keeps counting as live
        try:
            await self._swap(sandbox, spec, target, undone)
            if ran:
                async with self._transitions.start_slot():
                    await self._transitions.start(sandbox)
        except BaseException:
            if sandbox.record.upper != spec.upper:
                await self._drop(spec.upper or "")
            raise
        finally:
            sandbox.starting = False

    async def _swap(
        self, sandbox: Sandbox, spec: SandboxSpec, target: SnapshotInfo, undone: list[SnapshotInfo]
    ) -> None:
        reason = f"rolled back to {target.name or target.id}"
        if sandbox.record.state in ("running", "paused"):
            # without grace: files that the processes would save are lost anyway
            await self._transitions.stop(sandbox, "stopped", reason, grace=False)
        old = sandbox.record
        also = together(forget(undone), self._reviews.rolling_back(sandbox, reason))
        sandbox.record = self._registry.table.update(old, also, spec=spec, state="stopped", reason=reason)
        fault_point("rollback.record")
        await self._drop(old.upper)
        fault_point("rollback.old")

    def _undone(self, sandbox: Sandbox, target: SnapshotInfo) -> list[SnapshotInfo]:
        """Return the automatic snapshots of commands that are no longer in the sandbox's past."""
        steps = self._snapshots.table.steps(sandbox.record.id)
        if target.sandbox != sandbox.record.id:
            return steps
        if target.kind == "auto":
            return [info for info in steps if (info.step or 0) >= (target.step or 0)]
        return [info for info in steps if info.created_at >= target.created_at]

    async def _drop(self, unit: str) -> None:
        """Remove an upper. If that fails, the next server sweeps it."""
        try:
            await asyncio.to_thread(self._host.driver.delete, unit)
        except (SkerryError, OSError) as error:
            log.error("failed to remove an upper", extra={"unit": unit, "error": str(error)})


def _spec(spec: SandboxSpec, target: SnapshotInfo, upper: str, *, own: bool) -> SandboxSpec:
    """Return the spec with the snapshot's files: a copy of its top layer on the layers below; an imported snapshot is
    all layers. A snapshot of another sandbox brings the settings of its files: user, directory, the image's
    variables."""
    top, *below = target.layers
    spec = replace(spec, upper=upper, layers=tuple(below) if top.startswith("snap:") else target.layers)
    if own:
        return spec
    return replace(
        spec, image=target.name or target.id, image_digest=target.digest, user=target.user, cwd=target.cwd,
        image_env=target.env, entrypoint=target.entrypoint, cmd=target.cmd,
    )  # fmt: skip
