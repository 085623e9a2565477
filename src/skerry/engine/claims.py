"""From a ready sandbox of the pool's to somebody's own: what differs between its maker's wish and what it was made
with is set late. What can't be set late is found out first, and such a sandbox is made cold."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from msgspec import structs

from skerry.config import Settings
from skerry.engine import egress, furnishing, identity, lifecycle, limits, plan
from skerry.engine.faults import passed
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.rows import Row, Spec
from skerry.errors import SandboxUnavailable
from skerry.types import Lifecycle, Limits, Options, SecretValue

PROLONG_S = 0.1
LIFE_S = 3600.0  # of a ready one: if the server dies and none comes, its keeper ends it


def plain(spec: Spec, settings: Settings, host: Limits) -> Spec:
    """A ready sandbox of the same image, with the operator's defaults and nobody's wishes."""
    identity = {"git_name": settings["git.name"], "git_email": settings["git.email"]}
    return structs.replace(
        spec, env={}, labels={}, limits=plan.resolve_limits(Limits(), settings, host), secrets=(),
        network=egress.of_new(None, settings, egress.no_peer), lifecycle=Lifecycle(life=LIFE_S),
        options=Options(**identity),
    )  # fmt: skip


def possible(wish: Spec) -> bool:
    """Whether any ready sandbox could become that."""
    options = wish.options
    return options.pool and options.runtime is None and not options.waive and wish.unit is None


def fits(host: Host, live: Live, wish: Spec) -> bool:
    """Open files can only go down: the first process has its own limit from the start. Without a door it can't be given
    a network."""
    ready = live.row.spec
    if wish.layers != ready.layers or live.keeper is None or live.ended or any(map(host.layers.damaged, wish.layers)):
        return False
    if (wish.limits.open_files or 0) > (ready.limits.open_files or 0):
        return False
    return host.doors.stands(live.row.id) or (wish.network.closed and not wish.secrets)


async def bind(host: Host, live: Live, ready: Row, row: Row, secrets: Sequence[SecretValue]) -> tuple[Row, bool]:
    """Has the ready sandbox be what `row` says; gives the row as it is then, and whether its keeper was told. The
    sandbox's lock is held. Nothing has run in it; what fails half-way is undone by deleting it."""
    runtime, keeper, init = live.runtime, live.keeper, row.init
    if runtime is None or keeper is None or init is None:
        raise SandboxUnavailable(f"{ready.id} has ended")
    if secrets:
        await asyncio.to_thread(host.secrets.put, row.id, secrets)
    furniture = await furnishing.begin(host.secrets, row, anew=True)
    now = time.time()
    row = replace(
        row, started_at=now, ends_at=lifecycle.end_of_life(row.spec, now),
        isolation=limits.isolation(runtime, ready, row.spec.limits),
    )  # fmt: skip
    told = lifecycle.configuration(host, row) != lifecycle.configuration(host, ready)
    work: list[Awaitable[None]] = []
    if row.spec.limits != ready.spec.limits:
        work.append(limits.hold(host, live, row.spec.limits, disk=row.spec.limits.disk != ready.spec.limits.disk))
    if row.name is not None:
        work.append(asyncio.to_thread(runtime.set_hostname, init, row.name))
    if row.name is not None or row.spec.network != ready.spec.network or host.secrets.needed(row):
        work.append(host.doors.reopen(live))
    if told:
        work.append(lifecycle.configure(host, keeper, row, row.ends_at))
    await _all(work)
    await furnishing.put(keeper, row, furniture, renew=False)
    if identity.of(row.spec.options) != identity.of(ready.spec.options):
        await identity.write(keeper, row.spec.options)
    passed("claim.bound")
    if live.ended:  # nobody will be told of that again
        raise SandboxUnavailable(f"{row.id} has ended")
    return replace(row, state="running"), told


async def _all(work: list[Awaitable[None]]) -> None:
    """Beside each other, each to its end: what failed is not given up while something is still done to it."""
    for failed in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(failed, BaseException):
            raise failed


async def prolong(host: Host, live: Live) -> None:
    """Tells its keeper when its life ends now. It need not know at once: all else is as while it was ready, and whoever
    takes it up tells it everything. What is cut short is done now."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(PROLONG_S)
    async with live.lock:
        if live.row.state == "running" and live.keeper is not None:
            try:
                await lifecycle.configure(host, live.keeper, live.row, live.row.ends_at)
            except SandboxUnavailable as error:
                await lifecycle.stop(host, live, "failed", error.message)
