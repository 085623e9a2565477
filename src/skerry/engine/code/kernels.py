"""Kernels: processes that keep the state of contexts. Each is started with its first run and receives its script then:
no file of Skerry lies inside, and no round trip is spent on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from skerry.code import kernel_protocol
from skerry.code.kernels import KERNELS
from skerry.engine.code.changed_files import changed_files
from skerry.engine.code.compiled import first_line
from skerry.engine.code.contexts import CodeJob, ContextState, ContextStore, is_up, lost_with
from skerry.engine.code.languages import toolchain_missing
from skerry.engine.code.outcome import RunContext, RunTimeline, end_of, ended, metered
from skerry.engine.code.results import ResultParser, is_large, output_of
from skerry.engine.code.run import Piece
from skerry.engine.hooks import Hooks
from skerry.engine.network import denials
from skerry.engine.records.limits import LimitEvents
from skerry.engine.sandboxes.activity import is_killed
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, NotFound, SandboxUnavailable, SkerryError
from skerry.keeper import Exchange, Keeper, KeeperTimeout, Process, ProcessSpec
from skerry.types import CodeEnd, OutputFile

log = logging.getLogger("skerry.engine")
GRACE_S: Final = 2.0  # to stop in, once interrupted
MAX_SLOW: Final = 2  # grace periods for code that waits for a slow reader
READ_TIMEOUT_S: Final = 0.5
FROZEN_S: Final = 0.5
EXIT_TIMEOUT_S: Final = 10.0
MAX_WAITS: Final = 2  # periods to wait for the exit of a killed kernel
MAX_EARLY: Final = 4 << 10


@dataclass(frozen=True)
class StartedRun:
    """A run that has started. `new`: the kernel is new; `lost`: why an earlier one is gone. `heard`: the number of
    network attempts before."""

    process: str
    run: str
    turn: Exchange
    new: bool
    lost: str | None
    at: float
    heard: int


class KernelOwner(Protocol):
    """Keeps the kernels (`code.kernels`)."""

    def run_over(self, run: KernelRun, end: CodeEnd | None) -> None:
        """The run has ended; None: with an unknown outcome."""


class KernelRun:
    """A `CodeRun`. If closed early, it is interrupted and then killed in the background; it keeps the context's lock
    until then."""

    def __init__(self, job: CodeJob, begun: StartedRun, owner: KernelOwner, lifecycle: Lifecycle, tasks: Tasks) -> None:
        self.id, self.pid, self.offset = begun.process, begun.turn.pid, begun.turn.offset
        self.job, self.begun = job, begun
        self.timeline = RunTimeline(ResultParser(begun.run), begun.new)
        self._turn, self._owner, self._lifecycle, self._tasks = begun.turn, owner, lifecycle, tasks
        self._reading = False
        self._one = asyncio.Lock()  # reads at a time
        self._signals = asyncio.Lock()  # none may reach the run after this one
        self._over = asyncio.Event()
        self._early = bytearray()
        self._ending: asyncio.Future[CodeEnd] | None = None
        self._end: CodeEnd | None = None
        self._closed = self._left = False
        self._keeper_error: KeeperTimeout | None = None
        self._in_use = contextlib.ExitStack()
        self._in_use.enter_context(job.sandbox.in_use())
        job.sandbox.waiting_calls.add(self)
        self._timer: asyncio.TimerHandle | None = None
        if job.request.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(job.request.timeout, self._time_out)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            while not self._over.is_set():
                for piece in await self._advance():
                    yield piece
            self._end = await self._finished()
        except SandboxUnavailable as error:
            self._close(None)
            await self._turn.aclose()
            await self._failed(error)
            raise

    def end(self) -> CodeEnd:
        if self._end is None:
            raise SandboxUnavailable("the run's end is not known")
        return self._end

    async def interrupt(self) -> None:
        with contextlib.suppress(SkerryError, OSError):
            await self._turn.aclose()

    async def aclose(self) -> None:
        """Idempotent."""
        if not self._closed and not self._left:
            self._left = True
            self._tasks.spawn(self._abandon())

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def _advance(self) -> list[Piece]:
        """Return the contents of the next frame. Output can overtake the message that the run has begun, which is the
        last before it: all output of the exchange belongs to the run."""
        async with self._one:
            if self._over.is_set():
                return []
            self._reading = True
            try:
                said = await anext(self._turn, None)
            finally:
                self._reading = False
            if self._keeper_error is not None:
                raise self._keeper_error
            if said is None:
                self.timeline.broken = self._turn.exit is None
                self._over.set()
                return []
            kind, data = said
            if kind == "channel":
                return await self._results(data)
            if kind == "stderr" and not self.timeline.listener.begun:
                self._early += data[: MAX_EARLY - len(self._early)]
            return [(kind, data)]

    async def _results(self, data: bytes) -> list[Piece]:
        """Parse results. All messages are taken in before anything is awaited: a cancelled reader still knows the
        end."""
        said: list[dict[str, bytes]] = []
        try:
            said += self.timeline.listener.feed(data)
        except kernel_protocol.Violation as violation:
            log.info("a kernel violated its protocol", extra={"process_id": self.id, "error": str(violation)})
            self.timeline.broken = True
        if self.timeline.broken or self.timeline.listener.status is not None:
            self._over.set()
        return [await asyncio.to_thread(output_of, one) if is_large(one) else output_of(one) for one in said]

    def _time_out(self) -> None:
        if not self._over.is_set():
            self.timeline.timed_out = True
            self._interrupt()

    def _interrupt(self) -> None:
        """Interrupt the run. A frozen run makes no progress and can't be interrupted: try again later."""
        if self.job.sandbox.record.state == "paused":
            self._timer = asyncio.get_running_loop().call_later(FROZEN_S, self._interrupt)
        elif not self._over.is_set():
            self._tasks.spawn(self._interrupt_then_kill())

    async def _interrupt_then_kill(self) -> None:
        """Interrupt the run and kill it after a grace period, which is longer only while it waits for a slow reader. In
        the middle of the period it is interrupted again: code does not notice a signal that arrives just before a
        blocking call."""
        try:
            await self.job.sandbox.thawed.wait()
            for half in range(2 * MAX_SLOW):
                if half < 2:
                    await self.signal("INT")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S / 2):
                        await self._over.wait()
                if self._over.is_set() or (half % 2 and self._reading):
                    break
            if not self._over.is_set():
                self.timeline.killed = True
                await self.signal("KILL")
                await self.ended()
        except SkerryError as error:  # the sandbox ended or does not answer; the reader gets that error
            log.info("failed to interrupt a run", extra={"process_id": self.id, "error": error.message})

    async def signal(self, name: str) -> None:
        async with self._signals:
            if not self._over.is_set():
                await self._turn.signal(name)

    async def ended(self) -> None:
        """Finish after a kill. The next run does not wait for a reader that does not read: remaining output is lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self._over.wait()
        waits = 0
        while not self._over.is_set():
            try:
                async with asyncio.timeout(EXIT_TIMEOUT_S):
                    while not self._over.is_set():
                        self.timeline.missing += len(await self._advance())
            except TimeoutError:
                waits += self._is_running()
                if waits == MAX_WAITS:
                    await self._fail_keeper()
        with contextlib.suppress(SandboxUnavailable):  # the reader gets the error
            await self._finished()

    async def _fail_keeper(self) -> None:
        """Fail the sandbox: its keeper misbehaved. A reader gets the error; without one, do not wait."""
        self._keeper_error = KeeperTimeout("the keeper did not end a kernel that was killed")
        self._close(None)
        await self._turn.aclose()
        await self._failed(self._keeper_error)
        raise self._keeper_error

    async def _failed(self, error: SandboxUnavailable) -> None:
        await self._lifecycle.fail(self.job.sandbox, self.job.keeper, error)

    def _is_running(self) -> bool:
        """Whether its keeper could have spoken just now."""
        sandbox = self.job.sandbox
        return sandbox.record.state == "running" and not sandbox.was_frozen_within(EXIT_TIMEOUT_S)

    async def _abandon(self) -> None:
        """End a run without a reader."""
        try:
            if not self.timeline.timed_out:
                self._interrupt()
            while not self._over.is_set():
                await self._advance()
            await self._finished()
        except SandboxUnavailable as error:
            with contextlib.suppress(SkerryError):
                await self._failed(error)
        except SkerryError as error:  # this host is short of something
            log.warning("failed to end a run or context", extra={"process_id": self.id, "error": error.message})
        finally:
            self._close(None)
            await self._turn.aclose()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _finished(self) -> CodeEnd:
        """Finish once and completely, also if a waiting caller is cancelled."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._finish())
            self._ending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._ending)

    async def _finish(self) -> CodeEnd:
        job, turn, timeline = self.job, self._turn, self.timeline
        if self._timer is not None:
            self._timer.cancel()
        async with self._signals:  # a signal on its way arrives during this run's exchange
            record = job.context.record if job.context is not None else None
        spec, request = job.sandbox.record.spec, job.request
        place = (
            (record.cwd, record.user)
            if record is not None
            else (spec.directory(request.cwd), request.user or spec.user)
        )
        _, (files, more) = await asyncio.gather(self._stop(), self._changed_files(*place))
        timeline.exit = turn.exit
        timeline.missing += turn.missing
        timeline.ending = job.context.ending if job.context is not None else None
        timeline.early = bytes(self._early).decode("utf-8", "replace").strip()
        timeline.oom = self._oom()
        where = RunContext(
            process=self.id, language=job.language.name, memory=spec.limits.memory_bytes, lost=self.begun.lost,
            version=timeline.listener.version or job.version or (record.version if record is not None else None),
            context=record.name if record is not None else None,
            reached_limit=job.sandbox.reached_limit() if timeline.listener.status != "ok" else None,
        )  # fmt: skip
        refused = await job.sandbox.denied_attempts(self.id, self.begun.heard)
        end = end_of(where, timeline, files, more, metered(job.sandbox, self.id, turn.usage))
        end = denials.add(end, tuple(attempt for attempt in refused if attempt.at >= self.begun.at))
        self._close(end)
        return end

    async def _stop(self) -> None:
        """Finish a turn that is over, or whose process has ended."""
        if self._turn.exit is None and not self.timeline.broken:
            try:
                await self._turn.finish()
            except Conflict:  # it did not even read the code
                self.timeline.broken = True
        if self._turn.exit is None and (self.timeline.broken or self.job.context is None or self.job.context.gone):
            await self._kill()

    async def _kill(self) -> None:
        with contextlib.suppress(NotFound, Conflict):
            await self.job.keeper.signal(self.id, "KILL")
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                for _ in range(2):  # the loop may have ended, or end once, with its channel
                    async for _ in self._turn:
                        pass
        except TimeoutError:
            await self._turn.aclose()
            raise KeeperTimeout("the keeper did not end a kernel that was killed") from None

    async def _changed_files(self, path: str, user: str) -> tuple[tuple[OutputFile, ...], bool]:
        if not self.job.request.files:
            return (), False
        files, more = await changed_files(self.job.keeper, path, self._turn.clock, user)
        if (context := self.job.context) is not None:
            # The clocks of files and of exchanges advance in different steps: files of the last run may look new.
            before, context.reported_files = (
                context.reported_files,
                {file.path: (file.size, file.mtime) for file in files},
            )
            files = tuple(one for one in files if before.get(one.path) != (one.size, one.mtime))
        return files, more

    def _oom(self) -> bool | None:
        sandbox, timeline = self.job.sandbox, self.timeline
        by_us = timeline.timed_out or timeline.killed or timeline.broken or timeline.ending is not None
        killed = is_killed(timeline.exit_code, timeline.signal, by_us)
        return sandbox.activity.end(self.id, sandbox.count_oom_kills, killed)

    def _close(self, end: CodeEnd | None) -> None:
        """The next one's turn."""
        if not self._closed:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._owner.run_over(self, end)
            self._in_use.close()
            self.job.sandbox.waiting_calls.discard(self)


FREE_TIMEOUT_S: Final = 2.0
SETTLE_TIMEOUT_S: Final = 5.0
NOT_THERE: Final = (126, 127)  # exit codes of programs that can't be executed


class Kernels:
    """The `ContextBackend` of languages with kernels."""

    def __init__(
        self, contexts: ContextStore, lifecycle: Lifecycle, limits: LimitEvents, hooks: Hooks, tasks: Tasks
    ) -> None:
        self._contexts, self._lifecycle, self._hooks, self._tasks = contexts, lifecycle, hooks, tasks
        self._limits = limits

    async def run(self, job: CodeJob) -> KernelRun:
        await self._hooks.before_command(job.sandbox)
        run, request = secrets.token_hex(8), job.request
        fields = {"run": run.encode(), "code": request.code.encode()}
        if request.input is not None:
            fields["stdin"] = request.input
        if job.context is None:
            fields["last"] = b"1"
        elif request.env:
            fields["env"] = kernel_protocol.encode_env(request.env)
        said, lost = kernel_protocol.encode(kernel_protocol.RUN, fields), None
        if job.context is not None:
            going, lost = await self._run_in_existing(job, job.context, run, said)
            if going is not None:
                return going
        return await self._start(job, run, said, lost if job.context is not None and job.context.record.runs else None)

    def has_state(self, sandbox: Sandbox, context: ContextState) -> bool:
        record = context.record
        if record.process is None or record.since != sandbox.record.started_at or not is_up(sandbox):
            return False
        return (
            record.process == context.running
            or sandbox.activity.is_resting(record.process)
            or sandbox.record.state == "paused"
        )

    async def end_state(self, sandbox: Sandbox, keeper: Keeper, context: ContextState) -> None:
        if (process := context.running or context.record.process) is not None:
            with contextlib.suppress(NotFound, Conflict):
                await keeper.signal(process, "KILL")
            self._contexts.started.discard(process)
            if context.run is not None:
                self._tasks.spawn(context.run.ended())

    async def is_busy(self, keeper: Keeper, context: ContextState) -> bool:
        with contextlib.suppress(NotFound):
            return bool(context.record.process and (await keeper.process(context.record.process)).children)
        return False

    # -- starting -----------------------------------------------------------------------------------------------------

    async def _run_in_existing(
        self, job: CodeJob, context: ContextState, run: str, said: bytes
    ) -> tuple[KernelRun | None, str | None]:
        """Run in the existing kernel; or return the reason that it is gone."""
        process, keeper = context.record.process, job.keeper
        if process is None:
            return None, context.record.lost
        if context.record.since != job.sandbox.record.started_at:
            return None, lost_with(job.sandbox)
        try:
            if context.adopted:
                await _end_leftover_run(keeper, process)
                context.adopted = False
            return await self._turn(job, process, run, said, new=False), None
        except (NotFound, Conflict):
            return None, await _exit_reason(keeper, process)

    async def _start(self, job: CodeJob, run: str, said: bytes, lost: str | None) -> KernelRun:
        sandbox, keeper, context = job.sandbox, job.keeper, job.context
        kernel = KERNELS[job.language.kernel or ""]
        spec = _spec(job, kernel.argv)
        self._contexts.started.add(spec.id)
        spawned = asyncio.ensure_future(keeper.spawn(spec))
        try:
            process = await asyncio.shield(spawned)
            sandbox.attempts.processes.note(process.cgroup, process.id, process.started_at)
            if process.state == "exited" and process.exit_code in NOT_THERE:
                raise toolchain_missing(job.language)
            script = kernel_protocol.encode(kernel_protocol.SCRIPT, {"script": kernel.script()})
            begun = await self._turn(job, process.id, run, script + said, new=True, lost=lost)
        except BaseException:
            self._tasks.spawn(self._kill_unneeded(keeper, spec.id, spawned))
            raise
        if context is not None:
            self._contexts.note(sandbox, context, process=process.id, since=sandbox.record.started_at, lost=None)
        return begun

    async def _kill_unneeded(self, keeper: Keeper, process: str, spawned: asyncio.Future[Process]) -> None:
        """Kill a kernel that is no longer needed, also one that is still starting for a caller that has left."""
        await asyncio.wait((spawned,))
        if not spawned.cancelled() and spawned.exception() is None:
            await _kill(keeper, process)
        self._contexts.started.discard(process)

    async def _turn(
        self, job: CodeJob, process: str, run: str, body: bytes, *, new: bool, lost: str | None = None
    ) -> KernelRun:
        """Start an exchange. The process counts as busy before it can be killed or write; not if the exchange never
        starts."""
        sandbox, workspace = job.sandbox, job.sandbox.workspace
        sandbox.activity.begin(process, sandbox.count_oom_kills())
        sandbox.begin_metering(process)
        if workspace is not None:
            workspace.turn(f"{process}/{run}", process, f"{job.language.name}: {first_line(job.request.code)}")
        at, heard = time.time(), sandbox.attempts.heard
        try:
            turn = await _start_exchange(job.keeper, process, body)
        except BaseException:
            sandbox.activity.end(process, sandbox.count_oom_kills)
            if process in sandbox.activity.running:
                sandbox.activity.mark_resting(process)
            if workspace is not None:
                workspace.writers.forget(f"{process}/{run}")
            raise
        begun = StartedRun(process=process, run=run, turn=turn, new=new, lost=lost, at=at, heard=heard)
        made = KernelRun(job, begun, self, self._lifecycle, self._tasks)
        if job.context is not None:
            job.context.running, job.context.pid = process, turn.pid
            job.context.run = made
        return made

    # -- ending -------------------------------------------------------------------------------------------------------

    def run_over(self, run: KernelRun, end: CodeEnd | None) -> None:
        """`end` None: with an unknown outcome."""
        sandbox, context, process = run.job.sandbox, run.job.context, run.id
        sandbox.activity.end(process, sandbox.count_oom_kills)
        if end is not None:
            self._limits.ended(
                sandbox, process, oom=bool(end.oom_killed), timed_out=end.timed_out, failed=end.exit_code != 0
            )
        if sandbox.workspace is not None:
            exit_code, duration_s = (end.exit_code, end.duration_s) if end is not None else (None, 0.0)
            sandbox.workspace.turned(f"{process}/{run.begun.run}", exit_code, duration_s)
        if context is None:
            self._contexts.started.discard(process)
            if end is None:
                self._tasks.spawn(_kill(run.job.keeper, process))
            return
        context.adopted = end is None and process in sandbox.activity.running  # then it may not even be over
        if context.adopted or (end is not None and end.after == "kept" and not context.gone):
            sandbox.activity.mark_resting(process)
        self._note(sandbox, context, run, end)
        context.used = time.monotonic()
        context.running = context.ending = context.run = None
        context.turn.release()

    def _note(self, sandbox: Sandbox, context: ContextState, run: KernelRun, end: CodeEnd | None) -> None:
        changes: dict[str, Any] = {"used_at": time.time()}
        if end is not None:
            changes |= {"runs": context.record.runs + 1, "version": end.version}
            if end.after == "replaced":
                self._contexts.started.discard(run.id)
                changes |= {"process": None, "lost": run.timeline.why_died}
        self._contexts.note(sandbox, context, **changes)


def _spec(job: CodeJob, argv: tuple[str, ...]) -> ProcessSpec:
    record, request, language = job.context.record if job.context is not None else None, job.request, job.language
    cwd, user, env = (
        (record.cwd, record.user, record.env)
        if record is not None
        else (job.sandbox.record.spec.directory(request.cwd), request.user, request.env)
    )
    name = f"context {record.name}" if record is not None else "fresh"
    return ProcessSpec(
        id=new_id("p-"), argv=[*language.context, *argv], cwd=cwd, user=user,
        env={**language.environment(cwd), **env}, channel=True, show=f"{language.name} ({name})",
    )  # fmt: skip


async def _start_exchange(keeper: Keeper, process: str, body: bytes) -> Exchange:
    """A turn that an earlier server had is over as soon as its keeper sees that; then it is free."""
    until = time.monotonic() + FREE_TIMEOUT_S
    while True:
        try:
            return await keeper.exchange(process, body)
        except Conflict:
            if time.monotonic() > until or (await keeper.process(process)).state == "exited":
                raise
        await asyncio.sleep(0.02)


async def _end_leftover_run(keeper: Keeper, process: str) -> None:
    """End a run that an earlier server may have left without a caller. Once an empty run has completed, the earlier one
    is over, with all of its output."""
    await keeper.signal(process, "INT")
    run = secrets.token_hex(8)
    listener = ResultParser(run)
    turn = await _start_exchange(
        keeper, process, kernel_protocol.encode(kernel_protocol.RUN, {"run": run.encode(), "code": b""})
    )
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S), contextlib.aclosing(turn):
            async for kind, data in turn:
                list(listener.feed(data) if kind == "channel" else ())
                if listener.status is not None:
                    await turn.finish()
                    return
    except (TimeoutError, kernel_protocol.Violation):
        pass
    raise Conflict("the previous run in the context did not stop")


async def _exit_reason(keeper: Keeper, process: str) -> str:
    try:
        known = await keeper.process(process)
    except NotFound:
        return "its process is gone"
    if known.state == "running":
        await _kill(keeper, process)
        return "its process did not answer"
    return ended(known.exit_code, known.signal)


async def _kill(keeper: Keeper, process: str) -> None:
    with contextlib.suppress(SkerryError):
        await keeper.signal(process, "KILL")
