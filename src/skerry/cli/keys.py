"""What is typed: at the start of a line `~` speaks to us and not to the program, as in ssh. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HELP = """\
~.  leave; the process goes on
~~  type one ~
~?  this help
(each right after Enter)"""

Wish = Literal["leave", "help"]
_ESCAPE = 0x7E
_LINE_ENDS = b"\r\n"


@dataclass(frozen=True)
class Typed:
    """Bytes for the program, then what was wished, if anything."""

    data: bytes
    wish: Wish | None = None


class Keys:
    """Remembers where in a line the last byte stood. `escape=False`: everything is for the program."""

    def __init__(self, escape: bool = True) -> None:
        self._escape = escape
        self._at_start = True
        self._held = False  # a ~ that waits for what follows it

    def feed(self, data: bytes) -> list[Typed]:
        if not self._escape:
            return [Typed(data)]
        found: list[Typed] = []
        plain = bytearray()
        for byte in data:
            wish = self._one(byte, plain)
            if wish is not None:
                found.append(Typed(bytes(plain), wish))
                plain.clear()
                if wish == "leave":
                    return found
        return [*found, Typed(bytes(plain))] if plain else found

    def _one(self, byte: int, plain: bytearray) -> Wish | None:
        if self._held:
            self._held = False
            if byte in b".?":
                self._at_start = True
                return "leave" if byte == ord(".") else "help"
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
