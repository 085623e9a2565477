"""Which commits of the ledger a hunk comes from: those that wrote its new lines, and those that took its old ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skerry.review.deltas import Delta
from skerry.review.hunks import Changed, Unit
from skerry.review.ledger import Ledger
from skerry.review.patches import places
from skerry.types import LedgerEntry

WALKED_MOST = 100  # commits of one file; of lines that are older nobody is named
TOLD_MOST = 50
_USERS = ("applied", "unapplied")


def origins(ledger: Ledger, changed: Changed, unit: Unit) -> list[LedgerEntry]:
    """Newest last. Where that can't be told line by line (of a file as a whole), all that touched it."""
    delta = changed.delta
    paths = [path for path in (delta.path, delta.old_path) if path is not None]
    walked = [one for one in ledger.history(paths=paths, limit=WALKED_MOST) if one.kind not in _USERS]
    touched = [one for one in walked if one.kind != "base"]
    if not unit.pieces:
        return touched[-TOLD_MOST:]
    theirs = set(_lines(ledger, delta.path, walked, changed, unit)) if walked else set()
    found = [one for one in touched if one.commit in theirs]
    return (found or touched)[-TOLD_MOST:]


def _lines(
    ledger: Ledger, path: bytes, walked: Sequence[LedgerEntry], changed: Changed, unit: Unit
) -> Iterator[str]:  # fmt: skip
    """Whose each line of the file is, followed from its first version to its last. A line that went is known by what
    it was: the base may have moved since."""
    gone = {line for piece in unit.pieces for line in changed.base[piece.start : piece.end]}
    gone = {line for line in gone if len(line.strip()) > 2} or gone  # an end of a block is no mark of anybody
    versions = [_blob(ledger, entry.commit, path) for entry in walked]
    steps = [
        Delta(path=path, kind="modified", old_oid=old, new_oid=new)
        for old, new in zip([None, *versions], versions, strict=False)
    ]
    whose: list[str] = []
    names = ["" if len(walked) == WALKED_MOST else walked[0].commit, *(entry.commit for entry in walked[1:])]
    for name, (_, patch) in zip(names, ledger.changes_of(steps), strict=True):
        now: list[str] = []
        upto = 0
        for atom in places(patch):
            now += whose[upto : atom.start]
            now += [name] * (atom.new_end - atom.new_start)
            upto = atom.end
        whose = now + whose[upto:]
        if gone and any(line[1:] in gone for line in _removed(patch)):
            yield name
    if len(whose) == len(changed.tip):
        for piece in unit.pieces:
            yield from set(whose[piece.new_start : piece.new_end])


def _blob(ledger: Ledger, commit: str, path: bytes) -> str | None:
    found = ledger.entry_of(commit, path)
    return None if found is None else found[1]


def _removed(patch: bytes) -> Iterator[bytes]:
    for line in patch.split(b"\n"):
        if line.startswith(b"-"):
            yield line + b"\n"
