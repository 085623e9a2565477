"""What a ledger tells those who ask and those who watch. Blocking: to be called in threads."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence

from msgspec.structs import replace

from skerry.engine.review_table import Large
from skerry.engine.tracked import Tracked
from skerry.review import risk
from skerry.review.deltas import Delta
from skerry.review.ledger import Ledger
from skerry.types import DiffStat, FileChange, History, LedgerEntry, LeftOut, Review, ReviewEvent, told_path

PATCH_MOST = 256 << 10  # bytes of an entry's patch
PATCHES_MOST = 8 << 20  # of all entries of a history together
HISTORY_MOST = 1_000
NOTED_MOST = 100  # files that a diff says are not in it
EVENT_FILES_MOST = 1_000
EARLIER_MOST = 50  # entries that a watch begins with


def head(tracked: Tracked) -> Review:
    """A review without its files."""
    manifest = tracked.manifest
    left_out = (
        ()
        if manifest is None
        else tuple(_left_out(path, why, first) for path, (why, first) in manifest.left_out.items())
    )
    ignored = () if manifest is None else tuple(_told(path)[0] for path in manifest.new_ignored)
    return Review(
        sandbox=tracked.sandbox, path=tracked.path, base=tracked.ledger.base, tip=tracked.ledger.tip,
        origin=tracked.state.origin, left_out=left_out, ignored=ignored, trouble=tracked.trouble,
        truncated=manifest is not None and manifest.more,
    )  # fmt: skip


def diff(tracked: Tracked, paths: Sequence[bytes]) -> Generator[bytes, None, None]:
    """From what the user has to what is there, as git prints it. What no patch carries is said in front, on lines that
    no tool takes for a part of one."""
    return _patch(tracked, head(tracked), paths)


def _patch(tracked: Tracked, review: Review, paths: Sequence[bytes]) -> Generator[bytes, None, None]:
    yield from notes(review, paths)
    yield from tracked.ledger.patch(review.base, review.tip, paths=paths)


def stat(tracked: Tracked, paths: Sequence[bytes]) -> DiffStat:
    review = head(tracked)
    deltas = tracked.ledger.deltas(review.base, review.tip, paths)
    files = tuple(file_change(delta, tracked.state.large) for delta in deltas)
    return DiffStat(files=files, left_out=review.left_out, trouble=review.trouble)


def notes(review: Review, paths: Sequence[bytes] = ()) -> Iterator[bytes]:
    if review.trouble is not None:
        yield _note(f"what came last is not in this: {review.trouble}")
    new = [one for one in review.left_out if one.new and _is_among(one.raw_path or one.path.encode(), paths)]
    for one in new[:NOTED_MOST]:
        yield _note(f"not in this: {one.path}: {one.reason}")
    if (more := len(new) - NOTED_MOST) > 0:
        yield _note(f"not in this: {more} more")


def _is_among(path: bytes, paths: Sequence[bytes]) -> bool:
    return not paths or any(path == one or path.startswith(one + b"/") for one in paths)


def _note(text: str) -> bytes:
    """On one line, whatever a name has in it."""
    return f"# skerry: {text.encode('unicode_escape').decode() if not text.isprintable() else text}\n".encode()


def history(
    tracked: Tracked, since: str | None, paths: Sequence[bytes], limit: int, patch: bool
) -> History:  # fmt: skip
    entries = tracked.ledger.history(since, paths, limit + 1)
    truncated = len(entries) > limit
    entries = entries[-limit:]
    if patch:
        room = PATCHES_MOST
        for at in range(len(entries) - 1, -1, -1):
            entries[at] = with_patch(tracked.ledger, entries[at], paths, min(room, PATCH_MOST))
            room -= len(entries[at].patch or "")
    agent = {name.removeprefix("refs/"): oid for name, oid in tracked.ledger.agent().items()}
    return History(entries=tuple(entries), agent=agent, truncated=truncated, trouble=tracked.trouble)


def with_patch(ledger: Ledger, entry: LedgerEntry, paths: Sequence[bytes] = (), most: int = PATCH_MOST) -> LedgerEntry:
    """The base is what the user has: it has no patch."""
    if entry.kind == "base":
        return entry
    text = b"".join(ledger.patch_of(entry.commit, paths=paths, most=most + 1)) if most > 0 else b" "
    cut = len(text) > most
    shown = text[: text.rfind(b"\n", 0, most) + 1] if cut else text
    return replace(entry, patch=shown.decode("utf-8", "replace"), truncated=cut)


def change(tracked: Tracked, commit: str, parent: str) -> ReviewEvent:
    """A new commit, for those who watch."""
    ledger = tracked.ledger
    deltas = ledger.deltas(parent, commit)
    files = tuple(file_change(delta, tracked.state.large) for delta in deltas[:EVENT_FILES_MOST])
    entry = with_patch(ledger, ledger.facts(commit))
    return ReviewEvent(type="change", sandbox=tracked.sandbox, tip=commit, entry=entry, files=files)


def earlier(tracked: Tracked, since: str | None) -> tuple[list[ReviewEvent], str]:
    """What came after a commit, and the tip. If that was much, the newest of it, after a word that there was more."""
    ledger = tracked.ledger
    tip, parent = ledger.tip, since
    entries = ledger.history(since, limit=EARLIER_MOST + 1) if since not in (None, tip) else []
    events = []
    if len(entries) > EARLIER_MOST:
        events.append(ReviewEvent(type="lost", sandbox=tracked.sandbox, tip=entries[0].commit))
        parent = entries.pop(0).commit
    for entry in entries:
        if entry.kind in ("applied", "unapplied") or parent is None:
            events.append(ReviewEvent(type="change", sandbox=tracked.sandbox, tip=parent or tip, entry=entry))
        else:
            events.append(change(tracked, entry.commit, parent))
            parent = entry.commit
    return events, tip


def file_change(delta: Delta, large: Mapping[str, Large]) -> FileChange:
    """A path that differs, without its hunks. Of a large file the sizes are its own, not its pointer's."""
    path, raw_path = _told(delta.path)
    old_path, raw_old_path = _told(delta.old_path) if delta.old_path is not None else (None, None)
    before, after = large.get(delta.old_oid or ""), large.get(delta.new_oid or "")
    is_large = before is not None or after is not None
    return FileChange(
        path=path, kind=delta.kind, old_path=old_path, old_mode=delta.old_mode, new_mode=delta.new_mode,
        old_oid=delta.old_oid, new_oid=delta.new_oid,
        old_size=delta.old_size if before is None else before.size,
        new_size=delta.new_size if after is None else after.size,
        added=None if is_large else delta.added, removed=None if is_large else delta.removed,
        binary=delta.binary, large=is_large, sha256=after.sha256 if after is not None else None,
        risk=risk.of_change(delta), raw_path=raw_path, raw_old_path=raw_old_path,
    )  # fmt: skip


def _left_out(path: bytes, why: str, first: bool) -> LeftOut:
    told, raw = _told(path)
    return LeftOut(path=told, reason=why, new=not first, raw_path=raw)


def _told(path: bytes) -> tuple[str, bytes | None]:
    return told_path(os.fsdecode(path))
