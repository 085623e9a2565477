"""Escape sequences of a terminal connection. Pure.

`EscapeKeys` finds the escape commands in typed input: `~` at the start of a line, as in ssh. `TerminalModes` and
`Replay` handle the sequences in the output of programs: modes to reset at the end, and queries that must not be
replayed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

HELP = """\
~.  detach; the process keeps running
~~  send one ~
~?  show this help
(each right after Enter)"""
HELP_TEMPORARY = HELP.replace("detach; the process keeps running", "leave: end the process and delete the sandbox")

EscapeCommand = Literal["detach", "help"]
_ESCAPE = 0x7E
_LINE_ENDS = b"\r\n"


@dataclass(frozen=True)
class TypedInput:
    """Bytes for the program, then an escape command, if any."""

    data: bytes
    command: EscapeCommand | None = None


class EscapeKeys:
    """Tracks the start of lines. With `escape=False`, all input goes to the program. `help` is for `~?`."""

    def __init__(self, escape: bool = True, help_text: str = HELP) -> None:
        self._escape = escape
        self.help = help_text
        self._at_start = True
        self._held = False  # a ~ at the start of a line; the next byte decides

    def feed(self, data: bytes) -> list[TypedInput]:
        if not self._escape:
            return [TypedInput(data)]
        found: list[TypedInput] = []
        plain = bytearray()
        for byte in data:
            command = self._one(byte, plain)
            if command is not None:
                found.append(TypedInput(bytes(plain), command))
                plain.clear()
                if command == "detach":
                    return found
        return [*found, TypedInput(bytes(plain))] if plain else found

    def _one(self, byte: int, plain: bytearray) -> EscapeCommand | None:
        if self._held:
            self._held = False
            if byte in b".?":
                self._at_start = True
                return "detach" if byte == ord(".") else "help"
            plain.append(_ESCAPE)
            if byte == _ESCAPE:
                self._at_start = False
                return None
        elif self._at_start and byte == _ESCAPE:
            self._held = True
            return None
        plain.append(byte)
        self._at_start = byte in _LINE_ENDS
        return None


# -- output of programs --

# Modes that a program enables and that would disturb the local shell afterwards.
_WHEN_ON = {1, 9, 47, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 1047, 1049, 2004, 2026}
_WHEN_OFF = {7, 25}  # line wrap, the cursor: on by default
_SET = re.compile(rb"\x1b\[\?([0-9;]{1,64})([hl])")
_KEYPAD = re.compile(rb"\x1b([=>])")
_CUT = 80  # bytes of the previous message to keep, for a sequence that is split between two messages

# Queries that a terminal answers as typed input. In a replay, the program has received its answer long ago.
_QUERIES = re.compile(
    rb"\x1b\[[>=?]?[0-9;]*[cnq]"  # device attributes, cursor position, version
    rb"|\x1b\[[0-9;]*[tx]"  # window size
    rb"|\x1b\[\??[0-9;]*\$p"  # state of a mode
    rb"|\x1b\[\?u"
    rb"|\x1bP[+$][^\x1b\x07]{0,4096}(?:\x1b\\|\x07)"  # capability, setting
    rb"|\x1b\][0-9;]{1,16};\?(?:\x1b\\|\x07)"  # colour
    rb"|\x1bZ|\x05"
)


class TerminalModes:
    """Tracks the modes that the output sets."""

    def __init__(self) -> None:
        self._on: set[int] = set()
        self._off: set[int] = set()
        self._keypad = False
        self._last = b""

    def feed(self, data: bytes) -> None:
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

    def reset_sequence(self) -> bytes:
        """Return the sequence that restores the terminal; empty if no mode was changed."""
        # Leave the alternate screen last: the other modes belong to the program's screen.
        order = sorted(self._on, key=lambda number: (number in (47, 1047, 1049), number))
        sequence = b"".join(b"\x1b[?%dl" % number for number in order)
        sequence += b"".join(b"\x1b[?%dh" % number for number in sorted(self._off))
        if self._keypad:
            sequence += b"\x1b>"
        return sequence + b"\x1b[0m" if sequence else b""


class Replay:
    """Collects the output from before the connection, then makes it safe to show again."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._start: int | None = None
        self._over = False

    def feed(self, data: bytes, offset: int, earlier: int) -> bytes:
        """Add output. `offset` is the position after `data`; `earlier` is the position of the first new byte."""
        if self._over:
            return data
        if self._start is None:
            self._start = offset - len(data)
        self._held += data
        return self.rest() if offset >= earlier else b""

    def rest(self) -> bytes:
        held, self._held, self._over = bytes(self._held), bytearray(), True
        return safe_replay(held, cut=bool(self._start))


def safe_replay(data: bytes, cut: bool) -> bytes:
    """Remove queries from output. With `cut`, it starts in the middle, perhaps of a sequence or a character."""
    if cut:
        places = [at for mark in (b"\n", b"\x1b") if 0 <= (at := data.find(mark)) < 4096]
        data = data[min(places, default=0) :]
    return _QUERIES.sub(b"", data)
