"""A command under way, and the truth about how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from msgspec.structs import replace

from skerry.engine import denials
from skerry.engine.live import Live
from skerry.engine.work import is_killed
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import ExitStatus, Process, ProcessStream
from skerry.types import OUTPUT_KEPT, ProcessInfo, RunResult, Usage, format_size, is_text

Stream = Literal["stdout", "stderr"]


class Run:
    """Iterate for the output; then `result()`. Closing it early ends the command with its whole tree."""

    def __init__(
        self,
        live: Live,
        process: str,
        stream: ProcessStream,
        failed: Callable[[SandboxUnavailable], Awaitable[None]],
        before: int = 0,
    ) -> None:
        """`before`: how many of its sandbox's tries to get out were told before it began."""
        self.id = process
        self.pid = stream.pid
        self._live = live
        self._stream = stream
        self._result: RunResult | None = None
        self._open = True
        self._failed = failed
        self._before = before
        self._stdin = asyncio.Lock()  # a connection has room for one who waits until it can write
        self._in_use = contextlib.ExitStack()
        self._in_use.enter_context(live.in_use())
        self._then: Callable[[RunResult], Awaitable[RunResult]] | None = None

    async def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        async with self._to_its_end():
            async for name, data in self._stream:
                yield name, data

    async def frames(self) -> AsyncIterator[bytes]:
        """Instead of iterating: output as frames of stdout (1) and stderr (2), which are the keeper's own."""
        async with self._to_its_end():
            async for data in self._stream.passed_on():
                yield data

    @contextlib.asynccontextmanager
    async def _to_its_end(self) -> AsyncIterator[None]:
        try:
            yield
            self._finish()
            self._result = denials.add(self.result(), await self._live.refused(self.id, self._before))
            if self._then is not None:
                self._result = await self._then(self.result())
        except SandboxUnavailable as error:
            await self._failed(error)
            raise

    def then(self, work: Callable[[RunResult], Awaitable[RunResult]]) -> None:
        """To be done when the command has ended, before its result is told."""
        self._then = work

    def at_end(self, work: Callable[[], None]) -> None:
        """To be done when this is closed, in any case."""
        self._in_use.callback(work)

    @property
    def ended(self) -> bool:
        return self._result is not None

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
            self._live.work.end(self.id, self._live.count_oom_kills)
            self._in_use.close()
            with contextlib.suppress(SkerryError, OSError):
                await self._stream.aclose()

    def _finish(self) -> None:
        result = result_of(self._live, self.id, self._stream.exit)
        self._result = replace(result, truncated=self._stream.missing > 0)


def result_of(live: Live, process: str, status: ExitStatus) -> RunResult:
    """How it ended, without its output."""
    live.work.left_behind |= bool(status.left)
    killed = is_killed(status.exit_code, status.signal, status.timed_out)
    oom = live.work.end(process, live.count_oom_kills, killed)
    return RunResult(
        id=process, exit_code=status.exit_code, signal=status.signal, duration_s=status.duration_s,
        timed_out=status.timed_out, oom_killed=oom,
        usage=Usage(cpu_s=status.cpu_s, memory_peak=status.max_rss),
        hint=_hint(live, status.timed_out, oom),
    )  # fmt: skip


def _hint(live: Live, timed_out: bool, oom: bool | None) -> str | None:
    if oom:
        memory = format_size(live.row.spec.limits.memory_bytes)
        return f"it needed more memory than its limit of {memory}: --memory, Limits(memory=…)"
    if timed_out:
        return "it was ended by its time-out: --timeout, run(timeout=…)"
    return None


class Kept:
    """The head and the tail of a stream, within a bound."""

    def __init__(self, bound: int = OUTPUT_KEPT) -> None:
        self._half = bound // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._half:
                del self._tail[: -self._half]

    @property
    def truncated(self) -> bool:
        return self._size > 2 * self._half

    def value(self) -> bytes:
        if not self.truncated:
            return bytes(self._head + self._tail)
        left_out = self._size - 2 * self._half
        mark = f"\n[skerry: {left_out} bytes left out here]\n".encode()
        return bytes(self._head) + mark + bytes(self._tail[-self._half :])


class Gathered:
    """A bounded part of both streams. `missing`: bytes that were dropped before they could be read."""

    def __init__(self) -> None:
        self._kept = {"stdout": Kept(), "stderr": Kept()}
        self.missing = 0

    def add(self, stream: str, data: bytes) -> None:
        self._kept[stream].add(data)

    def result(self, end: RunResult) -> RunResult:
        stdout, stderr = self._kept["stdout"].value(), self._kept["stderr"].value()
        return replace(
            end,
            stdout=stdout.decode("utf-8", "replace"), stderr=stderr.decode("utf-8", "replace"),
            stdout_base64=None if is_text(stdout) else stdout, stderr_base64=None if is_text(stderr) else stderr,
            truncated=end.truncated or self.missing > 0 or any(kept.truncated for kept in self._kept.values()),
        )  # fmt: skip


async def collect(run: Run) -> RunResult:
    """Read a run to its end, keeping a bounded part of its output."""
    gathered = Gathered()
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
