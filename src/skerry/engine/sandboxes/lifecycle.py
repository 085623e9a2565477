"""Lifecycle: sandboxes in use, started on access, stopped, paused, deleted and failed.

On top of the single steps (`transitions`) this decides whether a transition takes place, takes the sandbox's lock,
protects the transition from cancellation, and informs hooks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Literal

from skerry.engine.hooks import Hook, Hooks
from skerry.engine.pool.pool import Pool
from skerry.engine.sandboxes import guest_files
from skerry.engine.sandboxes.record import ENDING_STATES, SandboxRecord
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import IDLE, Sandbox
from skerry.engine.sandboxes.transitions import Transitions
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, NotFound, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper, KeeperTimeout
from skerry.keeper.client import TIMEOUT
from skerry.types import Caller

log = logging.getLogger("skerry.engine")
LIFETIME_OVER = "its maximum lifetime was over"


def _always() -> bool:
    return True


def _failed_error(record: SandboxRecord) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"{record.id} has failed: {record.reason}",
        hint=f"its files are kept: `skerry resume {record.name or record.id}` starts it again",
        details={"state": "failed", "reason": record.reason},
    )


class Lifecycle(Hook):
    """`still` parameters: a condition that is checked again once the lock is held, because a call may have come in the
    meantime."""

    def __init__(
        self, transitions: Transitions, registry: SandboxRegistry, pool: Pool, hooks: Hooks, tasks: Tasks
    ) -> None:
        self._transitions, self._registry, self._pool = transitions, registry, pool
        self._hooks, self._tasks = hooks, tasks

    # -- using --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def use(self, caller: Caller, ref: str, *, ready: bool = True) -> AsyncIterator[tuple[Sandbox, Keeper]]:
        """Yield a running sandbox for one call: started if need be, not idle meanwhile, failed if its keeper
        misbehaves. `ready`: also wait until its `on_start` commands are ready."""
        sandbox = self._registry.find(caller, ref)
        with sandbox.in_use():
            await self.ensure_running(sandbox, ready=ready)
            await sandbox.thawed.wait()
            keeper = sandbox.keeper
            if keeper is None:
                raise SandboxUnavailable(
                    f"{sandbox.record.id} has just ended", details={"state": sandbox.record.info().state}
                )
            try:
                yield sandbox, keeper
            except SandboxUnavailable as error:
                await self.fail(sandbox, keeper, error)
                raise

    async def ensure_running(self, sandbox: Sandbox, requested: bool = False, *, ready: bool = True) -> None:
        """Start or resume a sandbox. Unless a caller `requested` it, its lifecycle must allow auto-resume."""
        if sandbox.record.state != "running" or sandbox.keeper is None:
            await self._tasks.shield(self._resume(sandbox, requested))
        if ready and sandbox.record.spec.starting is not None:
            await self.wait_ready(sandbox)

    async def wait_ready(self, sandbox: Sandbox) -> None:
        """Wait until the `on_start` commands of a running sandbox are ready. Raise SandboxUnavailable if they fail."""
        await sandbox.wait_started()
        record = sandbox.record
        if record.state == "failed":
            raise _failed_error(record)
        if record.state == "running" and record.spec.starting is not None:  # the next server continues
            raise SandboxUnavailable(f"{record.id} is not ready: the server is stopping", hint="try again in a moment")

    async def _resume(self, sandbox: Sandbox, requested: bool) -> None:
        async with self._registry.locked(sandbox):
            if sandbox.record.state in ENDING_STATES:
                await self._transitions.finish(sandbox)
            record = sandbox.record
            if record.state == "running":
                return
            if record.state == "failed" and not requested:
                raise _failed_error(record)
            if not (requested or record.spec.lifecycle.auto_resume):
                raise SandboxUnavailable(
                    f"{record.id} is {record.info().state}",
                    hint=f"skerry resume {record.name or record.id}",
                    details={"state": record.info().state},
                )
            self._hooks.before_start(record)
            if record.state == "paused" and sandbox.runtime is not None:
                await self._transitions.thaw(sandbox, sandbox.runtime)
                await self.configure(sandbox)  # apply changes made while it was paused
                self._transitions.running(sandbox)
            else:
                await self._start(sandbox)

    async def _start(self, sandbox: Sandbox) -> None:
        self.make_room(sandbox.record.owner)
        sandbox.starting = True
        try:
            async with self._transitions.start_slot():
                await self._transitions.start(sandbox)
        finally:
            sandbox.starting = False

    def make_room(self, owner: str, more: int = 1) -> None:
        """Check the operator's maxima for that many more sandboxes, and let pooled ones go to make room."""
        self._registry.check_capacity(owner, more)
        self._pool.make_room(more)

    def check_start(self, record: SandboxRecord) -> None:
        """Let hooks refuse the start of a new sandbox."""
        self._hooks.before_start(record)

    async def configure(self, sandbox: Sandbox) -> None:
        """Send the keeper its configuration and guest files again. The caller holds the sandbox's lock."""
        if sandbox.keeper is not None:
            try:
                await self._transitions.configure(sandbox.keeper, sandbox.record, sandbox.record.ends_at)
                files = await guest_files.prepare(self._transitions.host.secrets, sandbox.record)
                await guest_files.write(sandbox.keeper, sandbox.record, files, renew=True)
            except SandboxUnavailable as error:
                await self._transitions.stop(sandbox, "failed", error.message)
                raise

    # -- ending -------------------------------------------------------------------------------------------------------

    async def stop(
        self,
        sandbox: Sandbox,
        reason: str,
        state: Literal["stopped", "failed"] = "stopped",
        still: Callable[[], bool] = _always,
    ) -> None:
        await self._tasks.shield(self._stop(sandbox, reason, state, still))

    async def _stop(
        self, sandbox: Sandbox, reason: str, state: Literal["stopped", "failed"], still: Callable[[], bool]
    ) -> None:
        if state == "stopped":
            await self._hooks.before_stop(sandbox)
        async with sandbox.lock:
            if sandbox.record.state in ("running", "paused") and still():
                if sandbox.record.state == "paused" and sandbox.runtime is not None:
                    with contextlib.suppress(SkerryError):  # a sandbox that can't be thawed can still be killed
                        await asyncio.to_thread(sandbox.runtime.thaw, sandbox.record.id)
                await self._transitions.stop(sandbox, state, reason)
                log.info("stopped sandbox", extra={"sandbox": sandbox.record.id, "reason": reason})

    async def pause(self, sandbox: Sandbox, reason: str, still: Callable[[], bool] = _always) -> None:
        await self._tasks.shield(self._pause(sandbox, reason, still))

    async def _pause(self, sandbox: Sandbox, reason: str, still: Callable[[], bool]) -> None:
        await self._hooks.before_stop(sandbox)
        async with self._registry.locked(sandbox):
            if sandbox.record.state == "running" and sandbox.runtime is not None and still():
                await self._transitions.freeze(sandbox, sandbox.runtime, reason)
            elif sandbox.record.state == "paused" and reason != IDLE:
                sandbox.record = self._registry.table.update(sandbox.record, reason=reason)
            elif sandbox.record.state not in ("running", "paused"):
                raise Conflict(
                    f"{sandbox.record.id} is {sandbox.record.info().state}: only a running sandbox can be paused"
                )

    async def delete(self, sandbox: Sandbox, still: Callable[[], bool] = _always) -> None:
        await self._tasks.shield(self._delete(sandbox, still))

    async def _delete(self, sandbox: Sandbox, still: Callable[[], bool]) -> None:
        await self._hooks.before_stop(sandbox)
        async with sandbox.lock:
            if not sandbox.deleted and still():
                await self._transitions.delete(sandbox)
                await self.forget_if_deleted(sandbox)

    async def finish(self, sandbox: Sandbox) -> None:
        """Continue a transition that failed half-way."""
        await self._tasks.shield(self._finish(sandbox))

    async def _finish(self, sandbox: Sandbox) -> None:
        async with sandbox.lock:
            if not sandbox.deleted:
                await self._transitions.finish(sandbox)
                await self.forget_if_deleted(sandbox)

    async def forget_if_deleted(self, sandbox: Sandbox) -> None:
        """Remove a deleted sandbox from the registry and inform hooks. The caller holds the sandbox's lock."""
        if sandbox.deleted:
            self._registry.remove(sandbox.record.id)
            await self._hooks.on_deleted(sandbox)
            log.info("deleted sandbox", extra={"sandbox": sandbox.record.id})

    async def fail(self, sandbox: Sandbox, keeper: Keeper, error: SandboxUnavailable) -> None:
        """End a sandbox with a keeper that misbehaved or fell silent; nothing else is touched."""
        if sandbox.record.state == "ready":
            self._hooks.on_exit(sandbox)  # the pool discards it
            return
        if (
            sandbox.keeper is not keeper or sandbox.record.state != "running"
        ):  # not the keeper's fault: it was stopped or paused
            raise sandbox.interrupted_error() from error
        if isinstance(error, KeeperTimeout) and sandbox.was_frozen_within(TIMEOUT):  # for a snapshot that took long
            return
        log.warning("sandbox failed", extra={"sandbox": sandbox.record.id, "error": error.message})
        await self.stop(sandbox, error.message, "failed", still=lambda: sandbox.keeper is keeper)

    def on_exit(self, sandbox: Sandbox) -> None:
        if sandbox.record.state in ("running", "paused"):
            self._tasks.spawn(self._handle_exit(sandbox))

    async def _handle_exit(self, sandbox: Sandbox) -> None:
        if sandbox.lifetime_over:
            await self.end_lifetime(sandbox)
        else:
            keeper = sandbox.keeper
            reason = "its first process ended unexpectedly"
            await self.stop(sandbox, reason, "failed", still=lambda: sandbox.keeper is keeper)

    # -- for the reaper -----------------------------------------------------------------------------------------------

    async def end_lifetime(self, sandbox: Sandbox) -> None:
        """End a sandbox after its maximum lifetime: delete an unnamed one, stop a named one."""
        await self._end(sandbox, LIFETIME_OVER, sandbox.record.name is None, lambda: sandbox.lifetime_over)

    async def end_idle(self, sandbox: Sandbox) -> None:
        """Apply the sandbox's `on_idle`. A call may have come in the meantime: then it is not idle any more."""
        action = sandbox.record.spec.lifecycle.on_idle
        if sandbox.record.state == "paused":
            await self.stop(sandbox, IDLE, still=lambda: sandbox.idle_due)
        elif action == "pause":
            with contextlib.suppress(Conflict, NotFound):
                await self.pause(sandbox, IDLE, still=lambda: sandbox.idle_due)
        else:
            await self._end(sandbox, IDLE, action == "delete", lambda: sandbox.idle_due)

    async def _end(self, sandbox: Sandbox, reason: str, delete: bool, still: Callable[[], bool]) -> None:
        """Stop a sandbox, or delete it, unless a hook has a reason to keep it."""
        kept = await self._hooks.reason_to_keep(sandbox) if delete else None
        if delete and kept is None:
            await self.delete(sandbox, still)
        else:
            await self.stop(sandbox, f"{reason}; {kept}" if kept else reason, still=still)
