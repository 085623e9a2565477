"""A terminal that records every byte: the real output of a program, not its rendering on a screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from pathlib import Path

from support.cli import SKERRY, environment
from support.fork_server import Forked, can_fork, fork
from support.server import wait_until

# Our control sequences: colours, positions, clearing, the alternate screen, the cursor, pasting.
OURS = re.compile(rb"\x1b\[(?:[0-9;]*m|[0-9]+;[0-9]+H|2?K|2J|\?(?:1049|25|7|2004)[hl])")


class Wire:
    """`skerry` with these words, in a window of that size."""

    def __init__(
        self, server: str, *words: str, cols: int = 80, rows: int = 24, cwd: Path | None = None, **env: str
    ) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.resize(cols, rows)
        self.before = termios.tcgetattr(ours)
        told = environment(**{"SKERRY_SERVER": server, "TERM": "xterm-256color", **env})
        if can_fork(told):
            self.process: Forked | subprocess.Popen[bytes] = fork(words, [theirs] * 3, told, cwd, session=True)
        else:
            self.process = subprocess.Popen(
                [*SKERRY, *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, start_new_session=True,
                env=told, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )  # fmt: skip
        os.close(theirs)
        self.sent = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        with contextlib.suppress(OSError):
            os.close(self._ours)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 65536):
                self.sent += data

    def resize(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def shows(self, text: str, *, since: int = 0) -> None:
        wait_until(lambda: text.encode() in self.seen(since), f"{text!r} in {bytes(self.sent[-2000:])!r}")

    def seen(self, since: int = 0) -> bytes:
        """Without our control sequences."""
        return OURS.sub(b"", bytes(self.sent[since:]))

    def ends(self) -> int:
        code = self.process.wait(60)
        self._reader.join(10)
        return code

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    @property
    def modes(self) -> list[object]:
        return termios.tcgetattr(self._ours)


def raw_controls(data: bytes) -> bytes:
    """Bytes that speak to a terminal, without ours and line ends."""
    text = OURS.sub(b"", data).decode("utf-8", "surrogateescape")
    return "".join(char for char in text if not char.isprintable() and char not in "\r\n").encode("utf-8", "replace")
