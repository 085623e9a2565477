"""Receives a keeper's events about processes while the sandbox runs: one connection that is silent while nothing
happens, so that no polling is needed and an idle sandbox stays idle.

A frozen keeper is silent, and the connection outlasts that. Events from before the connection come first on the next
one; events that the keeper has forgotten by then are reconstructed from its list of processes."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress

from msgspec.structs import replace

from skerry.engine.events import Events, PendingEvent
from skerry.engine.hooks import Hook
from skerry.engine.processes.run import process_info
from skerry.engine.records.limits import LimitEvents
from skerry.engine.records.trace.recorder import Step
from skerry.engine.records.trace.service import TraceService
from skerry.engine.sandboxes.activity import is_killed
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import (
    EventsHello,
    HostResourceError,
    JournalGap,
    Keeper,
    KeeperProtocolError,
    Process,
    ProcessEvent,
)
from skerry.types import ProcessInfo, RunResult, Usage

AT_ONCE = 100  # events that are taken within PACE_S: a keeper that floods its host is slowed down
PACE_S = 0.05
LOOK_EVERY_S = 1.0
TRIES = 3
PAUSE_S = 0.2
MAX_RUNNING = 4096
MAX_TRACED = 4 << 20  # bytes of a background process's output that are read for its trace
MAX_COMMAND = 1000  # characters of a command in an event


class KeeperEvents(Hook):
    def __init__(
        self, events: Events, limits: LimitEvents, traces: TraceService, lifecycle: Lifecycle, tasks: Tasks
    ) -> None:
        self._events, self._limits, self._traces = events, limits, traces
        self._lifecycle, self._tasks = lifecycle, tasks

    def on_running(self, sandbox: Sandbox) -> None:
        """Listen to the sandbox's keeper, unless that happens already."""
        if sandbox.keeper is not None and (sandbox.listener_task is None or sandbox.listener_task.done()):
            sandbox.listener_task = self._tasks.spawn(self._watch(sandbox, sandbox.keeper))

    async def _watch(self, sandbox: Sandbox, keeper: Keeper) -> None:
        ears, failures = _KeeperListener(sandbox, keeper, self._events, self._limits, self._traces, self._tasks), 0
        while _runs(sandbox, keeper):
            before = ears.heard
            try:
                await ears.listen()
            except HostResourceError:  # later, then
                pass
            except SkerryError as error:
                failures = failures + 1 if ears.heard == before else 1
                await sandbox.thawed.wait()
                if failures >= TRIES and _runs(sandbox, keeper):
                    with suppress(SandboxUnavailable):  # it was ended by another task just now
                        await self._lifecycle.fail(sandbox, keeper, _protocol_error(error))
                    return
            if _runs(sandbox, keeper):  # the task that stops it waits for this one
                await asyncio.sleep(PAUSE_S)


def _runs(sandbox: Sandbox, keeper: Keeper) -> bool:
    return sandbox.keeper is keeper and sandbox.record.state in ("running", "ready")


def _protocol_error(error: SkerryError) -> SandboxUnavailable:
    if isinstance(error, SandboxUnavailable):
        return error
    return KeeperProtocolError(f"the keeper reports no events: {error.message}")


class _KeeperListener:
    """Receives the events of one sandbox."""

    def __init__(
        self,
        sandbox: Sandbox,
        keeper: Keeper,
        events: Events,
        limits: LimitEvents,
        traces: TraceService,
        tasks: Tasks,
    ) -> None:
        self.heard = events.heard(sandbox.record.id)
        self._sandbox = sandbox
        self._keeper = keeper
        self._events = events
        self._limits, self._traces, self._tasks = limits, traces, tasks
        self._already_reported: set[str] = set()

    async def listen(self) -> None:
        """Until the connection ends."""
        async with aclosing(await self._keeper.events(self.heard)) as stream:
            if stream.hello.lost:
                await self._reconcile(stream.hello)
            taken, since = 0, time.monotonic()
            async for event in stream:
                if isinstance(event, EventsHello):
                    await self._reconcile(event)
                else:
                    self._handle(event)
                taken += 1
                if taken == AT_ONCE:
                    await asyncio.sleep(max(0.0, since + PACE_S - time.monotonic()))
                    taken, since = 0, time.monotonic()

    def _handle(self, event: ProcessEvent) -> None:
        process, work = event.process, self._sandbox.activity
        self.heard = event.seq
        if event.type == "process_started":
            if len(work.running) >= MAX_RUNNING:
                raise KeeperProtocolError(f"the keeper says that more than {MAX_RUNNING} processes run")
            work.started(process.id)
            self._sandbox.attempts.processes.note(process.cgroup, process.id, process.started_at)
            self._publish("process.started", process, event.at)
        elif process.id in self._already_reported:
            self._already_reported.discard(process.id)
        else:
            self._ended(process, event.at)

    def _ended(self, process: Process, at: float) -> None:
        sandbox = self._sandbox
        sandbox.activity.left_behind |= bool(process.children)
        killed = is_killed(process.exit_code, process.signal, process.timed_out)
        oom = sandbox.activity.end(process.id, sandbox.count_oom_kills, killed)
        self._limits.ended(
            sandbox, process.id, oom=bool(oom), timed_out=process.timed_out, failed=process.exit_code != 0
        )
        sandbox.activity.ended(process.id)
        sandbox.account.exited(process.id, sandbox.attempts.sent, sandbox.attempts.received)
        if sandbox.workspace is not None:
            sandbox.workspace.ended(process)
        sandbox.mark_active()  # idleness counts from here
        self._publish("process.ended", process, at)
        step = self._traces.take_ended(sandbox.record.id, process.id)
        if step is not None:
            self._tasks.spawn(_record_end(self._keeper, process, step))
        elif self._traces.may_be_earlier(sandbox.record.id, process.id):
            self._tasks.spawn(self._record_earlier(process))

    async def _record_earlier(self, process: Process) -> None:
        """Record the end of a background process that an earlier server started."""
        step = await self._traces.take_earlier(self._sandbox, process.id)
        if step is not None:
            await _record_end(self._keeper, process, step)

    async def _reconcile(self, hello: EventsHello) -> None:
        """Events were lost, ends perhaps among them: the list has them."""
        sandbox = self._sandbox
        self.heard = hello.seq
        self._events.publish(self._event("lost", time.time()))
        unreported = self._events.running_processes(sandbox.record.id).keys() | sandbox.activity.running
        listed = await self._keeper.processes()
        found_out = [process for process in listed if process.state == "exited" and process.id in unreported]
        for process in found_out:
            self._ended(process, process.ended_at or time.time())
        self._already_reported = {process.id for process in found_out}
        sandbox.activity.set_running(process.id for process in listed if process.state == "running")
        await asyncio.sleep(LOOK_EVERY_S)

    def _publish(self, what: str, process: Process, at: float) -> None:
        self._events.publish(self._event(what, at, _shortened(process_info(process))))

    def _event(self, what: str, at: float, process: ProcessInfo | None = None) -> PendingEvent:
        record = self._sandbox.record
        return PendingEvent(
            what, record.owner, record.id, record.name, min(at, time.time()), process=process, heard=self.heard
        )


async def _record_end(keeper: Keeper, process: Process, step: Step) -> None:
    """Record the end of a background process in its trace, with its output as far as that is bounded."""
    try:
        async with aclosing(await keeper.output(process.id, 0, follow=False, limit=MAX_TRACED)) as stream:
            async for piece in stream:
                if isinstance(piece, JournalGap):
                    step.cut("the journal has dropped a part of it")
                else:
                    step.output(*piece)
            if stream.more:
                step.cut(f"only the first {MAX_TRACED >> 20} MiB of the output were read")
    except SkerryError:
        step.cut("the output could not be read")
    finally:
        step.end(
            RunResult(
                id=process.id, exit_code=process.exit_code, signal=process.signal, timed_out=process.timed_out,
                duration_s=process.duration_s or 0.0,
                usage=Usage(cpu_s=process.cpu_s or 0.0, memory_peak=process.max_rss),
            )
        )  # fmt: skip


def _shortened(process: ProcessInfo) -> ProcessInfo:
    """Thousands of these are kept: a command of megabytes is cut."""
    if isinstance(process.cmd, str):
        return process if len(process.cmd) <= MAX_COMMAND else replace(process, cmd=process.cmd[:MAX_COMMAND] + "…")
    words: list[str] = []
    room = MAX_COMMAND
    for word in process.cmd:
        if room <= 0:
            words.append("…")
            break
        words.append(word if len(word) <= room else word[:room] + "…")
        room -= len(word) + 1
    return replace(process, cmd=words)
