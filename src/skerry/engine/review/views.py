"""Views of reviews for the API and for subscribers. Blocking: call them in threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from skerry.engine.review.commands import MAX_SEPARATE, CommandRecord, by_command, only_named
from skerry.engine.review.tables import LargeFile
from skerry.engine.review.workspace import ReviewedWorkspace
from skerry.engine.review.writers import Writer
from skerry.errors import NotFound
from skerry.keeper import JournalGap, Keeper
from skerry.review.hunks import risk
from skerry.review.hunks.apply_decisions import Outcome
from skerry.review.hunks.hunks import ReviewedFile
from skerry.review.hunks.patch_set import LedgerFilePatch, LedgerPatchSet
from skerry.review.hunks.render import HunkList, HunkRenderer, readable_path
from skerry.review.hunks.review_state import ReviewState, changed_files, decode_decisions, origins
from skerry.review.hunks.selection import PathFilter, Selection
from skerry.review.ledger.diff import Delta
from skerry.review.ledger.ledger import Ledger
from skerry.types import (
    DecisionResult,
    DiffStat,
    FileChange,
    GeneratedFiles,
    History,
    Hunk,
    HunkState,
    LedgerEntry,
    LedgerStep,
    LeftOut,
    PatchSet,
    PatchSetFile,
    Review,
    ReviewEvent,
    encode_path,
)
from skerry.types.globs import is_glob

MAX_PATCH = 256 << 10  # bytes of an entry's patch
MAX_PATCHES = 8 << 20  # of all entries of a history together
MAX_HISTORY = 1_000
MAX_NOTED = 100  # left-out files that a diff names
MAX_EVENT_FILES = 1_000
MAX_FAILED = 5  # failed commands that a review names
MAX_EARLIER = 50  # entries that a watch begins with


def summary(workspace: ReviewedWorkspace) -> Review:
    """A review without its files."""
    manifest = workspace.manifest
    left_out = (
        ()
        if manifest is None
        else tuple(_left_out(path, why, first) for path, (why, first) in manifest.left_out.items())
    )
    ignored = () if manifest is None else tuple(_shown_path(path)[0] for path in manifest.new_ignored)
    return Review(
        sandbox=workspace.sandbox_id, path=workspace.path, base=workspace.ledger.base, tip=workspace.ledger.tip,
        origin=workspace.state.origin, left_out=left_out, ignored=ignored, trouble=workspace.trouble,
        truncated=manifest is not None and manifest.more,
    )  # fmt: skip


def diff(workspace: ReviewedWorkspace, paths: Sequence[bytes]) -> Generator[bytes, None, None]:
    """Return the difference between the user's files and the current ones, as git prints it. Changes that no patch can
    carry come first, on lines that no tool takes for a part of a patch."""
    return _patch(workspace, summary(workspace), paths)


def _patch(workspace: ReviewedWorkspace, review: Review, paths: Sequence[bytes]) -> Generator[bytes, None, None]:
    yield from notes(review, paths)
    deltas, generated = _without_generated(workspace, review, paths)
    for group in generated[:MAX_NOTED]:
        yield _note(f"not in this: {group.path}: {group.files} generated files")
    if generated or _have_globs(paths):
        paths = [path for delta in deltas for path in (delta.old_path, delta.path) if path is not None]
    if deltas:
        yield from workspace.ledger.patch(review.base, review.tip, paths=paths)


def _without_generated(
    workspace: ReviewedWorkspace, review: Review, paths: Sequence[bytes]
) -> tuple[list[Delta], tuple[GeneratedFiles, ...]]:
    ledger = workspace.ledger
    selected = Selection(ledger, review.base, paths, generated=workspace.state.exclude)
    within = () if _have_globs(paths) else paths
    deltas = [delta for delta in ledger.deltas(review.base, review.tip, within) if selected(delta)]
    return deltas, selected.generated


def _have_globs(paths: Sequence[bytes]) -> bool:
    return any(is_glob(os.fsdecode(path)) for path in paths)


def count_unapplied(current: ReviewState) -> tuple[int, int]:
    """Count the accepted hunks that were not applied, and the files that differ from the user's, without generated
    ones."""
    if current.base == current.tip:
        return 0, 0
    paths = {
        path
        for path, body in current.decided.items()
        if any(decision.state == "accepted" for decision in decode_decisions(body))
    }
    accepted = sum(
        hunk.state == "accepted"
        for changed in (changed_files(current, lambda delta: delta.path in paths) if paths else ())
        for hunk in changed.hunks
    )
    selected = current.select()
    return accepted, sum(map(selected, current.ledger.deltas(current.base, current.tip)))


def stat(workspace: ReviewedWorkspace, paths: Sequence[bytes]) -> DiffStat:
    review = summary(workspace)
    deltas, generated = _without_generated(workspace, review, paths)
    files = tuple(file_change(delta, workspace.state.large) for delta in deltas)
    return DiffStat(files=files, left_out=review.left_out, generated=generated, trouble=review.trouble)


def notes(review: Review, paths: Sequence[bytes] = ()) -> Iterator[bytes]:
    if review.trouble is not None:
        yield _note(f"the latest changes are missing: {review.trouble}")
    new = [one for one in review.left_out if one.new and _is_among(one.raw_path or one.path.encode(), paths)]
    for one in new[:MAX_NOTED]:
        yield _note(f"not in this: {one.path}: {one.reason}")
    if (more := len(new) - MAX_NOTED) > 0:
        yield _note(f"not in this: {more} more")


def _is_among(path: bytes, paths: Sequence[bytes]) -> bool:
    return not paths or any(path == one or path.startswith(one + b"/") for one in paths)


def _note(text: str) -> bytes:
    """Return a note on one line, whatever characters a name contains."""
    return f"# skerry: {text.encode('unicode_escape').decode() if not text.isprintable() else text}\n".encode()


def history(
    workspace: ReviewedWorkspace, since: str | None, paths: Sequence[bytes], limit: int, patch: bool
) -> History:  # fmt: skip
    commits = workspace.ledger.history(since, paths, limit + 1)
    known = workspace.writers.snapshot()
    records, totals = workspace.commands.read()
    entries = joined(workspace, commits, known, records)
    if not paths:
        after = workspace.ledger.entry(since).at if since is not None else 0.0
        after = max(after, commits[0].at) if len(commits) > limit else after
        entries += _without_changes(entries, records, after)
    entries.sort(key=lambda entry: entry.at)
    truncated = len(entries) > limit
    entries = entries[-limit:]
    if patch:
        room = MAX_PATCHES
        for at in range(len(entries) - 1, -1, -1):
            entries[at] = with_patch(workspace.ledger, entries[at], paths, min(room, MAX_PATCH))
            room -= len(entries[at].patch or "")
    agent = {name.removeprefix("refs/"): oid for name, oid in workspace.ledger.agent_refs().items()}
    return History(
        entries=tuple(entries), agent=agent, truncated=truncated, totals=totals, trouble=workspace.trouble
    )  # fmt: skip


def joined(
    workspace: ReviewedWorkspace,
    commits: Sequence[LedgerEntry],
    known: Mapping[str, Writer],
    records: Mapping[str, CommandRecord],
) -> list[LedgerEntry]:
    """Return one entry for each command of these commits, with its outcome. `known`: the writers, from before the
    records were read."""
    unfinished = {one.id: one.command for one in known.values() if one.command is not None and one.id not in records}
    found = by_command(commits, records, unfinished, partial(_count_files, workspace.ledger))
    found = [replace(entry, within=entry.within or _within(known, entry)) for entry in found]
    alive = workspace.sandbox.record.state in ("running", "paused")
    return found if alive else [replace(entry, running=False) for entry in found]


def _within(known: Mapping[str, Writer], entry: LedgerEntry) -> str | None:
    """Return the command of the agent that reported the first run of an entry, if it is a tool call."""
    return next((known[name].within for name in entry.runs if name in known), None)


def _count_files(ledger: Ledger, commits: Sequence[str]) -> int:
    return len({delta.path for commit in commits[-MAX_SEPARATE:] for delta in ledger.deltas_of(commit)})


def _without_changes(
    entries: Sequence[LedgerEntry], records: Mapping[str, CommandRecord], after: float
) -> list[LedgerEntry]:
    """Return entries for commands that ended after that time without changes."""
    changed = {run for entry in entries for run in entry.runs}
    return [one.entry() for one in records.values() if one.at > after and one.id not in changed and one.within is None]


def command(record: CommandRecord) -> LedgerEntry:
    """Return the entry of a command that ended: without its changes, which are in earlier entries."""
    steps = tuple(LedgerStep(commit="", at=record.at) for _ in range(min(record.steps, 1)))
    return replace(record.entry(), steps=steps)


def with_patch(ledger: Ledger, entry: LedgerEntry, paths: Sequence[bytes] = (), most: int = MAX_PATCH) -> LedgerEntry:
    """Return the entry with its patch. The base has none: it is the user's files."""
    if entry.kind == "base" or not entry.commit:
        return entry
    text = b"".join(_patches_of(ledger, entry, paths, most + 1)) if most > 0 else b" "
    cut = len(text) > most
    shown = text[: text.rfind(b"\n", 0, most) + 1] if cut else text
    return replace(entry, patch=shown.decode("utf-8", "replace"), truncated=cut)


def _patches_of(ledger: Ledger, entry: LedgerEntry, paths: Sequence[bytes], most: int) -> Iterator[bytes]:
    """Yield the patches of all steps, one after the other."""
    for commit in [step.commit for step in entry.steps] or [entry.commit]:
        for piece in ledger.patch_of(commit, paths=paths, max_bytes=most):
            yield piece
            most -= len(piece)
        if most <= 0:
            return


def change(workspace: ReviewedWorkspace, commit: str, parent: str) -> ReviewEvent:
    """Return the event of a new commit."""
    ledger = workspace.ledger
    deltas = ledger.deltas(parent, commit)
    files = tuple(file_change(delta, workspace.state.large) for delta in deltas[:MAX_EVENT_FILES])
    entry = with_patch(ledger, ledger.entry(commit))
    return ReviewEvent(type="change", sandbox=workspace.sandbox_id, tip=commit, entry=entry, files=files)


def earlier(workspace: ReviewedWorkspace, since: str | None) -> tuple[list[ReviewEvent], str]:
    """Return the events after a commit, and the tip. If there are too many, return the newest, after an event that some
    were lost."""
    ledger = workspace.ledger
    tip, parent = ledger.tip, since
    entries = ledger.history(since, limit=MAX_EARLIER + 1) if since not in (None, tip) else []
    events = []
    if len(entries) > MAX_EARLIER:
        events.append(ReviewEvent(type="lost", sandbox=workspace.sandbox_id, tip=entries[0].commit))
        parent = entries.pop(0).commit
    for entry in entries:
        if entry.kind in ("applied", "unapplied") or parent is None:
            events.append(ReviewEvent(type="change", sandbox=workspace.sandbox_id, tip=parent or tip, entry=entry))
        else:
            events.append(change(workspace, entry.commit, parent))
            parent = entry.commit
    return events, tip


def file_change(delta: Delta, large: Mapping[str, LargeFile]) -> FileChange:
    """A path that differs, without its hunks. Of a large file the sizes are its own, not its pointer's."""
    path, raw_path = _shown_path(delta.path)
    old_path, raw_old_path = _shown_path(delta.old_path) if delta.old_path is not None else (None, None)
    before, after = large.get(delta.old_oid or ""), large.get(delta.new_oid or "")
    is_large = before is not None or after is not None
    return FileChange(
        path=path, kind=delta.kind, old_path=old_path, old_mode=delta.old_mode, new_mode=delta.new_mode,
        old_oid=delta.old_oid, new_oid=delta.new_oid,
        old_size=delta.old_size if before is None else before.size,
        new_size=delta.new_size if after is None else after.size,
        added=None if is_large else delta.added, removed=None if is_large else delta.removed,
        binary=delta.binary, large=is_large, sha256=after.sha256 if after is not None else None,
        risk=risk.of_change(delta, large=is_large), raw_path=raw_path, raw_old_path=raw_old_path,
    )  # fmt: skip


def _left_out(path: bytes, why: str, first: bool) -> LeftOut:
    shown, raw = _shown_path(path)
    return LeftOut(path=shown, reason=why, new=not first, raw_path=raw)


def _shown_path(path: bytes) -> tuple[str, bytes | None]:
    return encode_path(os.fsdecode(path))


MAX_EVENT_BYTES = 1 << 20
MAX_FILES = 5_000
MAX_ENTRIES = 200


@dataclass(frozen=True)
class ReviewView:
    review: Review
    paths: dict[str, bytes]


def review(
    workspace: ReviewedWorkspace,
    current: ReviewState,
    selected: Selection,
    state: HunkState | None,
    applied: Sequence[LedgerPatchSet],
) -> ReviewView:
    head = summary(workspace)
    hunks = HunkList()
    files: list[FileChange] = []
    paths: dict[str, bytes] = {}
    counts = {"open": 0, "accepted": 0, "rejected": 0}
    cut = False
    for changed in changed_files(current, selected):
        for unit in changed.hunks:
            counts[unit.state] += 1
            paths[unit.id] = changed.delta.path
        if state is None or any(unit.state == state for unit in changed.hunks):
            cut = cut or len(files) == MAX_FILES
            if len(files) < MAX_FILES:
                files.append(_file(workspace.state.large, changed, hunks.of(changed, state)))
    counts["applied"] = sum(len(file.hunks) for patch_set in applied for file in patch_set.files)
    if state == "applied":
        files = list(_applied(applied))[:MAX_FILES]
    found = msgspec.structs.replace(
        head,
        base=current.base,
        tip=current.tip,
        files=tuple(files),
        generated=selected.generated,
        failed=tuple(one.entry() for one in workspace.commands.read()[0].values() if one.failed)[-MAX_FAILED:],
        truncated=head.truncated or hunks.cut or cut,
        **counts,
    )
    return ReviewView(found, paths)


def _file(large: dict[str, LargeFile], changed: ReviewedFile, hunks: tuple[Hunk, ...]) -> FileChange:
    flags = tuple(dict.fromkeys(flag for unit in changed.hunks for flag in unit.risk))
    return msgspec.structs.replace(file_change(changed.delta, large), risk=flags, hunks=hunks)


def _applied(patch_sets: Iterable[LedgerPatchSet]) -> Iterator[FileChange]:
    for patch_set in patch_sets:
        shown: dict[str, list[Hunk]] = {}
        for hunk in patch_set.shown:
            shown.setdefault(hunk.path, []).append(msgspec.structs.replace(hunk, state="applied"))
        for file in patch_set.files:
            path, raw_path = readable_path(file.path)
            yield FileChange(path=path, kind=file.kind, hunks=tuple(shown.get(path, ())), raw_path=raw_path)


def in_state(patch_set: LedgerPatchSet, state: HunkState) -> tuple[Hunk, ...]:
    """Return the hunks of a patch set with a new state."""
    return tuple(msgspec.structs.replace(hunk, state=state) for hunk in patch_set.shown)


def hunk(current: ReviewState, filtered: PathFilter | None, name: str) -> Hunk | None:
    for changed in changed_files(current, filtered):
        for unit in changed.hunks:
            if unit.id == name:
                return HunkRenderer(changed).hunk(unit, None)
    return None


def decided(outcome: Outcome) -> DecisionResult:
    return DecisionResult(
        hunks=tuple(outcome.hunks), held_back=tuple(outcome.held_back), generated=outcome.generated
    )  # fmt: skip


def with_hunks(current: ReviewState, event: ReviewEvent) -> ReviewEvent:
    """A change, with the hunks of the whole review in the files that it touched."""
    files = {_raw(file.path, file.raw_path): file for file in event.files}
    hunks = HunkList(MAX_EVENT_BYTES)
    for changed in changed_files(current, lambda delta: delta.path in files):
        file = files[changed.delta.path]
        flags = tuple(dict.fromkeys(flag for unit in changed.hunks for flag in unit.risk))
        files[changed.delta.path] = msgspec.structs.replace(file, hunks=hunks.of(changed), risk=flags)
    return msgspec.structs.replace(event, files=tuple(files.values()))


def _raw(path: str, raw: bytes | None) -> bytes:
    return path.encode() if raw is None else raw


def accepted(workspace: ReviewedWorkspace, patch_set: LedgerPatchSet) -> PatchSet:
    files = tuple(_to_land(workspace.state.large, file) for file in patch_set.files)
    return PatchSet(
        sandbox=workspace.sandbox_id, path=workspace.path, base=patch_set.base, tip=patch_set.tip,
        digest=patch_set.digest, origin=workspace.state.origin, files=files,
        entries=tuple(_entries(workspace, patch_set)),
    )  # fmt: skip


def _to_land(large: dict[str, LargeFile], file: LedgerFilePatch) -> PatchSetFile:
    path, raw_path = readable_path(file.path)
    old_path, raw_old_path = readable_path(file.old_path) if file.old_path is not None else (None, None)
    before = large.get(file.old[1]) if file.old is not None else None
    after = large.get(file.new[1]) if file.new is not None else None
    return PatchSetFile(
        path=path, kind=file.kind, hunks=file.hunks, old_path=old_path,
        old_mode=file.old[0] if file.old else None, new_mode=file.new[0] if file.new else None,
        old_oid=file.old[1] if file.old else None, new_oid=file.new[1] if file.new else None,
        old_size=file.old_size if before is None else before.size,
        new_size=file.new_size if after is None else after.size,
        large=after is not None, sha256=after.sha256 if after is not None else None,
        raw_path=raw_path, raw_old_path=raw_old_path,
    )  # fmt: skip


def _entries(workspace: ReviewedWorkspace, patch_set: LedgerPatchSet) -> list[LedgerEntry]:
    """The commits that touched these files."""
    paths = [path for file in patch_set.files for path in (file.path, file.old_path) if path is not None]
    if not paths:
        return []
    found = workspace.ledger.history(paths=paths if len(paths) <= 500 else (), limit=MAX_ENTRIES)
    commits = [one for one in found if one.kind not in ("base", "pulled", "applied", "unapplied")]
    known = workspace.writers.snapshot()
    return joined(workspace, commits, known, workspace.commands.read()[0])


def whole(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from pieces


MAX_PRINTED = 16 << 10  # bytes of one command's output
MAX_NAMED = 20  # commands with output in the answer
OUTPUT_TIMEOUT_S = 10.0
ASLEEP = "(its output is in the sandbox, which is not running)"
GONE = "(its output is no longer kept)"
SILENT = "(its output could not be read in time)"


def origin(
    workspace: ReviewedWorkspace, current: ReviewState, filtered: PathFilter | None, name: str
) -> tuple[Hunk, list[LedgerEntry]] | None:
    """Blocking."""
    for changed in changed_files(current, filtered):
        for unit in changed.hunks:
            if unit.id == name:
                commits, path = origins(current.ledger, changed, unit), os.fsdecode(changed.delta.path)
                known = workspace.writers.snapshot()
                records = workspace.commands.read()[0]
                paths = {name: one.paths for name, one in records.items()}
                paths |= {name: one.paths for name, one in known.items() if one.paths}
                entries = joined(workspace, [only_named(one, path, paths) for one in commits], known, records)
                return HunkRenderer(changed).hunk(unit), entries
    return None


def named(entries: Sequence[LedgerEntry]) -> list[str]:
    """The newest commands, newest last, without agents of tool calls: their output is about more than this."""
    commands = [entry for entry in entries if entry.within is None]
    processes = dict.fromkeys(process for entry in reversed(commands) for process in reversed(entry.processes))
    return list(processes)[:MAX_NAMED][::-1]


async def printed(keeper: Keeper, process: str) -> str:
    """Its end, if it is long."""
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(OUTPUT_TIMEOUT_S):
            stream = await keeper.output(process, -MAX_PRINTED, limit=MAX_PRINTED)
            try:
                if stream.offset > 0:
                    pieces.append(b"[%d bytes before this]\n" % stream.offset)
                async for piece in stream:
                    pieces.append(
                        b"[%d bytes are gone]\n" % piece.missing if isinstance(piece, JournalGap) else piece[1]
                    )
            finally:
                await stream.aclose()
    except NotFound:
        return GONE
    except TimeoutError:
        return SILENT
    return b"".join(pieces).decode("utf-8", "replace")


REJECTIONS_TIMEOUT_S = 10.0  # for writing them into the sandbox
MAX_TEXT = 4 << 10
MAX_REJECTED_BYTES = 256 << 10
MAX_REJECTED = 500


def rejections(current: ReviewState | None) -> bytes:
    """Return the rejected hunks as JSON; without a state, an empty list. Blocking."""
    found: list[dict[str, Any]] = []
    truncated = False
    if current is not None:
        rejected = {
            path
            for path, body in current.decided.items()
            if any(decision.state == "rejected" for decision in decode_decisions(body))
        }
        room = MAX_REJECTED_BYTES
        for changed in changed_files(current, lambda delta: delta.path in rejected) if rejected else ():
            showing = HunkRenderer(changed, room)
            for unit in changed.hunks:
                if unit.state != "rejected":
                    continue
                if len(found) == MAX_REJECTED:
                    truncated = True
                    break
                hunk = showing.hunk(unit, MAX_TEXT)
                found.append(
                    {"path": hunk.path, "kind": hunk.kind, "line": hunk.new_start, "reason": hunk.reason,
                     "text": hunk.text, "truncated": hunk.truncated}
                )  # fmt: skip
            room = showing.room or 0
    return msgspec.json.format(msgspec.json.encode({"rejected": found, "truncated": truncated})) + b"\n"
