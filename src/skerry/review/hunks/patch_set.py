"""The patch set: accepted changes, ready to apply. After an apply or an undo, the base and the decisions move along."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from skerry.errors import Conflict
from skerry.review.hunks.atoms import join_lines, split_lines
from skerry.review.hunks.decisions import AppliedSpan, Decision, reverse_spans, shift_decisions
from skerry.review.hunks.hunks import FileHunk, HunkAction, ReviewedFile
from skerry.review.hunks.render import HunkRenderer
from skerry.review.hunks.review_state import ReviewState, changed_files, encode_decisions, file_entries
from skerry.review.hunks.selection import PathFilter
from skerry.review.ledger.commit_message import CommitInfo
from skerry.review.ledger.ledger import SYNCED, Drop, Ledger, Put
from skerry.types import Hunk

MAX_REASON_TEXT = 500
MAX_SHOWN_HUNKS, MAX_SHOWN_TEXT, MAX_SHOWN_BYTES = 1000, 4 << 10, 256 << 10
Entry = tuple[str, str]  # mode and blob


@dataclass(frozen=True)
class PatchedContent:
    """The content of one file with exactly its accepted hunks. `hunks`: the accepted ones; empty: nothing to apply.
    `gone`: the file is deleted. `data`: its content, or None if that is the blob `oid`. `places`: changed spans of the
    base, of which `edited` hold text written by the reviewer. `taken`: decisions that an apply completes."""

    hunks: tuple[str, ...] = ()
    gone: bool = False
    mode: str | None = None
    oid: str | None = None
    data: bytes | None = None
    places: tuple[AppliedSpan, ...] = ()
    edited: tuple[AppliedSpan, ...] = ()
    taken: tuple[Decision, ...] = ()


class LedgerFilePatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file, from its state in the base to its new state; None: absent. Other fields as in `PatchedContent`."""

    path: bytes
    kind: Literal["added", "modified", "deleted", "renamed"]
    hunks: tuple[str, ...]
    old_path: bytes | None = None
    old: Entry | None = None
    new: Entry | None = None
    old_size: int | None = None
    new_size: int | None = None
    whole: bool = False
    places: tuple[AppliedSpan, ...] = ()
    edited: tuple[AppliedSpan, ...] = ()
    taken: tuple[Decision, ...] = ()


class LedgerPatchSet(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` covers the files and their base. `shown`: the hunks, within a size limit, for a later view of the
    applied changes."""

    base: str
    tip: str
    digest: str
    files: tuple[LedgerFilePatch, ...]
    shown: tuple[Hunk, ...] = ()


def build_patch_set(state: ReviewState, only: PathFilter | None) -> LedgerPatchSet:
    """Build the patch set. Contents that no commit holds yet are written to the ledger."""
    files: list[LedgerFilePatch] = []
    shown: list[Hunk] = []
    room = MAX_SHOWN_BYTES
    for changed in changed_files(state, only):
        content = patched_content(changed)
        if content.hunks:
            files.append(_file(state, changed, content))
            showing = HunkRenderer(changed, room)
            accepted = [hunk for hunk in changed.hunks if hunk.state == "accepted"][: MAX_SHOWN_HUNKS - len(shown)]
            shown += [showing.hunk(hunk, MAX_SHOWN_TEXT) for hunk in accepted]
            room = showing.room or 0
    identity = [(one.path, one.old_path, one.kind, one.old, one.new, one.hunks) for one in files]
    digest = hashlib.sha256(msgspec.msgpack.encode((state.base, identity))).hexdigest()
    return LedgerPatchSet(base=state.base, tip=state.tip, digest=digest, files=tuple(files), shown=tuple(shown))


def _file(state: ReviewState, changed: ReviewedFile, content: PatchedContent) -> LedgerFilePatch:
    delta = changed.delta
    oid = content.oid if content.data is None else state.ledger.write(content.data)
    new = None if content.gone or content.mode is None or oid is None else (content.mode, oid)
    old = (delta.old_mode, delta.old_oid) if delta.old_mode is not None and delta.old_oid is not None else None
    sizes = {delta.old_oid: delta.old_size, delta.new_oid: delta.new_size}
    return LedgerFilePatch(
        old_size=delta.old_size,
        new_size=None if new is None else sizes.get(oid) if content.data is None else len(content.data),
        path=delta.path, kind=delta.kind, hunks=content.hunks, old_path=delta.old_path, old=old, new=new,
        whole=not changed.is_text and any(decision.whole for decision in content.taken) and old != new,
        places=content.places, edited=content.edited, taken=content.taken,
    )  # fmt: skip


def patched_content(changed: ReviewedFile) -> PatchedContent:
    delta = changed.delta
    accepted = [hunk for hunk in changed.hunks if hunk.state == "accepted"]
    hunks = tuple(hunk.id for hunk in accepted)
    if not accepted:
        return PatchedContent(mode=delta.old_mode, oid=delta.old_oid)
    taken = tuple(_applied_decision(changed, hunk) for hunk in accepted)
    kinds = {hunk.kind for hunk in accepted}
    if not changed.is_text and kinds != {"mode"}:
        edited = accepted[0].edited
        return PatchedContent(
            hunks=hunks, gone="deleted" in kinds, mode=delta.new_mode, taken=taken,
            oid=delta.new_oid if edited is None else None, data=edited,
            edited=(AppliedSpan(0, 0, len(split_lines(edited))),) if edited is not None else (),
        )  # fmt: skip
    mode = delta.new_mode if "mode" in kinds else delta.old_mode
    texts = [hunk for hunk in accepted if hunk.segments]
    if not texts:
        return PatchedContent(hunks=hunks, mode=mode, oid=delta.old_oid, taken=taken)
    places = [(place, content) for hunk in texts for place, content in _places(changed, hunk)]
    edits = {id(hunk) for hunk in texts if hunk.edited is not None}
    whole = not edits and sum(len(hunk.segments) for hunk in texts) == len(changed.segments)
    return PatchedContent(
        hunks=hunks, mode=mode, oid=delta.new_oid if whole else None, taken=taken,
        data=None if whole else _spliced(changed, places),
        places=tuple(place for place, _ in places),
        edited=tuple(_places(changed, hunk)[0][0] for hunk in texts if id(hunk) in edits),
    )  # fmt: skip


def _applied_decision(changed: ReviewedFile, hunk: FileHunk) -> Decision:
    decision = hunk.decision or Decision(state="accepted")
    return Decision(
        state="accepted", marks=tuple(map(changed.kept_mark, hunk.segments)), whole=hunk.whole, reason=decision.reason,
        edited=decision.edited, split=decision.split, at=decision.at,
    )  # fmt: skip


def _places(changed: ReviewedFile, hunk: FileHunk) -> list[tuple[AppliedSpan, list[bytes]]]:
    """Return the new lines of each span. An edit replaces everything from the first changed line to the last."""
    if hunk.edited is not None:
        content = split_lines(hunk.edited)
        return [(AppliedSpan(hunk.segments[0].start, hunk.segments[-1].end, len(content)), content)]
    return [
        (
            AppliedSpan(segment.start, segment.end, segment.new_end - segment.new_start),
            changed.tip[segment.new_start : segment.new_end],
        )
        for segment in hunk.segments
    ]


def _spliced(changed: ReviewedFile, places: list[tuple[AppliedSpan, list[bytes]]]) -> bytes:
    whole: list[bytes] = []
    at = 0
    for place, content in places:
        whole += changed.base[at : place.start]
        whole += content
        at = place.end
    whole += changed.base[at:]
    return join_lines(whole)


# -- apply ----------------------------------------------------------------------------------------------------------


def record_apply(
    state: ReviewState, patch_set: LedgerPatchSet, info: CommitInfo
) -> tuple[ReviewState, dict[bytes, bytes]]:
    """Move the base past an apply. Return the new state and the changed decisions, encoded. Skip a file if its base has
    neither the old nor the new content, because another apply changed it. Idempotent: repeated, the base moves once."""
    now = file_entries(state.ledger, state.base)
    files = [one for one in patch_set.files if _at(now, one) in ("old", "new")]
    changes: dict[bytes, Entry | None] = {}
    for one in files:
        if _at(now, one) == "old":
            if one.old_path is not None:
                changes[one.old_path] = None
            changes[one.path] = one.new
    base = state.ledger.move_base(changes, info) if changes else state.base
    decided: dict[bytes, bytes] = {}
    for one in files:
        if one.old_path is not None:
            decided[one.old_path] = b""
        decided[one.path] = encode_decisions(_decisions_after(state.decisions(one.path), one))
    after = _replaced(state, base, decided)
    decided |= _edits(after, [one for one in files if one.edited])
    return _replaced(after, base, decided), decided


def _replaced(state: ReviewState, base: str, decided: dict[bytes, bytes]) -> ReviewState:
    known = {path: body for path, body in {**state.decided, **decided}.items() if body}
    return replace(state, base=base, decided=known)


def _at(now: dict[bytes, Entry], one: LedgerFilePatch) -> Literal["old", "new", "other"]:
    here = now.get(one.path)
    if one.kind == "renamed":
        there = now.get(one.old_path or b"")
        return "old" if there == one.old and here is None else "new" if there is None and here == one.new else "other"
    return "old" if here == one.old else "new" if here == one.new else "other"


def _decisions_after(decisions: Sequence[Decision], one: LedgerFilePatch) -> list[Decision]:
    return shift_decisions(_without(decisions, one), one.places)


def _without(decisions: Sequence[Decision], one: LedgerFilePatch) -> list[Decision]:
    """Return the decisions that this file patch does not complete."""
    done = {(mark.start, mark.old, mark.digest) for taken in one.taken for mark in taken.marks}
    wholes = {taken.whole for taken in one.taken}
    left = []
    for decision in decisions:
        if decision.whole is not None:
            if decision.whole not in wholes:
                left.append(decision)
            continue
        marks = tuple(mark for mark in decision.marks if (mark.start, mark.old, mark.digest) not in done)
        if marks and not one.whole and (decision.edited is None or len(marks) == len(decision.marks)):
            left.append(msgspec.structs.replace(decision, marks=marks))
    return left


def _edits(state: ReviewState, files: Sequence[LedgerFilePatch]) -> dict[bytes, bytes]:
    """Reject hunks at places where an edited text was applied instead of the sandbox's text."""
    if not files:
        return {}
    spans = {one.path: [(s, e) for s, e in _spans(one)] for one in files}
    decided: dict[bytes, bytes] = {}
    for changed in changed_files(state, lambda delta: delta.path in spans):
        parts = changed.with_decisions(
            changed.decided(
                {u.id: HunkAction("split") for u in changed.hunks if len(u.segments) > 1 and u.state == "open"}, 0
            )
        )
        actions = {}
        for hunk in parts.hunks:
            if hunk.segments and any(
                s <= hunk.segments[0].start and hunk.segments[-1].end <= e for s, e in spans[_of(changed)]
            ):
                actions[hunk.id] = HunkAction(
                    "reject", _edit_reason(changed, hunk.segments[0].start, hunk.segments[-1].end)
                )
        if actions:
            decisions = parts.decided(actions, 0.0)
            decided[_of(changed)] = encode_decisions(
                [one for one in decisions if not (one.split and one.state == "open")]
            )
    return decided


def _of(changed: ReviewedFile) -> bytes:
    return changed.delta.path


def _spans(one: LedgerFilePatch) -> list[tuple[int, int]]:
    """Return the spans of edits in the new base."""
    if not one.places:
        return [(place.start, place.start + place.lines) for place in one.edited]
    back = dict(zip(one.places, reverse_spans(one.places), strict=True))
    return [(back[place].start, back[place].end) for place in one.edited]


def _edit_reason(changed: ReviewedFile, start: int, end: int) -> str:
    text = b"".join(changed.base[start:end]).decode("utf-8", "replace")
    cut = text if len(text) <= MAX_REASON_TEXT else f"{text[:MAX_REASON_TEXT]}…"
    return (
        f"the hunk was edited before it was applied; applied instead:\n{cut}"
        if cut
        else "the hunk was edited out before the apply"
    )


# -- undo -----------------------------------------------------------------------------------------------------------


def record_undo(
    state: ReviewState, patch_set: LedgerPatchSet, info: CommitInfo
) -> tuple[ReviewState, dict[bytes, bytes]]:
    """Move the base back; hunks that were accepted before the apply are accepted again. Raise Conflict if another apply
    changed a file since. Idempotent: repeated, the base moves once."""
    now = file_entries(state.ledger, state.base)
    changes: dict[bytes, Entry | None] = {}
    for one in patch_set.files:
        match _at(now, one):
            case "new" if one.new != one.old or one.old_path is not None:
                changes[one.path] = None if one.old_path is not None else one.old
                if one.old_path is not None:
                    changes[one.old_path] = one.old
            case "other":
                raise Conflict(
                    f"{one.path.decode('utf-8', 'replace')}: another apply changed it since",
                    hint="undo that apply first",
                )
    base = state.ledger.move_base(changes, info) if changes else state.base
    decided = {}
    for one in patch_set.files:
        before = shift_decisions(state.decisions(one.path), reverse_spans(one.places)) if not one.whole else []
        decided[one.path] = encode_decisions([*_without(before, one), *one.taken])
    return _replaced(state, base, decided), decided


def record_working_tree(ledger: Ledger, patch_set: LedgerPatchSet, info: CommitInfo, *, applied: bool) -> None:
    """Move the user's files as read last past an apply to the working tree, or its undo: the user has or lost these
    changes. Files that differ there in another way stay: the next pull merges them. Idempotent."""
    now = file_entries(ledger, ledger.synced)
    changes: list[Put | Drop] = []
    for one in patch_set.files:
        if _at(now, one) != ("old" if applied else "new") or (one.old == one.new and one.old_path is None):
            continue
        source = one.old_path if one.old_path is not None else one.path
        gone, path, entry = (source, one.path, one.new) if applied else (one.path, source, one.old)
        changes += [Drop(gone)] if entry is None or gone != path else []
        changes += [Put(path, entry[0], oid=entry[1])] if entry is not None else []
    if changes:
        ledger.move(SYNCED, changes, info)


def decode_patch_set(body: bytes) -> LedgerPatchSet:
    return msgspec.msgpack.decode(body, type=LedgerPatchSet)
