"""The terminal as a stage: the other screen, drawn row by row, and left as it was found in every way out."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from skerry.cli import here, talk
from skerry.cli.review.keyboard import PASTE_OFF, PASTE_ON
from skerry.cli.review.page import Page
from skerry.cli.review.style import Colours, colours_of, encoded, paint

_ENTER = f"\x1b[?1049h\x1b[?25l\x1b[?7l{PASTE_ON}\x1b[2J"
_LEAVE = f"{PASTE_OFF}\x1b[?7h\x1b[?25h\x1b[0m\x1b[?1049l"


def encoding_of() -> str:
    return sys.stdout.encoding or "ascii"


def write(text: str) -> None:
    talk.pass_on("stdout", encoded(text, encoding_of()))


class Stage:
    def __init__(self) -> None:
        self.colours: Colours = colours_of(terminal=here.is_terminal(1))
        self._drawn: list[str] = []
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        self._held.enter_context(here.raw())
        write(_ENTER)
        self._drawn = []
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(OSError, SystemExit):  # a window that is gone needs nothing put back
                write(_LEAVE)
        finally:
            self._held.close()

    @property
    def size(self) -> tuple[int, int]:
        known = here.size()
        return known.cols, known.rows

    def forget(self) -> None:
        """Draw all of it next time."""
        self._drawn = []

    def draw(self, page: Page) -> None:
        rows = [paint(row, self.colours) for row in page.rows]
        parts = ["\x1b[?25l"] if self._drawn else ["\x1b[?25l\x1b[2J"]
        for at, row in enumerate(rows):
            if at >= len(self._drawn) or self._drawn[at] != row:
                parts.append(f"\x1b[{at + 1};1H\x1b[2K{row}")
        if page.cursor is not None:
            parts.append(f"\x1b[{page.cursor[1] + 1};{page.cursor[0] + 1}H\x1b[?25h")
        self._drawn = rows
        write("".join(parts))

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The terminal belongs to another program meanwhile."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def suspend(self) -> None:
        """Ctrl-Z: until the shell wakes us."""
        with self.away():
            os.kill(os.getpid(), signal.SIGTSTP)
