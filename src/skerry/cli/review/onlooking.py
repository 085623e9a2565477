"""Watching sandboxes: on a terminal with keys, elsewhere as text or JSON."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from skerry.cli import here, loop, talk
from skerry.cli.review.listening import Listening
from skerry.cli.review.rows import Look
from skerry.cli.review.stage import write
from skerry.cli.review.style import Row, colours_of, lines_of, paint
from skerry.cli.review.watching import Judge, Quit, Undo, Watching, Wish, sorted_out
from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.errors import SkerryError
from skerry.types import DecideRequest, ReviewEvent, SandboxInfo

AT_ONCE = 256  # events of all sandboxes that wait to be printed


class Onlooking:
    """`keys`: there is somebody to press them."""

    def __init__(self, sandboxes: Sequence[AsyncSandbox], *, as_json: bool, keys: bool) -> None:
        self._sandboxes = {sandbox.id: sandbox for sandbox in sandboxes}
        self._watching = Watching({sandbox.id: sandbox.name or sandbox.id for sandbox in sandboxes})
        self._as_json, self._keys = as_json, keys
        self._colours = colours_of(terminal=here.is_terminal(1))
        self._events: asyncio.Queue[ReviewEvent] = asyncio.Queue(AT_ONCE)
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._standing = 0  # watches that have begun: from there on nothing is missed

    async def run(self) -> None:
        """Until it is left, or all of them are gone."""
        following = [asyncio.ensure_future(self._follow(sandbox)) for sandbox in self._sandboxes.values()]
        printing = asyncio.ensure_future(self._print())
        leaving = asyncio.ensure_future(self._over.wait())
        everyone = asyncio.gather(*following)
        listening = Listening(self._pressed, self._status, self._over.set)
        with listening.on() if self._keys else contextlib.nullcontext():
            try:
                waited: list[asyncio.Future[Any]] = [everyone, printing, leaving]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if everyone.done() and not leaving.done():
                    everyone.result()
                    while not self._events.empty():
                        self._show(self._events.get_nowait())
                elif printing.done():
                    printing.result()
            finally:
                for task in (*following, printing, leaving, *self._tasks):
                    task.cancel()
                await asyncio.gather(*following, printing, leaving, *self._tasks, return_exceptions=True)
                with contextlib.suppress(asyncio.CancelledError, SkerryError):
                    await everyone
                if self._keys:
                    write("\r\x1b[2K")

    async def _follow(self, sandbox: AsyncSandbox) -> None:
        async with sandbox.review.watch() as watch:
            self._standing += 1
            self._status()
            async for event in watch:
                await self._events.put(event)

    async def _print(self) -> None:
        while True:
            self._show(await self._events.get())

    def _show(self, event: ReviewEvent) -> None:
        if self._as_json:
            talk.give_line(event)
            return
        look = Look(here.size().cols if here.is_terminal(1) else 100, ink=self._colours == 256)
        self._say(self._watching.take(event, look, time.monotonic()))

    def _say(self, rows: Sequence[Row]) -> None:
        write(("\r\x1b[2K" if self._keys else "") + lines_of(rows, self._colours))
        self._status()

    def _status(self) -> None:
        """The last line of the screen: what a key would do now."""
        if self._keys and self._standing == len(self._sandboxes):
            write(f"\r\x1b[2K{paint(self._watching.status(here.size().cols), self._colours)}")

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _pressed(self, key: str) -> None:
        wish, rows = self._watching.press(key, time.monotonic())
        if rows:
            self._say(rows)
        if wish is not None:
            self._begin(wish)
        self._status()

    def _begin(self, wish: Wish) -> None:
        if isinstance(wish, Quit):
            self._over.set()
        else:
            work: Coroutine[Any, Any, None] = self._judge(wish) if isinstance(wish, Judge) else self._undo(wish)
            task = asyncio.ensure_future(self._guarded(work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SkerryError as error:
            self._watching.failed(error.message if not error.hint else f"{error.message} ({error.hint})")
        self._status()

    async def _judge(self, wish: Judge) -> None:
        review = self._sandboxes[wish.shown.sandbox].review
        found = await review.changes()
        hunks, left = sorted_out(wish.shown, found, wish.do)
        ids = tuple(hunk.id for hunk in hunks)
        if ids:
            accept, reject = (ids, ()) if wish.do == "accept" else ((), ids)
            request = DecideRequest(accept=accept, reject=reject, reason=wish.reason, tip=found.tip)
            await review.decide(request)
        self._watching.judged(wish.shown, hunks, left, wish.do)

    async def _undo(self, wish: Undo) -> None:
        await self._sandboxes[wish.sandbox].review.decide(wish.request)
        self._watching.failed("undone")


def watch(server: str | None, sandboxes: Sequence[SandboxInfo], *, as_json: bool) -> None:
    keys = not as_json and here.in_front()

    async def work() -> None:
        async with AsyncClient(server) as client:
            known = [AsyncSandbox._of(info, client, shared=True) for info in sandboxes]
            await Onlooking(known, as_json=as_json, keys=keys).run()

    with here.raw(signals=True) if keys else contextlib.nullcontext():
        loop.run(work())
