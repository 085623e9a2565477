"""Capture: a sandbox's files at one moment, as a new layer. Dirty pages are written out first, while the sandbox runs;
then it is frozen only as long as the storage driver needs, and at most `snapshots.max_freeze`. The keeper is frozen
too, so nothing is requested from it meanwhile. If the server dies during the freeze, the next one thaws the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass

from skerry.engine.faults import fault_point
from skerry.engine.host import Host
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import Conflict, SkerryError
from skerry.runtimes import Runtime
from skerry.storage import snap_name
from skerry.types import parse_span

log = logging.getLogger("skerry.engine")
SYNC_ROUNDS = 3
FEW_BYTES = 1 << 20  # are written out within the freeze
SOON_S = 0.02  # the data written during a round this short is little enough for the freeze


@dataclass(frozen=True)
class CapturedLayer:
    """A layer without a record."""

    layer: str
    at: float
    sync_s: float | None = None
    frozen_s: float | None = None


async def sync(host: Host, sandbox: Sandbox) -> float | None:
    """Write out dirty pages, so that little is left for the freeze: nothing if there are few. Return how long that
    took; None if the sandbox did not run. The lock is not held: writes meanwhile, or an ending sandbox, are no reason
    to wait."""
    if sandbox.record.state != "running":
        return None
    began = time.monotonic()
    for _ in range(SYNC_ROUNDS):
        unwritten = sandbox.runtime.unwritten(sandbox.record.id) if sandbox.runtime is not None else None
        if unwritten is not None and unwritten <= FEW_BYTES:
            break
        round_began = time.monotonic()
        with contextlib.suppress(SkerryError, OSError):  # it may be gone; the capture reports disk errors
            await asyncio.to_thread(host.driver.sync, sandbox.record.upper)
        if time.monotonic() - round_began < SOON_S:
            break
    return time.monotonic() - began


async def capture(host: Host, sandbox: Sandbox, layer: str, sync_s: float | None, *, durable: bool) -> CapturedLayer:
    """The caller holds the sandbox's lock, so that it can't be stopped, paused or deleted meanwhile."""
    unit, frozen_s, at = sandbox.record.upper, None, time.time()
    if sandbox.record.state == "running" and sandbox.runtime is not None:
        token, frozen_s = await _capture_frozen(host, sandbox, sandbox.runtime)
    else:  # nothing in it can write
        token = await asyncio.to_thread(host.driver.capture, unit)
    fault_point("snapshot.thawed")
    try:
        await asyncio.to_thread(host.driver.keep, token, snap_name(layer), durable=durable)
    except BaseException:
        await asyncio.to_thread(host.driver.discard, token)
        raise
    fault_point("snapshot.kept")
    return CapturedLayer(layer, at, sync_s, frozen_s)


async def _capture_frozen(host: Host, sandbox: Sandbox, runtime: Runtime) -> tuple[str, float]:
    """Return the capture's token and how long the sandbox was frozen. At the maximum, the sandbox and calls into it
    continue; this caller waits for the storage driver, because a capture in the kernel can't be interrupted."""
    record, max_s, thawed = sandbox.record, parse_span(host.settings["snapshots.max_freeze"]), threading.Event()
    standing = asyncio.to_thread(_standing_still, host, runtime, record.id, record.upper, max_s, thawed)
    with sandbox.frozen():
        work = asyncio.ensure_future(standing)
        done, _ = await asyncio.wait((work,), timeout=max_s)
        if not done:
            thawed.set()  # first: no capture that ends after the thaw may pass for a good one
            # Not in a thread of the pool: the slow disk may block all of them.
            threading.Thread(target=_thaw, args=(runtime, record.id), daemon=True).start()
    return await work


def _standing_still(
    host: Host, runtime: Runtime, sandbox_id: str, unit: str, max_s: float, thawed: threading.Event
) -> tuple[str, float]:
    """Freeze, capture and thaw in one thread: other work of the event loop must not prolong the freeze. A capture that
    the sandbox may have written to, because it was thawed early, is discarded. After the caller's thaw, there is no
    other: a thread that starts late must not freeze, and a freeze that ends late must be undone here."""
    began, token = time.monotonic(), None
    try:
        _raise_if(thawed)
        try:
            runtime.freeze(sandbox_id, max_s)
            fault_point("snapshot.frozen")
            _raise_if(thawed)
            token = host.driver.capture(unit)
            fault_point("snapshot.captured")
            _raise_if(thawed)
        finally:
            runtime.thaw(sandbox_id)
    except BaseException as error:
        if token is not None:
            host.driver.discard(token)
        # The caller's timeout begins before this thread does, so it can end before `max_s` has passed here.
        too_long = thawed.is_set() or time.monotonic() - began >= max_s
        if isinstance(error, SkerryError | OSError) and too_long:
            raise _frozen_too_long(sandbox_id, max_s) from error
        raise
    return token, time.monotonic() - began


def _raise_if(thawed: threading.Event) -> None:
    if thawed.is_set():
        raise TimeoutError


def _thaw(runtime: Runtime, sandbox_id: str) -> None:
    with contextlib.suppress(SkerryError, OSError):  # the thaw that follows reports it
        runtime.thaw(sandbox_id)


def _frozen_too_long(sandbox_id: str, max_s: float) -> Conflict:
    """Not SandboxUnavailable, which fails the sandbox: it is the host that was too slow."""
    return Conflict(
        f"no snapshot of {sandbox_id} was taken: it would be frozen for more than {max_s:g} s",
        hint="its processes run on; try again when the host is less busy, or pause or stop the sandbox first",
        details={"setting": "snapshots.max_freeze", "maximum": max_s, "retry": True},
    )


async def drop(host: Host, layer: str) -> None:
    """Remove a layer that nothing names. If that fails, the next server removes it."""
    try:
        await asyncio.to_thread(host.layers.remove, layer)
    except (SkerryError, OSError) as error:
        log.error("failed to remove a layer", extra={"layer": layer, "error": str(error)})
