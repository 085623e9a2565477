"""Hooks: the moments in a sandbox's life at which services act.

A service that has something to do at one of these moments derives from `Hook`, overrides the methods it needs, and is
added to the engine's `Hooks` once. Hooks are called in the order in which they were added."""

from __future__ import annotations

import logging
from typing import Protocol

from skerry.engine.sandboxes.record import SandboxRecord
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.runtimes import Counters

log = logging.getLogger("skerry.engine")


class Hook(Protocol):
    def before_start(self, record: SandboxRecord) -> None:
        """A sandbox is about to be created, forked, started or resumed. It is not if this raises."""
        return

    async def before_command(self, sandbox: Sandbox) -> None:
        """A command is about to start. It does not start if this raises."""
        return

    async def before_stop(self, sandbox: Sandbox) -> None:
        """A running sandbox is about to be stopped, paused or rolled back. Its lock is not held."""
        return

    async def reason_to_keep(self, sandbox: Sandbox) -> str | None:
        """The lifecycle of an unnamed sandbox is about to delete it. With a reason, it is stopped instead. Its lock is
        not held."""
        return None

    async def before_delete(self, sandbox: Sandbox) -> None:
        """The sandbox is about to be deleted, under its lock. Called again if the deletion is repeated."""
        return

    def on_running(self, sandbox: Sandbox) -> None:
        """The sandbox has come to run: started, resumed or claimed, under its lock; or adopted by a
        starting server, before there are callers."""
        return

    def on_paused(self, sandbox: Sandbox) -> None:
        """The sandbox has been frozen, under its lock."""
        return

    def on_exit(self, sandbox: Sandbox) -> None:
        """The sandbox's first process ended, or its keeper failed before the sandbox had an owner."""
        return

    async def on_cleared(self, sandbox: Sandbox, last: Counters | None) -> None:
        """Every process of the sandbox has ended, and its cgroup is gone; its record says what follows. `last`: the
        last counters of its cgroup, if it had one. Called again if a stop or a deletion is repeated."""
        return

    async def on_deleted(self, sandbox: Sandbox) -> None:
        """Called when the sandbox and its record are gone. Pooled sandboxes belong to `POOL_OWNER` and are deleted
        without a lock; the pool also deletes them while the engine closes."""
        return


class Hooks:
    def __init__(self) -> None:
        self._hooks: list[Hook] = []

    def add(self, *hooks: Hook) -> None:
        self._hooks += hooks

    def before_start(self, record: SandboxRecord) -> None:
        for hook in self._hooks:
            hook.before_start(record)

    async def before_command(self, sandbox: Sandbox) -> None:
        for hook in self._hooks:
            await hook.before_command(sandbox)

    async def before_stop(self, sandbox: Sandbox) -> None:
        for hook in self._hooks:
            await hook.before_stop(sandbox)

    async def reason_to_keep(self, sandbox: Sandbox) -> str | None:
        """Return the first reason. If a hook fails, the sandbox is not deleted either."""
        for hook in self._hooks:
            if (reason := await hook.reason_to_keep(sandbox)) is not None:
                return reason
        return None

    async def before_delete(self, sandbox: Sandbox) -> None:
        """Call every hook. None of them prevents the deletion."""
        for hook in self._hooks:
            try:
                await hook.before_delete(sandbox)
            except Exception:
                log.exception("failed to prepare a deletion", extra={"sandbox": sandbox.record.id})

    def on_running(self, sandbox: Sandbox) -> None:
        for hook in self._hooks:
            hook.on_running(sandbox)

    def on_paused(self, sandbox: Sandbox) -> None:
        for hook in self._hooks:
            hook.on_paused(sandbox)

    def on_exit(self, sandbox: Sandbox) -> None:
        for hook in self._hooks:
            hook.on_exit(sandbox)

    async def on_cleared(self, sandbox: Sandbox, last: Counters | None) -> None:
        """Call every hook. None of them prevents the end of a sandbox."""
        for hook in self._hooks:
            try:
                await hook.on_cleared(sandbox, last)
            except Exception:
                log.exception("failed to note the end of a sandbox", extra={"sandbox": sandbox.record.id})

    async def on_deleted(self, sandbox: Sandbox) -> None:
        """Call every hook. A hook that fails does not keep the others from clearing their state."""
        for hook in self._hooks:
            try:
                await hook.on_deleted(sandbox)
            except Exception:
                log.exception("failed to clear up after a deleted sandbox", extra={"sandbox": sandbox.record.id})
