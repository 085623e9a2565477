"""How a run in a kernel ended, in values and in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from skerry.engine.code_results import Listener
from skerry.keeper import ExitStatus, TurnUsage
from skerry.types import RESULTS_BYTES_MOST, RESULTS_MOST, CodeEnd, CodeError, MadeFile, Usage, format_size

BROKEN = "the code wrote to the context's own descriptor"
EXITS = ("SystemExit", "ExitStatus")  # as Python's and JavaScript's kernels call an exit with a status that is not 0


def ended(exit_code: int | None, signal: str | None) -> str:
    return f"its process was ended by {signal}" if signal else f"its process ended with exit code {exit_code}"


@dataclass
class Course:
    """How a run went. `new`: it was its kernel's first. `exit`: its process has ended. `broken`: what came was no
    message of a kernel's. `killed`: it did not stop when its time was out, or nobody wanted it any more. `ending`:
    somebody took its context's memory away. `early`: what was printed to stderr before it began."""

    listener: Listener
    new: bool = False
    exit: ExitStatus | None = None
    usage: TurnUsage | None = None
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
        """What the context's next run is told."""
        if self.ending is not None:
            return self.ending
        if self.broken or self.exit_code == 70:  # with which a kernel leaves that lost its channel
            return BROKEN
        if self.timed_out and self.killed:
            return "its last run did not stop when its time was out"
        if self.killed:
            return "its last run did not stop when it was interrupted"
        if self.oom:
            return "it was killed for want of memory"
        return ended(self.exit_code, self.signal)


def _status(listener: Listener) -> int:
    """That of code whose kernel lives on: what it left with, if it left by itself."""
    if listener.status == "ok":
        return 0
    said = listener.error.message if listener.error is not None and listener.error.name in EXITS else ""
    return int(said) if len(said) <= 3 and said.isascii() and said.isdecimal() and 0 < int(said) < 256 else 1


@dataclass(frozen=True)
class Where:
    """Whose run it was. `context`: None for one that leaves no memory behind; `lost`: why it began without one."""

    process: str
    language: str
    version: str | None
    context: str | None
    lost: str | None
    memory: int


def end_of(where: Where, course: Course, files: tuple[MadeFile, ...], files_cut: bool) -> CodeEnd:
    listener, usage = course.listener, course.usage
    after: Literal["kept", "replaced"] | None = None if where.context is None else "replaced" if course.died else "kept"
    return CodeEnd(
        id=where.process, exit_code=course.exit_code, signal=course.signal, timed_out=course.timed_out,
        duration_s=usage.duration_s if usage is not None else 0.0, oom_killed=course.oom,
        truncated=course.missing > 0 or listener.dropped > 0,
        usage=Usage(cpu_s=usage.cpu_s, memory_peak=usage.max_rss) if usage is not None else Usage(),
        hint=_hint(where, course), error=_error(where, course), language=where.language, version=where.version,
        context=where.context, lost=where.lost, after=after, files=files, files_cut=files_cut,
    )  # fmt: skip


def _error(where: Where, course: Course) -> CodeError | None:
    listener = course.listener
    if not course.died:
        if listener.error is None and listener.status != "ok":
            return CodeError(name="Interrupted" if listener.status == "interrupted" else "Error")
        return listener.error
    stopped = course.killed or course.timed_out or course.ending is not None
    if course.new and not listener.begun and not stopped and not course.broken:
        return CodeError(name="ContextDied", message=f"{where.language} did not start", traceback=course.early)
    replaced = "; the context was replaced" if where.context is not None else ""
    return CodeError(name="Interrupted" if stopped else "ContextDied", message=course.why_died + replaced)


def _hint(where: Where, course: Course) -> str | None:
    hints = []
    if course.oom:
        memory = format_size(where.memory)
        hints.append(f"it needed more memory than its limit of {memory}: --memory, Limits(memory=…)")
    if course.timed_out:
        hints.append(f"{_stopped(where, course)}: --timeout, run(timeout=…)")
    elif course.died and where.context is not None:
        hints.append("what the context remembered is gone: its next run begins anew")
    if course.listener.dropped:
        most = f"{RESULTS_MOST} results, and {format_size(RESULTS_BYTES_MOST)} of them"
        hints.append(f"{course.listener.dropped} results were left out: a run gives at most {most}")
    return "; ".join(hints) or None


def _stopped(where: Where, course: Course) -> str:
    if where.context is None:
        return "it was ended by its time-out"
    if course.died:
        return "it was ended by its time-out, the context was replaced, and what that remembered is gone"
    return "it was interrupted by its time-out, and the context remembers what it did"
