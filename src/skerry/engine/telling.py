"""What is told of a review: its hunks, what is to land, what was decided. Blocking: to be called in threads."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from skerry.engine import review_reading as reading
from skerry.engine.review_table import Large
from skerry.engine.tracked import Tracked
from skerry.review.deciding import Outcome
from skerry.review.hunks import Changed
from skerry.review.offers import Offer, OfferedFile
from skerry.review.showing import Showing, told
from skerry.review.survey import Chosen, Ground, survey
from skerry.types import (
    HUNKS_MOST,
    Accepted,
    AcceptedFile,
    Decided,
    FileChange,
    Hunk,
    HunkState,
    LedgerEntry,
    Review,
    ReviewEvent,
)

ROOM = 8 << 20  # bytes of text in a list of hunks
EVENT_ROOM = 1 << 20
FILES_MOST = 5_000
ENTRIES_MOST = 200


@dataclass(frozen=True)
class Found:
    review: Review
    paths: dict[str, bytes]


class _List:
    """Hunks, as far as there is room."""

    def __init__(self, room: int = ROOM) -> None:
        self.room, self.count, self.cut = room, 0, False

    def of(self, changed: Changed, state: HunkState | None = None, ids: set[str] | None = None) -> tuple[Hunk, ...]:
        showing = Showing(changed, self.room)
        found = []
        for unit in changed.units:
            if (state is not None and unit.state != state) or (ids is not None and unit.id not in ids):
                continue
            if self.count == HUNKS_MOST:
                self.cut = True
                break
            found.append(showing.hunk(unit))
            self.count += 1
        self.room = showing.room or 0
        return tuple(found)


def review(
    tracked: Tracked, ground: Ground, chosen: Chosen, state: HunkState | None, applied: Sequence[Offer]
) -> Found:  # fmt: skip
    head = reading.head(tracked)
    hunks = _List()
    files: list[FileChange] = []
    paths: dict[str, bytes] = {}
    counts = {"open": 0, "accepted": 0, "rejected": 0}
    cut = False
    for changed in survey(ground, chosen):
        for unit in changed.units:
            counts[unit.state] += 1
            paths[unit.id] = changed.delta.path
        if state is None or any(unit.state == state for unit in changed.units):
            cut = cut or len(files) == FILES_MOST
            if len(files) < FILES_MOST:
                files.append(_file(tracked.state.large, changed, hunks.of(changed, state)))
    counts["applied"] = sum(len(file.hunks) for offer in applied for file in offer.files)
    if state == "applied":
        files = list(_applied(applied))[:FILES_MOST]
    found = msgspec.structs.replace(
        head,
        base=ground.base,
        tip=ground.tip,
        files=tuple(files),
        truncated=head.truncated or hunks.cut or cut,
        **counts,
    )
    return Found(found, paths)


def _file(large: dict[str, Large], changed: Changed, hunks: tuple[Hunk, ...]) -> FileChange:
    flags = tuple(dict.fromkeys(flag for unit in changed.units for flag in unit.risk))
    return msgspec.structs.replace(reading.file_change(changed.delta, large), risk=flags, hunks=hunks)


def _applied(offers: Iterable[Offer]) -> Iterator[FileChange]:
    for offer in offers:
        shown: dict[str, list[Hunk]] = {}
        for hunk in offer.shown:
            shown.setdefault(hunk.path, []).append(msgspec.structs.replace(hunk, state="applied"))
        for file in offer.files:
            path, raw_path = told(file.path)
            yield FileChange(path=path, kind=file.kind, hunks=tuple(shown.get(path, ())), raw_path=raw_path)


def hunk(ground: Ground, chosen: Chosen | None, name: str) -> Hunk | None:
    for changed in survey(ground, chosen):
        for unit in changed.units:
            if unit.id == name:
                return Showing(changed).hunk(unit, None)
    return None


def decided(outcome: Outcome) -> Decided:
    hunks, held = _List(), _List()
    return Decided(
        hunks=tuple(hunk for changed, ids in outcome.files for hunk in hunks.of(changed, ids=ids)),
        held_back=tuple(hunk for changed, ids in outcome.held_back for hunk in held.of(changed, ids=ids)),
    )


def with_hunks(ground: Ground, event: ReviewEvent) -> ReviewEvent:
    """A change, with the hunks of the whole review in the files that it touched."""
    files = {_raw(file.path, file.raw_path): file for file in event.files}
    hunks = _List(EVENT_ROOM)
    for changed in survey(ground, lambda delta: delta.path in files):
        file = files[changed.delta.path]
        flags = tuple(dict.fromkeys(flag for unit in changed.units for flag in unit.risk))
        files[changed.delta.path] = msgspec.structs.replace(file, hunks=hunks.of(changed), risk=flags)
    return msgspec.structs.replace(event, files=tuple(files.values()))


def _raw(path: str, raw: bytes | None) -> bytes:
    return path.encode() if raw is None else raw


def accepted(tracked: Tracked, offer: Offer) -> Accepted:
    files = tuple(_to_land(tracked.state.large, file) for file in offer.files)
    return Accepted(
        sandbox=tracked.sandbox, path=tracked.path, base=offer.base, tip=offer.tip, digest=offer.digest,
        origin=tracked.state.origin, files=files, entries=tuple(_entries(tracked, offer)),
    )  # fmt: skip


def _to_land(large: dict[str, Large], file: OfferedFile) -> AcceptedFile:
    path, raw_path = told(file.path)
    old_path, raw_old_path = told(file.old_path) if file.old_path is not None else (None, None)
    before = large.get(file.old[1]) if file.old is not None else None
    after = large.get(file.new[1]) if file.new is not None else None
    return AcceptedFile(
        path=path, kind=file.kind, hunks=file.hunks, old_path=old_path,
        old_mode=file.old[0] if file.old else None, new_mode=file.new[0] if file.new else None,
        old_oid=file.old[1] if file.old else None, new_oid=file.new[1] if file.new else None,
        old_size=file.old_size if before is None else before.size,
        new_size=file.new_size if after is None else after.size,
        large=after is not None, sha256=after.sha256 if after is not None else None,
        raw_path=raw_path, raw_old_path=raw_old_path,
    )  # fmt: skip


def _entries(tracked: Tracked, offer: Offer) -> list[LedgerEntry]:
    """The commits that touched these files."""
    paths = [path for file in offer.files for path in (file.path, file.old_path) if path is not None]
    if not paths:
        return []
    found = tracked.ledger.history(paths=paths if len(paths) <= 500 else (), limit=ENTRIES_MOST)
    return [one for one in found if one.kind not in ("base", "applied", "unapplied")]


def whole(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from pieces
