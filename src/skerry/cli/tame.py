"""A program's output on its way to somebody's terminal. Pure.

What a program inside prints would speak to that terminal with the user's voice: titles, the clipboard, questions that
the terminal answers by typing. Colours and the clearing of a line's end may pass, all other control becomes visible."""

from __future__ import annotations

import codecs
import re

_PASS = re.compile(r"\x1b\[(?:[0-9;:]{0,48}m|[0-2]?K)")
_CUT = re.compile(r"\x1b(?:\[[0-9;:]{0,48})?\Z")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Tame:
    """One stream, piece by piece; a sequence or a character may lie in two of them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._coloured = False

    def take(self, data: bytes) -> bytes:
        text = self._held + self._decoder.decode(data)
        cut = _CUT.search(text)
        self._held = cut[0] if cut else ""
        return self._shown(text[: len(text) - len(self._held)])

    def end(self) -> bytes:
        """What was held back, and the terminal's own colours again."""
        rest = self._shown(self._held + self._decoder.decode(b"", final=True))
        self._held = ""
        return rest + (b"\x1b[0m" if self._coloured else b"")

    def _shown(self, text: str) -> bytes:
        parts, at = [], 0
        for match in _PASS.finditer(text):
            parts += [_visible(text[at : match.start()]), match[0]]
            at = match.end()
        self._coloured |= at > 0
        return "".join([*parts, _visible(text[at:])]).encode()


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
