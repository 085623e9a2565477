"""The report of a replay: each step of the trace beside its repetition. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import msgspec

from skerry.client.replay.actions import COMMANDS, LEFT_OUT, STATES, ReplayAction, start_of
from skerry.client.replay.compare import (
    ChangedFiles,
    Differences,
    RunSide,
    StepComparison,
    compare_ends,
    compare_files,
    different,
)
from skerry.client.replay.normalise import ALL_RULES, Window
from skerry.codecs.traces import TraceFile
from skerry.errors import SkerryError
from skerry.types import Result
from skerry.types.replays import ReplayDifference, ReplayReport, ReplayStep, Verdict
from skerry.types.traces import TraceContent, TraceEnd, TraceError, TraceStep

VERDICTS: dict[Verdict, str] = {
    "same": "same",
    "normalised": "same after normalising",
    "different": "different",
    "skipped": "skipped",
}


@dataclass(frozen=True)
class Observation:
    """The outcome of a repeated step as the client saw it. `process`: its ID in the replay. `end`: of a background
    process. `error`: of the request. `reason`: why the step could not be repeated."""

    process: str | None = None
    end: TraceEnd | None = None
    error: SkerryError | None = None
    reason: str | None = None


def end_of(result: Result) -> TraceEnd:
    """Return the end of a command as a trace has it."""
    return TraceEnd(
        of=0, at=0.0, exit_code=result.exit_code, signal=result.signal, timed_out=result.timed_out,
        oom_killed=result.oom_killed, duration_s=result.duration_s,
        stdout=_content(result, result.stdout_bytes), stderr=_content(result, result.stderr_bytes),
    )  # fmt: skip


def _content(result: Result, data: bytes) -> TraceContent:
    if result.truncated:
        return TraceContent(size=len(data), left_out="it is too long")
    return TraceContent(size=len(data), sha256=hashlib.sha256(data).hexdigest(), data=data)


def _error_end(error: SkerryError) -> TraceEnd:
    return TraceEnd(of=0, at=0.0, error=TraceError(code=error.code, message=error.message))


# -- from the trace of the replay to its steps -------------------------------------------------------------------------


def matched(
    actions: Sequence[ReplayAction], observed: Mapping[int, Observation], steps: Sequence[TraceStep]
) -> dict[int, TraceStep]:
    """Return the steps of the replay's trace by the numbers in the original trace. Requests were sent one after the
    other, so steps of one kind have the same order; a request that failed early has no step."""
    by_process = {step.process: step for step in steps if step.kind in ("process.run", "process.spawn")}
    by_kind: dict[str, Iterator[TraceStep]] = {}
    waiting: dict[str, TraceStep | None] = {}
    grouped: dict[str, list[TraceStep]] = defaultdict(list)
    for step in steps:
        grouped[step.kind].append(step)
    found: dict[int, TraceStep] = {}
    for action in actions:
        seen, kind = observed.get(action.step.n, Observation(reason="")), action.step.kind
        if seen.reason is not None:
            continue
        if seen.process is not None:
            if (started := by_process.get(seen.process)) is not None:
                found[action.step.n] = started
            continue
        following = by_kind.setdefault(kind, iter(grouped[kind]))
        candidate = waiting.pop(kind, None) or next(following, None)
        if candidate is not None and _fits(candidate, seen):
            found[action.step.n] = candidate
        else:
            waiting[kind] = candidate
    return found


def _fits(step: TraceStep, seen: Observation) -> bool:
    if seen.error is None:
        return True
    return step.end is not None and step.end.error is not None and step.end.error.code == seen.error.code


# -- the report --------------------------------------------------------------------------------------------------------


@dataclass
class _Pair:
    """Both traces."""

    before: TraceFile
    after: TraceFile
    actions: Sequence[ReplayAction]
    observed: Mapping[int, Observation]
    beyond: TraceStep | None  # the step of the original that the replay did not repeat
    base: Set[str] | None
    trees: StepComparison

    def steps(self) -> Iterator[ReplayStep]:
        again = matched(self.actions, self.observed, self.after.trace.steps)
        files = _FileComparison(self.before.trace.steps, self.after.trace.steps, self.base)
        for n, action in enumerate(self.actions):
            is_last = n + 1 == len(self.actions)
            following = self.beyond if is_last else self.actions[n + 1].step
            found, reason = self._compared(action, again.get(action.step.n))
            if following is None:
                found += files.compared(None, None) + self.trees
            elif following.kind in COMMANDS and (is_last or following.n in again):
                found += files.compared(following.n, None if is_last else again[following.n].n)
            verdict = found.verdict if found.differences or reason is None else "skipped"
            yield ReplayStep(
                n=action.step.n, kind=action.step.kind, text=action.step.text, verdict=verdict, rules=found.rules,
                differences=found.differences, reason=reason,
            )  # fmt: skip

    def _compared(self, action: ReplayAction, again: TraceStep | None) -> tuple[StepComparison, str | None]:
        """Return the comparison of the ends, and the reason if they were not compared."""
        step, seen = action.step, self.observed.get(action.step.n, Observation(reason="it was not reached"))
        if step.kind in LEFT_OUT:
            return StepComparison(), LEFT_OUT[step.kind]
        if seen.reason is not None:
            return different("step", "repeatable", seen.reason), seen.reason
        if step.end is None and step.kind in ("process.spawn", *STATES):  # it still ran; or it is an event
            return StepComparison(), None
        if action.is_interrupted or step.end is None:
            return StepComparison(), "its end was not recorded, or its caller did not wait for it"
        end = again.end if again is not None and again.end is not None else seen.end
        end = end or (_error_end(seen.error) if seen.error is not None else None)
        if end is None:
            return different("step", "ended", "no end was recorded"), None
        if step.kind not in COMMANDS:  # its result may have new IDs
            end, was = (msgspec.structs.replace(one, stdout=None, stderr=None) for one in (end, step.end))
            return compare_ends(was, self._side(self.before, was), end, self._side(self.after, end)), None
        return compare_ends(step.end, self._side(self.before, step.end), end, self._side(self.after, end)), None

    @staticmethod
    def _side(trace: TraceFile, end: TraceEnd) -> RunSide:
        start, _ = start_of(trace.trace.steps)
        last = max((step.at for step in trace.trace.steps[-1:]), default=end.at)
        return RunSide(trace, Window(start=start.created_at, end=end.at or last))


class _FileComparison:
    """The changed files of both runs, step by step."""

    def __init__(self, before: Sequence[TraceStep], after: Sequence[TraceStep], base: Set[str] | None) -> None:
        self._base = base
        self._changes = tuple([step for step in steps if step.changes is not None] for steps in (before, after))
        self._trees, self._at = (ChangedFiles(), ChangedFiles()), [0, 0]
        self._known: Differences = {}

    def compared(self, *until: int | None) -> StepComparison:
        """Compare the files before the steps with these numbers; None: at the end. A review collects changes before
        each command, so these are the moments at which both runs have collected the same."""
        for side, number in enumerate(until):
            changes = self._changes[side]
            while self._at[side] < len(changes) and (number is None or changes[self._at[side]].n < number):
                found = changes[self._at[side]].changes
                if found is not None:
                    self._trees[side].add(found)
                self._at[side] += 1
        now = self._trees[0].differences(self._trees[1], self._base)
        known, self._known = self._known, now
        return compare_files(now, known)


def report_of(
    before: TraceFile, after: TraceFile, actions: Sequence[ReplayAction], observed: Mapping[int, Observation], *,
    beyond: TraceStep | None, base: Set[str] | None, trees: StepComparison, sandbox: str, kept: bool,
    notes: Sequence[str] = (),
) -> ReplayReport:  # fmt: skip
    """Compare the traces of both runs. `beyond`: the first step after the last one that was repeated. `base`: the paths
    at the start of the review, if they are known. `trees`: the comparison of the files at the end without a review."""
    start, _ = start_of(before.trace.steps)
    steps = tuple(_Pair(before, after, actions, observed, beyond, base, trees).steps())
    verdicts = {step.verdict for step in steps}
    verdict: Verdict = "different" if "different" in verdicts else "normalised" if "normalised" in verdicts else "same"
    return ReplayReport(
        source=start.sandbox, image=start.image, image_digest=start.image_digest, sandbox=sandbox, kept=kept,
        verdict=verdict, steps=steps, notes=tuple(notes), rules=ALL_RULES,
    )  # fmt: skip


# -- as text -----------------------------------------------------------------------------------------------------------


def lines_of(report: ReplayReport) -> Iterator[str]:
    """Yield the report as text: one line per step, and the differences below it."""
    width = max((len(str(step.n)) for step in report.steps), default=1)
    for step in report.steps:
        rules = f" ({', '.join(step.rules)})" if step.verdict == "normalised" else ""
        reason = f": {step.reason}" if step.reason is not None else ""
        yield f"{step.n:>{width}}  {VERDICTS[step.verdict]}{rules}{reason}  {step.kind}  {step.text}".rstrip()
        for difference in step.differences:
            yield from (f"{'':{width}}    {line}" for line in _difference_lines(difference))
    counts = {verdict: sum(step.verdict == verdict for step in report.steps) for verdict in VERDICTS}
    yield ", ".join(f"{count} {VERDICTS[verdict]}" for verdict, count in counts.items() if count) or "no steps"


def _difference_lines(difference: ReplayDifference) -> Iterator[str]:
    yield f"{difference.part}: {difference.before} -> {difference.after}"
    yield from (difference.diff or "").splitlines()
