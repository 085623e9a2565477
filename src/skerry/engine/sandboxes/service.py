"""Sandboxes as the API sees them: created from the pool or from scratch, listed, updated, ended."""

from __future__ import annotations

import asyncio
import builtins
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace

import msgspec

from skerry.config import Settings
from skerry.engine.faults import fault_point
from skerry.engine.network.policies import PolicyService
from skerry.engine.pool.claim import bind, prolong
from skerry.engine.pool.pool import Pool
from skerry.engine.processes.startup import StartupService
from skerry.engine.records.trace.service import TraceService
from skerry.engine.records.usage.budgets import BudgetService, with_budget
from skerry.engine.records.usage.meter import current_usage
from skerry.engine.review.service import ReviewService
from skerry.engine.sandboxes import limits
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.record import ENDING_STATES, SandboxRecord
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import host_maxima, new_id, resolve_spec, update_spec
from skerry.engine.sandboxes.transitions import Transitions, end_of_life
from skerry.engine.snapshots.service import SnapshotService
from skerry.engine.tasks import Tasks
from skerry.engine.volumes.service import VolumeService
from skerry.errors import InvalidRequest, SandboxUnavailable, SkerryError
from skerry.runtimes.overlay import UnusableRoot
from skerry.types import Caller, CreateRequest, SandboxInfo, SandboxStats, UpdateRequest

log = logging.getLogger("skerry.engine")
REQUESTED = "requested"  # the reason of a stop or pause that a caller requested


class SandboxService:
    """`engine.sandboxes`."""

    def __init__(
        self,
        settings: Settings,
        transitions: Transitions,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        pool: Pool,
        snapshots: SnapshotService,
        policies: PolicyService,
        reviews: ReviewService,
        budgets: BudgetService,
        traces: TraceService,
        startups: StartupService,
        volumes: VolumeService,
        tasks: Tasks,
    ) -> None:
        self._settings = settings
        self._startups = startups
        self._transitions, self._registry, self._lifecycle = transitions, registry, lifecycle
        self._pool, self._snapshots, self._policies = pool, snapshots, policies
        self._reviews, self._budgets, self._traces, self._tasks = reviews, budgets, traces, tasks
        self._volumes = volumes
        self._maxima = host_maxima(transitions.host.driver.capacity)
        self.creates: Counter[str] = Counter()  # by result, since the server started
        self._keys: dict[tuple[str, str], Sandbox] = {}  # claims under way, with records that do not have the key yet

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, caller: Caller, ref: str) -> SandboxInfo:
        return self._registry.find(caller, ref).record.info()

    def list(self, caller: Caller, labels: dict[str, str], state: str | None) -> builtins.list[SandboxInfo]:
        return self._registry.list(caller, labels, state)

    async def stats(self, caller: Caller, refs: Sequence[str]) -> builtins.list[SandboxStats]:
        """Measure the named sandboxes, or all of the caller's."""
        ids = refs or [info.id for info in self._registry.list(caller, {}, None)]
        found = [self._registry.find(caller, ref) for ref in ids]
        host = self._transitions.host
        used = await asyncio.to_thread(lambda: [(current_usage(host, sandbox), time.time()) for sandbox in found])
        traffic = self._transitions.gateways.traffic()
        return [
            SandboxStats(
                id=info.id, name=info.name, state=info.state, at=at, usage=usage, limits=info.limits,
                sent=sent, received=received,
            )
            for info, (usage, at) in zip((sandbox.record.info() for sandbox in found), used, strict=True)
            for sent, received in (traffic.get(info.id, (0, 0)),)
        ]  # fmt: skip

    # -- changing -----------------------------------------------------------------------------------------------------

    async def update(self, caller: Caller, ref: str, request: UpdateRequest) -> SandboxInfo:
        sandbox = self._registry.find(caller, ref)
        if await self._tasks.shield(self._update(caller, sandbox, request)):
            await self._lifecycle.wait_ready(sandbox)
        return sandbox.record.info()

    async def _update(self, caller: Caller, sandbox: Sandbox, request: UpdateRequest) -> bool:
        """Return whether `on_start` commands begin now: with the first ones of a running sandbox."""
        host, table = self._transitions.host, self._registry.table
        async with self._registry.locked(sandbox):
            if sandbox.record.state in ENDING_STATES:
                await self._transitions.finish(sandbox)
            self._budgets.check_update(caller, sandbox.record, request)
            await self._budgets.before_update(sandbox, request)
            spec = update_spec(sandbox.record.spec, request, self._settings, self._maxima, sandbox.record.name)
            spec = with_budget(spec, caller, request)
            first = spec.lifecycle.starts_commands and not sandbox.record.spec.lifecycle.starts_commands
            if starts := first and sandbox.record.state == "running":  # later ones begin with the next start
                spec = spec.begun(time.time())
            if spec.limits != sandbox.record.spec.limits:
                await limits.change(host, table, sandbox, spec.limits)
            record = sandbox.record
            ends_at = end_of_life(spec, record.started_at) if record.started_at is not None else None
            if request.secrets is not None:
                await asyncio.to_thread(host.secrets.put, record.id, request.secrets)
            sandbox.record = table.update(record, spec=spec, ends_at=ends_at)
            self._budgets.updated(sandbox.record)
            if request.lifecycle is not None:
                host.secrets.renew(sandbox.record)
            try:
                if record.state == "running":
                    await self._lifecycle.configure(sandbox)
            finally:  # even if an error occurs inside, a secret that was removed is not injected any more
                if request.secrets is not None or request.lifecycle is not None:
                    await self._transitions.gateways.update_rules(sandbox)
            if starts:
                self._startups.begin(sandbox)
        return starts

    async def rename(self, caller: Caller, ref: str, name: str) -> SandboxInfo:
        return await self._tasks.shield(self._rename(self._registry.find(caller, ref), name))

    async def _rename(self, sandbox: Sandbox, name: str) -> SandboxInfo:
        async with self._registry.locked(sandbox):
            record, spec = sandbox.record, sandbox.record.spec
            if record.name == name:
                return record.info()
            if spec.lifecycle.on_idle == "delete":  # not allowed for a named sandbox
                spec = msgspec.structs.replace(spec, lifecycle=msgspec.structs.replace(spec.lifecycle, on_idle="stop"))
            sandbox.record = self._registry.table.rename(record, name, spec)
            if sandbox.runtime is not None and sandbox.keeper is not None and record.init is not None:
                try:
                    await asyncio.to_thread(sandbox.runtime.set_hostname, record.init, sandbox.record.hostname)
                    await self._transitions.gateways.update_rules(sandbox)
                except (SkerryError, OSError) as error:  # the next start sets it
                    log.warning("failed to set a host name", extra={"sandbox": record.id, "error": str(error)})
        return sandbox.record.info()

    async def delete(self, caller: Caller, ref: str, *, force: bool = False, purge: bool = False) -> None:
        """Delete a sandbox. Without `force`, raise UnappliedChanges if it has accepted changes that were not applied.
        `purge`: also delete its review and its trace, which are kept for a while otherwise."""
        sandbox = self._registry.find(caller, ref)
        if not force:
            await self._reviews.check_applied(sandbox)
        if purge:
            self._reviews.discard(sandbox)
        await self._lifecycle.delete(sandbox)
        if purge:
            await self._traces.remove(sandbox.record.id)

    async def stop(self, caller: Caller, ref: str) -> SandboxInfo:
        sandbox = self._registry.find(caller, ref)
        await self._lifecycle.stop(sandbox, REQUESTED)
        return self.get(caller, sandbox.record.id)

    async def pause(self, caller: Caller, ref: str) -> SandboxInfo:
        sandbox = self._registry.find(caller, ref)
        await self._lifecycle.pause(sandbox, REQUESTED)
        return sandbox.record.info()

    async def resume(self, caller: Caller, ref: str) -> SandboxInfo:
        sandbox = self._registry.find(caller, ref)
        await self._lifecycle.ensure_running(sandbox, requested=True)
        return sandbox.record.info()

    # -- creating -----------------------------------------------------------------------------------------------------

    async def create(self, caller: Caller, request: CreateRequest, key: str | None = None) -> SandboxInfo:
        return await self._tasks.shield(self._counted(self._create_ready(caller, request, key)))

    async def _create_ready(self, caller: Caller, request: CreateRequest, key: str | None) -> SandboxInfo:
        """Create a sandbox and wait for its `on_start` commands. If they fail, delete it again."""
        info = await self._create(caller, request, key)
        sandbox = self._registry.get(info.id)
        if sandbox is None or sandbox.record.spec.starting is None:
            return info
        try:
            await self._lifecycle.wait_ready(sandbox)
        except SandboxUnavailable as error:
            if sandbox.record.state != "failed":
                raise
            await self._lifecycle.delete(sandbox)
            raise SandboxUnavailable(
                f"the sandbox was deleted again: {sandbox.record.reason or error.message}",
                hint="correct on_start and ready, or raise ready_timeout", details=error.details,
            ) from error  # fmt: skip
        return sandbox.record.info()

    async def _counted(self, creation: Awaitable[SandboxInfo]) -> SandboxInfo:
        try:
            info = await creation
        except BaseException as error:
            self.creates[error.code if isinstance(error, SkerryError) else "internal"] += 1
            raise
        self.creates["ok"] += 1
        return info

    async def _create(self, caller: Caller, request: CreateRequest, key: str | None) -> SandboxInfo:
        known = None
        while key is not None:
            known = self._registry.table.remembered(caller.owner, key, request)
            sandbox = self._keys.get((caller.owner, key)) or self._registry.get(known or "")
            if sandbox is None:
                break
            async with sandbox.lock:  # its create may still be under way
                if not sandbox.deleted and sandbox.record.owner == caller.owner:
                    return sandbox.record.info()
        image, origin = self._snapshots.image(caller, request.image)
        peers = self._policies.peers(caller, caller.owner)
        spec = resolve_spec(request, image, self._settings, self._maxima, peers, caller.scope)
        volumes = self._volumes.resolve(caller, request.volumes, [one.name for one in request.secrets])
        spec = msgspec.structs.replace(spec, actor=caller.actor, volumes=volumes)
        # No await until the sandbox is in the registry and its key is noted: two callers with one key, or with one
        # place left, must not both pass.
        self._registry.check_capacity(caller.owner)
        record = SandboxRecord(
            id=known or new_id("sb-"), owner=caller.owner, name=request.name, state="creating", spec=spec,
            created_at=time.time(),
        )  # fmt: skip
        self._lifecycle.check_start(record)
        ready = self._pool.take(record) if known is None and origin is None else None
        try:
            if ready is not None and await self._claim(ready, record, request, key):
                return ready.record.info()
            return await self._make(record, request, key, origin)
        except UnusableRoot as error:  # no command has run yet: the image is at fault
            raise InvalidRequest(
                f"image {request.image[:80]!r} cannot be used: {error.message}", hint="use another image",
                details=error.details,
            ) from error  # fmt: skip

    async def _claim(self, sandbox: Sandbox, record: SandboxRecord, request: CreateRequest, key: str | None) -> bool:
        """Turn a pooled sandbox into the requested one. Return False if that failed; the pooled sandbox is gone then.
        The record is written when all of it is done: a server that dies before leaves a pooled sandbox, which the next
        one removes."""
        ready = sandbox.record
        record = sandbox.record = replace(record, id=ready.id, init=ready.init, uid_base=ready.uid_base)
        self._registry.add((sandbox,))
        if key is not None:
            self._keys[record.owner, key] = sandbox
        fault_point("claim.taken")
        async with sandbox.lock:
            try:
                record, configured = await bind(self._transitions, sandbox, ready, record, request.secrets)
                self._registry.table.claim(record, request, key)
            except BaseException as error:
                sandbox.record = ready
                self._registry.remove(record.id)
                self._pool.discard(sandbox)
                if isinstance(error, UnusableRoot) or not isinstance(error, (SkerryError, OSError)):
                    raise  # a new sandbox of this image would fail in the same way
                log.warning("failed to claim a pooled sandbox", extra={"sandbox": record.id, "error": str(error)})
                return False
            finally:
                if key is not None:
                    del self._keys[record.owner, key]
            sandbox.record = record
            fault_point("claim.record")
            self._transitions.running(sandbox)
            sandbox.mark_active()
        if not configured:
            self._tasks.spawn(prolong(self._transitions, sandbox))
        log.info("claimed sandbox", extra={"sandbox": record.id, "owner": record.owner})
        return True

    async def _make(
        self, record: SandboxRecord, request: CreateRequest, key: str | None, origin: str | None
    ) -> SandboxInfo:
        """Create a sandbox from scratch. `origin`: the layer that its upper starts as."""
        self._lifecycle.make_room(record.owner)  # checked again: a claim that failed took its time
        sandbox = Sandbox(record)
        self._transitions.enter((record,), request, key)
        self._registry.add((sandbox,))
        with self._snapshots.pinned(*filter(None, (origin,))):
            async with sandbox.lock, self._transitions.start_slot():
                try:
                    await self._transitions.create(sandbox, request.secrets, origin)
                finally:
                    await self._lifecycle.forget_if_deleted(sandbox)
        log.info("created sandbox", extra={"sandbox": record.id, "owner": record.owner})
        return sandbox.record.info()
