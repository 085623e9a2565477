"""Where two texts differ, from git's own patch of them (`-U0`): atoms.

Only places are taken from a patch, not contents: what is shown and what lands is cut out of the blobs themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_RANGE = rb"(\d{1,10})(?:,(\d{1,10}))?"
_PLACE = re.compile(rb"^@@ -" + _RANGE + rb" \+" + _RANGE + rb" @@", re.MULTILINE)


class Atom(NamedTuple):
    """Lines `start` to `end` of the old text are lines `new_start` to `new_end` of the new one; from zero, half-open.
    Between two atoms is at least one line that both have."""

    start: int
    end: int
    new_start: int
    new_end: int


def places(patch: bytes) -> tuple[Atom, ...]:
    """Of a patch of one file. A line of its content has a sign in front, and so is never taken for a heading."""
    return tuple(_atom(*match.groups()) for match in _PLACE.finditer(patch))


def _atom(start: bytes, count: bytes | None, new_start: bytes, new_count: bytes | None) -> Atom:
    """A side without lines names the line before it."""
    old, new = int(count or 1), int(new_count or 1)
    at, new_at = int(start) - (old > 0), int(new_start) - (new > 0)
    return Atom(at, at + old, new_at, new_at + new)


def checked(atoms: Sequence[Atom], old: list[bytes], new: list[bytes]) -> tuple[Atom, ...]:
    """The atoms, if they make the new text of the old one; else one that does, whatever was said of it."""
    at, new_at = 0, 0
    for atom in (*atoms, Atom(len(old), len(old), len(new), len(new))):
        if atom.start < at or atom.new_start < new_at or old[at : atom.start] != new[new_at : atom.new_start]:
            return _around(old, new)
        at, new_at = atom.end, atom.new_end
        if at > len(old) or new_at > len(new):
            return _around(old, new)
    return tuple(atoms)


def _around(old: list[bytes], new: list[bytes]) -> tuple[Atom, ...]:
    """One atom from the first line that differs to the last."""
    most = min(len(old), len(new))
    head = next((n for n in range(most) if old[n] != new[n]), most)
    tail = next((n for n in range(most - head) if old[-1 - n] != new[-1 - n]), most - head)
    atom = Atom(head, len(old) - tail, head, len(new) - tail)
    return (atom,) if atom.end > atom.start or atom.new_end > atom.new_start else ()
