"""A real terminal: tmux on a separate socket, with one window in which a shell of this host runs."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

from support.cli import environment
from support.server import wait_until

PROMPT = "host>"
_numbers = itertools.count()


class Window:
    """Type keys, look at the screen, change the size."""

    def __init__(self, directory: Path, server: str, *, cols: int = 100, rows: int = 30) -> None:
        name = f"skerry-test-{os.getpid()}-{next(_numbers)}"
        config = directory / f"{name}.conf"
        config.write_text("set -g default-terminal tmux-256color\nset -g status off\nset -g remain-on-exit on\n")
        self._tmux = ["tmux", "-L", name, "-f", str(config)]
        # A way to the command line that is short enough to be read on a screen.
        self.skerry = directory / "skerry"
        self.skerry.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m skerry "$@"\n')
        self.skerry.chmod(0o755)
        self._environment = {
            **environment(SKERRY_SERVER=server, PS1=f"{PROMPT} ", COLORTERM="truecolor", LC_ALL="C.UTF-8"),
            "PATH": f"{directory}:{os.environ['PATH']}",
        }
        self._call("new-session", "-d", "-x", str(cols), "-y", str(rows), "-c", str(directory), "/bin/sh", "-i")
        self.shows(PROMPT)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("kill-server")

    def _call(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], capture_output=True, text=True, timeout=30, check=True, env=self._environment
        )
        return done.stdout

    def type(self, text: str) -> None:
        """Letter by letter, as they are."""
        self._call("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, Escape, C-c."""
        self._call("send-keys", *keys)

    def enter(self, line: str) -> None:
        self.type(line)
        self.press("Enter")

    def screen(self, *, colours: bool = False) -> str:
        return self._call("capture-pane", "-p", *(["-e"] if colours else []))

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen().splitlines() if line.strip()]

    def shows(self, text: str) -> None:
        """Wait until it does."""
        self._until(lambda: text in self.screen(), f"{text!r}")

    def shows_line(self, line: str) -> None:
        self._until(lambda: line in self.lines(), f"the line {line!r}")

    def is_back(self) -> None:
        """The host's own prompt is the last thing on the screen."""
        self._until(lambda: self.lines()[-1:] == [PROMPT], "the host's prompt at the end")

    def clear(self) -> None:
        """Clear to the host's prompt, so that later output is new."""
        self.is_back()
        self.enter("clear")
        self._until(lambda: self.lines() == [PROMPT], "an empty screen")

    def _until(self, condition: object, what: str) -> None:
        try:
            wait_until(condition, what)  # type: ignore[arg-type]
        except BaseException as error:
            error.add_note(f"the screen:\n{self.screen()}")
            raise

    def flag(self, name: str) -> bool:
        """Of the pane, like alternate_on or cursor_flag."""
        return self._call("display-message", "-p", f"#{{{name}}}").strip() == "1"

    def resize(self, cols: int, rows: int) -> None:
        self._call("resize-window", "-x", str(cols), "-y", str(rows))

    def close(self) -> None:
        """Like closing it with the mouse: its programs get a hangup."""
        self._call("respawn-pane", "-k", "/bin/sh", "-i")
