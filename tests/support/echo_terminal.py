"""Terminals without a sandbox: a program that echoes, floods, or reads nothing. For tests of the code between a
viewer's socket and the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from skerry.errors import Conflict, NotFound
from skerry.types import Caller, ProcessInfo, Pty, RunResult

ECHO, FLOOD, DEAF, PLAIN, BROKEN, SLOW = (
    f"p-{word:a<10}" for word in ("echo", "flood", "deaf", "plain", "broken", "slow")
)


class EchoTerminal:
    """`exit` ends it. FLOOD writes without end, DEAF never reads, BROKEN fails with an unexpected error."""

    def __init__(self, process: str, since: int, terminals: EchoTerminals) -> None:
        self.process = ProcessInfo(id=process, cmd="echo", state="running", pid=7, pty=True)
        self.offset = max(since, 0)
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._terminals = terminals
        terminals.open_now += 1

    async def __aiter__(self) -> AsyncIterator[bytes | int]:
        yield 3
        while self.process.id == FLOOD:
            self._terminals.flooded += 1 << 16
            yield b"y" * (1 << 16)
            await asyncio.sleep(0)
        while (data := await self._said.get()) is not None:
            yield data

    def result(self) -> RunResult:
        return RunResult(id=self.process.id, exit_code=5, duration_s=0.5)

    async def type(self, chunks: AsyncIterator[bytes]) -> None:
        await asyncio.sleep(0.01)  # as long as a call to a keeper takes
        async for data in chunks:
            await self._take(data)

    async def _take(self, data: bytes) -> None:
        if self.process.id == DEAF:
            await asyncio.Event().wait()
        if self.process.id == BROKEN:
            raise ZeroDivisionError("a secret of the inside")
        self._terminals.typed.append(data)
        self._said.put_nowait(data.removesuffix(b"exit"))
        if data.endswith(b"exit"):
            self._said.put_nowait(None)

    async def resize(self, size: Pty) -> None:
        self._said.put_nowait(f"{size.cols}x{size.rows}".encode())

    async def signal(self, name: str) -> None:
        if name != "INT":
            raise Conflict(f"no {name} here")
        self._said.put_nowait(b"interrupted")

    async def aclose(self) -> None:
        self._terminals.open_now -= 1


class EchoTerminals:
    """Those of ann's sandbox `echo`."""

    def __init__(self) -> None:
        self.opened = 0
        self.open_now = 0
        self.flooded = 0
        self.typed: list[bytes] = []
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()

    async def open(self, caller: Caller, ref: str, process: str, since: int) -> EchoTerminal:
        if ref != "echo" or caller.owner not in ("ann", "local"):
            raise NotFound(f"sandbox {ref!r} not found")
        if process == PLAIN:
            raise Conflict(f"process {process} has no terminal")
        if process == SLOW:
            self.waiting.set()
            await self.go_on.wait()
        elif process not in (ECHO, FLOOD, DEAF, BROKEN):
            raise NotFound(f"process {process!r} not found")
        self.opened += 1
        return EchoTerminal(process, since, self)
