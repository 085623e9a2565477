"""Questions about what no rule names, put to whoever sits at the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time

from skerry.client.harmless import harmless
from skerry.types import Question, Reply

_ANSWERS = {
    "y": Reply(allow=True),
    "yes": Reply(allow=True),
    "a": Reply(allow=True, remember=True),
    "always": Reply(allow=True, remember=True),
    "n": Reply(allow=False),
    "no": Reply(allow=False),
    "": Reply(allow=False),
    "never": Reply(allow=False, remember=True),
}


def terminal() -> int | None:
    """The terminal of this program, also where stdin or stdout is another; None if it has none."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None


class Prompt:
    """Asks on a terminal, one question after another. No answer before the question ends is no answer: the server has
    said no by then."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, question: Question) -> Reply | None:
        where = harmless(question.host if question.port is None else f"{question.host}:{question.port}")
        # what was typed before, for something else, is no answer to this
        with contextlib.suppress(termios.error):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
        left = max(0, int(question.ends_at - time.time()))
        self._say(f"{where} is not in the policy. Let it through? [y]es, [a]lways, [n]o, never ({left} s): ")
        while True:
            line = self._line(question.ends_at)
            if line is None:
                self._say("\ntoo late: it was refused\n")
                return None
            reply = _ANSWERS.get(line.strip().lower())
            if reply is not None:
                return reply
            self._say("y, a, n or never: ")

    def _say(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def _line(self, until: float) -> str | None:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, until - time.time()))
        if not ready:
            return None
        data = os.read(self._descriptor, 4096)
        if not data:  # Ctrl-D
            return ""
        return data.decode("utf-8", "replace")


def prompt_or_none() -> Prompt | None:
    """None: this program has no terminal."""
    descriptor = terminal()
    return None if descriptor is None else Prompt(descriptor)
