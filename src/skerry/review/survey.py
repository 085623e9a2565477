"""All that differs between what the user has and what there is, file by file, with what was decided about it.

One file's contents at a time are in memory. What has too many lines or places to be gone through one by one is decided
as a whole."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import msgspec

from skerry.review.carry import Decision
from skerry.review.deltas import Delta
from skerry.review.hunks import Changed, Sides
from skerry.review.ledger import Ledger
from skerry.review.patches import places

LINES_MOST = 1_000_000
PLACES_MOST = 50_000
_decoder = msgspec.msgpack.Decoder(tuple[Decision, ...])
Chosen = Callable[[Delta], bool]


@dataclass(frozen=True)
class Ground:
    """What a review stands on at one moment. `decided`: of each path, packed. `large`: blobs that stand for files which
    are not in the ledger."""

    ledger: Ledger
    base: str
    tip: str
    key: bytes
    decided: Mapping[bytes, bytes] = field(default_factory=dict)
    large: Container[str] = ()

    def decisions(self, path: bytes) -> tuple[Decision, ...]:
        return unpacked(self.decided.get(path))


def packed(decisions: Sequence[Decision]) -> bytes:
    return msgspec.msgpack.encode(decisions)


def unpacked(body: bytes | None) -> tuple[Decision, ...]:
    return _decoder.decode(body) if body else ()


def spelled(paths: Sequence[str]) -> list[bytes]:
    """As git has them; the workspace itself is all of it."""
    named = [posixpath.normpath(path).encode("utf-8", "surrogateescape") for path in paths]
    return [] if b"." in named else named


def below(paths: Sequence[bytes]) -> Chosen:
    """Files that are one of these paths or below one; of no paths: all."""
    named, within = set(paths), tuple(path.rstrip(b"/") + b"/" for path in paths)

    def chosen(delta: Delta) -> bool:
        return any(path in named or path.startswith(within) for path in (delta.path, delta.old_path) if path)

    return chosen if paths else lambda delta: True


def survey(ground: Ground, chosen: Chosen | None = None) -> Generator[Changed, None, None]:
    """In the order of their paths."""
    ledger = ground.ledger
    deltas = [one for one in ledger.deltas(ground.base, ground.tip) if chosen is None or chosen(one)]
    readable = [one for one in deltas if not one.binary and not _is_large(ground, one)]
    oids = [oid for one in readable for oid in (one.old_oid, one.new_oid) if oid is not None]
    shaped = [one for one in readable if one.kind in ("modified", "renamed") and one.old_oid != one.new_oid]
    with closing(_contents(ledger, oids)) as contents, closing(_patches(ledger, shaped)) as patches:
        read = iter(readable)
        following = next(read, None)
        for delta in deltas:
            large = _is_large(ground, delta)
            sides = Sides()
            if delta is following:
                following = next(read, None)
                old = next(contents) if delta.old_oid is not None else b""
                new = next(contents) if delta.new_oid is not None else b""
                patch = next(patches) if delta.kind in ("modified", "renamed") and old != new else b""
                if max(old.count(b"\n"), new.count(b"\n")) < LINES_MOST:
                    where = places(patch)
                    sides = Sides(old, new, where if len(where) <= PLACES_MOST else ())
                else:
                    delta = replace(delta, binary=True)
            yield Changed(ground.key, delta, ground.decisions(delta.path), sides, large=large)


def _is_large(ground: Ground, delta: Delta) -> bool:
    return (delta.old_oid or "") in ground.large or (delta.new_oid or "") in ground.large


def _contents(ledger: Ledger, oids: Sequence[str]) -> Generator[bytes, None, None]:
    for _, data in ledger.blobs(oids):
        yield data


def _patches(ledger: Ledger, shaped: Sequence[Delta]) -> Generator[bytes, None, None]:
    if shaped:
        for _, patch in ledger.changes_of(shaped):
            yield patch


def entries(ledger: Ledger, commit: str) -> dict[bytes, tuple[str, str]]:
    """Mode and blob of every path."""
    return {path: (mode, oid) for path, mode, oid in ledger.files(commit)}


def listed(changed: Iterator[Changed]) -> dict[str, bytes]:
    """Which file each hunk is of."""
    return {unit.id: one.delta.path for one in changed for unit in one.units}
