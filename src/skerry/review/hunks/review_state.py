"""All differences between the base and the tip, file by file, with their decisions.

Only one file's contents are in memory at a time. A file with too many lines or places is decided as a whole.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec

from skerry.review.hunks.atoms import parse_atoms
from skerry.review.hunks.decisions import Decision
from skerry.review.hunks.hunks import FileHunk, ReviewedFile, Sides
from skerry.review.hunks.selection import PathFilter, Selection
from skerry.review.ledger.diff import Delta
from skerry.review.ledger.ledger import Ledger
from skerry.types import LedgerEntry

MAX_LINES = 1_000_000
MAX_PLACES = 50_000
_decoder = msgspec.msgpack.Decoder(tuple[Decision, ...])


@dataclass(frozen=True)
class ReviewState:
    """The input of a review at one version. `decided`: encoded decisions by path. `large`: placeholder blobs of files
    that are too large for the ledger. `generated`: globs of files to keep apart, besides the built-in ones."""

    ledger: Ledger
    base: str
    tip: str
    key: bytes
    decided: Mapping[bytes, bytes] = field(default_factory=dict)
    large: Collection[str] = ()
    generated: tuple[str, ...] = ()

    def select(self, paths: Sequence[bytes] = (), exclude: Sequence[str] = ()) -> Selection:
        """Return a filter for the files at or below these paths or globs, without generated ones."""
        return Selection(
            self.ledger, self.base, paths, exclude=exclude, generated=self.generated, decided=self.decided
        )  # fmt: skip

    def decisions(self, path: bytes) -> tuple[Decision, ...]:
        return decode_decisions(self.decided.get(path))


def encode_decisions(decisions: Sequence[Decision]) -> bytes:
    return msgspec.msgpack.encode(decisions)


def decode_decisions(body: bytes | None) -> tuple[Decision, ...]:
    return _decoder.decode(body) if body else ()


def normalize_paths(paths: Sequence[str]) -> list[bytes]:
    """Return the paths as git spells them; the workspace itself means no restriction."""
    named = [posixpath.normpath(path).encode("utf-8", "surrogateescape") for path in paths]
    return [] if b"." in named else named


def changed_files(state: ReviewState, only: PathFilter | None = None) -> Generator[ReviewedFile, None, None]:
    """Yield the changed files in path order."""
    ledger = state.ledger
    deltas = [one for one in ledger.deltas(state.base, state.tip) if only is None or only(one)]
    readable = [one for one in deltas if not one.binary and not _is_large(state, one)]
    oids = [oid for one in readable for oid in (one.old_oid, one.new_oid) if oid is not None]
    shaped = [one for one in readable if one.kind in ("modified", "renamed") and one.old_oid != one.new_oid]
    with closing(_contents(ledger, oids)) as contents, closing(_patches(ledger, shaped)) as patches:
        read = iter(readable)
        following = next(read, None)
        for delta in deltas:
            large = _is_large(state, delta)
            sides = Sides()
            if delta is following:
                following = next(read, None)
                old = next(contents) if delta.old_oid is not None else b""
                new = next(contents) if delta.new_oid is not None else b""
                patch = next(patches) if delta.kind in ("modified", "renamed") and old != new else b""
                if max(old.count(b"\n"), new.count(b"\n")) < MAX_LINES:
                    where = parse_atoms(patch) if patch else ()
                    sides = Sides(old, new, where if len(where) <= MAX_PLACES else ())
                else:
                    delta = msgspec.structs.replace(delta, binary=True)
            yield ReviewedFile(state.key, delta, state.decisions(delta.path), sides, large=large)


def _is_large(state: ReviewState, delta: Delta) -> bool:
    return bool(state.large) and (delta.old_oid in state.large or delta.new_oid in state.large)


def _contents(ledger: Ledger, oids: Sequence[str]) -> Generator[bytes, None, None]:
    for _, data in ledger.blobs(oids):
        yield data


def _patches(ledger: Ledger, shaped: Sequence[Delta]) -> Generator[bytes, None, None]:
    if shaped:
        for _, patch in ledger.changes_of(shaped):
            yield patch


def file_entries(ledger: Ledger, commit: str) -> dict[bytes, tuple[str, str]]:
    """Return mode and blob of every path."""
    return {path: (mode, oid) for path, mode, oid in ledger.files(commit)}


def paths_by_hunk(changed: Iterator[ReviewedFile]) -> dict[str, bytes]:
    """Return the path of each hunk."""
    return {hunk.id: one.delta.path for one in changed for hunk in one.hunks}


# Find the ledger commits that a hunk comes from: those that wrote its new lines and those that removed its old
# ones.

MAX_COMMITS_WALKED = 100  # of one file; older lines get no origin
MAX_ORIGINS = 50
_USERS = ("applied", "unapplied")


def origins(ledger: Ledger, changed: ReviewedFile, hunk: FileHunk) -> list[LedgerEntry]:
    """Return the commits, newest last. For a change of a whole file, return all commits that touched it."""
    delta = changed.delta
    paths = [path for path in (delta.path, delta.old_path) if path is not None]
    walked = [one for one in ledger.history(paths=paths, limit=MAX_COMMITS_WALKED) if one.kind not in _USERS]
    touched = [one for one in walked if one.kind not in ("base", "pulled")]
    if not hunk.segments:
        return touched[-MAX_ORIGINS:]
    theirs = set(_line_commits(ledger, delta.path, walked, changed, hunk)) if walked else set()
    found = [one for one in touched if one.commit in theirs]
    return (found or touched)[-MAX_ORIGINS:]


def _line_commits(
    ledger: Ledger, path: bytes, walked: Sequence[LedgerEntry], changed: ReviewedFile, hunk: FileHunk
) -> Iterator[str]:  # fmt: skip
    """Yield the commit of each line, followed from the first version of the file to the last. A removed line is
    recognised by its content, because the base may have moved since."""
    gone = {line for segment in hunk.segments for line in changed.base[segment.start : segment.end]}
    # a line that only closes a block identifies no commit
    gone = {line for line in gone if len(line.strip()) > 2} or gone
    versions = [_blob(ledger, entry.commit, path) for entry in walked]
    steps = [
        Delta(path=path, kind="modified", old_oid=old, new_oid=new)
        for old, new in zip([None, *versions], versions, strict=False)
    ]
    whose: list[str] = []
    names = ["" if len(walked) == MAX_COMMITS_WALKED else walked[0].commit, *(entry.commit for entry in walked[1:])]
    for name, (_, patch) in zip(names, ledger.changes_of(steps), strict=True):
        now: list[str] = []
        upto = 0
        for atom in parse_atoms(patch):
            now += whose[upto : atom.start]
            now += [name] * (atom.new_end - atom.new_start)
            upto = atom.end
        whose = now + whose[upto:]
        if gone and any(line[1:] in gone for line in _removed(patch)):
            yield name
    if len(whose) == len(changed.tip):
        for segment in hunk.segments:
            yield from set(whose[segment.new_start : segment.new_end])


def _blob(ledger: Ledger, commit: str, path: bytes) -> str | None:
    found = ledger.entry_of(commit, path)
    return None if found is None else found[1]


def _removed(patch: bytes) -> Iterator[bytes]:
    for line in patch.split(b"\n"):
        if line.startswith(b"-"):
            yield line + b"\n"
