"""How a run in a kernel ended, in values and in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from skerry.engine.code.results import ResultParser
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.keeper import ExchangeUsage, ExitStatus
from skerry.types import MAX_RESULTS, MAX_RESULTS_BYTES, CodeEnd, CodeError, OutputFile, Usage, readable_size

BROKEN = "the code wrote to the context's own descriptor"
EXITS = ("SystemExit", "ExitStatus")  # as Python's and JavaScript's kernels call an exit with a status that is not 0


def ended(exit_code: int | None, signal: str | None) -> str:
    return f"its process was ended by {signal}" if signal else f"its process ended with exit code {exit_code}"


@dataclass
class RunTimeline:
    """The course of a run. `new`: it was the kernel's first. `exit`: the process has ended. `broken`: a message
    violated the kernel protocol. `killed`: it did not stop after the timeout, or had no caller any more. `ending`: the
    context's state was discarded. `early`: stderr output from before the run began."""

    listener: ResultParser
    new: bool = False
    exit: ExitStatus | None = None
    oom: bool | None = False
    timed_out: bool = False
    killed: bool = False
    broken: bool = False
    missing: int = 0
    ending: str | None = None
    early: str = ""

    @property
    def died(self) -> bool:
        return self.exit is not None or self.broken

    @property
    def exit_code(self) -> int | None:
        if self.broken:
            return None
        return self.exit.exit_code if self.exit is not None else _status(self.listener)

    @property
    def signal(self) -> str | None:
        if self.broken:
            return "KILL"
        return self.exit.signal if self.exit is not None else None

    @property
    def why_died(self) -> str:
        """Return the reason for lost state that the context's next run reports."""
        if self.ending is not None:
            return self.ending
        if self.broken or self.exit_code == 70:  # with which a kernel leaves that lost its channel
            return BROKEN
        if self.timed_out and self.killed:
            return "its last run did not stop when its time was out"
        if self.killed:
            return "its last run did not stop when it was interrupted"
        if self.oom:
            return "it was killed: out of memory"
        return ended(self.exit_code, self.signal)


def _status(listener: ResultParser) -> int:
    """Return the exit status of code with a surviving kernel, if the code exited by itself."""
    if listener.status == "ok":
        return 0
    said = listener.error.message if listener.error is not None and listener.error.name in EXITS else ""
    return int(said) if len(said) <= 3 and said.isascii() and said.isdecimal() and 0 < int(said) < 256 else 1


@dataclass(frozen=True)
class RunContext:
    """The place of a run. `context`: None for a run that leaves no state behind; `lost`: why it began without state."""

    process: str
    language: str
    version: str | None
    context: str | None
    lost: str | None
    memory: int
    reached_limit: str | None


def end_of(
    where: RunContext, timeline: RunTimeline, files: tuple[OutputFile, ...], files_cut: bool, usage: Usage
) -> CodeEnd:
    listener = timeline.listener
    after: Literal["kept", "replaced"] | None = (
        None if where.context is None else "replaced" if timeline.died else "kept"
    )
    return CodeEnd(
        id=where.process, exit_code=timeline.exit_code, signal=timeline.signal, timed_out=timeline.timed_out,
        duration_s=usage.wall_s, oom_killed=timeline.oom,
        truncated=timeline.missing > 0 or listener.dropped > 0,
        usage=usage,
        hint=_hint(where, timeline), error=_error(where, timeline), language=where.language, version=where.version,
        context=where.context, lost=where.lost, after=after, files=files, files_cut=files_cut,
    )  # fmt: skip


def metered(sandbox: Sandbox, process: str, used: ExchangeUsage | None) -> Usage:
    """Return the usage of a run that has ended."""
    if used is None:
        return Usage()
    usage = sandbox.usage_of(process, used.cpu_s, used.max_rss, used.duration_s)
    peak = 100 * used.peak_cpu if used.peak_cpu else None
    return replace(usage, memory_start=used.start_rss, cpu_peak_percent=peak)


def _error(where: RunContext, timeline: RunTimeline) -> CodeError | None:
    listener = timeline.listener
    if not timeline.died:
        if listener.error is None and listener.status != "ok":
            return CodeError(name="Interrupted" if listener.status == "interrupted" else "Error")
        return listener.error
    stopped = timeline.killed or timeline.timed_out or timeline.ending is not None
    if timeline.new and not listener.begun and not stopped and not timeline.broken:
        return CodeError(name="ContextDied", message=f"{where.language} did not start", traceback=timeline.early)
    replaced = "; the context was replaced" if where.context is not None else ""
    return CodeError(name="Interrupted" if stopped else "ContextDied", message=timeline.why_died + replaced)


def _hint(where: RunContext, timeline: RunTimeline) -> str | None:
    hints = []
    if timeline.oom:
        memory = readable_size(where.memory)
        hints.append(f"it needed more memory than its limit of {memory}: --memory, Limits(memory=…)")
    elif where.reached_limit is not None:
        hints.append(where.reached_limit)
    if timeline.timed_out:
        hints.append(f"{_stopped(where, timeline)}: --timeout, run(timeout=…), at most the operator's max.timeout")
    elif timeline.died and where.context is not None:
        hints.append("the context's state is lost: its next run starts without it")
    if timeline.listener.dropped:
        most = f"{MAX_RESULTS} results, and {readable_size(MAX_RESULTS_BYTES)} of them"
        hints.append(f"{timeline.listener.dropped} results were left out: a run gives at most {most}")
    return "; ".join(hints) or None


def _stopped(where: RunContext, timeline: RunTimeline) -> str:
    if where.context is None:
        return "it was ended by its timeout"
    if timeline.died:
        return "it was ended by its timeout, and the context was replaced: its state is lost"
    return "it was interrupted by its timeout; the context's state is kept"
