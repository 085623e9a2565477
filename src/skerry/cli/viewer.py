"""Between the terminal here and the one inside, until the process ends or we are told to leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from skerry.cli import here, loop, talk
from skerry.cli.keys import HELP, Keys
from skerry.cli.screen import Modes, Replay
from skerry.cli.stdin import pieces_of
from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.client._async.terminal import AsyncTerminal
from skerry.client.backend_async import chunks
from skerry.errors import Conflict, SandboxUnavailable
from skerry.types import Result, SandboxInfo

READ = 64 << 10
HELD = 256 << 10  # of what is typed for a program that does not read
LAST_WORDS_S = 1.0


class Viewer:
    """`fresh`: the process was just started by us; there is nothing to replay."""

    def __init__(self, terminal: AsyncTerminal, keys: Keys, *, fresh: bool = False) -> None:
        self._terminal = terminal
        self._keys = keys
        self._fresh = fresh
        self._modes = Modes()
        self._mid_line = False
        self._typed = bytearray()
        self._pressed = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._leave = asyncio.Event()
        self._resized = asyncio.Event()

    def undo(self) -> None:
        """Once it is over: what programs changed in the terminal here is put back, and a new line begun."""
        if here.is_terminal(1):
            talk.pass_on("stdout", self._modes.undoing() + (b"\r\n" if self._mid_line else b""))

    async def watch(self) -> None:
        """Only look on, to the end of the process."""
        await self._until_done(self._show())

    async def feed(self, source: AsyncIterator[bytes]) -> None:
        """A pipe in place of a keyboard: all of it goes in as it comes; then look on."""
        await self._until_done(self._show(), self._pump(source))

    async def use(self) -> None:
        """Keys go in and the size follows, until the process has ended or we are to leave it."""
        with self._listening():
            await self._until_done(self._show(), self._leaving(), self._press(), self._follow_size())

    async def _until_done(self, *parts: Coroutine[Any, Any, bool]) -> None:
        """Until one of them says so. One that can't go on because the process has ended waits for that to be shown."""
        tasks = {asyncio.ensure_future(part) for part in parts}
        waiting, over = set(tasks), False
        try:
            while not over:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    with contextlib.suppress(Conflict):
                        over |= task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _show(self) -> bool:
        replay = Replay()
        async for data in self._terminal:
            process = self._terminal.process
            if not self._fresh and process is not None:
                data = replay.feed(data, self._terminal.offset, process.offset)
            self._print(data)
        self._print(replay.rest())
        return True

    def _print(self, data: bytes) -> None:
        if data:
            self._modes.see(data)
            self._mid_line = not data.endswith(b"\n")
            talk.pass_on("stdout", data)

    # -- keys ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        running = asyncio.get_running_loop()
        self._resized.set()
        running.add_signal_handler(signal.SIGWINCH, self._resized.set)
        running.add_reader(0, self._read)
        try:
            yield
        finally:
            running.remove_reader(0)
            running.remove_signal_handler(signal.SIGWINCH)

    def _read(self) -> None:
        try:
            data = os.read(0, READ)
        except BlockingIOError:
            return
        except OSError:  # the window was closed
            data = b""
        if not data:
            self._leave.set()
            asyncio.get_running_loop().remove_reader(0)
        for typed in self._keys.feed(data):
            self._type(typed.data)
            if typed.wish == "leave":
                self._leave.set()
            elif typed.wish == "help":
                talk.pass_on("stdout", f"\n{HELP}\n".replace("\n", "\r\n").encode())

    def _type(self, data: bytes) -> None:
        if data:
            self._typed += data
            self._written.clear()
            self._pressed.set()
        if len(self._typed) > HELD:
            asyncio.get_running_loop().remove_reader(0)

    async def _press(self) -> bool:
        while True:
            await self._pressed.wait()
            self._pressed.clear()
            data, was_full = bytes(self._typed), len(self._typed) > HELD
            self._typed.clear()
            if was_full:
                asyncio.get_running_loop().add_reader(0, self._read)
            await self._terminal.write(data)
            if not self._typed:
                self._written.set()

    async def _leaving(self) -> bool:
        await self._leave.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._written.wait()
        return True

    async def _follow_size(self) -> bool:
        size = here.size()
        if not self._fresh:  # a program draws its screen anew when the size changes, so it does once
            await self._terminal.resize(size.cols, max(1, size.rows - 1))
        while True:
            await self._resized.wait()
            self._resized.clear()
            size = here.size()
            await self._terminal.resize(size.cols, size.rows)

    async def _pump(self, source: AsyncIterator[bytes]) -> bool:
        async for data in source:
            await self._terminal.write(data)
        return False


def use(server: str | None, sandbox: SandboxInfo, process: str, keys: Keys, *, fresh: bool) -> Result | None:
    """Be in front of it. None: left, and it goes on."""
    made: list[Viewer] = []

    async def view() -> Result | None:
        async with _open(server, sandbox, process, since=0 if fresh else None) as terminal:
            made.append(Viewer(terminal, keys, fresh=fresh))
            await made[0].use()
            return terminal.result

    try:
        with here.raw():
            return loop.run(view())
    finally:
        for viewer in made:
            viewer.undo()


def look_on(server: str | None, sandbox: SandboxInfo, process: str, *, reads: bool) -> Result:
    """Show it to its end; `reads`: our stdin, which is no terminal, goes in."""

    async def view() -> Result | None:
        async with _open(server, sandbox, process) as terminal:
            viewer = Viewer(terminal, Keys(escape=False))
            await (viewer.feed(chunks(pieces_of(0))) if reads else viewer.watch())
            return terminal.result

    result = loop.run(view())
    if result is None:
        raise SandboxUnavailable("the terminal was closed before the process ended")
    return result


@contextlib.asynccontextmanager
async def _open(
    server: str | None, sandbox: SandboxInfo, process: str, since: int | None = None
) -> AsyncIterator[AsyncTerminal]:
    async with AsyncClient(server) as client:
        inside = AsyncSandbox._of(sandbox, client, shared=True)
        async with AsyncTerminal(inside, process, since=since) as terminal:
            yield terminal
