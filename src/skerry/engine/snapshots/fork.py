"""Forks: new sandboxes that start from the current state of another one. All of them run or none exists, also after a
crash: their records say `creating` until the last one runs, and the next server deletes sandboxes in that state."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

from msgspec.structs import replace

from skerry.engine.faults import fault_point
from skerry.engine.records.trace.service import TraceService
from skerry.engine.review.service import LedgerCopy, ReviewService
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.record import SandboxRecord
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.sandboxes.transitions import Transitions
from skerry.engine.snapshots.capture import drop
from skerry.engine.snapshots.service import SnapshotService
from skerry.engine.tasks import Tasks
from skerry.errors import SandboxUnavailable
from skerry.types import Caller, ForkRequest, SandboxInfo, Value

log = logging.getLogger("skerry.engine")


class ForkKey(Value, frozen=True, kw_only=True):
    """The request that an idempotency key of a fork stands for."""

    source: str
    n: int
    name: str | None = None


class ForkService:
    """`engine.forks`."""

    def __init__(
        self,
        snapshots: SnapshotService,
        reviews: ReviewService,
        traces: TraceService,
        transitions: Transitions,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        tasks: Tasks,
    ) -> None:
        self._snapshots, self._reviews, self._traces = snapshots, reviews, traces
        self._transitions, self._registry, self._lifecycle = transitions, registry, lifecycle
        self._host, self._tasks = transitions.host, tasks

    async def fork(self, caller: Caller, ref: str, request: ForkRequest, key: str | None = None) -> list[SandboxInfo]:
        """Fork a sandbox in any state, which does not change. Forks belong to the sandbox's owner, whichever caller
        requested them."""
        source = self._registry.find(caller, ref)
        fork_key = ForkKey(source=source.record.id, n=request.n, name=request.name)
        return await self._tasks.shield(self._fork_ready(caller, source, fork_key, key))

    async def _fork_ready(
        self, caller: Caller, source: Sandbox, fork_key: ForkKey, key: str | None
    ) -> list[SandboxInfo]:
        """Fork, and wait for the `on_start` commands of all forks. If one fails, delete them all."""
        made = await self._fork(caller, source, fork_key, key)
        sandboxes = [sandbox for info in made if (sandbox := self._registry.get(info.id)) is not None]
        try:
            for sandbox in sandboxes:
                await self._lifecycle.wait_ready(sandbox)
        except SandboxUnavailable:
            if any(sandbox.record.state == "failed" for sandbox in sandboxes):
                for sandbox in sandboxes:
                    await self._lifecycle.delete(sandbox)
            raise
        return made

    async def _fork(self, caller: Caller, source: Sandbox, fork_key: ForkKey, key: str | None) -> list[SandboxInfo]:
        if there := await self._existing(source.record.owner, fork_key, key):
            return there
        self._lifecycle.check_start(source.record)
        self._lifecycle.make_room(source.record.owner, fork_key.n)
        async with self._reviews.copied(source) as ledger, self._snapshots.captured(source) as captured:
            fault_point("fork.captured")
            try:
                return await self._existing(source.record.owner, fork_key, key) or await self._make(
                    caller, source.record, fork_key, key, captured.layer, ledger
                )
            finally:  # each has its own copy of it now, or the only one has become it; the caller does not wait
                self._tasks.spawn(self._tasks.shield(drop(self._host, captured.layer)))

    async def _existing(self, owner: str, fork_key: ForkKey, key: str | None) -> list[SandboxInfo]:
        """Return the running sandboxes that an earlier request with this key created, once it is done."""
        found = []
        for sandbox_id in self._remembered(owner, fork_key, key):
            sandbox = self._registry.get(sandbox_id)
            if sandbox is not None:
                async with sandbox.lock:
                    found += [sandbox.record.info()] * (not sandbox.deleted)
        return found

    def _remembered(self, owner: str, fork_key: ForkKey, key: str | None) -> list[str]:
        known = self._registry.table.remembered(owner, key, fork_key) if key is not None else None
        return known.split(",") if known is not None else []

    async def _make(
        self,
        caller: Caller,
        source: SandboxRecord,
        fork_key: ForkKey,
        key: str | None,
        layer: str,
        ledger: LedgerCopy | None,
    ) -> list[SandboxInfo]:
        ids = self._remembered(source.owner, fork_key, key) or [new_id("sb-") for _ in range(fork_key.n)]
        sandboxes = [Sandbox(_fork_record(caller, source, sandbox_id, fork_key.name)) for sandbox_id in ids]
        # No await from here to the records: the last free places must not be promised twice.
        self._lifecycle.make_room(source.owner, fork_key.n)
        self._transitions.enter([sandbox.record for sandbox in sandboxes], fork_key, key)
        fault_point("fork.records")
        self._registry.add(sandboxes)
        async with AsyncExitStack() as stack:
            for sandbox in sandboxes:  # not taken by another task yet, so this does not wait
                await stack.enter_async_context(sandbox.lock)
            try:
                if ledger is not None:
                    await self._reviews.hand_out(ledger, sandboxes)
                await self._start_all(source, sandboxes, layer)
            except BaseException:
                await self._undo(sandboxes)
                raise
        log.info("forked sandbox", extra={"sandbox": source.id, "forks": ids})
        return [sandbox.record.info() for sandbox in sandboxes]

    async def _start_all(self, source: SandboxRecord, sandboxes: list[Sandbox], layer: str) -> None:
        """Start all forks concurrently up to the last step, which is one transaction for all."""
        only = len(sandboxes) == 1
        ended = await asyncio.gather(
            *(self._start_one(source, sandbox, layer, only) for sandbox in sandboxes), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error
        fault_point("fork.started")
        if any(sandbox.ended for sandbox in sandboxes):
            raise SandboxUnavailable("the first process of a fork ended at once")
        records = self._registry.table.update_all([sandbox.record for sandbox in sandboxes], state="running")
        self._traces.forked(source, records)
        for sandbox, record in zip(sandboxes, records, strict=True):
            sandbox.record = record
            self._transitions.running(sandbox)
        fault_point("fork.running")

    async def _start_one(self, source: SandboxRecord, sandbox: Sandbox, layer: str, only: bool) -> None:
        async with self._transitions.start_slot():
            if source.spec.secrets:
                await asyncio.to_thread(self._host.secrets.copy, source.id, sandbox.record.id)
            if source.spec.network.cassette is not None:
                await asyncio.to_thread(self._host.cassettes.copy, source.id, sandbox.record.id)
            await self._transitions.create_upper(sandbox.record, layer, consume=only)
            fault_point("fork.upper")
            await self._transitions.start(sandbox, state="creating")

    async def _undo(self, sandboxes: list[Sandbox]) -> None:
        for sandbox in sandboxes:
            try:
                await self._transitions.delete(sandbox)
            except Exception:  # report the first error; the reaper repeats the delete
                log.exception("failed to undo a fork", extra={"sandbox": sandbox.record.id})
            await self._lifecycle.forget_if_deleted(sandbox)


def _fork_record(caller: Caller, source: SandboxRecord, sandbox_id: str, name: str | None) -> SandboxRecord:
    """Return the fork's record: the source's without its name, upper and start."""
    lifecycle = source.spec.lifecycle
    if name is None and source.name is not None and lifecycle.on_idle == "stop":  # the rule of a named sandbox
        lifecycle = replace(lifecycle, on_idle="delete")
    if name is not None and lifecycle.on_idle == "delete":  # not allowed for a named sandbox
        lifecycle = replace(lifecycle, on_idle="stop")
    return SandboxRecord(
        id=sandbox_id, owner=source.owner, name=name, state="creating",
        spec=replace(source.spec, upper=None, lifecycle=lifecycle, actor=caller.actor), created_at=time.time(),
    )  # fmt: skip
