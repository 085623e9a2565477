"""Code under way, whatever runs it: what it prints, what it gives, how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from msgspec.structs import replace

from skerry.code.failures import READ_MOST
from skerry.engine.runs import Gathered, Kept, Run, Stream
from skerry.errors import SandboxUnavailable
from skerry.types import CodeEnd, CodeOutput, RunResult

Piece = tuple[Stream, bytes] | CodeOutput


class CodeRun(Protocol):
    """Iterate for what comes; then `end()`. `id`: its process, whose output from byte `offset` on is this run's.
    Closing it early ends the run; what else that ends is told by the context's next one."""

    id: str
    pid: int
    offset: int

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    def end(self) -> CodeEnd: ...

    async def aclose(self) -> None: ...


class CommandRun:
    """Code that a command of its own runs. `ending` makes of the command's result, and of what it wrote to stderr, what
    is told of the code's."""

    def __init__(self, run: Run, ending: Callable[[RunResult, str], Awaitable[CodeEnd]]) -> None:
        self.id, self.pid, self.offset = run.id, run.pid, 0
        self._run = run
        self._ending = ending
        self._said = Kept(2 * READ_MOST)
        self._end: CodeEnd | None = None

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for name, data in self._run:
            if name == "stderr":
                self._said.add(data)
            yield name, data
        self._end = await self._ending(self._run.result(), self._said.value().decode("utf-8", "replace"))

    def end(self) -> CodeEnd:
        if self._end is None:
            raise SandboxUnavailable("the run's end is not known")
        return self._end

    async def aclose(self) -> None:
        await self._run.aclose()


def code_end(result: RunResult, **more: Any) -> CodeEnd:
    """How a command ended, as that of code."""
    return CodeEnd(**{name: getattr(result, name) for name in RunResult.__struct_fields__}, **more)


async def collect(run: CodeRun) -> CodeEnd:
    """Read a run to its end, keeping a bounded part of its output, and its results, which are bounded."""
    gathered, results = Gathered(), []
    try:
        async for piece in run:
            if isinstance(piece, CodeOutput):
                results.append(piece)
            else:
                gathered.add(*piece)
    finally:
        await run.aclose()
    end = run.end()
    streams = gathered.result(end)
    return replace(
        end, results=tuple(results), stdout=streams.stdout, stderr=streams.stderr, truncated=streams.truncated,
        stdout_base64=streams.stdout_base64, stderr_base64=streams.stderr_base64,
    )  # fmt: skip
