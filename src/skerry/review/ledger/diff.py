"""Differences between trees of a ledger and the history of commits, computed by git with a limit on the cost per file.

Lines are compared through two temporary trees that hold the contents under numbers as names: paths, modes and
similarity do not matter, one call covers all files, and files that would take too long can be skipped. git needs 3 GB
for a file of 16 million empty lines and 15 s for a million lines of only two kinds: such a file is reported as a whole,
like a binary one.
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
from pathlib import Path
from typing import Final, Literal

import msgspec

from skerry.errors import InvalidRequest
from skerry.review.ledger import commit_message
from skerry.review.ledger.git import DIFF, LedgerGit, LedgerGitError
from skerry.review.ledger.objects import Cache, ObjectReader
from skerry.review.ledger.trees import TreeEntry, serialize
from skerry.types.review import LedgerEntry

SCRATCH: Final = "reading-"
USER_KINDS: Final = ("applied", "unapplied")
HIDDEN: Final[str] = "moved"  # a commit of the base whose change is another entry
MAX_LINES: Final = 400_000
MAX_PATHS: Final = 500  # in one call
_SMALL: Final = 32 << 10
_BATCH: Final = 2000
_MAX_CACHED_RAWS: Final = 8  # cached comparisons, each of at most _MAX_RAW paths
_MAX_RAW: Final = 5000
_TIMEOUT_S: Final = 20.0
_TOTAL_TIMEOUT_S: Final = 60.0
_MARK: Final = b"skerry"
_SECTION: Final = b"\ndiff --git a/"
_RENAMES: Final = ("-M50%", "-l400", "--no-rename-empty")
_EXACT: Final = ("-M100%", "-l400", "--no-rename-empty")
Pair = tuple[str | None, str | None]
"""The blob before and after."""
Counts = tuple[int, int] | None
"""Lines added and removed; None: binary."""
_KINDS: Final = {"A": "added", "D": "deleted", "M": "modified", "T": "modified", "R": "renamed"}
_NONE: Final = "000000"


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One changed path. Modes as in git; None: absent. `added`, `removed`: lines; None if `binary`. A file that became
    a link is `modified` with another mode. `binary`: not comparable as lines, also because that would take too long."""

    path: bytes
    kind: Literal["added", "modified", "deleted", "renamed"]
    old_path: bytes | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    old_oid: str | None = None
    new_oid: str | None = None
    old_size: int | None = None
    new_size: int | None = None
    added: int | None = None
    removed: int | None = None
    binary: bool = False

    @property
    def pair(self) -> Pair:
        return self.old_oid, self.new_oid


class Differ:
    def __init__(self, git: LedgerGit, reader: ObjectReader) -> None:
        self._git, self._reader = git, reader
        self._counts: Cache[Pair, Counts] = Cache()
        self._long: Cache[str, bool] = Cache()
        self._raws: dict[tuple[tuple[str, ...], tuple[bytes, ...]], list[Delta]] = {}

    def deltas(self, old: str, new: str, paths: Sequence[bytes]) -> list[Delta]:
        found = [one for some in _portions(paths) for one in self._raw((old, new), some)]
        return self._whole(sorted(found, key=lambda one: one.path))

    def deltas_of(self, commit: str) -> list[Delta]:
        return sorted(self._raw((commit,), ()), key=lambda one: one.path)

    def history(
        self, ends: Sequence[str], *, paths: Sequence[bytes] = (), limit: int, stat: bool = False
    ) -> list[LedgerEntry]:
        if len(paths) > MAX_PATHS:
            raise InvalidRequest(f"paths: more than {MAX_PATHS}")
        how = ("log", "-z", "--date-order", f"-n{limit:d}", f"--format=%x00{_MARK.decode()}%x00%H%x00%B%x00")
        raw = ("--raw", "--no-abbrev") if stat else ()
        found = [
            (commit_message.entry(oid.decode(), text.decode("utf-8", "replace")), deltas)
            for oid, text, deltas in parse_log(self._in_time(*how, *raw, *ends, "--", *paths, renames=stat), _MARK)
        ][::-1]
        counts = self._count([one for _, deltas in found for one in deltas])
        entries = [_summed(entry, deltas, counts) for entry, deltas in found if entry.kind != HIDDEN]
        users = [one for one in entries if one.kind in USER_KINDS]
        rest = [one for one in entries if one.kind not in USER_KINDS]
        return list(heapq.merge(rest, users, key=lambda one: one.at))  # git would compare whole seconds only

    def patch(
        self, old: str | None, new: str, context: int, paths: Sequence[bytes], max_bytes: int | None
    ) -> Iterator[bytes]:
        """Stream the patch between two commits, with everything that `git apply` needs, also for binary files. `old`
        None: the patch of one commit."""
        ends = (new,) if old is None else (old, new)
        for some in _portions(paths):
            long = self._too_long([one.pair for one in self._raw(ends, some)])
            bound = ("-c", f"core.bigFileThreshold={min(self._reader.sizes(long).values()) - 1}") if long else ()
            # With --binary, git reads contents before it checks their size, and compares files that it should skip.
            binary = () if old is None or long else ("--binary",)
            how = ("-r", "-p", f"-U{context:d}", "--full-index", "--no-commit-id", *binary, *_RENAMES, *DIFF)
            for piece in self._git.stream(*bound, "diff-tree", *how, *ends, "--", *some, max_bytes=max_bytes):
                max_bytes = None if max_bytes is None else max_bytes - len(piece)
                yield piece
            if max_bytes == 0:
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
            found = parse_raw(self._in_time("diff-tree", *how, *ends, "--", *paths))
            if len(self._raws) >= _MAX_CACHED_RAWS:
                self._raws = {}
            if len(found) <= _MAX_RAW:
                self._raws[key] = found
        return found

    def _in_time(self, *arguments: str | bytes, renames: bool = True) -> bytes:
        """Run git with rename detection, which compares many contents with many. If that takes too long, detect only
        identical renames."""
        if not renames:
            return self._git.run(*arguments)
        first, rest = arguments[0], arguments[1:]
        try:
            return self._git.run(first, *_RENAMES, *DIFF, *rest, seconds=_TIMEOUT_S)
        except LedgerGitError as failed:
            if not failed.late:
                raise
            return self._git.run(first, *_EXACT, *DIFF, *rest)

    def _whole(self, found: list[Delta]) -> list[Delta]:
        sizes = self._reader.sizes(oid for one in found for oid in one.pair if oid)
        counts = self._count(found)
        whole = []
        for one in found:
            added, removed = counts.get(one.pair, (0, 0)) or (None, None)
            whole.append(
                msgspec.structs.replace(
                    one, added=added, removed=removed, binary=added is None,
                    old_size=sizes.get(one.old_oid or ""), new_size=sizes.get(one.new_oid or ""),
                )
            )  # fmt: skip
        return whole

    def _count(self, changed: Iterable[Delta]) -> dict[Pair, Counts]:
        """Count the lines of every differing pair; in batches, so that a pair that cannot be compared affects only its
        batch."""
        known, asked = self._counts.of(one.pair for one in changed if one.old_oid != one.new_oid)
        long = self._too_long(asked)
        new: dict[Pair, Counts] = dict.fromkeys(asked)
        short = [pair for pair in asked if long.isdisjoint(pair)]
        sizes = self._reader.sizes(oid for pair in short for oid in pair if oid)
        until = time.monotonic() + _TOTAL_TIMEOUT_S
        for at in range(0, len(short), _BATCH):
            if time.monotonic() < until:
                new |= self._in_bounds(short[at : at + _BATCH], sizes)
        self._counts.add(new)
        return known | new

    def _in_bounds(self, pairs: Sequence[Pair], sizes: dict[str, int]) -> dict[Pair, Counts]:
        """If a batch takes too long, count only its small files; if that fails too, none."""
        for bound in (None, _SMALL):
            few = [pair for pair in pairs if bound is None or max(sizes.get(oid or "", 0) for oid in pair) <= bound]
            try:
                return self._counted(few)
            except LedgerGitError as failed:
                if not (failed.late or failed.memory):
                    raise
        return {}

    def _counted(self, pairs: Sequence[Pair]) -> dict[Pair, Counts]:
        if not pairs:
            return {}
        with self._aside(pairs) as (git, old, new):
            out = git.run("diff-tree", "-r", "-z", "--numstat", "--no-renames", *DIFF, old, new, seconds=_TIMEOUT_S)
        return {pairs[number]: counts for number, counts in parse_numstat(out).items()}

    def _too_long(self, pairs: Iterable[Pair]) -> set[str]:
        """Return the contents with too many lines to compare."""
        sizes = self._reader.sizes(oid for pair in pairs for oid in pair if oid)
        known, asked = self._long.of(oid for oid, size in sizes.items() if size > MAX_LINES)
        new = {oid: data.count(b"\n") > MAX_LINES for oid, data in self._reader.blobs(asked)}
        self._long.add(new)
        return {oid for oid, long in (known | new).items() if long}

    @contextmanager
    def _aside(self, pairs: Sequence[Pair | None]) -> Iterator[tuple[LedgerGit, str, str]]:
        place = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self._git.directory))
        try:
            (place / "info").mkdir()
            (place / "info" / "alternates").write_text("../objects\n")
            old, new = (_loose(place, serialize(_numbered(pairs, at))) for at in (0, 1))
            yield LedgerGit(self._git.directory, objects=place), old, new
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _summed(entry: LedgerEntry, deltas: list[Delta], counts: dict[Pair, Counts]) -> LedgerEntry:
    found = [counts.get(one.pair) or (0, 0) for one in deltas]
    added, removed = (sum(one[at] for one in found) for at in (0, 1))
    return msgspec.structs.replace(entry, files=len(deltas), added=added, removed=removed)


def _numbered(pairs: Sequence[Pair | None], at: int) -> dict[bytes, TreeEntry]:
    return {
        b"%09d" % number: (b"100644", bytes.fromhex(oid))
        for number, pair in enumerate(pairs)
        if pair is not None and pair[0] != pair[1] and (oid := pair[at]) is not None
    }


def _portions(paths: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    if not paths:
        yield ()
    for at in range(0, len(paths), MAX_PATHS):
        yield paths[at : at + MAX_PATHS]


def _loose(place: Path, data: bytes) -> str:
    whole = b"tree %d\0" % len(data) + data
    oid = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    (place / oid[:2]).mkdir(exist_ok=True)
    (place / oid[:2] / oid[2:]).write_bytes(zlib.compress(whole, 1))
    return oid


def _sections(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Split a patch by file. No content line can look like a heading: each starts with a sign."""
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


def parse_raw(out: bytes) -> list[Delta]:
    """Parse `diff-tree -r -z --raw`, without lines and sizes."""
    fields = iter(out.split(b"\0"))
    return [_raw(one, fields) for one in fields if one]


def parse_log(out: bytes, mark: bytes) -> Iterator[tuple[bytes, bytes, list[Delta]]]:
    """Parse `log -z --raw` with the format: mark, commit and message, with a NUL before and after each."""
    fields = iter(out.split(b"\0"))
    commit = message = b""
    deltas: list[Delta] = []
    for one in map(bytes.strip, fields):
        if one == mark:
            if commit:
                yield commit, message, deltas
            commit, message, deltas = next(fields), next(fields), []
        elif one.startswith(b":"):
            deltas.append(_raw(one, fields))
    if commit:
        yield commit, message, deltas


def parse_numstat(out: bytes) -> dict[int, Counts]:
    """Parse `--numstat -z` with numbers as names; None: binary."""
    found: dict[int, Counts] = {}
    for record in out.split(b"\0")[:-1]:
        added, removed, name = record.split(b"\t", 2)
        found[int(name)] = None if added == b"-" else (int(added), int(removed))
    return found


def _raw(record: bytes, fields: Iterator[bytes]) -> Delta:
    old_mode, new_mode, old, new, status = record[1:].decode().split(" ")
    first = next(fields)
    path = next(fields) if status[0] in "RC" else first
    return Delta(
        path=path,
        kind=_KINDS[status[0]],  # type: ignore[arg-type]
        old_path=first if path != first else None,
        old_mode=None if old_mode == _NONE else old_mode,
        new_mode=None if new_mode == _NONE else new_mode,
        old_oid=None if old_mode == _NONE else old,
        new_oid=None if new_mode == _NONE else new,
    )
