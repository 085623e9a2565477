"""Adoption: a starting server takes over the sandboxes that outlived an earlier one, in the background.

The server answers before that: a call on a sandbox waits for its adoption, which then comes first. Each sandbox's lock
is held from before the first call until its adoption has ended. Sandboxes that were paused are frozen before the first
call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from msgspec.structs import replace

from skerry.engine.review.service import ReviewService
from skerry.engine.sandboxes import guest_files
from skerry.engine.sandboxes.lifecycle import LIFETIME_OVER, Lifecycle
from skerry.engine.sandboxes.record import SandboxRecord
from skerry.engine.sandboxes.recovery import repair_safely
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.transitions import Transitions
from skerry.engine.tasks import Tasks
from skerry.errors import NotFound, SkerryError
from skerry.keeper import HostResourceError, Keeper, KeeperTimeout, Process
from skerry.runtimes import Runtime
from skerry.types import Caller

log = logging.getLogger("skerry.engine")
HELLO_TIMEOUT_S = 5.0
KEEPER_TIMEOUT_S = 60.0  # for the keeper of a sandbox that is alive
RETRY_S = 0.5
MAX_PARALLEL = 16


class Adoption:
    """`engine.adoption`."""

    def __init__(
        self,
        transitions: Transitions,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        reviews: ReviewService,
        tasks: Tasks,
    ) -> None:
        self._transitions, self._registry, self._lifecycle = transitions, registry, lifecycle
        self._reviews, self._tasks = reviews, tasks
        self._waiting: dict[str, Sandbox] = {}  # not begun yet
        self._unfinished: set[Sandbox] = set()

    async def begin(self) -> None:
        """Called once, before the first call."""
        for sandbox in self._registry:
            if sandbox.record.state in ("running", "paused") or self._reviews.is_unopened(sandbox):
                await sandbox.lock.acquire()  # free: there are no callers yet
                sandbox.adopted.clear()
                self._waiting[sandbox.record.id] = sandbox
        self._unfinished = set(self._waiting.values())
        await asyncio.gather(*(self._freeze(s) for s in self._waiting.values() if s.record.state == "paused"))
        for _ in range(min(MAX_PARALLEL, len(self._waiting))):
            self._tasks.spawn(self._adopt_all())

    async def wait(self, caller: Caller, ref: str) -> None:
        """Wait until the caller's sandbox with that id or name is adopted; its turn comes now."""
        if not self._unfinished:
            return
        with contextlib.suppress(NotFound):  # the call reports that
            sandbox = self._registry.find(caller, ref)
            if self._waiting.pop(sandbox.record.id, None) is not None:
                self._tasks.spawn(self._adopt(sandbox))
            await sandbox.adopted.wait()

    async def wait_for_all(self) -> None:
        for sandbox in list(self._unfinished):
            await sandbox.adopted.wait()

    async def _freeze(self, sandbox: Sandbox) -> None:
        record = sandbox.record
        runtime = self._transitions.host.cleanup_runtime(record)
        if record.init is not None and runtime.alive(record.init):
            with contextlib.suppress(SkerryError, OSError):  # its adoption tries again, and reports that
                await asyncio.to_thread(runtime.freeze, record.id)

    async def _adopt_all(self) -> None:
        while self._waiting:
            await self._adopt(self._waiting.pop(next(iter(self._waiting))))

    async def _adopt(self, sandbox: Sandbox) -> None:
        """A failure must not keep the others from being adopted, and calls from their answer."""
        try:
            await repair_safely(self._transitions, sandbox, self._take_over(sandbox))
            if not sandbox.deleted:
                await self._reviews.adopt(sandbox)
            await self._lifecycle.forget_if_deleted(sandbox)
        except Exception:
            log.exception("failed to adopt a sandbox", extra={"sandbox": sandbox.record.id})
        finally:
            self._unfinished.discard(sandbox)
            sandbox.adopted.set()
            sandbox.lock.release()

    async def _take_over(self, sandbox: Sandbox) -> None:
        if sandbox.record.state in ("running", "paused"):
            why_not = await _adopt(self._transitions, sandbox)
            if why_not is not None:
                await _end_dead(self._transitions, sandbox, why_not)


async def _adopt(transitions: Transitions, sandbox: Sandbox) -> str | None:
    """Adopt a running sandbox, or return the reason why that is impossible."""
    record = sandbox.record
    runtime = transitions.host.cleanup_runtime(record)
    if record.init is None or not runtime.alive(record.init):
        return "it ended while no server was running, or the host restarted"
    keeper = transitions.host.keeper(runtime, record.id, started_here=False)
    try:
        if record.state == "paused":  # a frozen keeper does not answer; and a server may have died before it froze
            await asyncio.to_thread(runtime.freeze, record.id)
            transitions.attach(sandbox, runtime, keeper, record.init)
            await _open_gateway(transitions, sandbox)
            sandbox.activity.left_behind = True
            return None
        await asyncio.to_thread(runtime.thaw, record.id)  # a server may have died while it stood still for a snapshot
        processes = await _greet(runtime, record, keeper)
        transitions.attach(sandbox, runtime, keeper, record.init)
        await _configure_again(transitions, sandbox, keeper)
        await _open_gateway(transitions, sandbox)
        for process in processes:
            sandbox.attempts.processes.note(process.cgroup, process.id, process.started_at)
        sandbox.activity.left_behind = any(process.children for process in processes)
        sandbox.account.credit_active((process.started_at, process.ended_at or time.time()) for process in processes)
        sandbox.activity.set_running(process.id for process in processes if process.state == "running")
        transitions.running(sandbox)
    except (SkerryError, TimeoutError, OSError) as error:
        log.warning("failed to adopt a sandbox", extra={"sandbox": record.id, "error": str(error)})
        with contextlib.suppress(SkerryError):  # a keeper of another protocol can still shut down in order
            transitions.attach(sandbox, runtime, keeper, record.init)
        reason = error.message if isinstance(error, SkerryError) else str(error)
        return f"a starting server could not take it up: {reason or 'its keeper does not answer'}"
    return None


async def _greet(runtime: Runtime, record: SandboxRecord, keeper: Keeper) -> list[Process]:
    """Return the keeper's processes. On a host with much to do, for example a thousand adoptions, a keeper may answer
    late, or the server may lack a descriptor for a moment: that is no reason to end a living sandbox."""
    deadline = time.monotonic() + KEEPER_TIMEOUT_S
    while True:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await keeper.hello()
                return await keeper.processes()
        except (TimeoutError, KeeperTimeout, HostResourceError, OSError) as error:
            if time.monotonic() > deadline or record.init is None or not runtime.alive(record.init):
                raise
            log.warning("a keeper does not answer yet", extra={"sandbox": record.id, "error": str(error)})
            await asyncio.sleep(RETRY_S)


async def _configure_again(transitions: Transitions, sandbox: Sandbox, keeper: Keeper) -> None:
    """Configure the keeper again: a server that died during an update may have sent half of it. The secrets' file was
    written first, so it counts."""
    record = sandbox.record
    forms = transitions.host.secrets.forms(record.id)
    if forms is not None and forms != record.spec.secrets:
        sandbox.record = record = transitions.table.update(record, spec=replace(record.spec, secrets=forms))
    async with asyncio.timeout(KEEPER_TIMEOUT_S):
        await transitions.configure(keeper, record, record.ends_at)
        if record.spec.secrets or record.spec.network.presets:
            await guest_files.write(
                keeper, record, await guest_files.prepare(transitions.host.secrets, record), renew=True
            )


async def _open_gateway(transitions: Transitions, sandbox: Sandbox) -> None:
    """Open a gateway on a fresh port: a program inside may have taken the old one. Without a gateway the sandbox keeps
    running and nothing gets out."""
    try:
        with sandbox.init_pidfd() as pidfd:
            await transitions.gateways.open(sandbox, pidfd)
    except SkerryError as error:
        log.error("failed to open a gateway", extra={"sandbox": sandbox.record.id, "error": error.message})


async def _end_dead(transitions: Transitions, sandbox: Sandbox, reason: str) -> None:
    """Stop a sandbox that ended while no server was running. The reaper deletes it if its lifetime is over."""
    await transitions.stop(sandbox, "stopped", LIFETIME_OVER if sandbox.lifetime_over else reason)
