"""A command under way, and the truth about how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from msgspec.structs import replace

from skerry.codecs.output import HeadAndTail
from skerry.engine.network import denials
from skerry.engine.records.trace.recorder import Step
from skerry.engine.sandboxes.activity import is_killed
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import ExitStatus, Keeper, Process, ProcessStream
from skerry.types import ProcessInfo, RunResult, is_text, readable_size

Stream = Literal["stdout", "stderr"]


class Run:
    """Iterate for the output; then `result()`. Closing it early ends the command with its whole tree."""

    def __init__(
        self,
        sandbox: Sandbox,
        keeper: Keeper,
        process: str,
        stream: ProcessStream,
        lifecycle: Lifecycle,
        began: float,
        before: int = 0,
        step: Step | None = None,
    ) -> None:
        """`began`: the time of its start. `before`: the number of the sandbox's network attempts before it. `step`:
        records its output and its end."""
        self.id = process
        self.pid = stream.pid
        self._sandbox, self._keeper, self._lifecycle = sandbox, keeper, lifecycle
        self._stream = stream
        self._result: RunResult | None = None
        self._open = True
        self._before, self._began, self._step = before, began, step
        self._stdin = asyncio.Lock()  # a connection supports one task that waits until it can write
        self._in_use = contextlib.ExitStack()
        self._in_use.enter_context(sandbox.in_use())
        sandbox.waiting_calls.add(self)
        self._then: Callable[[RunResult], Awaitable[RunResult]] | None = None

    async def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        async with self._to_its_end():
            async for name, data in self._stream:
                if self._step is not None:
                    self._step.output(name, data)
                yield name, data

    async def frames(self) -> AsyncIterator[bytes]:
        """Instead of iterating: output as frames of stdout (1) and stderr (2), which are the keeper's own."""
        async with self._to_its_end():
            async for data in self._stream.raw_frames():
                if self._step is not None:
                    self._step.frames(data)
                yield data

    @contextlib.asynccontextmanager
    async def _to_its_end(self) -> AsyncIterator[None]:
        try:
            yield
            denied = await self._sandbox.denied_attempts(self.id, self._before)  # also waits for reports of its traffic
            self._result = denials.add(self._ended_with(), denied)
            if self._then is not None:
                self._result = await self._then(self.result())
            if self._step is not None:
                self._step.end(self.result())
        except SandboxUnavailable as error:
            await self._lifecycle.fail(self._sandbox, self._keeper, error)
            raise

    def then(self, work: Callable[[RunResult], Awaitable[RunResult]]) -> None:
        """Run `work` when the command has ended, before its result is returned."""
        self._then = work

    def at_end(self, work: Callable[[], None]) -> None:
        """To be done when this is closed, in any case."""
        self._in_use.callback(work)

    @property
    def ended(self) -> bool:
        return self._result is not None

    async def interrupt(self) -> None:
        with contextlib.suppress(SkerryError, OSError):
            await self._stream.aclose()

    async def send_stdin(self, data: bytes) -> None:
        async with self._stdin:
            await self._stream.send_stdin(data)

    async def close_stdin(self) -> None:
        async with self._stdin:
            await self._stream.close_stdin()

    def result(self) -> RunResult:
        if self._result is None:
            raise SandboxUnavailable("the command's end is not known")
        return self._result

    async def aclose(self) -> None:
        """Idempotent. An unfinished command is killed."""
        if self._open:
            self._open = False
            self._sandbox.waiting_calls.discard(self)
            self._sandbox.activity.end(self.id, self._sandbox.count_oom_kills)
            self._sandbox.account.forget(self.id)
            self._in_use.close()
            if self._step is not None:
                self._step.interrupt()
            with contextlib.suppress(SkerryError, OSError):
                await self._stream.aclose()

    def _ended_with(self) -> RunResult:
        result = result_of(self._sandbox, self.id, self._stream.exit)
        return replace(result, truncated=self._stream.missing > 0, started_at=self._began)


def result_of(sandbox: Sandbox, process: str, status: ExitStatus) -> RunResult:
    """How it ended, without its output."""
    sandbox.activity.left_behind |= bool(status.left)
    killed = is_killed(status.exit_code, status.signal, status.timed_out)
    oom = sandbox.activity.end(process, sandbox.count_oom_kills, killed)
    return RunResult(
        id=process, exit_code=status.exit_code, signal=status.signal, duration_s=status.duration_s,
        timed_out=status.timed_out, oom_killed=oom,
        usage=sandbox.usage_of(process, status.cpu_s, status.max_rss, status.duration_s),
        hint=_hint(sandbox, status, oom),
    )  # fmt: skip


def _hint(sandbox: Sandbox, status: ExitStatus, oom: bool | None) -> str | None:
    if oom:
        memory = readable_size(sandbox.record.spec.limits.memory_bytes)
        return f"it needed more memory than its limit of {memory}: --memory, Limits(memory=…)"
    if status.timed_out:
        return "it was ended by its timeout: --timeout, run(timeout=…), at most the operator's max.timeout"
    return None if status.exit_code == 0 else sandbox.reached_limit()


class CollectedOutput:
    """A bounded part of both streams. `missing`: bytes that were dropped before they could be read."""

    def __init__(self) -> None:
        self._kept = {"stdout": HeadAndTail(), "stderr": HeadAndTail()}
        self.missing = 0

    def add(self, stream: str, data: bytes) -> None:
        self._kept[stream].add(data)

    def result(self, end: RunResult) -> RunResult:
        stdout, stderr = self._kept["stdout"].value(), self._kept["stderr"].value()
        return replace(
            end,
            stdout=stdout.decode("utf-8", "replace"), stderr=stderr.decode("utf-8", "replace"),
            stdout_base64=None if is_text(stdout) else stdout, stderr_base64=None if is_text(stderr) else stderr,
            truncated=end.truncated or self.missing > 0 or any(kept.omitted for kept in self._kept.values()),
        )  # fmt: skip


async def collect(run: Run) -> RunResult:
    """Read a run to its end, keeping a bounded part of its output."""
    gathered = CollectedOutput()
    try:
        async for name, data in run:
            gathered.add(name, data)
    finally:
        await run.aclose()
    return gathered.result(run.result())


def process_info(process: Process) -> ProcessInfo:
    """A process as the API shows it."""
    return ProcessInfo(
        id=process.id, cmd=process.shell if process.shell is not None else process.argv or [], state=process.state,
        pid=process.pid, user=process.user, started_at=process.started_at, exit_code=process.exit_code,
        signal=process.signal, timed_out=process.timed_out, children=process.children, pty=process.pty,
        session=process.session, offset=process.offset, kept_from=process.kept_from, ended_at=process.ended_at,
    )  # fmt: skip
