"""Apply a request for decisions to a review: all of it, or nothing. Pure, except for reading the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skerry.errors import Conflict, InvalidRequest, SkerryError
from skerry.review.hunks.hunks import FileHunk, HunkAction, ReviewedFile
from skerry.review.hunks.render import HunkList
from skerry.review.hunks.review_state import (
    ReviewState,
    changed_files,
    encode_decisions,
    normalize_paths,
)
from skerry.review.hunks.selection import PathFilter, Selection
from skerry.types import Decisions, GeneratedFiles, Hunk, HunkState

_RESULTS: Mapping[str, HunkState | None] = {
    "accept": "accepted", "reject": "rejected", "reopen": "open", "split": None, "edit": None,
}  # fmt: skip
Known = Mapping[str, bytes]
"""The path of each hunk that is already known."""
_UNNAMED = (None, "local")
"""Stored by earlier versions for all users of the unix socket: it names no reviewer."""


@dataclass
class Outcome:
    """`decided`: the encoded decisions of each path that the request changed. `hunks`: the changed hunks afterwards, as
    far as there is room. `paths`: the paths of all hunks in these files. `held_back`: hunks with a risk, which a bulk
    accept skips; `generated`: files that any bulk decision skips."""

    decided: dict[bytes, bytes] = field(default_factory=dict)
    hunks: list[Hunk] = field(default_factory=list)
    paths: dict[str, bytes] = field(default_factory=dict)
    held_back: list[Hunk] = field(default_factory=list)
    generated: tuple[GeneratedFiles, ...] = ()


def decide(
    state: ReviewState,
    request: Decisions,
    known: Known,
    at: float,
    *,
    by: str | None = None,
    only: Selection | None = None,
) -> Outcome:
    """Return the outcome. `by`: the caller. `only`: a selection in place of the request's paths, which cannot name
    every path."""
    named = actions_of(request)
    bulk = (only or _selection(state, request)) if request.do else None
    outcome, found, shown, shown_held = Outcome(), set(), HunkList(), HunkList()
    decided_meanwhile: list[FileHunk] = []
    with_others = _changed_since(state, request) if bulk is not None else set()
    for changed in changed_files(state, _where(named, known, bulk)):
        actions: dict[str, HunkAction] = {}
        held: set[str] = set()
        swept = bulk is not None and (not named or bulk(changed.delta))  # without names, only files that it selects
        for hunk in changed.hunks:
            if hunk.id in named:
                found.add(hunk.id)
                if _overrides(hunk, named[hunk.id], request.seen.get(hunk.id), by):
                    decided_meanwhile.append(hunk)
                actions[hunk.id] = check_action(changed, hunk, named[hunk.id])
            elif swept and request.do == "accept" and hunk.state == "open" and hunk.risk:
                held.add(hunk.id)
            elif swept and _applies_to(hunk, request.do):
                actions[hunk.id] = HunkAction(request.do or "reopen", request.reason)
        if swept and actions and changed.delta.path in with_others:
            raise _changed(f"{_spelled(changed)} changed since you read the review")
        if held:
            outcome.held_back += shown_held.of(changed, ids=held)
        if actions:
            _record(outcome, shown, changed, actions, at, by)
    if decided_meanwhile:
        raise _decided(decided_meanwhile, by)
    if missing := [hunk_id for hunk_id in named if hunk_id not in found]:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _changed(f"{missing[0]} has changed or is gone{more}", missing)
    outcome.generated = bulk.generated if bulk is not None else ()
    return outcome


def _selection(state: ReviewState, request: Decisions) -> Selection:
    return state.select(normalize_paths(request.paths), request.exclude)


def _overrides(hunk: FileHunk, action: HunkAction, seen: HunkState | None, by: str | None) -> bool:
    """Return whether the action would replace a decision that its caller does not know of."""
    if _RESULTS[action.do] == hunk.state and hunk.edited is None:
        return False
    if seen is not None:
        return seen != hunk.state
    return hunk.state != "open" and hunk.decision is not None and hunk.decision.by not in (*_UNNAMED, by)


def _decided(hunks: list[FileHunk], caller: str | None) -> Conflict:
    first = hunks[0]
    by = first.decision.by if first.decision is not None else None
    verb = "reopened" if first.state == "open" else first.state
    when = "before" if by is not None and by == caller else "meanwhile"
    more = f", and {len(hunks) - 1} more changed" if len(hunks) > 1 else ""
    return Conflict(
        f"{first.id} was {verb} {when}{f' by {by}' if by and verb != 'reopened' else ''}{more}",
        hint="nothing was decided: read the review again and decide about the current state",
        details={"decided": [{"hunk": hunk.id, "state": hunk.state} for hunk in hunks[:100]]},
    )


def _record(
    outcome: Outcome,
    shown: HunkList,
    changed: ReviewedFile,
    actions: dict[str, HunkAction],
    at: float,
    by: str | None,
) -> None:
    before = {hunk.id: hunk for hunk in changed.hunks}
    decisions = changed.decided(actions, at, by)
    after = changed.with_decisions(decisions)
    differ = {
        hunk.id
        for hunk in after.hunks
        if hunk.id in actions or hunk.id not in before or hunk.decision != before[hunk.id].decision
    }
    outcome.decided[changed.delta.path] = encode_decisions(decisions)
    outcome.hunks += shown.of(after, ids=differ)
    outcome.paths.update({hunk.id: changed.delta.path for hunk in after.hunks})


def actions_of(request: Decisions) -> dict[str, HunkAction]:
    said = [
        *((hunk_id, HunkAction("accept", request.reason)) for hunk_id in request.accept),
        *((hunk_id, HunkAction("reject", request.reason)) for hunk_id in request.reject),
        *((hunk_id, HunkAction("reopen")) for hunk_id in request.reopen),
        *((hunk_id, HunkAction("split")) for hunk_id in request.split),
        *((hunk_id, HunkAction("edit", request.reason, text.encode())) for hunk_id, text in request.edit.items()),
    ]
    named = dict(said)
    if len({(hunk_id, action.do) for hunk_id, action in said}) > len(named):
        raise InvalidRequest("a hunk is named twice with different actions")
    return named


def check_action(changed: ReviewedFile, hunk: FileHunk, action: HunkAction) -> HunkAction:
    """Return the action, adjusted, or raise InvalidRequest if the hunk does not allow it."""
    if action.do == "split" and len(hunk.segments) < 2:
        raise InvalidRequest(f"{hunk.id} can't be split: it is a single change", hint="edit it")
    if action.text is None:
        return action
    if hunk.kind not in ("text", "added"):
        raise InvalidRequest(f"{hunk.id} can't be edited: it concerns a whole file")
    first, last = (hunk.segments[0], hunk.segments[-1]) if hunk.segments else (None, None)
    span = changed.tip[first.new_start : last.new_end] if first and last else changed.tip
    try:
        b"".join(span).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{hunk.id} can't be edited: it is not UTF-8") from None
    ends_the_file = last is None or last.end == len(changed.base)
    if action.text and not action.text.endswith(b"\n") and not ends_the_file:
        return action._replace(text=action.text + b"\n")
    return action


def _where(named: Mapping[str, HunkAction], known: Known, bulk: PathFilter | None) -> PathFilter | None:
    """Return a filter for the files that must be read; None means all."""
    if any(hunk_id not in known for hunk_id in named):
        return None
    if not named and bulk is not None:
        return bulk
    paths = {known[hunk_id] for hunk_id in named}
    return lambda delta: delta.path in paths or (bulk is not None and bulk(delta))


def _applies_to(hunk: FileHunk, do: str | None) -> bool:
    return hunk.state != "open" if do == "reopen" else hunk.state == "open"


def _changed_since(state: ReviewState, request: Decisions) -> set[bytes]:
    """Return the paths that changed since the caller's tip."""
    if request.tip is None or request.tip == state.tip:
        return set()
    try:
        return {delta.path for delta in state.ledger.deltas(request.tip, state.tip)}
    except SkerryError as error:
        raise InvalidRequest(f"tip: {request.tip[:80]!r} is no commit of this ledger") from error


def _spelled(changed: ReviewedFile) -> str:
    return changed.delta.path.decode("utf-8", "replace")


def _changed(message: str, hunks: list[str] | None = None) -> Conflict:
    return Conflict(
        message,
        hint="its content changed or it was applied: read the review again and decide about the current hunks",
        details={"hunks": hunks[:100]} if hunks else {},
    )
