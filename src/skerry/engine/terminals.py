"""A process's terminal, as one of its viewers has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from skerry.engine.live import Live
from skerry.errors import Conflict
from skerry.keeper import Keeper
from skerry.types import Caller, ProcessInfo, Pty, RunResult

Use = Callable[[Caller, str], AbstractAsyncContextManager[tuple[Live, Keeper]]]


class Terminal:
    """Iterate for what it shows: bytes, or how many of them are gone; then `result()`."""

    process: ProcessInfo
    offset: int

    def __aiter__(self) -> AsyncIterator[bytes | int]:
        raise NotImplementedError

    def result(self) -> RunResult:
        raise NotImplementedError

    async def write(self, data: bytes) -> None: ...

    async def resize(self, size: Pty) -> None: ...

    async def signal(self, name: str) -> None: ...

    async def aclose(self) -> None: ...


class Terminals:
    """`use` gives a running sandbox for one call."""

    def __init__(self, use: Use) -> None:
        self._use = use

    async def open(self, caller: Caller, ref: str, process: str, since: int) -> Terminal:
        async with self._use(caller, ref) as (_, keeper):
            await keeper.process(process)
            raise Conflict(f"process {process} has no terminal", details={"process": process})
