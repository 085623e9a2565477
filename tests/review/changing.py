"""Texts that change at random, and a file's hunks made of them."""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence

from skerry.review import lines
from skerry.review.carry import Decision
from skerry.review.deltas import Delta
from skerry.review.hunks import Changed, Sides, Wish
from skerry.review.patches import Atom

KEY = b"k" * 16
LINES = [b"a\n", b"b\n", b"c\r\n", b"\n", b"\r\n", b"lone\rcr\n", b"\x0c\n", b"\xff\xfe\n", b"\xc3\xa4\n", b"-- x\n",
         b"+y\n", b"@@ -1 +1 @@\n", b"\\ No newline at end of file\n", b"diff --git a/x b/x\n", b"\xe2\x80\xa8\n",
         b"index " + b"0" * 40 + b".." + b"1" * 40 + b"\n"]  # fmt: skip
ENDS = [b"", b"", b"", b"no end", b"\r", b"\xff"]


def text(chance: random.Random, most: int = 30) -> bytes:
    return b"".join(chance.choice(LINES) for _ in range(chance.randint(0, most))) + chance.choice(ENDS)


def mutated(chance: random.Random, data: bytes) -> bytes:
    some = lines.split(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(some))
        count = chance.choice([0, 0, 1, 2])
        some[at : at + count] = [chance.choice(LINES) for _ in range(chance.choice([0, 1, 1, 3]))]
    whole = [line if line.endswith(b"\n") else line + b"\n" for line in some[:-1]] + some[-1:]
    return b"".join(whole) + (chance.choice(ENDS) if chance.random() < 0.2 else b"")


def atoms(old: bytes, new: bytes) -> tuple[Atom, ...]:
    codes = difflib.SequenceMatcher(None, lines.split(old), lines.split(new), autojunk=False).get_opcodes()
    return tuple(Atom(a, b, c, d) for tag, a, b, c, d in codes if tag != "equal")


def modified(**changes: object) -> Delta:
    usual: dict[str, object] = {
        "path": b"a.py", "kind": "modified", "old_mode": "100644", "new_mode": "100644", "old_oid": "1" * 40,
        "new_oid": "2" * 40,
    }  # fmt: skip
    return Delta(**(usual | changes))  # type: ignore[arg-type]


def changed(old: bytes, new: bytes, decisions: Sequence[Decision] = (), delta: Delta | None = None) -> Changed:
    return Changed(KEY, delta or modified(), decisions, Sides(old, new, atoms(old, new)))


def after(file: Changed, wishes: dict[str, Wish]) -> Changed:
    """The same file when this was decided."""
    old, new = b"".join(file.base), b"".join(file.tip)
    return Changed(KEY, file.delta, file.decided(wishes, 1.0), Sides(old, new, file.atoms))


def later(file: Changed, new: bytes) -> Changed:
    """The file when a command has written it anew."""
    return changed(b"".join(file.base), new, file.decisions, file.delta)


def all_of(file: Changed, wish: Wish) -> Changed:
    return after(file, {unit.id: wish for unit in file.units})


def states(file: Changed) -> list[str]:
    return [unit.state for unit in file.units]
