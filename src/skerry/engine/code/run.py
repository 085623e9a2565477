"""Code runs of every kind: output, results, outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from msgspec.structs import replace

from skerry.code.failures import MAX_TEXT
from skerry.codecs.output import HeadAndTail
from skerry.engine.processes.run import CollectedOutput, Run, Stream
from skerry.engine.records.trace.recorder import Step
from skerry.errors import SandboxUnavailable
from skerry.types import CodeEnd, CodeOutput, RunResult

Piece = tuple[Stream, bytes] | CodeOutput


class CodeRun(Protocol):
    """Iterate for output and results; then `end()`. `id`: its process; the output from byte `offset` on belongs to this
    run. Closing it early ends the run; consequences for the context are reported by its next run."""

    id: str
    pid: int
    offset: int

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    def end(self) -> CodeEnd: ...

    async def aclose(self) -> None: ...


class CommandRun:
    """Code that a separate command runs. `ending` turns the command's result and its stderr into the code's outcome."""

    def __init__(self, run: Run, ending: Callable[[RunResult, str], Awaitable[CodeEnd]]) -> None:
        self.id, self.pid, self.offset = run.id, run.pid, 0
        self._run = run
        self._ending = ending
        self._said = HeadAndTail(2 * MAX_TEXT)
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


class RecordedRun:
    """A run that is recorded in the sandbox's trace."""

    def __init__(self, run: CodeRun, step: Step) -> None:
        self.id, self.pid, self.offset = run.id, run.pid, run.offset
        self._run, self._step = run, step

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for piece in self._run:
            if isinstance(piece, CodeOutput):
                self._step.value(piece)
            else:
                self._step.output(*piece)
            self.id = self._run.id  # of the program, after that of its compiler
            yield piece
        self.id = self._run.id
        self._step.end(self._run.end())

    def end(self) -> CodeEnd:
        return self._run.end()

    async def aclose(self) -> None:
        self._step.interrupt()
        await self._run.aclose()


def code_end(result: RunResult, **more: Any) -> CodeEnd:
    """How a command ended, as that of code."""
    return CodeEnd(**{name: getattr(result, name) for name in RunResult.__struct_fields__}, **more)


async def collect(run: CodeRun) -> CodeEnd:
    """Read a run to its end, keeping a bounded part of its output, and its results, which are bounded."""
    gathered, results = CollectedOutput(), []
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
