"""Bytes from a terminal as keys by name: a letter is itself. Pure."""

from __future__ import annotations

import codecs
import re

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


class Keyboard:
    """What is pasted comes as `paste:` and the text: it is nobody's key."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._pasted: str | None = None

    @property
    def waits(self) -> bool:
        """An Escape was seen, and perhaps the rest of what it begins is on its way."""
        return bool(self._held) and self._pasted is None

    def feed(self, data: bytes) -> list[str]:
        return self._keys(self._held + self._decoder.decode(data))

    def rest(self) -> list[str]:
        """Nothing more came: it was the key Escape."""
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
        keep = min(len(_PASTED[1]) - 1, len(text))  # the end of a paste may lie in two pieces
        self._pasted = ((self._pasted or "") + text[: len(text) - keep])[:8192]
        self._held = text[len(text) - keep :]
        return ""
