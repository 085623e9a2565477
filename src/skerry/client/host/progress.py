"""Progress of long operations on stderr: a bar on a terminal, plain lines in logs. Never on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from skerry.codecs.text import escape
from skerry.types import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_STEP = 10  # percent between two plain lines
_silent: TextIO | None = None


class ProgressView(Protocol):
    def __enter__(self) -> ProgressView: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def update(self, progress: Progress) -> None: ...


def silence() -> None:
    """Show no progress from now on: for a command line with --quiet."""
    global _silent
    _silent = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def show_progress(title: str, stream: TextIO | None = None) -> ProgressView:
    stream = stream or _silent or sys.stderr
    return ProgressBar(title, stream) if stream.isatty() else ProgressLines(title, stream)


def show_stages(title: str, stream: TextIO | None = None) -> ProgressView:
    """Show an operation with parallel stages."""
    stream = stream or _silent or sys.stderr
    return ProgressBars(title, stream) if stream.isatty() else ProgressLines(title, stream)


class ProgressCalls:
    """Calls a function of the caller for each step."""

    def __init__(self, notify: Callable[[Progress], None]) -> None:
        self._notify = notify

    def __enter__(self) -> ProgressCalls:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, progress: Progress) -> None:
        self._notify(progress)


class ProgressLines:
    """One line per stage, and one for each tenth of it."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._last: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> ProgressLines:
        self._say(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._say(f"{self._title}: {'failed' if kind else 'done'}")

    def update(self, progress: Progress) -> None:
        percent = progress.done * 100 // progress.total if progress.total else 0
        mark = (progress.message if progress.stage == "notice" else "", percent // _STEP)
        if self._last.get(progress.stage) == mark:
            return
        self._last[progress.stage] = mark
        share = f" {percent} %" if progress.total else ""
        left = f", {progress.eta_s:.0f} s left" if progress.eta_s else ""
        said = f": {progress.message}" if progress.message else ""
        self._say(f"{self._title}: {progress.stage}{share}{left}{said}")

    def _say(self, line: str) -> None:
        self._stream.write(escape(line) + "\n")
        self._stream.flush()


class ProgressBar:
    """A bar of rich, with the amount done and the time left if the server knows them."""

    def __init__(self, title: str, stream: TextIO, *, transient: bool = False) -> None:
        self._title = title
        self._stream = stream
        self._transient = transient
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeElapsedColumn(),
        )
        self._bar = RichProgress(*columns, console=Console(file=self._stream), transient=self._transient)
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=None, amount="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, progress: Progress) -> None:
        if self._bar is None or self._task is None:
            return
        self._bar.update(
            self._task,
            description=escape(f"{self._title}: {progress.stage}"),
            completed=progress.done,
            total=progress.total or None,
            amount=_amount(progress),
        )


class ProgressBars:
    """A bar for each stage with its current operation; notices stay above the bars."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title, self._stream = title, stream
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBars:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}", markup=False),
            TextColumn("{task.fields[doing]}", markup=False),
        )
        self._stream.write(escape(self._title) + "\n")
        self._bars = RichProgress(*columns, console=Console(file=self._stream))
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, progress: Progress) -> None:
        if self._bars is None:
            return
        if progress.stage == "notice":
            self._bars.console.print(escape(progress.message), markup=False, highlight=False)
            return
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._bars.add_task(escape(progress.stage), total=None, amount="", doing="")
        self._bars.update(
            self._tasks[progress.stage],
            completed=progress.done,
            total=progress.total or None,
            amount=_amount(progress) if progress.total else "",
            doing=escape(progress.message)[:40],
        )


def _amount(progress: Progress) -> str:
    parts = []
    if progress.total >= 1 << 20:
        parts.append(f"{progress.done / (1 << 20):.0f}/{progress.total / (1 << 20):.0f} MiB")
    elif not progress.total and progress.done:
        parts.append(f"{progress.done / (1 << 20):.1f} MiB")
    elif progress.total:
        parts.append(f"{progress.done}/{progress.total}")
    if progress.eta_s:
        parts.append(f"{progress.eta_s:.0f} s left")
    if progress.message and not progress.total:
        parts.append(escape(progress.message)[:60])
    return "  ".join(parts)
