"""`asyncio.run` for a program that handles signals."""

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
    """Run a coroutine. On a signal, cancel it, and raise the signal handler's exception after it has ended.

    A handler that raises at an arbitrary point of the loop can lose the callback that the loop was about to run, and a
    task that waits for that callback hangs. Here the loop receives signals between two callbacks."""
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(_Signals())
        runner = stack.enter_context(asyncio.Runner())
        signals.work = work = runner.get_loop().create_task(main)
        with contextlib.suppress(asyncio.CancelledError):
            return runner.run(_ended(work))
    raise asyncio.CancelledError  # cancelled without a signal


async def _ended(work: asyncio.Task[T]) -> T:
    return await work


class _Signals:
    """Defers the first signal of each kind; later ones go directly to their handler."""

    def __init__(self) -> None:
        self._handlers = {number: found for number in _ENDING if callable(found := signal.getsignal(number))}
        self._received: list[signal.Signals] = []
        self._raised: BaseException | None = None
        self.work: asyncio.Task[Any] | None = None

    def __enter__(self) -> _Signals:
        for number in self._handlers:
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handle()
        if self._raised is not None:
            raise self._raised

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received.append(signal.Signals(number))
        with contextlib.suppress(RuntimeError):  # the loop is closed: __exit__ handles the signal
            if self.work is not None:
                self.work.get_loop().call_soon_threadsafe(self._handle)

    def _handle(self) -> None:
        while self._received:
            number = self._received.pop(0)
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
