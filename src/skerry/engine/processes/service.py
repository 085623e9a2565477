"""Processes of a sandbox: commands with a reader, background commands, and the list of all."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine.concurrency import FairTurns
from skerry.engine.hooks import Hooks
from skerry.engine.processes.output import OutputRange, OutputReader, read_page, read_result
from skerry.engine.processes.run import Run, collect, process_info
from skerry.engine.records.trace.recorder import Step
from skerry.engine.records.trace.service import TraceService, command_text
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.tasks import Tasks
from skerry.errors import InvalidRequest, QuotaExceeded, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper, ProcessSpec, Size
from skerry.keeper.client import nothing
from skerry.types import Caller, OutputPage, ProcessInfo, Pty, RunRequest, RunResult, parse_size, parse_span

MAX_INPUT = 64 << 20
# Commands of the only active sandbox, and of all sandboxes of one owner, that start at the same time. More would start
# no sooner: all others would wait longer for a processor, and the keeper would start further launchers.
MAX_STARTS = 2 * max(2, os.cpu_count() or 1)
MAX_STARTS_PER_OWNER = 4 * MAX_STARTS


class ProcessService:
    """`engine.processes`."""

    def __init__(
        self,
        settings: Settings,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        traces: TraceService,
        hooks: Hooks,
        tasks: Tasks,
    ) -> None:
        longest = settings["max.timeout"]
        self.max_timeout = None if longest is None else parse_span(longest, "max.timeout")
        self._registry, self._lifecycle, self._hooks, self._tasks = registry, lifecycle, hooks, tasks
        self._traces = traces
        self._starts = FairTurns(MAX_STARTS, MAX_STARTS_PER_OWNER)

    # -- starting -----------------------------------------------------------------------------------------------------

    async def run(self, caller: Caller, ref: str, request: RunRequest) -> Run:
        """Start a command with a reader: it is slowed to the reader's speed, and ends when the reader leaves."""
        return await self.start(caller, ref, request, record=request)

    async def start(
        self,
        caller: Caller,
        ref: str,
        request: RunRequest,
        show: str | None = None,
        again: bool = False,
        record: RunRequest | None = None,
    ) -> Run:
        """Start a command. `show`: the command that lists show instead. `again`: it continues an earlier command, so
        hooks are not called. `record`: the step in the sandbox's trace, as its caller requested it; None: it is a part
        of another step."""
        request = replace(request, timeout=self.limit_timeout(request.timeout))
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            if not again:
                await self._hooks.before_command(sandbox)
            process, stdin = request.id or new_id("p-"), _input(request)
            command = _command(sandbox, request)
            with self._recorded(sandbox, "process.run", process, record) as step:
                async with self._start_turn(sandbox):
                    began, before = time.time(), sandbox.attempts.heard
                    with _counted_as_busy(sandbox, process, show or command.cmd, attached=True):
                        stream = await keeper.start(_spec(process, command, show))
                sandbox.attempts.processes.note(stream.cgroup, process, began)
                run = Run(sandbox, keeper, process, stream, self._lifecycle, began, before, step)
            if stdin is not None:
                self._tasks.spawn(_feed(run, stdin))
            return run

    async def spawn(
        self,
        caller: Caller,
        ref: str,
        request: RunRequest,
        show: str | None = None,
        record: RunRequest | None = None,
    ) -> ProcessInfo:
        """A command that goes on by itself. `show`: the command that lists show instead; `record`: the step in the
        sandbox's trace instead of the request."""
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            process = request.id or new_id("p-")
            return await self.spawn_in(sandbox, keeper, request, process, show, record or request)

    async def spawn_in(
        self,
        sandbox: Sandbox,
        keeper: Keeper,
        request: RunRequest,
        process: str,
        show: str | None = None,
        record: RunRequest | None = None,
    ) -> ProcessInfo:
        """Start a background command with that ID in a running sandbox. `record`: None is no step of the trace."""
        request, stdin = replace(request, timeout=self.limit_timeout(request.timeout)), _input(request)
        _check_room(sandbox, stdin)
        await self._hooks.before_command(sandbox)
        command = _command(sandbox, request)
        with self._recorded(sandbox, "process.spawn", process, record):
            async with self._start_turn(sandbox):
                with _counted_as_busy(sandbox, process, show or command.cmd, attached=False):
                    started = await keeper.spawn(_spec(process, command, show))
        sandbox.attempts.processes.note(started.cgroup, process, started.started_at)
        if stdin is not None:
            self._tasks.spawn(_send_input(sandbox, keeper, process, stdin))
        return process_info(started)

    def limit_timeout(self, timeout: float | None) -> float | None:
        """Return the timeout of a command: at most the operator's maximum. Higher ones are lowered and not refused,
        because the defaults of clients must work everywhere."""
        if self.max_timeout is None:
            return timeout
        return self.max_timeout if timeout is None else min(timeout, self.max_timeout)

    @contextlib.contextmanager
    def _recorded(self, sandbox: Sandbox, kind: str, process: str, request: RunRequest | None) -> Iterator[Step | None]:
        """Record the beginning of a command in the sandbox's trace, and its end if it does not start. The others end
        with their `Run`; ends of background processes are events."""
        if request is None:
            yield None
            return
        stdin = _input(request)
        inputs = {} if stdin is None else {"stdin": stdin}
        params = replace(request, stdin=None, stdin_base64=None)
        text = command_text(request.cmd)
        step = self._traces.begin(sandbox, kind, params, text=text, inputs=inputs, process=process)
        if kind == "process.spawn":  # before it starts: it may end at once
            self._traces.await_end(sandbox.record.id, process, step)
        try:
            yield step
        except BaseException as error:
            self._traces.take_ended(sandbox.record.id, process)
            step.end(error=error)
            raise

    def _start_turn(self, sandbox: Sandbox) -> AbstractAsyncContextManager[None]:
        return self._starts.turn(sandbox.record.owner, sandbox.record.id)

    async def collect(self, run: Run) -> RunResult:
        return await collect(run)

    # -- output and results -------------------------------------------------------------------------------------------

    async def output(self, caller: Caller, ref: str, process: str, view: OutputRange) -> OutputReader:
        async with AsyncExitStack() as stack:
            sandbox, keeper = await stack.enter_async_context(self._lifecycle.use(caller, ref, ready=False))
            follow = view.follow and view.within != 0
            stream = await keeper.output(process, view.since, follow, view.limit, view.pace)
            return OutputReader(sandbox, process, stream, view, stack.pop_all())

    async def page(self, caller: Caller, ref: str, process: str, view: OutputRange) -> OutputPage:
        page = await read_page(await self.output(caller, ref, process, view))
        if page.more:  # the page ends before the output; that says nothing about the process
            page = replace(page, state=(await self.get(caller, ref, process)).state)
        return page

    async def wait(self, caller: Caller, ref: str, process: str, within: float) -> RunResult | None:
        """How it ended, or None if it still runs after `within` seconds."""
        sandbox = self._registry.find(caller, ref)
        end = sandbox.activity.end_of(process)
        try:
            # no process ends while paused, and a query must not resume the sandbox
            if sandbox.record.state == "paused":
                self._hooks.before_start(sandbox.record)  # a budget that is used up may never be raised
                await asyncio.wait((end,), timeout=within)
                return None
            async with self._lifecycle.use(caller, ref, ready=False) as (_, keeper):
                running = process in sandbox.activity.running or (await keeper.process(process)).state == "running"
                if running and not await _ended_within(end, within):
                    return None
        finally:
            end.cancel()
        return await read_result(await self.output(caller, ref, process, OutputRange(follow=True)))

    async def list(self, caller: Caller, ref: str) -> builtins.list[ProcessInfo]:
        async with self._lifecycle.use(caller, ref, ready=False) as (_, keeper):
            return [process_info(process) for process in await keeper.processes()]

    async def get(self, caller: Caller, ref: str, process: str) -> ProcessInfo:
        async with self._lifecycle.use(caller, ref, ready=False) as (_, keeper):
            return process_info(await keeper.process(process))

    # -- control ------------------------------------------------------------------------------------------------------

    async def send_stdin(
        self, caller: Caller, ref: str, process: str, chunks: AsyncIterator[bytes] | None, close: bool
    ) -> None:
        """Send bytes to a process and, with `close`, the end of its input. None: no bytes."""
        async with self._lifecycle.use(caller, ref, ready=False) as (sandbox, keeper):
            step = self._traces.begin(sandbox, "process.stdin", {"close": close} if close else None, process=process)
            with step.ending():
                recorded = step.tee(chunks if chunks is not None else nothing(), partial=True)
                if chunks is None:
                    await anext(recorded, None)
                await keeper.stdin(process, recorded if chunks is not None else None, close)

    async def signal(self, caller: Caller, ref: str, process: str, name: str) -> None:
        async with self._lifecycle.use(caller, ref, ready=False) as (_, keeper):
            await keeper.signal(process, name)

    async def resize(self, caller: Caller, ref: str, process: str, size: Pty) -> None:
        async with self._lifecycle.use(caller, ref, ready=False) as (_, keeper):
            await keeper.resize(process, size.cols, size.rows)

    async def remove(self, caller: Caller, ref: str, process: str) -> None:
        async with self._lifecycle.use(caller, ref, ready=False) as (_, keeper):
            await keeper.remove(process)


def _command(sandbox: Sandbox, request: RunRequest) -> RunRequest:
    """Return the request with the image's command if none was given."""
    if request.cmd is not None:
        return request
    spec = sandbox.record.spec
    argv = [*spec.entrypoint, *spec.cmd]
    if not argv:
        raise InvalidRequest(f"the image {spec.image} has no command", hint="name a command")
    return replace(request, cmd=argv)


def _spec(process: str, request: RunRequest, show: str | None = None) -> ProcessSpec:
    return ProcessSpec(
        id=process, env=request.env, cwd=request.cwd, user=request.user, timeout_s=request.timeout,
        shell=request.cmd if isinstance(request.cmd, str) else None,
        argv=request.cmd if not isinstance(request.cmd, str) else None,
        stdin="pipe" if request.stdin_stream or _input(request) is not None else "none",
        journal=parse_size(request.journal) if request.journal is not None else 0,
        show=show, session=request.session, auto_remove=request.auto_remove,
        pty=Size(cols=request.pty.cols, rows=request.pty.rows) if request.pty is not None else None,
    )  # fmt: skip


def _input(request: RunRequest) -> bytes | None:
    """Return the input that came with the request."""
    return request.stdin.encode() if request.stdin is not None else request.stdin_base64


@contextlib.contextmanager
def _counted_as_busy(
    sandbox: Sandbox, process: str, command: str | Sequence[str] | None, *, attached: bool
) -> Iterator[None]:
    """Count a process as running before it can be killed or write; remove it again if it was never started."""
    sandbox.activity.begin(process, sandbox.count_oom_kills())
    sandbox.begin_metering(process, attached=attached)
    try:
        if sandbox.workspace is None:
            yield
        else:
            with sandbox.workspace.starting(process, command or ""):
                yield
    except BaseException as error:
        sandbox.activity.end(process, sandbox.count_oom_kills)
        if isinstance(error, SkerryError) and error.hint is None:
            error.hint = sandbox.reached_limit()
        raise


async def _ended_within(end: asyncio.Future[None], within: float) -> bool:
    await asyncio.wait((end,), timeout=within)
    if end.cancelled():
        raise SandboxUnavailable("the sandbox ended")
    return end.done()


async def _feed(run: Run, data: bytes) -> None:
    """A program that closes its stdin early is no error."""
    with contextlib.suppress(SandboxUnavailable, OSError):
        for start in range(0, len(data), 1 << 18):
            await run.send_stdin(data[start : start + (1 << 18)])
        await run.close_stdin()


def _check_room(sandbox: Sandbox, stdin: bytes | None) -> None:
    """Bound input that came with a start: the server keeps it until the program has read it, which may be never."""
    if stdin is not None and sandbox.buffered_input + len(stdin) > MAX_INPUT:
        raise QuotaExceeded(
            f"{sandbox.buffered_input >> 20} MiB of input are already waiting to be read in this sandbox",
            hint="write it to the process's stdin, which takes it as fast as it is read",
        )


async def _send_input(sandbox: Sandbox, keeper: Keeper, process: str, data: bytes) -> None:
    async def once() -> AsyncIterator[bytes]:
        yield data

    sandbox.buffered_input += len(data)
    try:
        with contextlib.suppress(SkerryError, OSError):
            await keeper.stdin(process, once(), close=True)
    finally:
        sandbox.buffered_input -= len(data)
