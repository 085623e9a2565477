"""What a terminal is told by a program inside, as far as it has to be undone or must not be told again. Pure."""

from __future__ import annotations

import re

# Modes that a program switches on for itself and that a shell on this side would suffer from.
_WHEN_ON = {1, 9, 47, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 1047, 1049, 2004, 2026}
_WHEN_OFF = {7, 25}  # line wrap, the cursor: on by default
_SET = re.compile(rb"\x1b\[\?([0-9;]{1,64})([hl])")
_KEYPAD = re.compile(rb"\x1b([=>])")
_CUT = 80  # a sequence that is cut in two by a message is looked at whole with so much of the last one

# What makes a terminal answer, as if somebody had typed. In a replay the one who asked has long had an answer.
_QUESTIONS = re.compile(
    rb"\x1b\[[>=?]?[0-9;]*[cnq]"  # what are you, where is the cursor, which version
    rb"|\x1b\[[0-9;]*[tx]"  # how large is the window
    rb"|\x1b\[\??[0-9;]*\$p"  # is this mode set
    rb"|\x1b\[\?u"
    rb"|\x1bP[+$][^\x1b\x07]{0,4096}(?:\x1b\\|\x07)"  # what is this capability, this setting
    rb"|\x1b\][0-9;]{1,16};\?(?:\x1b\\|\x07)"  # which colour
    rb"|\x1bZ|\x05"
)


class Modes:
    """Watches the output go by."""

    def __init__(self) -> None:
        self._on: set[int] = set()
        self._off: set[int] = set()
        self._keypad = False
        self._last = b""

    def see(self, data: bytes) -> None:
        text = self._last + data
        for match in _SET.finditer(text):
            for number in (int(part) for part in match[1].split(b";") if part):
                self._switch(number, match[2] == b"h")
        for match in _KEYPAD.finditer(text):
            self._keypad = match[1] == b"="
        self._last = text[-_CUT:]

    def _switch(self, number: int, on: bool) -> None:
        if number in _WHEN_ON:
            (self._on.add if on else self._on.discard)(number)
        if number in _WHEN_OFF:
            (self._off.discard if on else self._off.add)(number)

    def undoing(self) -> bytes:
        """What brings the terminal back; nothing where nothing was changed."""
        # The alternate screen is left last: what comes before belongs to the program's own screen.
        order = sorted(self._on, key=lambda number: (number in (47, 1047, 1049), number))
        undone = b"".join(b"\x1b[?%dl" % number for number in order)
        undone += b"".join(b"\x1b[?%dh" % number for number in sorted(self._off))
        if self._keypad:
            undone += b"\x1b>"
        return undone + b"\x1b[0m" if undone else b""


class Replay:
    """Holds back what was shown before we came until it is whole, and then makes it fit to be shown again."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._start: int | None = None
        self._over = False

    def feed(self, data: bytes, offset: int, earlier: int) -> bytes:
        """`offset`: where the byte after `data` stands; `earlier`: where the first new one does."""
        if self._over:
            return data
        if self._start is None:
            self._start = offset - len(data)
        self._held += data
        return self.rest() if offset >= earlier else b""

    def rest(self) -> bytes:
        held, self._held, self._over = bytes(self._held), bytearray(), True
        return replayed(held, cut=bool(self._start))


def replayed(data: bytes, cut: bool) -> bytes:
    """`cut`: it begins somewhere in the middle, perhaps of a sequence or a character."""
    if cut:
        places = [at for mark in (b"\n", b"\x1b") if 0 <= (at := data.find(mark)) < 4096]
        data = data[min(places, default=0) :]
    return _QUESTIONS.sub(b"", data)
