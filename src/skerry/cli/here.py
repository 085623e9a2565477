"""The terminal that this program was started in."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import tty
from collections.abc import Iterator

from skerry.errors import InvalidRequest
from skerry.types import PTY_MOST, Pty

USUAL = Pty()


def is_terminal(descriptor: int = 0) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def require_terminal(instead: str) -> None:
    if not is_terminal():
        raise InvalidRequest("stdin is not a terminal", hint=f"without one: {instead}")


def size() -> Pty:
    """Of the window; a terminal that does not know its own gets the usual one."""
    for descriptor in (0, 1):
        with contextlib.suppress(OSError):
            cols, rows = os.get_terminal_size(descriptor)
            if 0 < cols <= PTY_MOST and 0 < rows <= PTY_MOST:
                return Pty(cols=cols, rows=rows)
    return USUAL


def description() -> dict[str, str]:
    """What programs inside have to know of it. No locale: the sandbox may not have this host's."""
    return {name: value for name in ("TERM", "COLORTERM") if (value := os.environ.get(name))}


def can_be_drawn_on() -> bool:
    """Both ways, and with a cursor that can be moved."""
    return is_terminal() and is_terminal(1) and os.environ.get("TERM", "dumb") not in ("", "dumb")


def in_front() -> bool:
    """Whether keys that are pressed are for this program, and not for one that its shell has in front."""
    try:
        return can_be_drawn_on() and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def raw(descriptor: int = 0, *, signals: bool = False) -> Iterator[None]:
    """Every key as it is pressed, Ctrl-C too, unless it is to be a signal still; put back in every way out."""
    before = termios.tcgetattr(descriptor)
    try:
        (tty.setcbreak if signals else tty.setraw)(descriptor, termios.TCSADRAIN)
        yield
    finally:
        # From the background this would stop us instead; a terminal that is gone needs nothing put back.
        old = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
        signal.signal(signal.SIGTTOU, old)
