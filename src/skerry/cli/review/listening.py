"""Keys and the window's size, for a program that runs in a loop of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from skerry.cli.review.keyboard import Keyboard

ESCAPE_S = 0.05  # after which an Escape is the key, and not the first byte of another one
READ = 64 << 10


class Listening:
    """Calls back for each key, and when the window has another size or is gone."""

    def __init__(self, key: Callable[[str], None], resized: Callable[[], None], gone: Callable[[], None]) -> None:
        self._key, self._resized, self._gone = key, resized, gone
        self._keyboard = Keyboard()
        self._late: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        running = asyncio.get_running_loop()
        running.add_signal_handler(signal.SIGWINCH, self._resized)
        running.add_reader(0, self._read)
        try:
            yield
        finally:
            running.remove_reader(0)
            running.remove_signal_handler(signal.SIGWINCH)
            if self._late is not None:
                self._late.cancel()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The keys are for another program meanwhile."""
        running = asyncio.get_running_loop()
        running.remove_reader(0)
        try:
            yield
        finally:
            running.add_reader(0, self._read)

    def _read(self) -> None:
        try:
            data = os.read(0, READ)
        except BlockingIOError:
            return
        except OSError:  # the window was closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(0)
            self._gone()
        if self._late is not None:
            self._late.cancel()
        self._press(self._keyboard.feed(data))
        if self._keyboard.waits:
            running = asyncio.get_running_loop()
            self._late = running.call_later(ESCAPE_S, lambda: self._press(self._keyboard.rest()))

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._key(key)
