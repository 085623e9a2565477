"""`skerry watch`: with keys on a terminal, as text or JSON elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from skerry.cli import asyncio_run, output, terminal
from skerry.cli.review.input import KeyReader
from skerry.cli.review.rows import Layout
from skerry.cli.review.screen import write
from skerry.cli.review.style import Row, detect_colours, paint, paint_lines
from skerry.cli.review.watch_model import DecideShown, Quit, Undo, WatchEffect, WatchModel, joined_hunks, shown_hunks
from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import Decisions, ReviewEvent, SandboxInfo

MAX_QUEUED_EVENTS = 256  # events of all sandboxes that wait for printing


class WatchApp:
    """Follows the changes of sandboxes and prints them. With `keys`, a user can decide about them; accepted changes are
    applied at once to the directory `apply_to`."""

    def __init__(
        self, sandboxes: Sequence[AsyncSandbox], *, as_json: bool, keys: bool, apply_to: str | None = None
    ) -> None:
        self._apply_to = apply_to
        self._sandboxes = {sandbox.id: sandbox for sandbox in sandboxes}
        self._model = WatchModel({sandbox.id: sandbox.name or sandbox.id for sandbox in sandboxes})
        self._as_json, self._keys = as_json, keys
        self._colours = detect_colours(terminal=terminal.is_terminal(1))
        self._events: asyncio.Queue[ReviewEvent] = asyncio.Queue(MAX_QUEUED_EVENTS)
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = 0  # watches that have started: from then on no event is missed

    async def run(self) -> None:
        """Run until the user quits or all sandboxes are deleted."""
        following = [asyncio.ensure_future(self._follow(sandbox)) for sandbox in self._sandboxes.values()]
        printing = asyncio.ensure_future(self._print())
        leaving = asyncio.ensure_future(self._over.wait())
        all_followers = asyncio.gather(*following)
        keys = KeyReader(self._pressed, self._status, self._over.set)
        with keys.on() if self._keys else contextlib.nullcontext():
            try:
                waited: list[asyncio.Future[Any]] = [all_followers, printing, leaving]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if all_followers.done() and not leaving.done():
                    all_followers.result()
                    while not self._events.empty():
                        self._show(self._events.get_nowait())
                elif printing.done():
                    printing.result()
            finally:
                for task in (*following, printing, leaving, *self._tasks):
                    task.cancel()
                await asyncio.gather(*following, printing, leaving, *self._tasks, return_exceptions=True)
                with contextlib.suppress(asyncio.CancelledError, SkerryError):
                    await all_followers
                if self._keys:
                    write("\r\x1b[2K")

    async def _follow(self, sandbox: AsyncSandbox) -> None:
        async with sandbox.review.watch() as watch:
            self._started += 1
            self._status()
            async for event in watch:
                await self._events.put(event)

    async def _print(self) -> None:
        while True:
            self._show(await self._events.get())

    def _show(self, event: ReviewEvent) -> None:
        if self._as_json:
            output.json_line(event)
            return
        layout = Layout(terminal.size().cols if terminal.is_terminal(1) else 100, ink=self._colours == 256)
        self._write_rows(self._model.take(event, layout, time.monotonic()))

    def _write_rows(self, rows: Sequence[Row]) -> None:
        write(("\r\x1b[2K" if self._keys else "") + paint_lines(rows, self._colours))
        self._status()

    def _status(self) -> None:
        """Draw the last line of the screen: the keys and their current effect."""
        if self._keys and self._started == len(self._sandboxes):
            write(f"\r\x1b[2K{paint(self._model.status(terminal.size().cols), self._colours)}")

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _pressed(self, key: str) -> None:
        effect, rows = self._model.press(key, time.monotonic())
        if rows:
            self._write_rows(rows)
        if effect is not None:
            self._perform(effect)
        self._status()

    def _perform(self, effect: WatchEffect) -> None:
        if isinstance(effect, Quit):
            self._over.set()
        else:
            work: Coroutine[Any, Any, None] = (
                self._decide(effect) if isinstance(effect, DecideShown) else self._undo(effect)
            )
            task = asyncio.ensure_future(self._guarded(work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SkerryError as error:
            self._model.failed(error.message if not error.hint else f"{error.message} ({error.hint})")
        self._status()

    async def _decide(self, effect: DecideShown) -> None:
        review = self._sandboxes[effect.shown.sandbox].review
        found = await review.changes()
        if joined := joined_hunks(effect.shown, found):
            ids = tuple(hunk.id for hunk in joined)
            await review.decide(Decisions(split=ids, tip=found.tip, seen=dict.fromkeys(ids, "open")))
            found = await review.changes()
        hunks, left = shown_hunks(effect.shown, found, effect.do)
        ids = tuple(hunk.id for hunk in hunks)
        if ids:
            accept, reject = (ids, ()) if effect.do == "accept" else ((), ids)
            request = Decisions(
                accept=accept, reject=reject, reason=effect.reason, tip=found.tip, seen=dict.fromkeys(ids, "open")
            )
            await review.decide(request)
        applied = False
        try:
            if ids and effect.do == "accept" and self._apply_to is not None:
                await review.apply(self._apply_to)
                applied = True
        finally:  # they stay accepted if they can't be applied
            self._model.decided(effect.shown, hunks, left, effect.do, applied=applied)

    async def _undo(self, effect: Undo) -> None:
        review = self._sandboxes[effect.sandbox].review
        if effect.applied and self._apply_to is not None:
            await review.undo(self._apply_to)
        await review.decide(effect.request)
        self._model.failed("undone")


def watch(server: str | None, sandboxes: Sequence[SandboxInfo], *, as_json: bool, apply_to: str | None = None) -> None:
    """Watch sandboxes. `apply_to`: apply accepted changes at once, to this directory."""
    keys = not as_json and terminal.is_foreground()
    if apply_to is not None and not keys:
        raise InvalidRequest("--apply needs a terminal", hint="elsewhere: skerry accept, skerry apply")

    async def work() -> None:
        async with AsyncClient(server) as client:
            known = [AsyncSandbox._of(info, client, shared=True) for info in sandboxes]
            await WatchApp(known, as_json=as_json, keys=keys, apply_to=apply_to).run()

    with terminal.raw(signals=True) if keys else contextlib.nullcontext():
        asyncio_run.run(work())
