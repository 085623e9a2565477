"""Startup: the `on_start` commands of a sandbox and its readiness, at each start and resume.

Each command is a background process, `on-start-0` and so on. Those that still run after a pause, or that an earlier
server started, are not started again. Calls that need a ready sandbox wait for it; the record says since when the
sandbox starts (`SandboxSpec.starting`), so that the next server continues after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from skerry.codecs.text import escape
from skerry.engine.faults import fault_point
from skerry.engine.hooks import Hook
from skerry.engine.processes.service import ProcessService
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import NotFound, SandboxUnavailable, SkerryError
from skerry.keeper import JournalGap, Keeper, Process
from skerry.types import START_ID, ReadyCommand, ReadyPort, RunRequest, parse_ready, parse_span

log = logging.getLogger("skerry.engine")
_READY: Final = f"{START_ID}ready"
_DEFAULT_TIMEOUT_S: Final = 60.0
_ROUND_S: Final = 0.5
_JOURNAL: Final = "1M"  # of the readiness command, which may run many times
_SHOWN: Final = 400  # characters of output in an error


class StartupService(Hook):
    """`engine.startups`."""

    def __init__(
        self, processes: ProcessService, lifecycle: Lifecycle, registry: SandboxRegistry, tasks: Tasks
    ) -> None:
        self._processes, self._lifecycle, self._registry = processes, lifecycle, registry
        self._tasks = tasks

    def on_running(self, sandbox: Sandbox) -> None:
        self.begin(sandbox)

    def begin(self, sandbox: Sandbox) -> None:
        """Start the commands if the record says that the sandbox is starting. They do not keep it from being idle: they
        start again when it does."""
        lifecycle, keeper = sandbox.record.spec.lifecycle, sandbox.keeper
        for number in range(len(lifecycle.on_start or ())):
            sandbox.activity.mark_resting(f"{START_ID}{number}")
        if sandbox.record.spec.starting is not None and keeper is not None:
            sandbox.begin_startup(self._tasks.spawn(self._run(sandbox, keeper)))

    async def _run(self, sandbox: Sandbox, keeper: Keeper) -> None:
        with contextlib.suppress(NotFound), sandbox.in_use():  # deleted meanwhile
            try:
                await self._start(sandbox, keeper)
            except (SkerryError, TimeoutError, OSError) as error:
                await self._fail(sandbox, keeper, error)
                return
            async with self._registry.locked(sandbox):
                if sandbox.keeper is not keeper or sandbox.record.state != "running":
                    return
                record = sandbox.record
                sandbox.record = self._registry.table.update(record, spec=replace(record.spec, starting=None))
            fault_point("startup.ready")

    async def _fail(self, sandbox: Sandbox, keeper: Keeper, error: Exception) -> None:
        """End a sandbox that did not become ready. Another end of it, or a pause, is no failure of the startup."""
        if sandbox.keeper is keeper and sandbox.record.state == "running":
            reason = error.message if isinstance(error, SkerryError) else str(error) or "it did not become ready"
            log.warning("failed to become ready", extra={"sandbox": sandbox.record.id, "error": reason})
            await self._lifecycle.stop(sandbox, reason, "failed", still=lambda: sandbox.keeper is keeper)

    async def _start(self, sandbox: Sandbox, keeper: Keeper) -> None:
        spec = sandbox.record.spec
        deadline = time.monotonic() + parse_span(spec.lifecycle.ready_timeout or _DEFAULT_TIMEOUT_S)
        since, ids = spec.starting or 0.0, []
        for number, command in enumerate(spec.lifecycle.on_start or ()):
            ids.append(f"{START_ID}{number}")
            await self._ensure(sandbox, keeper, ids[-1], RunRequest(cmd=command), command, since, keep=True)
            sandbox.activity.mark_resting(ids[-1])
            fault_point("startup.command")
        ready = parse_ready(spec.lifecycle.ready)
        if isinstance(ready, ReadyCommand):
            loop = f"until (\n{ready.command}\n); do sleep 0.2 || exit 1; done"
            request = RunRequest(cmd=loop, timeout=max(deadline - time.monotonic(), 0.1), journal=_JOURNAL)
            await self._ensure(sandbox, keeper, _READY, request, ready.command, since, keep=False)
        while ready is not None and not await self._is_ready(sandbox, keeper, ready, ids):
            if sandbox.keeper is not keeper or sandbox.record.state != "running":
                raise SandboxUnavailable("it was ended or paused")
            if time.monotonic() > deadline:
                names = [*ids, _READY] if isinstance(ready, ReadyCommand) else ids
                raise SandboxUnavailable(f"it was not ready in time: {ready}{await _tails(keeper, names)}")

    async def _ensure(
        self,
        sandbox: Sandbox,
        keeper: Keeper,
        process: str,
        request: RunRequest,
        command: str,
        since: float,
        *,
        keep: bool,
    ) -> None:
        """Start a process unless it was started since then or, with `keep`, still runs from before a pause. It is a
        step of the trace. `command`: as its caller wrote it."""
        found = await _find(keeper, process)
        if found is not None:
            if found.started_at >= since or (keep and found.state == "running"):
                return
            if found.state == "running":
                await keeper.signal(process, "KILL")
                await _ended(sandbox, keeper, process, _DEFAULT_TIMEOUT_S)
            await keeper.remove(process)
        await self._processes.spawn_in(sandbox, keeper, request, process, record=replace(request, cmd=command))

    async def _is_ready(
        self, sandbox: Sandbox, keeper: Keeper, ready: ReadyPort | ReadyCommand, ids: list[str]
    ) -> bool:
        """Look once, for a moment. Raise SandboxUnavailable if a command has failed."""
        for process in ids:
            found = await _find(keeper, process)
            if found is not None and found.state == "exited" and found.exit_code != 0:
                how = f"signal {found.signal}" if found.signal else f"exit code {found.exit_code}"
                raise SandboxUnavailable(
                    f"{process} ended with {how} before it was ready{await _tails(keeper, [process])}"
                )
        if isinstance(ready, ReadyPort):
            return (await keeper.wait_for_port(ready.port, _ROUND_S, ready.path)).open
        found = await _ended(sandbox, keeper, _READY, _ROUND_S)
        if found is None or found.state == "running" or found.timed_out:
            return False
        if found.exit_code != 0:
            raise SandboxUnavailable(f"its readiness command failed: {ready}{await _tails(keeper, [_READY])}")
        return True


async def _find(keeper: Keeper, process: str) -> Process | None:
    try:
        return await keeper.process(process)
    except NotFound:
        return None


async def _ended(sandbox: Sandbox, keeper: Keeper, process: str, within: float) -> Process | None:
    """Wait for the end of a process; return its state then."""
    end = sandbox.activity.end_of(process)
    try:
        found = await _find(keeper, process)
        if found is not None and found.state == "running":
            await asyncio.wait((end,), timeout=within)
            found = await _find(keeper, process)
        return found
    finally:
        end.cancel()


async def _tails(keeper: Keeper, processes: list[str]) -> str:
    """Return the last output of these processes, for an error."""
    texts = []
    for process in processes:
        with contextlib.suppress(SkerryError):
            async with aclosing(await keeper.output(process, -_SHOWN, follow=False, limit=_SHOWN)) as stream:
                pieces = [piece[1] async for piece in stream if not isinstance(piece, JournalGap)]
            if text := b"".join(pieces).decode("utf-8", "replace").strip():
                texts.append(f"; {process} printed: {escape(' | '.join(text.splitlines()))}")
    return "".join(texts)
