"""Text as lines: what ends at a line feed, and nothing else. A carriage return, a form feed or a byte that is no UTF-8
is content; the last line may have no end."""

from __future__ import annotations

from collections.abc import Sequence


def split(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    last = parts.pop()
    lines = [part + b"\n" for part in parts]
    if last:
        lines.append(last)
    return lines


def join(pieces: Sequence[bytes]) -> bytes:
    """Lines in a row. One without an end that is not the last any more gets one: of a change to a text's end only a
    part may have been accepted, and two lines must not become one by it."""
    whole = [piece if piece.endswith(b"\n") else piece + b"\n" for piece in pieces[:-1]]
    return b"".join((*whole, *pieces[-1:]))
