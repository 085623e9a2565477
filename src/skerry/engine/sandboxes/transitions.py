"""The steps that move a sandbox from one state to another: create, start, stop, pause, resume, delete.

Each step is named in `faults`; after a kill at any of them the next server finishes or undoes the transition
(`recovery`). Steps are idempotent wherever recovery repeats them. The caller holds the sandbox's lock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from skerry.engine.faults import fault_point
from skerry.engine.hooks import Hooks
from skerry.engine.host import Host
from skerry.engine.network.gateway import GatewayManager
from skerry.engine.repair.quarantine import Quarantine
from skerry.engine.sandboxes import git_identity, guest_files, reproducible
from skerry.engine.sandboxes.record import POOL_OWNER, SandboxRecord, SandboxSpec, SandboxTable
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import Keeper
from skerry.network.messages import RESOLVER_IP
from skerry.runtimes import ContainerConfig, Init, Runtime, ranges
from skerry.storage import snap_name
from skerry.types import Isolation, SecretValue, Value, parse_span

log = logging.getLogger("skerry.engine")
STOP_GRACE_S = 2.0
# The server ends a sandbox's lifetime first, in an orderly way; the keeper's own timer is for when no server runs.
LIFETIME_GRACE_S = 5.0


class Transitions:
    def __init__(
        self,
        host: Host,
        table: SandboxTable,
        gateways: GatewayManager,
        quarantine: Quarantine,
        hooks: Hooks,
        tasks: Tasks,
    ) -> None:
        self.host, self.table, self.gateways, self.quarantine = host, table, gateways, quarantine
        self._hooks, self._tasks = hooks, tasks
        self._starts = asyncio.Semaphore((os.cpu_count() or 1) + 2)

    @contextlib.asynccontextmanager
    async def start_slot(self) -> AsyncIterator[None]:
        """Bound how many sandboxes start at once. None starts once the server closes: the next server removes the
        records of such creates."""
        async with self._starts:
            if self._tasks.closing:
                raise SandboxUnavailable("the server is stopping", hint="try again in a moment")
            yield

    # -- creating and starting ----------------------------------------------------------------------------------------

    def enter(self, records: Sequence[SandboxRecord], request: Value, key: str | None) -> None:
        """Store the records of new sandboxes, unless this host can't build them."""
        for record in records:
            self.host.check_disk_limit(record)
            self.host.runtime(record.spec.options.runtime)
        self.table.insert(records, request, key)
        fault_point("create.record")

    async def create(self, sandbox: Sandbox, secrets: Sequence[SecretValue] = (), origin: str | None = None) -> None:
        """Take a sandbox from its record to running, or remove it again. `origin`: the snapshot layer that its upper
        starts as."""
        try:
            if secrets:
                await asyncio.to_thread(self.host.secrets.put, sandbox.record.id, secrets)
            await self.create_upper(sandbox.record, origin)
            fault_point("create.upper")
            await self.start(sandbox)
        except BaseException:
            try:
                await self.delete(sandbox)
            except Exception:  # the first error is the one to report; the reaper repeats the delete
                log.exception("failed to undo a create", extra={"sandbox": sandbox.record.id})
            raise

    async def create_upper(self, record: SandboxRecord, origin: str | None = None, *, consume: bool = False) -> None:
        """Create the sandbox's upper: empty, or a copy of the snapshot layer `origin`. With `consume`, nothing else
        uses the layer."""
        name, limit = snap_name(origin) if origin is not None else None, record.spec.limits.disk_bytes
        await asyncio.to_thread(self.host.driver.create, record.upper, limit, name, consume=consume)

    async def start(self, sandbox: Sandbox, state: Literal["running", "creating"] = "running") -> None:
        """Start the container and send the keeper its configuration; on failure, undo all of it. `state` is the
        record's state afterwards: a sandbox that has to wait for others is still being created."""
        record, host = sandbox.record, self.host
        runtime = host.runtime(record.spec.options.runtime)
        base = ranges.take(host.instance, record.id)
        fault_point("start.range")
        # while the container starts
        files = asyncio.ensure_future(guest_files.prepare(host.secrets, record, new_lifetime=True))
        try:
            config = host.container_config(record, runtime, base)
            async with self._mounting(record):
                init = await runtime.start(config)
            fault_point("start.container")
            await host.buckets.mount(runtime, init, base, record)
            now = time.time()
            ends_at = end_of_life(record.spec, now)
            keeper = host.keeper(runtime, record.id)
            async with self._gateway(sandbox, runtime, init):
                made = await files
                await self.configure(keeper, record, ends_at)
                await guest_files.write(keeper, record, made, renew=False)
                await git_identity.write(keeper, record.spec.options)
                await reproducible.write(keeper, record.spec.options)
            if config.read_only_root:
                await asyncio.to_thread(runtime.seal_root, init)
            fault_point("start.keeper")
            self.attach(sandbox, runtime, keeper, init)  # before the record: if PID 1 is gone already, it does not run
            sandbox.record = self.table.update(
                record, state=state if record.owner != POOL_OWNER else "ready", reason=None, init=init, uid_base=base,
                started_at=now, ends_at=ends_at, isolation=self._isolation(runtime, config),
                spec=record.spec.begun(now),
            )  # fmt: skip
            if state != "creating":
                self._hooks.on_running(sandbox)
            fault_point("start.record")
        except BaseException:
            files.cancel()
            await self._undo_start(sandbox, runtime, base)
            raise

    @contextlib.asynccontextmanager
    async def _mounting(self, record: SandboxRecord) -> AsyncIterator[None]:
        """Let the upper be mounted although it may be full; a new one is not."""
        if record.started_at is None:
            yield
            return
        space = self.host.driver.mounting(record.upper)
        await asyncio.to_thread(space.__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(space.__exit__, None, None, None)

    @contextlib.asynccontextmanager
    async def _gateway(self, sandbox: Sandbox, runtime: Runtime, init: Init) -> AsyncIterator[None]:
        """Open the gateway while the keeper is being configured: neither needs the other, and no command can run before
        both are done."""
        pidfd = runtime.pidfd(init)
        opening = asyncio.get_running_loop().create_task(self.gateways.open(sandbox, pidfd))
        try:
            yield
            await opening
            fault_point("start.gateway")
        finally:
            opening.cancel()
            await asyncio.wait((opening,))
            os.close(pidfd)

    def attach(self, sandbox: Sandbox, runtime: Runtime, keeper: Keeper, init: Init) -> None:
        sandbox.attach(runtime, self.host.driver, keeper, runtime.pidfd(init), lambda: self._hooks.on_exit(sandbox))

    def running(self, sandbox: Sandbox) -> None:
        """Report that the sandbox has come to run by other means than `start`."""
        self._hooks.on_running(sandbox)

    async def _undo_start(self, sandbox: Sandbox, runtime: Runtime, base: int) -> None:
        try:
            self.gateways.close_gateway(sandbox.record.id)
            await sandbox.detach()
            await runtime.clear(sandbox.record.id)
            ranges.release(self.host.instance, sandbox.record.id, base)
        except Exception as error:  # the uid range stays taken while a process may still use it; the reaper continues
            log.exception("failed to undo a start", extra={"sandbox": sandbox.record.id})
            reason = f"a start could not be undone: {error}"
            sandbox.record = self.table.update(sandbox.record, state="stopping", reason=reason, uid_base=base)

    def _isolation(self, runtime: Runtime, config: ContainerConfig) -> Isolation:
        """Return the guarantees of the runtime, of the storage driver (disk limit) and of the gateway (egress)."""
        isolation = runtime.isolation(config)
        if self.gateways.has_gateway(config.id):
            isolation = replace(isolation, guarantees=(*isolation.guarantees, "egress_policy"))
        if self.host.driver.enforces_limit:
            return replace(isolation, guarantees=(*isolation.guarantees, "disk_limit"))
        return replace(isolation, waived=(*isolation.waived, "disk_limit"))

    # -- the keeper's configuration -----------------------------------------------------------------------------------

    async def configure(self, keeper: Keeper, record: SandboxRecord, ends_at: float | None) -> None:
        """Send the keeper its configuration. Sent again whenever a part of it changes."""
        life = max(ends_at - time.time(), 0) + LIFETIME_GRACE_S if ends_at is not None else None
        await keeper.configure(**self.configuration(record), life_s=life)

    def configuration(self, record: SandboxRecord) -> dict[str, Any]:
        """Return the keeper's configuration without the end of the sandbox's lifetime."""
        spec = record.spec
        return {
            "user": spec.user, "cwd": spec.cwd, "env": guest_files.environment(self.host.secrets, record),
            "sudo": spec.options.sudo, "open_files": spec.limits.open_files or 0, "pids": spec.limits.pids,
            "journal": self.host.journal(spec), "resolver": RESOLVER_IP,
        }  # fmt: skip

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(
        self, sandbox: Sandbox, state: Literal["stopped", "failed"], reason: str | None, *, grace: bool = True
    ) -> None:
        """End every process; keep the files. `state` is the state afterwards. Without `grace`, processes are killed
        without a request to end."""
        sandbox.record = self.table.update(
            sandbox.record, state="stopping" if state == "stopped" else "failing", reason=reason
        )
        sandbox.stop_reason = reason
        fault_point("stop.mark")
        if sandbox.keeper is not None and state == "stopped" and grace:
            await _shut_down(sandbox, sandbox.keeper)
        fault_point("stop.keeper")
        await sandbox.detach()
        await self._clear(sandbox)
        fault_point("stop.container")
        self._release_range(sandbox.record)
        fault_point("stop.range")
        await self._sync(sandbox.record)
        fault_point("stop.sync")
        sandbox.record = self.table.update(sandbox.record, state=state, init=None, uid_base=None)
        fault_point("stop.record")

    async def _clear(self, sandbox: Sandbox) -> None:
        """Kill the remaining processes and remove the container, the cgroup and the gateway. Keep the files."""
        await self.gateways.settle_traffic(sandbox)
        self.gateways.close_gateway(sandbox.record.id)
        last = await self.host.cleanup_runtime(sandbox.record).clear(sandbox.record.id)
        await self._hooks.on_cleared(sandbox, last)

    async def _sync(self, record: SandboxRecord) -> None:
        """Sync the upper of a named sandbox, and every volume that it wrote to, so that they survive a power cut. A
        failing disk does not prevent the stop."""
        written = [one.volume for one in record.spec.volumes if one.volume is not None and not one.read_only]
        for upper in [*[record.upper] * (record.name is not None), *dict.fromkeys(written)]:
            try:
                await asyncio.to_thread(self.host.driver.sync, upper)
            except (SkerryError, OSError) as error:
                log.error("failed to sync files", extra={"sandbox": record.id, "upper": upper, "error": str(error)})

    async def freeze(self, sandbox: Sandbox, runtime: Runtime, reason: str) -> None:
        """Pause. The record comes first: a server that dies in between must not take a frozen keeper for a silent
        one."""
        sandbox.record = self.table.update(sandbox.record, state="paused", reason=reason)
        fault_point("pause.record")
        try:
            await asyncio.to_thread(runtime.freeze, sandbox.record.id)
            fault_point("pause.freeze")
            sandbox.mark_active()
            self._hooks.on_paused(sandbox)
        except BaseException:
            with contextlib.suppress(SkerryError):
                await asyncio.to_thread(runtime.thaw, sandbox.record.id)
            sandbox.record = self.table.update(sandbox.record, state="running", reason=None)
            raise

    async def thaw(self, sandbox: Sandbox, runtime: Runtime) -> None:
        await asyncio.to_thread(runtime.thaw, sandbox.record.id)
        fault_point("resume.thaw")
        spec = sandbox.record.spec.begun(time.time())
        sandbox.record = self.table.update(sandbox.record, state="running", reason=None, spec=spec)
        sandbox.mark_active()
        fault_point("resume.record")

    async def delete(self, sandbox: Sandbox) -> None:
        """Leave no process, mount, cgroup, directory or uid range behind."""
        await self._hooks.before_delete(sandbox)
        sandbox.record = self.table.update(sandbox.record, state="deleting", name=None)
        sandbox.stop_reason = "deleted"
        fault_point("delete.mark")
        await sandbox.detach()
        await self._clear(sandbox)
        fault_point("delete.container")
        self._release_range(sandbox.record)
        fault_point("delete.range")
        await asyncio.to_thread(self.host.driver.delete, sandbox.record.upper)
        fault_point("delete.upper")
        self.host.secrets.remove(sandbox.record.id)
        self.host.cassettes.remove(sandbox.record.id)
        self.gateways.forget(sandbox.record.id)
        fault_point("delete.network")
        self.table.remove(sandbox.record)
        sandbox.deleted = True
        fault_point("delete.record")

    async def finish(self, sandbox: Sandbox) -> None:
        """Continue a transition that failed half-way, or that the death of a server interrupted."""
        if sandbox.record.state in ("creating", "ready", "deleting"):
            await self.delete(sandbox)
        elif sandbox.record.state == "stopping":
            await self.stop(sandbox, "stopped", sandbox.record.reason)
        elif sandbox.record.state == "failing":
            await self.stop(sandbox, "failed", sandbox.record.reason)

    def _release_range(self, record: SandboxRecord) -> None:
        """A range that a crash left taken without a record is found by the sweep of the next server."""
        if record.uid_base is not None:
            ranges.release(self.host.instance, record.id, record.uid_base)


def end_of_life(spec: SandboxSpec, started_at: float) -> float | None:
    life = spec.lifecycle.max_lifetime
    return started_at + parse_span(life) if life not in (None, "never") else None


async def _shut_down(sandbox: Sandbox, keeper: Keeper) -> None:
    """Ask the keeper to end. It answers at once and then gives its processes their grace, so wait for its exit."""
    with contextlib.suppress(SkerryError, TimeoutError):
        async with asyncio.timeout(STOP_GRACE_S * 2):
            await keeper.shutdown(STOP_GRACE_S)
            await sandbox.wait_exited()
