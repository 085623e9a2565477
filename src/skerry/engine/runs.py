"""A command under way, and the truth about how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from msgspec.structs import replace

from skerry.engine.live import Live
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import Process, ProcessStream
from skerry.types import OUTPUT_KEPT, ProcessInfo, RunResult, Usage, format_size

Stream = Literal["stdout", "stderr"]


class Run:
    """Iterate for the output; then `result()`. Closing it early ends the command with its whole tree."""

    def __init__(
        self,
        live: Live,
        process: str,
        stream: ProcessStream,
        oom_kills_before: int | None,
        failed: Callable[[SandboxUnavailable], Awaitable[None]],
    ) -> None:
        self.id = process
        self.pid = stream.pid
        self._live = live
        self._stream = stream
        self._kills_before = oom_kills_before
        self._result: RunResult | None = None
        self._open = True
        self._failed = failed
        self._stdin = asyncio.Lock()  # a connection has room for one who waits until it can write
        self._in_use = contextlib.ExitStack()
        self._in_use.enter_context(live.in_use())
        live.runs += 1
        if live.runs > 1:
            live.overlaps += 1
        self._overlaps_before = live.overlaps
        self._alone = live.runs == 1 and not live.left_behind

    async def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        try:
            async for name, data in self._stream:
                yield name, data
        except SandboxUnavailable as error:
            await self._failed(error)
            raise
        self._finish()

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
            self._live.runs -= 1
            self._live.inputs.pop(self.id, None)
            self._in_use.close()
            with contextlib.suppress(SkerryError, OSError):
                await self._stream.aclose()

    def _finish(self) -> None:
        status = self._stream.exit
        oom = self._out_of_memory()
        self._live.left_behind |= bool(status.left)
        self._result = RunResult(
            id=self.id, exit_code=status.exit_code, signal=status.signal, duration_s=status.duration_s,
            timed_out=status.timed_out, oom_killed=oom,
            usage=Usage(cpu_s=status.cpu_s, memory_peak=status.max_rss),
            hint=self._hint(status.timed_out, oom),
        )  # fmt: skip

    def _out_of_memory(self) -> bool | None:
        """Certain only where this was the one command at work: the kernel counts kills a sandbox, not a command."""
        runtime, before = self._live.runtime, self._kills_before
        now = runtime.oom_kills(self._live.row.id) if runtime is not None else None
        if now is None or before is None:
            return None
        if now <= before:
            return False
        return True if self._alone and self._live.overlaps == self._overlaps_before else None

    def _hint(self, timed_out: bool, oom: bool | None) -> str | None:
        if oom:
            memory = format_size(self._live.row.spec.limits.memory_bytes)
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
        mark = f"\n[… {left_out} bytes left out …]\n".encode()
        return bytes(self._head) + mark + bytes(self._tail[-self._half :])


async def collect(run: Run) -> RunResult:
    """Read a run to its end, keeping a bounded part of its output."""
    kept: dict[Stream, Kept] = {"stdout": Kept(), "stderr": Kept()}
    try:
        async for name, data in run:
            kept[name].add(data)
    finally:
        await run.aclose()
    stdout, stderr = kept["stdout"].value(), kept["stderr"].value()
    return replace(
        run.result(),
        stdout=stdout.decode("utf-8", "replace"), stderr=stderr.decode("utf-8", "replace"),
        stdout_base64=None if _is_text(stdout) else stdout, stderr_base64=None if _is_text(stderr) else stderr,
        truncated=kept["stdout"].truncated or kept["stderr"].truncated,
    )  # fmt: skip


def process_info(process: Process) -> ProcessInfo:
    """A process as the API shows it."""
    return ProcessInfo(
        id=process.id, cmd=process.shell if process.shell is not None else process.argv or [], state=process.state,
        pid=process.pid, user=process.user, started_at=process.started_at, exit_code=process.exit_code,
        signal=process.signal, timed_out=process.timed_out, children=process.children,
    )  # fmt: skip


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
