"""Claims: a pooled sandbox becomes the sandbox that a caller requested. Differences between the request and the pooled
sandbox are applied late. Requests with differences that can't be applied late are detected first; such sandboxes are
created from scratch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from msgspec import structs

from skerry.config import Settings
from skerry.engine.faults import fault_point
from skerry.engine.network import policy_resolution
from skerry.engine.sandboxes import git_identity, guest_files, limits, reproducible
from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import resolve_limits
from skerry.engine.sandboxes.transitions import Transitions, end_of_life
from skerry.errors import SandboxUnavailable
from skerry.types import Lifecycle, Limits, Options, SecretValue

PROLONG_S = 0.1
POOLED_LIFETIME_S = 3600.0  # of a ready one: if the server dies and none comes, its keeper ends it


def pooled_spec(spec: SandboxSpec, settings: Settings, host: Limits) -> SandboxSpec:
    """Return the spec of a pooled sandbox of the same image: the operator's defaults only."""
    identity = {"git_name": settings["git.name"], "git_email": settings["git.email"]}
    return structs.replace(
        spec, env={}, labels={}, limits=resolve_limits(Limits(), settings, host), secrets=(),
        network=policy_resolution.resolve_new(None, settings, policy_resolution.no_peer),
        lifecycle=Lifecycle(max_lifetime=POOLED_LIFETIME_S),
        options=Options(**identity), volumes=(),
    )  # fmt: skip


def can_be_pooled(requested: SandboxSpec) -> bool:
    """Whether any ready sandbox could become that. With a bucket, the start waits for a server, and may fail: a wrong
    key or a hung server must not use up ready sandboxes."""
    options = requested.options
    if any(mount.bucket is not None for mount in requested.volumes):
        return False
    if options.runtime is not None or options.read_only_root:  # its keeper has open files on the root's mount
        return False
    return options.use_pool and not options.waive_guarantees and requested.upper is None


def fits(transitions: Transitions, sandbox: Sandbox, requested: SandboxSpec) -> bool:
    """Return whether the pooled sandbox can become the requested one. The open-files limit can only go down: the first
    process has its limit from the start. Without a gateway no network is possible."""
    ready = sandbox.record.spec
    if (
        requested.layers != ready.layers
        or sandbox.keeper is None
        or sandbox.ended
        or any(map(transitions.host.layers.damaged, requested.layers))
    ):
        return False
    if (requested.limits.open_files or 0) > (ready.limits.open_files or 0):
        return False
    return transitions.gateways.has_gateway(sandbox.record.id) or (requested.network.closed and not requested.secrets)


async def bind(
    transitions: Transitions,
    sandbox: Sandbox,
    ready: SandboxRecord,
    record: SandboxRecord,
    secrets: Sequence[SecretValue],
) -> tuple[SandboxRecord, bool]:
    """Make the pooled sandbox match `record`. Return the final record, and whether the keeper was configured. The
    caller holds the lock. No command has run yet; a failure half-way is undone by deleting the sandbox."""
    runtime, keeper, init = sandbox.runtime, sandbox.keeper, record.init
    if runtime is None or keeper is None or init is None:
        raise SandboxUnavailable(f"{ready.id} has ended")
    if secrets:
        await asyncio.to_thread(transitions.host.secrets.put, record.id, secrets)
    files = await guest_files.prepare(transitions.host.secrets, record, new_lifetime=True)
    now = time.time()
    record = replace(
        record, started_at=now, ends_at=end_of_life(record.spec, now),
        isolation=limits.isolation(runtime, ready, record.spec.limits), spec=record.spec.begun(now),
    )  # fmt: skip
    reconfigured = transitions.configuration(record) != transitions.configuration(ready)
    work: list[Awaitable[None]] = []
    if record.spec.limits != ready.spec.limits:
        work.append(
            limits.enforce(
                transitions.host, sandbox, record.spec.limits, disk=record.spec.limits.disk != ready.spec.limits.disk
            )
        )
    renamed = record.hostname != ready.hostname
    if renamed:
        work.append(asyncio.to_thread(runtime.set_hostname, init, record.hostname))
    if renamed or record.spec.network != ready.spec.network or transitions.host.secrets.needed(record):
        work.append(transitions.gateways.reassign(sandbox))
    if reconfigured:
        work.append(transitions.configure(keeper, record, record.ends_at))
    if record.spec.volumes:
        mounts = await asyncio.to_thread(transitions.host.mounts, record.spec)
        work.append(asyncio.to_thread(runtime.mount, init, record.uid_base or 0, mounts))
    await _gather_all(work)
    await guest_files.write(keeper, record, files, renew=False)
    if git_identity.of(record.spec.options) != git_identity.of(ready.spec.options):
        await git_identity.write(keeper, record.spec.options)
    await reproducible.write(keeper, record.spec.options)
    fault_point("claim.bound")
    if sandbox.ended:  # its exit is not reported again
        raise SandboxUnavailable(f"{record.id} has ended")
    return replace(record, state="running"), reconfigured


async def _gather_all(work: list[Awaitable[None]]) -> None:
    """Run work concurrently, each to its end: a sandbox is not given up while a task still changes it."""
    for failed in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(failed, BaseException):
            raise failed


async def prolong(transitions: Transitions, sandbox: Sandbox) -> None:
    """Send the keeper the new end of the lifetime. It need not know at once: everything else is unchanged since the
    sandbox was ready, and a server that adopts it sends the whole configuration. If cancelled, send it now."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(PROLONG_S)
    async with sandbox.lock:
        if sandbox.record.state == "running" and sandbox.keeper is not None:
            try:
                await transitions.configure(sandbox.keeper, sandbox.record, sandbox.record.ends_at)
            except SandboxUnavailable as error:
                await transitions.stop(sandbox, "failed", error.message)
