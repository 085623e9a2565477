"""`asyncio.run` for a program that signals may end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(main: Coroutine[Any, Any, T]) -> T:
    """A handler that raises wherever the loop happens to be can lose the step that it was about to take, and who waits
    for that step waits for ever. Here the loop hears of a signal between two steps: the work is cancelled, and what the
    signal's handler raises is raised when the work has ended."""
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(_Signals())
        runner = stack.enter_context(asyncio.Runner())
        signals.work = work = runner.get_loop().create_task(main)
        with contextlib.suppress(asyncio.CancelledError):
            return runner.run(_ended(work))
    raise asyncio.CancelledError  # by nobody's signal


async def _ended(work: asyncio.Task[T]) -> T:
    return await work


class _Signals:
    """The first of each kind is taken; what its handler makes of the next ones is its own affair."""

    def __init__(self) -> None:
        self._handlers = {number: found for number in _ENDING if callable(found := signal.getsignal(number))}
        self._came: list[signal.Signals] = []
        self._raised: BaseException | None = None
        self.work: asyncio.Task[Any] | None = None

    def __enter__(self) -> _Signals:
        for number in self._handlers:
            signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._hear()
        if self._raised is not None:
            raise self._raised

    def _take(self, number: int, _: FrameType | None) -> None:
        self._came.append(signal.Signals(number))
        with contextlib.suppress(RuntimeError):  # the loop is closed: heard on the way out
            if self.work is not None:
                self.work.get_loop().call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        while self._came:
            number = self._came.pop(0)
            handler = self._handlers.pop(number, None)
            if handler is None:
                continue
            signal.signal(number, handler)
            try:
                handler(number, None)
            except (SystemExit, KeyboardInterrupt) as error:
                self._raised = self._raised or error
                if self.work is not None:
                    self.work.cancel()
