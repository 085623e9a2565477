"""A sandbox's files at one moment, as a new layer. What is unwritten is written out first, while it runs; then it
stands still for as long as the storage driver needs to take the picture, and no longer. Nothing is asked of the keeper
meanwhile: it stands still too. A server that dies in there leaves it to the next one to thaw the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from skerry.engine.faults import passed
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.errors import SkerryError
from skerry.runtimes import Runtime
from skerry.storage import snap_name

log = logging.getLogger("skerry.engine")
SYNC_ROUNDS = 3
SOON_S = 0.02  # what was written while another round took this long is little enough to be written out in the freeze


@dataclass(frozen=True)
class Captured:
    """A layer that no row names yet."""

    layer: str
    at: float
    sync_s: float | None = None
    frozen_s: float | None = None


async def sync(host: Host, live: Live) -> float | None:
    """Write out what is unwritten, so that little is left for the freeze. How long that took; None: it did not run.
    Without the sandbox's lock: what is written meanwhile, or a sandbox that ends, is no reason to wait."""
    if live.row.state != "running":
        return None
    began = time.monotonic()
    for _ in range(SYNC_ROUNDS):
        round_began = time.monotonic()
        with contextlib.suppress(
            SkerryError, OSError
        ):  # it may be gone; what is wrong with the disk, the capture tells
            await asyncio.to_thread(host.driver.sync, live.row.unit)
        if time.monotonic() - round_began < SOON_S:
            break
    return time.monotonic() - began


async def capture(host: Host, live: Live, layer: str, sync_s: float | None, *, durable: bool) -> Captured:
    """The caller holds the sandbox's lock, so that it can't be stopped, paused or deleted meanwhile."""
    unit, frozen_s, at = live.row.unit, None, time.time()
    if live.row.state == "running" and live.runtime is not None:
        with live.standing_still():
            token, frozen_s = await asyncio.to_thread(_standing_still, host, live.runtime, live.row.id, unit)
    else:  # nothing in it can write
        token = await asyncio.to_thread(host.driver.capture, unit)
    passed("snapshot.thawed")
    try:
        await asyncio.to_thread(host.driver.keep, token, snap_name(layer), durable=durable)
    except BaseException:
        await asyncio.to_thread(host.driver.discard, token)
        raise
    passed("snapshot.kept")
    return Captured(layer, at, sync_s, frozen_s)


def _standing_still(host: Host, runtime: Runtime, sandbox: str, unit: str) -> tuple[str, float]:
    """In a thread of its own, as one piece: the event loop's other work must not make the freeze longer."""
    began, token = time.monotonic(), None
    try:
        runtime.freeze(sandbox)
        passed("snapshot.frozen")
        token = host.driver.capture(unit)
        passed("snapshot.captured")
    finally:
        try:
            runtime.thaw(sandbox)
        except BaseException:
            if token is not None:
                host.driver.discard(token)
            raise
    return token, time.monotonic() - began


async def drop(host: Host, layer: str) -> None:
    """One that nothing names. What can't be removed now is swept by the next server."""
    try:
        await asyncio.to_thread(host.layers.remove, layer)
    except (SkerryError, OSError) as error:
        log.error("not removed", extra={"layer": layer, "error": str(error)})
