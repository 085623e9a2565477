"""Connect the local terminal with a terminal in a sandbox until the process ends or the user detaches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from skerry.cli import asyncio_run, output
from skerry.cli import terminal as local_terminal
from skerry.cli.commands.shell.escapes import EscapeKeys, Replay, TerminalModes
from skerry.cli.terminal import read_chunks
from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.client._async.terminal import AsyncTerminal
from skerry.client.transport.backend_async import chunks
from skerry.errors import Conflict, SandboxUnavailable
from skerry.types import Result, SandboxInfo

READ = 64 << 10
MAX_TYPED = 256 << 10  # unread input of a program before reading stops
LAST_INPUT_TIMEOUT_S = 1.0


class Viewer:
    """Copies input and output. With `fresh`, this program just started the process, so nothing is replayed."""

    def __init__(self, terminal: AsyncTerminal, keys: EscapeKeys, *, fresh: bool = False) -> None:
        self._terminal = terminal
        self._keys = keys
        self._fresh = fresh
        self._modes = TerminalModes()
        self._mid_line = False
        self._typed = bytearray()
        self._pressed = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._detach = asyncio.Event()
        self._resized = asyncio.Event()

    def undo(self) -> None:
        """Reset the modes that programs changed in the local terminal, and start a new line."""
        if local_terminal.is_terminal(1):
            output.write_raw("stdout", self._modes.reset_sequence() + (b"\r\n" if self._mid_line else b""))

    async def watch(self) -> None:
        """Show output only, to the end of the process."""
        await self._until_done(self._show())

    async def feed(self, source: AsyncIterator[bytes]) -> None:
        """Send a stream as input, and show output to the end of the process."""
        await self._until_done(self._show(), self._pump(source))

    async def use(self) -> None:
        """Send keys and size changes until the process ends or the user detaches."""
        with self._listening():
            await self._until_done(self._show(), self._wait_detach(), self._press(), self._follow_size())

    async def _until_done(self, *parts: Coroutine[Any, Any, bool]) -> None:
        """Run the parts until one returns True. A part that fails because the process has ended leaves the rest of the
        output to the others."""
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
            self._modes.feed(data)
            self._mid_line = not data.endswith(b"\n")
            output.write_raw("stdout", data)

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
        except OSError:  # the terminal was closed
            data = b""
        if not data:
            self._detach.set()
            asyncio.get_running_loop().remove_reader(0)
        for typed in self._keys.feed(data):
            self._type(typed.data)
            if typed.command == "detach":
                self._detach.set()
            elif typed.command == "help":
                output.write_raw("stdout", f"\n{self._keys.help}\n".replace("\n", "\r\n").encode())

    def _type(self, data: bytes) -> None:
        if data:
            self._typed += data
            self._written.clear()
            self._pressed.set()
        if len(self._typed) > MAX_TYPED:
            asyncio.get_running_loop().remove_reader(0)

    async def _press(self) -> bool:
        while True:
            await self._pressed.wait()
            self._pressed.clear()
            data, was_full = bytes(self._typed), len(self._typed) > MAX_TYPED
            self._typed.clear()
            if was_full:
                asyncio.get_running_loop().add_reader(0, self._read)
            await self._terminal.write(data)
            if not self._typed:
                self._written.set()

    async def _wait_detach(self) -> bool:
        await self._detach.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_INPUT_TIMEOUT_S):
                await self._written.wait()
        return True

    async def _follow_size(self) -> bool:
        size = local_terminal.size()
        if not self._fresh:  # programs redraw after a size change: cause one redraw
            await self._terminal.resize(size.cols, max(1, size.rows - 1))
        while True:
            await self._resized.wait()
            self._resized.clear()
            size = local_terminal.size()
            await self._terminal.resize(size.cols, size.rows)

    async def _pump(self, source: AsyncIterator[bytes]) -> bool:
        async for data in source:
            await self._terminal.write(data)
        return False


def use(server: str | None, sandbox: SandboxInfo, process: str, keys: EscapeKeys, *, fresh: bool) -> Result | None:
    """Connect to a process. Return None if the user detached and the process keeps running."""
    viewers: list[Viewer] = []

    async def run() -> Result | None:
        async with _open(server, sandbox, process, since=0 if fresh else None) as terminal:
            viewers.append(Viewer(terminal, keys, fresh=fresh))
            await viewers[0].use()
            return terminal.result

    try:
        with local_terminal.raw():
            return asyncio_run.run(run())
    finally:
        for viewer in viewers:
            viewer.undo()


def view(server: str | None, sandbox: SandboxInfo, process: str, *, reads: bool) -> Result:
    """Show a process to its end. With `reads`, send stdin, which is not a terminal."""

    async def run() -> Result | None:
        async with _open(server, sandbox, process) as terminal:
            viewer = Viewer(terminal, EscapeKeys(escape=False))
            await (viewer.feed(chunks(read_chunks(0))) if reads else viewer.watch())
            return terminal.result

    result = asyncio_run.run(run())
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
