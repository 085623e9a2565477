"""Texts that change at random, and a file's hunks made of them."""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence

from skerry.review.hunks.atoms import Atom, split_lines
from skerry.review.hunks.decisions import Decision
from skerry.review.hunks.hunks import HunkAction, ReviewedFile, Sides
from skerry.review.ledger.diff import Delta

KEY = b"k" * 16
LINES = [b"a\n", b"b\n", b"c\r\n", b"\n", b"\r\n", b"lone\rcr\n", b"\x0c\n", b"\xff\xfe\n", b"\xc3\xa4\n", b"-- x\n",
         b"+y\n", b"@@ -1 +1 @@\n", b"\\ No newline at end of file\n", b"diff --git a/x b/x\n", b"\xe2\x80\xa8\n",
         b"index " + b"0" * 40 + b".." + b"1" * 40 + b"\n"]  # fmt: skip
ENDS = [b"", b"", b"", b"no end", b"\r", b"\xff"]


def text(chance: random.Random, most: int = 30) -> bytes:
    return b"".join(chance.choice(LINES) for _ in range(chance.randint(0, most))) + chance.choice(ENDS)


def mutated(chance: random.Random, data: bytes) -> bytes:
    some = split_lines(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(some))
        count = chance.choice([0, 0, 1, 2])
        some[at : at + count] = [chance.choice(LINES) for _ in range(chance.choice([0, 1, 1, 3]))]
    whole = [line if line.endswith(b"\n") else line + b"\n" for line in some[:-1]] + some[-1:]
    return b"".join(whole) + (chance.choice(ENDS) if chance.random() < 0.2 else b"")


def atoms(old: bytes, new: bytes) -> tuple[Atom, ...]:
    codes = difflib.SequenceMatcher(None, split_lines(old), split_lines(new), autojunk=False).get_opcodes()
    return tuple(Atom(a, b, c, d) for tag, a, b, c, d in codes if tag != "equal")


def modified(**changes: object) -> Delta:
    usual: dict[str, object] = {
        "path": b"a.py", "kind": "modified", "old_mode": "100644", "new_mode": "100644", "old_oid": "1" * 40,
        "new_oid": "2" * 40,
    }  # fmt: skip
    return Delta(**(usual | changes))  # type: ignore[arg-type]


def changed(old: bytes, new: bytes, decisions: Sequence[Decision] = (), delta: Delta | None = None) -> ReviewedFile:
    return ReviewedFile(KEY, delta or modified(), decisions, Sides(old, new, atoms(old, new)))


def after(file: ReviewedFile, wishes: dict[str, HunkAction]) -> ReviewedFile:
    """The same file when this was decided."""
    old, new = b"".join(file.base), b"".join(file.tip)
    return ReviewedFile(KEY, file.delta, file.decided(wishes, 1.0), Sides(old, new, file.atoms))


def later(file: ReviewedFile, new: bytes) -> ReviewedFile:
    """Return the file after a command rewrote it."""
    return changed(b"".join(file.base), new, file.decisions, file.delta)


def all_of(file: ReviewedFile, wish: HunkAction) -> ReviewedFile:
    return after(file, {unit.id: wish for unit in file.hunks})


def states(file: ReviewedFile) -> list[str]:
    return [unit.state for unit in file.hunks]
