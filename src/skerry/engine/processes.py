"""A sandbox's processes: commands that are waited for, commands that go on by themselves, and what is known of all."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from msgspec.structs import replace

from skerry.engine import outputs, plan, runs
from skerry.engine.live import Live
from skerry.engine.outputs import Reading, View
from skerry.engine.runs import Run
from skerry.errors import InvalidRequest, QuotaExceeded, SandboxUnavailable, SkerryError
from skerry.keeper import Keeper, ProcessSpec, Size
from skerry.types import Caller, OutputPage, ProcessInfo, Pty, RunRequest, RunResult, parse_size

Find = Callable[[Caller, str], Live]
Use = Callable[[Caller, str], AbstractAsyncContextManager[tuple[Live, Keeper]]]
Fail = Callable[[Live, Keeper, SandboxUnavailable], Awaitable[None]]
INPUT_MOST = 64 << 20


class Processes:
    """`use` gives a running sandbox for one call, `fail` ends one whose keeper lied, `spawn` does work beside, `before`
    is told of each command that is about to start."""

    def __init__(
        self,
        find: Find,
        use: Use,
        fail: Fail,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        before: Callable[[Live], Awaitable[None]],
    ) -> None:
        self._find = find
        self._use = use
        self._fail = fail
        self._spawn = spawn
        self._before = before

    # -- starting -----------------------------------------------------------------------------------------------------

    async def run(
        self, caller: Caller, ref: str, request: RunRequest, show: str | None = None, again: bool = False
    ) -> Run:
        """A command with a reader: it is slowed to the reader's speed, and ends when the reader leaves. `show`: what
        lists show in its place. `again`: it goes on with what another one began."""
        async with self._use(caller, ref) as (live, keeper):
            if not again:
                await self._before(live)
            process, stdin = plan.new_id("p-"), _input(request)
            began, before = time.time(), live.tries.heard
            command = _command(live, request)
            with _at_work(live, process, show or command.cmd):
                stream = await keeper.start(_spec(process, command, show))
            live.tries.whose.note(stream.cgroup, process, began)
            run = Run(live, process, stream, partial(self._fail, live, keeper), before)
            if stdin is not None:
                self._spawn(_feed(run, stdin))
            return run

    async def spawn(self, caller: Caller, ref: str, request: RunRequest) -> ProcessInfo:
        """A command that goes on by itself."""
        if request.session is not None:
            raise InvalidRequest(
                "session: a command of a session is waited for", hint="start it there with `&`, or outside of a session"
            )
        async with self._use(caller, ref) as (live, keeper):
            process, stdin = plan.new_id("p-"), _input(request)
            _check_room(live, stdin)
            await self._before(live)
            command = _command(live, request)
            with _at_work(live, process, command.cmd):
                started = await keeper.spawn(_spec(process, command))
            live.tries.whose.note(started.cgroup, process, started.started_at)
            if stdin is not None:
                self._spawn(_hand_over(live, keeper, process, stdin))
            return runs.process_info(started)

    async def collect(self, run: Run) -> RunResult:
        return await runs.collect(run)

    # -- what came of it ----------------------------------------------------------------------------------------------

    async def output(self, caller: Caller, ref: str, process: str, view: View) -> Reading:
        async with AsyncExitStack() as stack:
            live, keeper = await stack.enter_async_context(self._use(caller, ref))
            stream = await keeper.output(process, view.since, view.follow and view.within != 0, view.limit)
            return Reading(live, process, stream, view, stack.pop_all())

    async def page(self, caller: Caller, ref: str, process: str, view: View) -> OutputPage:
        page = await outputs.page(await self.output(caller, ref, process, view))
        if page.more:  # its end is not in sight; that says nothing of the process
            page = replace(page, state=(await self.get(caller, ref, process)).state)
        return page

    async def wait(self, caller: Caller, ref: str, process: str, within: float) -> RunResult | None:
        """How it ended, or None if it still runs after `within` seconds."""
        live = self._find(caller, ref)
        end = live.work.end_of(process)
        try:
            if live.row.state == "paused":  # nothing ends in there; and a question is no reason to wake it
                await asyncio.wait((end,), timeout=within)
                return None
            async with self._use(caller, ref) as (_, keeper):
                known = await keeper.process(process)
                if known.state == "running" and not await _came(end, within):
                    return None
        finally:
            end.cancel()
        return await outputs.ending(await self.output(caller, ref, process, View(follow=True)))

    async def list(self, caller: Caller, ref: str) -> builtins.list[ProcessInfo]:
        async with self._use(caller, ref) as (_, keeper):
            return [runs.process_info(process) for process in await keeper.processes()]

    async def get(self, caller: Caller, ref: str, process: str) -> ProcessInfo:
        async with self._use(caller, ref) as (_, keeper):
            return runs.process_info(await keeper.process(process))

    # -- doing something to it ----------------------------------------------------------------------------------------

    async def send_stdin(
        self, caller: Caller, ref: str, process: str, chunks: AsyncIterator[bytes], close: bool
    ) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.stdin(process, chunks, close)

    async def signal(self, caller: Caller, ref: str, process: str, name: str) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.signal(process, name)

    async def resize(self, caller: Caller, ref: str, process: str, size: Pty) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.resize(process, size.cols, size.rows)

    async def remove(self, caller: Caller, ref: str, process: str) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.remove(process)


def _command(live: Live, request: RunRequest) -> RunRequest:
    """With what the image runs, where nothing was named."""
    if request.cmd is not None:
        return request
    spec = live.row.spec
    argv = [*spec.entrypoint, *spec.cmd]
    if not argv:
        raise InvalidRequest(f"the image {spec.image} has no command of its own", hint="say what to run")
    return replace(request, cmd=argv)


def _spec(process: str, request: RunRequest, show: str | None = None) -> ProcessSpec:
    return ProcessSpec(
        id=process, env=request.env, cwd=request.cwd, user=request.user, timeout_s=request.timeout,
        shell=request.cmd if isinstance(request.cmd, str) else None,
        argv=request.cmd if not isinstance(request.cmd, str) else None,
        stdin="pipe" if request.stdin_stream or _input(request) is not None else "none",
        journal=parse_size(request.journal) if request.journal is not None else 0,
        show=show, session=request.session,
        pty=Size(cols=request.pty.cols, rows=request.pty.rows) if request.pty is not None else None,
    )  # fmt: skip


def _input(request: RunRequest) -> bytes | None:
    """What came with the request."""
    return request.stdin.encode() if request.stdin is not None else request.stdin_base64


@contextlib.contextmanager
def _at_work(live: Live, process: str, command: str | Sequence[str] | None) -> Iterator[None]:
    """It counts among those at work before it can be killed, or write; not if it was never started."""
    live.work.begin(process, live.count_oom_kills())
    try:
        if live.tracked is None:
            yield
        else:
            with live.tracked.starting(process, command or ""):
                yield
    except BaseException:
        live.work.end(process, live.count_oom_kills)
        raise


async def _came(end: asyncio.Future[None], within: float) -> bool:
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


def _check_room(live: Live, stdin: bytes | None) -> None:
    """For what comes with a start: it is held here until its program has read it, which it need never do."""
    if stdin is not None and live.input_held + len(stdin) > INPUT_MOST:
        raise QuotaExceeded(
            f"{live.input_held >> 20} MiB of input wait to be read in this sandbox already",
            hint="write it to the process's stdin, which takes it as fast as it is read",
        )


async def _hand_over(live: Live, keeper: Keeper, process: str, data: bytes) -> None:
    async def once() -> AsyncIterator[bytes]:
        yield data

    live.input_held += len(data)
    try:
        with contextlib.suppress(SkerryError, OSError):
            await keeper.stdin(process, once(), close=True)
    finally:
        live.input_held -= len(data)
