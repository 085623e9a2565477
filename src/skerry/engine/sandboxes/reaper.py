"""Ends sandboxes that are idle or past their lifetime, and finishes transitions that failed half-way. Idle means: no
call and no running process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.record import ENDING_STATES
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import SandboxUnavailable, SkerryError

log = logging.getLogger("skerry.engine")
TICK_S = 1.0
RETRY_S = 5.0  # doubled with each further failure
MAX_RETRY_S = 600.0


def retry_delay(failures: int) -> float:
    """Return the seconds until the next attempt. Attempts never end, because the sandbox would stay for ever, but they
    become rare."""
    return min(RETRY_S * 2.0 ** min(failures - 1, 10), MAX_RETRY_S)


class Reaper:
    """Checks each sandbox in a separate task, so that a silent keeper delays only its own sandbox."""

    def __init__(self, registry: SandboxRegistry, lifecycle: Lifecycle, tasks: Tasks) -> None:
        self._registry = registry
        self._lifecycle = lifecycle
        self._tasks = tasks
        self._in_progress: set[Sandbox] = set()
        self._retry_after: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._retry_after = {sandbox_id: then for sandbox_id, then in self._retry_after.items() if then > now}
            for sandbox in self._registry:
                if (
                    sandbox not in self._in_progress
                    and not sandbox.lock.locked()
                    and sandbox.record.id not in self._retry_after
                ):
                    end = self._due(sandbox)
                    if end is not None:
                        self._in_progress.add(sandbox)
                        self._tasks.spawn(self._end(sandbox, end))

    def _due(self, sandbox: Sandbox) -> Callable[[Sandbox], Awaitable[None]] | None:
        state, unnamed = sandbox.record.state, sandbox.record.name is None
        if state == "creating" or state in ENDING_STATES:  # and no task works on it
            return self._lifecycle.finish
        if sandbox.lifetime_over and (state in ("running", "paused") or (unnamed and state in ("stopped", "failed"))):
            return self._lifecycle.end_lifetime
        if not sandbox.idle_due:
            return None
        return self._lifecycle.end_idle if state == "paused" else self._end_unless_busy

    async def _end(self, sandbox: Sandbox, end: Callable[[Sandbox], Awaitable[None]]) -> None:
        try:
            await end(sandbox)
            if self._is_kept(sandbox):
                self._retry_later(sandbox)
            else:
                self._failures.pop(sandbox.record.id, None)
        except Exception as error:
            self._retry_later(sandbox)
            unforeseen = None if isinstance(error, SkerryError) else error
            log.warning(
                "failed to end a sandbox",
                extra={"sandbox": sandbox.record.id, "error": str(error)},
                exc_info=unforeseen,
            )
        finally:
            self._in_progress.discard(sandbox)

    def _is_kept(self, sandbox: Sandbox) -> bool:
        """Return whether its lifecycle would delete the sandbox, but a hook has a reason to keep it."""
        return not sandbox.deleted and sandbox.record.state in ("stopped", "failed") and self._due(sandbox) is not None

    def _retry_later(self, sandbox: Sandbox) -> None:
        failures = self._failures[sandbox.record.id] = self._failures.get(sandbox.record.id, 0) + 1
        self._retry_after[sandbox.record.id] = time.monotonic() + retry_delay(failures)

    async def _end_unless_busy(self, sandbox: Sandbox) -> None:
        """Pause or stop, unless a process is busy: a two-hour build without a reader is not idle."""
        keeper = sandbox.keeper
        if keeper is None:
            return
        try:
            processes = await keeper.processes()
        except SandboxUnavailable as error:
            await self._lifecycle.fail(sandbox, keeper, error)
            return
        resting = sandbox.activity.is_resting
        if any(one.children or (one.state == "running" and not resting(one.id)) for one in processes):
            sandbox.mark_active()
        else:
            await self._lifecycle.end_idle(sandbox)
