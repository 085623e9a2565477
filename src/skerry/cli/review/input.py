"""Read keys and window size changes in an asyncio loop, and decode terminal bytes into keys."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator

ESCAPE_S = 0.05  # after this time an Escape byte is the Escape key, not the start of a sequence
READ = 64 << 10


class KeyReader:
    """Calls back for each key, after a resize, and when the terminal is closed."""

    def __init__(self, key: Callable[[str], None], resized: Callable[[], None], gone: Callable[[], None]) -> None:
        self._key, self._resized, self._gone = key, resized, gone
        self._keyboard = KeyDecoder()
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
    def released(self) -> Iterator[None]:
        """Stop reading while another program uses the keyboard."""
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
        except OSError:  # the terminal was closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(0)
            self._gone()
        if self._late is not None:
            self._late.cancel()
        self._press(self._keyboard.feed(data))
        if self._keyboard.pending:
            running = asyncio.get_running_loop()
            self._late = running.call_later(ESCAPE_S, lambda: self._press(self._keyboard.flush()))

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._key(key)


# -- decoding --

_CONTROL = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x03": "ctrl-c",
    "\x04": "ctrl-d", "\x0c": "ctrl-l", "\x15": "ctrl-u", "\x17": "ctrl-w", "\x1a": "ctrl-z",
    "\x0e": "down", "\x10": "up",
}  # fmt: skip
_NAMED = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "5~": "pageup", "6~": "pagedown",
    "1~": "home", "4~": "end", "7~": "home", "8~": "end", "3~": "delete",
}  # fmt: skip
_SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?<]*)([@-~])|O(.))", re.DOTALL)
_BEGUN = re.compile(r"\x1b(?:\[[0-9;?<]*|O)?\Z")
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
_PASTED = "\x1b[200~", "\x1b[201~"


class KeyDecoder:
    """Decodes bytes into key names; a letter is its own name. Pasted text is one `paste:TEXT` key, never a command."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._pasted: str | None = None

    @property
    def pending(self) -> bool:
        """Return whether an Escape byte was received that may start a longer sequence."""
        return bool(self._held) and self._pasted is None

    def feed(self, data: bytes) -> list[str]:
        return self._keys(self._held + self._decoder.decode(data))

    def flush(self) -> list[str]:
        """Return the Escape key if nothing followed the Escape byte."""
        held, self._held = self._held, ""
        return ["escape"] if held else []

    def _keys(self, text: str) -> list[str]:
        found: list[str] = []
        self._held = ""
        while text:
            if self._pasted is not None:
                text = self._paste(text, found)
            elif text.startswith(_PASTED[0]):
                self._pasted, text = "", text[len(_PASTED[0]) :]
            elif text[0] != "\x1b":
                found.append(_CONTROL.get(text[0], text[0] if text[0].isprintable() else ""))
                text = text[1:]
            elif match := _SEQUENCE.match(text):
                found.append(_NAMED.get(match[3] or (match[1] + match[2] if match[2] == "~" else match[2]), ""))
                text = text[match.end() :]
            elif _BEGUN.match(text):
                self._held, text = text, ""
            else:
                found.append("escape")
                text = text[1:]
        return [key for key in found if key]

    def _paste(self, text: str, found: list[str]) -> str:
        whole, end, rest = text.partition(_PASTED[1])
        if end:
            found.append(f"paste:{(self._pasted or '') + whole}"[:8192])
            self._pasted = None
            return rest
        keep = min(len(_PASTED[1]) - 1, len(text))  # the end marker of a paste may be split between two reads
        self._pasted = ((self._pasted or "") + text[: len(text) - keep])[:8192]
        self._held = text[len(text) - keep :]
        return ""
