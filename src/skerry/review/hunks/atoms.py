"""Atoms: the places at which two texts differ, read from git's patch of them (`-U0`); and texts as lines.

Only places are taken from a patch. Displayed and applied content is cut out of the blobs themselves.

A line ends at a line feed and nowhere else. A carriage return, a form feed or a byte that is not UTF-8 is content. The
last line may lack its line feed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_RANGE = rb"(\d{1,10})(?:,(\d{1,10}))?"
_PLACE = re.compile(rb"^@@ -" + _RANGE + rb" \+" + _RANGE + rb" @@", re.MULTILINE)


class Atom(NamedTuple):
    """Lines `start` to `end` of the old text become lines `new_start` to `new_end` of the new one; zero-based,
    half-open. At least one common line separates two atoms."""

    start: int
    end: int
    new_start: int
    new_end: int


def parse_atoms(patch: bytes) -> tuple[Atom, ...]:
    """Parse the patch of one file. Content lines start with a sign, so they cannot be mistaken for a heading."""
    return tuple(_atom(*match.groups()) for match in _PLACE.finditer(patch))


def _atom(start: bytes, count: bytes | None, new_start: bytes, new_count: bytes | None) -> Atom:
    """In a patch, a side without lines names the line before it."""
    old, new = int(count or 1), int(new_count or 1)
    at, new_at = int(start) - (old > 0), int(new_start) - (new > 0)
    return Atom(at, at + old, new_at, new_at + new)


def check_atoms(atoms: Sequence[Atom], old: list[bytes], new: list[bytes]) -> tuple[Atom, ...]:
    """Return the atoms if they turn the old text into the new one; otherwise return a single atom that does."""
    at, new_at = 0, 0
    for atom in (*atoms, Atom(len(old), len(old), len(new), len(new))):
        if atom.start < at or atom.new_start < new_at or old[at : atom.start] != new[new_at : atom.new_start]:
            return _around(old, new)
        at, new_at = atom.end, atom.new_end
        if at > len(old) or new_at > len(new):
            return _around(old, new)
    return tuple(atoms)


def _around(old: list[bytes], new: list[bytes]) -> tuple[Atom, ...]:
    """Return one atom from the first differing line to the last."""
    most = min(len(old), len(new))
    head = next((n for n in range(most) if old[n] != new[n]), most)
    tail = next((n for n in range(most - head) if old[-1 - n] != new[-1 - n]), most - head)
    atom = Atom(head, len(old) - tail, head, len(new) - tail)
    return (atom,) if atom.end > atom.start or atom.new_end > atom.new_start else ()


def split_lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    last = parts.pop()
    lines = [part + b"\n" for part in parts]
    if last:
        lines.append(last)
    return lines


def join_lines(pieces: Sequence[bytes]) -> bytes:
    """Join lines. A line without a line feed that is no longer the last one gets one: if only a part of a change at the
    end of a text is accepted, two lines must not merge."""
    whole = [piece if piece.endswith(b"\n") else piece + b"\n" for piece in pieces[:-1]]
    return b"".join((*whole, *pieces[-1:]))
