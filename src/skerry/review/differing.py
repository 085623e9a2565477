"""What differs between two trees of a ledger, and when it came: by git, with a bound on what one file can cost.

Lines are compared by way of two trees that have the contents in question under numbers for names: so no path, mode or
likeness matters, all of them take one call, and what would take too long can be left out. A file of 16 million empty
lines takes git 3 GB, and a million lines of only two kinds 15 s: such a file is told as a whole, like a binary one.
"""

from __future__ import annotations

import hashlib
import heapq
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.review import facts
from skerry.review.deltas import Counts, Delta, Pair, counted, logged, parsed
from skerry.review.git import DIFF, Git, GitFailed
from skerry.review.reading import Reader, Remembered
from skerry.review.trees import Entry, serialised
from skerry.types.review import LedgerEntry

SCRATCH: Final = "reading-"
USERS: Final = ("applied", "unapplied")
LINES_MOST: Final = 400_000
PATHS_MOST: Final = 500  # in one call
_SMALL: Final = 32 << 10
_AT_ONCE: Final = 2000
_RAWS: Final = 8  # comparisons that are remembered, none of them of more than so many paths
_RAW_MOST: Final = 5000
_SECONDS: Final = 20.0
_SECONDS_IN_ALL: Final = 60.0
_MARK: Final = b"skerry"
_SECTION: Final = b"\ndiff --git a/"
_RENAMES: Final = ("-M50%", "-l400", "--no-rename-empty")
_EXACT: Final = ("-M100%", "-l400", "--no-rename-empty")


class Differ:
    def __init__(self, git: Git, reader: Reader) -> None:
        self._git, self._reader = git, reader
        self._counts: Remembered[Pair, Counts] = Remembered()
        self._long: Remembered[str, bool] = Remembered()
        self._raws: dict[tuple[tuple[str, ...], tuple[bytes, ...]], list[Delta]] = {}

    def deltas(self, old: str, new: str, paths: Sequence[bytes]) -> list[Delta]:
        found = [one for some in _portions(paths) for one in self._raw((old, new), some)]
        return self._whole(sorted(found, key=lambda one: one.path))

    def history(
        self, ends: Sequence[str], *, paths: Sequence[bytes] = (), limit: int, stat: bool = False
    ) -> list[LedgerEntry]:
        if len(paths) > PATHS_MOST:
            raise InvalidRequest(f"paths: more than {PATHS_MOST}")
        how = ("log", "-z", "--date-order", f"-n{limit:d}", f"--format=%x00{_MARK.decode()}%x00%H%x00%B%x00")
        raw = ("--raw", "--no-abbrev") if stat else ()
        found = [
            (facts.entry(oid.decode(), text.decode("utf-8", "replace")), deltas)
            for oid, text, deltas in logged(self._in_time(*how, *raw, *ends, "--", *paths, renames=stat), _MARK)
        ][::-1]
        counts = self._count([one for _, deltas in found for one in deltas])
        entries = [_summed(entry, deltas, counts) for entry, deltas in found]
        users = [one for one in entries if one.kind in USERS]
        rest = [one for one in entries if one.kind not in USERS]
        return list(heapq.merge(rest, users, key=lambda one: one.at))  # git would know whole seconds only

    def patch(
        self, old: str | None, new: str, context: int, paths: Sequence[bytes], most: int | None
    ) -> Iterator[bytes]:
        """None: from the commit before. Between two commits with all that `git apply` needs, of binary files too."""
        ends = (new,) if old is None else (old, new)
        for some in _portions(paths):
            long = self._too_long([one.pair for one in self._raw(ends, some)])
            bound = ("-c", f"core.bigFileThreshold={min(self._reader.sizes(long).values()) - 1}") if long else ()
            # With --binary git looks at contents before it looks at their size, and compares what it should not.
            binary = () if old is None or long else ("--binary",)
            how = ("-r", "-p", f"-U{context:d}", "--full-index", "--no-commit-id", *binary, *_RENAMES, *DIFF)
            for piece in self._git.stream(*bound, "diff-tree", *how, *ends, "--", *some, most=most):
                most = None if most is None else most - len(piece)
                yield piece
            if most == 0:
                return

    def texts(self, changed: Sequence[Delta], context: int) -> Iterator[tuple[Delta, bytes]]:
        at = 0
        with self._aside([None if one.binary else one.pair for one in changed]) as (git, old, new):
            how = ("-r", "-p", f"-U{context:d}", "--no-renames", *DIFF)
            for number, text in _sections(git.stream("diff-tree", *how, old, new)):
                yield from ((one, b"") for one in changed[at:number])
                yield changed[number], text
                at = number + 1
        yield from ((one, b"") for one in changed[at:])

    def _raw(self, ends: tuple[str, ...], paths: Sequence[bytes]) -> list[Delta]:
        key = (ends, tuple(paths))
        found = self._raws.get(key)
        if found is None:
            how = ("-r", "-z", "--raw", "--no-commit-id")
            found = parsed(self._in_time("diff-tree", *how, *ends, "--", *paths))
            if len(self._raws) >= _RAWS:
                self._raws = {}
            if len(found) <= _RAW_MOST:
                self._raws[key] = found
        return found

    def _in_time(self, *arguments: str | bytes, renames: bool = True) -> bytes:
        """Looking for renames compares many contents with many: if that takes too long, only those that are the same
        count."""
        if not renames:
            return self._git.run(*arguments)
        first, rest = arguments[0], arguments[1:]
        try:
            return self._git.run(first, *_RENAMES, *DIFF, *rest, seconds=_SECONDS)
        except GitFailed as failed:
            if not failed.late:
                raise
            return self._git.run(first, *_EXACT, *DIFF, *rest)

    def _whole(self, found: list[Delta]) -> list[Delta]:
        sizes = self._reader.sizes(oid for one in found for oid in one.pair if oid)
        counts = self._count(found)
        whole = []
        for one in found:
            added, removed = (counts[one.pair] or (None, None)) if one.pair in counts else (0, 0)
            old, new = (None if oid is None else sizes.get(oid) for oid in one.pair)
            whole.append(replace(one, added=added, removed=removed, binary=added is None, old_size=old, new_size=new))
        return whole

    def _count(self, changed: Iterable[Delta]) -> dict[Pair, Counts]:
        """Lines of every pair of contents that differ; some at a time, so that one that can't be compared takes few
        with it."""
        known, asked = self._counts.of(one.pair for one in changed if one.old_oid != one.new_oid)
        long = self._too_long(asked)
        new: dict[Pair, Counts] = dict.fromkeys(asked)
        short = [pair for pair in asked if long.isdisjoint(pair)]
        sizes = self._reader.sizes(oid for pair in short for oid in pair if oid)
        until = time.monotonic() + _SECONDS_IN_ALL
        for at in range(0, len(short), _AT_ONCE):
            if time.monotonic() < until:
                new |= self._in_bounds(short[at : at + _AT_ONCE], sizes)
        self._counts.add(new)
        return known | new

    def _in_bounds(self, pairs: Sequence[Pair], sizes: dict[str, int]) -> dict[Pair, Counts]:
        """Of those that take too long together, the small ones; of these, none."""
        for bound in (None, _SMALL):
            few = [pair for pair in pairs if bound is None or max(sizes.get(oid or "", 0) for oid in pair) <= bound]
            try:
                return self._counted(few)
            except GitFailed as failed:
                if not (failed.late or failed.memory):
                    raise
        return {}

    def _counted(self, pairs: Sequence[Pair]) -> dict[Pair, Counts]:
        if not pairs:
            return {}
        with self._aside(pairs) as (git, old, new):
            out = git.run("diff-tree", "-r", "-z", "--numstat", "--no-renames", *DIFF, old, new, seconds=_SECONDS)
        return {pairs[number]: counts for number, counts in counted(out).items()}

    def _too_long(self, pairs: Iterable[Pair]) -> set[str]:
        """Contents with more lines than are compared."""
        sizes = self._reader.sizes(oid for pair in pairs for oid in pair if oid)
        known, asked = self._long.of(oid for oid, size in sizes.items() if size > LINES_MOST)
        new = {oid: data.count(b"\n") > LINES_MOST for oid, data in self._reader.blobs(asked)}
        self._long.add(new)
        return {oid for oid, long in (known | new).items() if long}

    @contextmanager
    def _aside(self, pairs: Sequence[Pair | None]) -> Iterator[tuple[Git, str, str]]:
        place = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self._git.directory))
        try:
            (place / "info").mkdir()
            (place / "info" / "alternates").write_text("../objects\n")
            old, new = (_loose(place, serialised(_numbered(pairs, at))) for at in (0, 1))
            yield Git(self._git.directory, objects=place), old, new
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _summed(entry: LedgerEntry, deltas: list[Delta], counts: dict[Pair, Counts]) -> LedgerEntry:
    found = [counts.get(one.pair) or (0, 0) for one in deltas]
    added, removed = (sum(one[at] for one in found) for at in (0, 1))
    return msgspec.structs.replace(entry, files=len(deltas), added=added, removed=removed)


def _numbered(pairs: Sequence[Pair | None], at: int) -> dict[bytes, Entry]:
    return {
        b"%09d" % number: (b"100644", bytes.fromhex(oid))
        for number, pair in enumerate(pairs)
        if pair is not None and pair[0] != pair[1] and (oid := pair[at]) is not None
    }


def _portions(paths: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    if not paths:
        yield ()
    for at in range(0, len(paths), PATHS_MOST):
        yield paths[at : at + PATHS_MOST]


def _loose(place: Path, data: bytes) -> str:
    whole = b"tree %d\0" % len(data) + data
    oid = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    (place / oid[:2]).mkdir(exist_ok=True)
    (place / oid[:2] / oid[2:]).write_bytes(zlib.compress(whole, 1))
    return oid


def _sections(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """A patch by file. No line of a file's content begins as a heading does: they all have a sign in front."""
    held = bytearray(b"\n")
    for piece in pieces:
        searched = max(0, len(held) - len(_SECTION))
        held += piece
        begun = 0
        while (end := held.find(_SECTION, max(searched, begun + 1))) >= 0:
            yield _section(bytes(held[begun:end]))
            begun = end
        del held[:begun]
    if len(held) > 1:
        yield _section(bytes(held))


def _section(text: bytes) -> tuple[int, bytes]:
    number = int(text[len(_SECTION) :][:9])
    start = text.find(b"\n@@ ")
    return number, b"" if start < 0 else text[start + 1 :] + (b"" if text.endswith(b"\n") else b"\n")
