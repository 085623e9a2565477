"""A process's terminal for one of its viewers: the process's journal, read as it grows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from skerry.engine.processes.output import OutputRange, OutputReader
from skerry.engine.processes.service import ProcessService
from skerry.errors import Conflict, SandboxUnavailable
from skerry.keeper import JournalGap
from skerry.types import Caller, ProcessInfo, Pty, RunResult


class Terminal:
    """Iterate for the output: bytes, or the number of lost bytes; then `result()`. The sandbox is in use, and not idle,
    until this is closed."""

    def __init__(
        self, processes: ProcessService, caller: Caller, ref: str, process: ProcessInfo, reading: OutputReader
    ) -> None:
        self.process = process
        self.offset = reading.start
        self._reading = reading
        self._type = partial(processes.send_stdin, caller, ref, process.id)
        self._resize = partial(processes.resize, caller, ref, process.id)
        self._signal = partial(processes.signal, caller, ref, process.id)

    async def __aiter__(self) -> AsyncIterator[bytes | int]:
        async for piece in self._reading:
            yield piece.missing if isinstance(piece, JournalGap) else piece[1]

    def result(self) -> RunResult:
        if self._reading.result is None:
            raise SandboxUnavailable("the process's end is not known")
        return self._reading.result

    async def type(self, chunks: AsyncIterator[bytes]) -> None:
        """To the program, at its speed; returns when it has all of it. One that has ended is a Conflict."""
        await self._type(chunks, False)

    async def resize(self, size: Pty) -> None:
        """Resize in a separate call, as for a signal: neither must wait behind input that the program does not read."""
        await self._resize(size)

    async def signal(self, name: str) -> None:
        await self._signal(name)

    async def aclose(self) -> None:
        await self._reading.aclose()


class TerminalService:
    """Any number of them for one process."""

    def __init__(self, processes: ProcessService) -> None:
        self._processes = processes

    async def open(self, caller: Caller, ref: str, process: str, since: int) -> Terminal:
        """`since` below 0 counts from the end."""
        info = await self._processes.get(caller, ref, process)
        if not info.pty:
            raise Conflict(
                f"process {process} has no terminal",
                hint="read …/output, or start the process with `pty`",
            )
        reading = await self._processes.output(caller, ref, process, OutputRange(since, follow=True))
        return Terminal(self._processes, caller, ref, info, reading)
