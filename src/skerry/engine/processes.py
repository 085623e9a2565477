"""A sandbox's processes: commands that are waited for, and what is known of all of them."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from skerry.engine import plan, runs
from skerry.engine.live import Live
from skerry.engine.runs import Run
from skerry.errors import NotFound, SandboxUnavailable
from skerry.keeper import Keeper, ProcessSpec
from skerry.types import Caller, ProcessInfo, RunRequest, RunResult

Find = Callable[[Caller, str], Live]
Use = Callable[[Caller, str], AbstractAsyncContextManager[tuple[Live, Keeper]]]
Fail = Callable[[Live, Keeper, SandboxUnavailable], Awaitable[None]]


class Processes:
    """`use` gives a running sandbox for one call, `fail` ends one whose keeper lied, `spawn` does work beside."""

    def __init__(self, find: Find, use: Use, fail: Fail, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._find = find
        self._use = use
        self._fail = fail
        self._spawn = spawn

    async def run(self, caller: Caller, ref: str, request: RunRequest) -> Run:
        async with self._use(caller, ref) as (live, keeper):
            kills = live.runtime.oom_kills(live.row.id) if live.runtime is not None else None
            process = plan.new_id("p-")
            stdin = request.stdin.encode() if request.stdin is not None else request.stdin_base64
            stream = await keeper.start(
                ProcessSpec(
                    id=process, env=request.env, cwd=request.cwd, user=request.user, timeout_s=request.timeout,
                    shell=request.cmd if isinstance(request.cmd, str) else None,
                    argv=request.cmd if not isinstance(request.cmd, str) else None,
                    stdin="pipe" if request.stdin_stream or stdin is not None else "none",
                )
            )  # fmt: skip
            run = Run(live, process, stream, kills, partial(self._fail, live, keeper))
            if stdin is not None:
                self._spawn(self._feed(run, stdin))
            if request.stdin_stream:
                live.inputs[process] = run
            return run

    async def collect(self, run: Run) -> RunResult:
        return await runs.collect(run)

    @staticmethod
    async def _feed(run: Run, data: bytes) -> None:
        """A program that closes its stdin early is no error."""
        with contextlib.suppress(SandboxUnavailable, OSError):
            for start in range(0, len(data), 1 << 18):
                await run.send_stdin(data[start : start + (1 << 18)])
            await run.close_stdin()

    async def send_stdin(
        self, caller: Caller, ref: str, process: str, chunks: AsyncIterator[bytes], close: bool
    ) -> None:
        live = self._find(caller, ref)
        run = live.inputs.get(process)
        if run is None:
            raise NotFound(f"no process {process!r} is waiting for input", details={"process": process})
        with contextlib.suppress(SandboxUnavailable, OSError):
            async for chunk in chunks:
                for start in range(0, len(chunk), 1 << 18):
                    await run.send_stdin(chunk[start : start + (1 << 18)])
            if close:
                await run.close_stdin()

    async def list(self, caller: Caller, ref: str) -> builtins.list[ProcessInfo]:
        async with self._use(caller, ref) as (_, keeper):
            return [runs.process_info(process) for process in await keeper.processes()]

    async def get(self, caller: Caller, ref: str, process: str) -> ProcessInfo:
        async with self._use(caller, ref) as (_, keeper):
            return runs.process_info(await keeper.process(process))

    async def signal(self, caller: Caller, ref: str, process: str, name: str) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.signal(process, name)

    async def remove(self, caller: Caller, ref: str, process: str) -> None:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.remove(process)
