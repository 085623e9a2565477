"""StepComparison of a step with its repetition: exit code, output, values, changed files. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from skerry.client.replay.normalise import FILE_RULES, Normalised, Window, normalise
from skerry.errors import InvalidRequest
from skerry.types import SnapshotDiff, decode_path
from skerry.types.replays import ReplayDifference, Verdict
from skerry.types.traces import TraceChanges, TraceContent, TraceEnd

MAX_DIFF_LINES = 40
MAX_DIFF_LINE = 300  # characters
MAX_COMPARED_LINES = 300  # of each side, from the first different line
MAX_PATHS = 40
MAX_KEPT = 1 << 20  # bytes of an output
ENDS = ("exit_code", "signal", "timed_out", "oom_killed")
CONTENTS = ("stdout", "stderr", "results")


class TraceBlobs(Protocol):
    def pieces(self, sha256: str) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class RunSide:
    """One of the two runs: the contents of its trace, and the time from its start to the end of the step."""

    blobs: TraceBlobs
    window: Window

    def kept(self, content: TraceContent) -> bytes:
        """Return the kept bytes of an output. A trace from elsewhere may have more than the server keeps."""
        if content.blob is None:
            return content.data if content.data is not None else (content.text or "").encode("utf-8", "surrogateescape")
        kept = b""
        for piece in self.blobs.pieces(content.blob):
            kept += piece
            if len(kept) > MAX_KEPT:
                raise InvalidRequest(f"this is not an exported trace: an output has more than {MAX_KEPT} bytes")
        return kept


@dataclass(frozen=True)
class StepComparison:
    """The differences of a step, and the rules without which there were more."""

    differences: tuple[ReplayDifference, ...] = ()
    rules: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return "different" if self.differences else "normalised" if self.rules else "same"

    def __add__(self, other: StepComparison) -> StepComparison:
        return StepComparison(
            (*self.differences, *other.differences), tuple(dict.fromkeys((*self.rules, *other.rules)))
        )  # fmt: skip


def different(part: str, before: object, after: object, diff: str | None = None) -> StepComparison:
    texts = (None if value is None else _cut(str(value)) for value in (before, after))
    return StepComparison((ReplayDifference(part=part, before=next(texts), after=next(texts), diff=diff),))


def compare_ends(before: TraceEnd, first: RunSide, after: TraceEnd, second: RunSide) -> StepComparison:
    """Compare the ends of a step in both runs."""
    found = StepComparison()
    for name in ENDS:
        if (was := getattr(before, name)) != (now := getattr(after, name)):
            found += different(name, was, now)
    was, now = (_error(end) for end in (before, after))
    found += compare_texts("error", was, first, now, second)
    for name in CONTENTS:
        found += compare_contents(name, getattr(before, name), first, getattr(after, name), second)
    if before.cwd != after.cwd:
        found += compare_texts("cwd", before.cwd or "", first, after.cwd or "", second)
    return found


def _error(end: TraceEnd) -> str:
    return f"{end.error.code}: {end.error.message}" if end.error is not None else ""


def compare_contents(
    part: str, before: TraceContent | None, first: RunSide, after: TraceContent | None, second: RunSide
) -> StepComparison:
    """Compare two streams. Contents that are not kept as a whole are the same only if their hashes are."""
    before, after = before or _EMPTY, after or _EMPTY
    if before.size == after.size and (before.sha256 == after.sha256 is not None or before.size == 0):
        return StepComparison()
    found = compare_texts(part, _text(first.kept(before)), first, _text(second.kept(after)), second)
    if not found.differences and not (before.whole and after.whole):
        return different(part, f"{before.size} bytes, not kept as a whole", f"{after.size} bytes, not kept as a whole")
    return found


_EMPTY = TraceContent(size=0)


def compare_texts(part: str, before: str, first: RunSide, after: str, second: RunSide) -> StepComparison:
    if before == after:
        return StepComparison()
    was, now = normalise(before, first.window), normalise(after, second.window)
    if was == now:
        return StepComparison(rules=was.rules)
    return different(part, _size(before), _size(after), diff_of(was, now))


def _size(text: str) -> str:
    return f"{len(text)} characters"


def diff_of(before: Normalised, after: Normalised) -> str:
    """Return a bounded unified diff. Only lines from the first difference on are aligned: the alignment of long texts
    takes quadratic time, and the texts come from a program that may want that."""
    old, new = (str(text).splitlines() for text in (before, after))
    first = next((n for n, (one, two) in enumerate(zip(old, new, strict=False)) if one != two), min(len(old), len(new)))
    start = max(0, first - 3)
    old, new = (lines[start : start + MAX_COMPARED_LINES] for lines in (old, new))
    if old == new:  # the placeholder of a value is spelled like this text
        return "(the same text, once as a value that may differ and once as plain text)"
    lines = list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=3))
    shown = [_cut(line) for line in lines[2:][:MAX_DIFF_LINES]]
    if len(lines) - 2 > MAX_DIFF_LINES:
        shown.append(f"… {len(lines) - 2 - MAX_DIFF_LINES} more lines")
    return "\n".join(shown)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_DIFF_LINE else f"{line[:MAX_DIFF_LINE]}…"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# -- files -------------------------------------------------------------------------------------------------------------

FileState = tuple[str, str | None]  # mode and SHA-256 hash


class ChangedFiles:
    """The files that a run changed so far, below the workspaces of its reviews."""

    def __init__(self) -> None:
        self._files: dict[str, FileState | None] = {}
        self._hashes: list[str] = []  # of changes that were too many to list

    def add(self, changes: TraceChanges) -> None:
        for file in changes.files:
            path = decode_path(file.path, file.raw_path)
            self._files[path] = None if file.mode is None else (file.mode, file.sha256)
        if changes.omitted:
            self._hashes.append(changes.sha256)

    def differences(
        self, other: ChangedFiles, base: Set[str] | None = None
    ) -> dict[str, tuple[FileState | None, FileState | None]]:
        """Return the paths that differ, with their state on both sides. A file that one run did not touch is in its
        original state there. `base`: the paths at the start, if they are known. A review that collects changes in the
        middle of a command can see a temporary file, so a removed path that is not among them was never there."""
        paths = self._files.keys() | other._files.keys()
        found = {
            path: (self._files.get(path, _UNTOUCHED), other._files.get(path, _UNTOUCHED)) for path in sorted(paths)
        }
        found = {path: states for path, states in found.items() if states[0] != states[1]}
        if base is not None:
            absent = (None, _UNTOUCHED)
            found = {
                path: (before, after)
                for path, (before, after) in found.items()
                if path in base or not (before in absent and after in absent)
            }
        if self._hashes != other._hashes:
            found["(files above the maximum number)"] = None, None
        return found


_UNTOUCHED: FileState = ("untouched", None)
Differences = Mapping[str, tuple[FileState | None, FileState | None]]


def compare_trees(diff: SnapshotDiff, root: str) -> StepComparison:
    """Compare the files below a directory at the end of both runs. `diff`: from the second run to the first. Git's own
    files are left out: its index holds times and inodes."""
    found: dict[str, tuple[FileState | None, FileState | None]] = {}
    for change in diff:
        path = decode_path(change.path, change.raw_path)
        below = path.startswith(f"{root.rstrip('/')}/") and ".git" not in path.split("/")
        if not below or (change.type == "directory" and change.kind == "modified"):
            continue
        first: FileState | None = (change.type, "(before)") if change.kind != "deleted" else None
        second: FileState | None = (change.type, "(after)") if change.kind != "added" else None
        found[path] = first, second
    return compare_files(found, {})


def compare_files(now: Differences, known: Differences) -> StepComparison:
    """Compare the changed files of both runs. `known`: the differences that an earlier step has been reported with."""
    fresh = {path: states for path, states in now.items() if known.get(path) != states}
    derived = {path: rule for path in fresh if (rule := _derived(path, fresh[path])) is not None}
    lines = [_file_line(path, *fresh[path]) for path in fresh if path not in derived]
    rules = tuple(dict.fromkeys(derived.values()))
    if not lines:
        return StepComparison(rules=rules)
    more = [f"… {len(lines) - MAX_PATHS} more files"] if len(lines) > MAX_PATHS else []
    names = (_count(lines), None)
    return different("files", *names, "\n".join([*lines[:MAX_PATHS], *more])) + StepComparison(rules=rules)


def _derived(path: str, states: Iterable[FileState | None]) -> str | None:
    """Return the rule that lets the contents differ; None if one run lacks the file, or has it with another mode."""
    modes = {state[0] if state is not None and state != _UNTOUCHED else None for state in states}
    if len(modes) > 1 or None in modes:
        return None
    return next((rule.name for rule in FILE_RULES if re.search(rule.pattern, path)), None)


def _count(lines: list[str]) -> str:
    return f"{len(lines)} files differ" if len(lines) > 1 else "1 file differs"


def _file_line(path: str, before: FileState | None, after: FileState | None) -> str:
    return _cut(f"{path}: {_state(before)} -> {_state(after)}")


def _state(state: FileState | None) -> str:
    if state is None:
        return "removed"
    return state[0] if state[1] is None else f"{state[0]} {state[1][:12]}"
