"""Draw on the terminal's alternate screen, row by row, and always restore the terminal at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from skerry.cli import output, terminal
from skerry.cli.review.input import PASTE_OFF, PASTE_ON
from skerry.cli.review.style import Colours, detect_colours, encode, paint
from skerry.cli.review.view import Frame

_ENTER = f"\x1b[?1049h\x1b[?25l\x1b[?7l{PASTE_ON}\x1b[2J"
_LEAVE = f"{PASTE_OFF}\x1b[?7h\x1b[?25h\x1b[0m\x1b[?1049l"


def stdout_encoding() -> str:
    return sys.stdout.encoding or "ascii"


def write(text: str) -> None:
    output.write_raw("stdout", encode(text, stdout_encoding()))


class Screen:
    def __init__(self) -> None:
        self.colours: Colours = detect_colours(terminal=terminal.is_terminal(1))
        self._drawn: list[str] = []
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Screen:
        self._held.enter_context(terminal.raw())
        write(_ENTER)
        self._drawn = []
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(OSError, SystemExit):  # a closed terminal needs no restoring
                write(_LEAVE)
        finally:
            self._held.close()

    @property
    def size(self) -> tuple[int, int]:
        known = terminal.size()
        return known.cols, known.rows

    def invalidate(self) -> None:
        """Redraw everything at the next draw."""
        self._drawn = []

    def draw(self, page: Frame) -> None:
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
    def released(self) -> Iterator[None]:
        """Restore the terminal while another program uses it."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def suspend(self) -> None:
        """Suspend the program (Ctrl-Z) until the shell resumes it."""
        with self.released():
            os.kill(os.getpid(), signal.SIGTSTP)
