"""Approval requests on the terminal, for destinations that no rule names."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time

from skerry.codecs.text import escape
from skerry.types import Approval, ApprovalRequest

_ANSWERS = {
    "y": Approval(allow=True),
    "yes": Approval(allow=True),
    "a": Approval(allow=True, remember=True),
    "always": Approval(allow=True, remember=True),
    "n": Approval(allow=False),
    "no": Approval(allow=False),
    "": Approval(allow=False),
    "never": Approval(allow=False, remember=True),
}


def open_tty() -> int | None:
    """Open the controlling terminal, also if stdin or stdout is redirected. Return None without a terminal."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None


class Prompt:
    """Asks on a terminal, one approval request after another. Without an answer in time, the server has denied it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, request: ApprovalRequest) -> Approval | None:
        where = escape(request.host if request.port is None else f"{request.host}:{request.port}")
        # discard keys that were typed before the question appeared
        with contextlib.suppress(termios.error):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
        left = max(0, int(request.ends_at - time.time()))
        self._write(f"{where} is not in the policy. Allow it? [y]es, [a]lways, [n]o, never ({left} s): ")
        while True:
            line = self._line(request.ends_at)
            if line is None:
                self._write("\ntoo late: it was denied\n")
                return None
            reply = _ANSWERS.get(line.strip().lower())
            if reply is not None:
                return reply
            self._write("y, a, n or never: ")

    def _write(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def _line(self, until: float) -> str | None:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, until - time.time()))
        if not ready:
            return None
        data = os.read(self._descriptor, 4096)
        if not data:  # Ctrl-D
            return ""
        return data.decode("utf-8", "replace")


def open_prompt() -> Prompt | None:
    """Return a prompt, or None without a terminal."""
    descriptor = open_tty()
    return None if descriptor is None else Prompt(descriptor)
