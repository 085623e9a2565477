"""The terminal and the stdin of this program."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Iterator, Sequence

from skerry.errors import InvalidRequest
from skerry.types import MAX_PTY, Pty

DEFAULT_SIZE = Pty()


def is_terminal(descriptor: int = 0) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def require_terminal(instead: str) -> None:
    if not is_terminal():
        raise InvalidRequest("stdin is not a terminal", hint=f"without a terminal: {instead}")


def size() -> Pty:
    """Return the size of the window, or the default size if the terminal does not report one."""
    for descriptor in (0, 1):
        with contextlib.suppress(OSError):
            cols, rows = os.get_terminal_size(descriptor)
            if 0 < cols <= MAX_PTY and 0 < rows <= MAX_PTY:
                return Pty(cols=cols, rows=rows)
    return DEFAULT_SIZE


def environment() -> dict[str, str]:
    """Return the variables that describe the terminal to programs in a sandbox. The locale is not included: the sandbox
    may not have it."""
    return {name: value for name in ("TERM", "COLORTERM") if (value := os.environ.get(name))}


def is_interactive() -> bool:
    """Return whether stdin and stdout are a terminal with a movable cursor."""
    return is_terminal() and is_terminal(1) and os.environ.get("TERM", "dumb") not in ("", "dumb")


def is_foreground() -> bool:
    """Return whether this program is in the foreground, so that it receives the keys."""
    try:
        return is_interactive() and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def raw(descriptor: int = 0, *, signals: bool = False) -> Iterator[None]:
    """Deliver each key press, including Ctrl-C unless `signals` is set. Always restore the mode at the
    end."""
    before = termios.tcgetattr(descriptor)
    try:
        (tty.setcbreak if signals else tty.setraw)(descriptor, termios.TCSADRAIN)
        yield
    finally:
        # In the background, tcsetattr would stop this program. A closed terminal needs no restoring.
        old = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
        signal.signal(signal.SIGTTOU, old)


# -- programs that need a terminal --

_SHELLS = frozenset(("ash", "bash", "dash", "fish", "ksh", "sh", "zsh"))
_SHELL_FLAGS = frozenset(("-i", "-il", "-l", "-li", "--login", "--noprofile", "--norc"))
_PROMPTS = re.compile(r"bc|bpython|ghci|ipython3?|irb|julia|lua|node|octave|php|psql|python[0-9.]*|R|sqlite3")
_SCREENS = frozenset(
    ("emacs", "htop", "less", "man", "mc", "more", "nano", "nvim", "screen", "tig", "tmux", "top", "vi", "view", "vim")
)


def needs_terminal(words: Sequence[str]) -> bool:
    """Return whether a command is useless without a terminal: a shell or interpreter without a script, or a
    full-screen program. Without a terminal, it would end at once and in silence. So would the command of most images,
    which is the one without words."""
    if not words:
        return True
    name, rest = os.path.basename(words[0]), list(words[1:])
    if name == "sudo" and rest:
        return rest in (["-i"], ["-s"]) or needs_terminal(rest)
    if name in _SHELLS:
        return _SHELL_FLAGS.issuperset(rest)
    return name in _SCREENS or (not rest and _PROMPTS.fullmatch(name) is not None)


def wanted(flag: bool | None, words: Sequence[str], *, possible: bool) -> bool:
    """Return whether to give a command a terminal: as -t or -T requests, else if it needs one and this program has
    one."""
    if flag is not None:
        return flag
    return possible and needs_terminal(words) and is_foreground() and is_terminal(2)


# -- stdin --


def piped_stdin(*, interactive: bool = False) -> Iterator[bytes] | None:
    """Return the chunks of stdin, or None if stdin is closed or, unless `interactive`, a terminal."""
    try:
        if os.isatty(0) and not interactive:
            return None
        os.fstat(0)
    except OSError:
        return None
    return read_chunks(0)


def read_chunks(descriptor: int) -> Iterator[bytes]:
    # Not a Python file object: if a thread holds its buffer at exit, the interpreter aborts.
    while True:
        select.select([descriptor], [], [])
        piece = os.read(descriptor, 64 << 10)
        if not piece:
            return
        yield piece
