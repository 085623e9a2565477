"""Long work, shown on stderr: a bar for people, plain lines for logs. Never silent, never on stdout."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from skerry.client.harmless import harmless
from skerry.types import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_STEP = 10  # percent between two plain lines


class Shown(Protocol):
    def __enter__(self) -> Shown: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def update(self, progress: Progress) -> None: ...


def shown(title: str, stream: TextIO | None = None) -> Shown:
    stream = stream or sys.stderr
    return Bar(title, stream) if stream.isatty() else Lines(title, stream)


class Lines:
    """One line a stage, and one for each tenth of it."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._last: tuple[str, int] | None = None

    def __enter__(self) -> Lines:
        self._say(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._say(f"{self._title}: {'failed' if kind else 'done'}")

    def update(self, progress: Progress) -> None:
        percent = progress.done * 100 // progress.total if progress.total else 0
        mark = (progress.stage, percent // _STEP)
        if mark == self._last:
            return
        self._last = mark
        share = f" {percent} %" if progress.total else ""
        left = f", {progress.eta_s:.0f} s left" if progress.eta_s else ""
        said = f": {progress.message}" if progress.message else ""
        self._say(f"{self._title}: {progress.stage}{share}{left}{said}")

    def _say(self, line: str) -> None:
        self._stream.write(harmless(line) + "\n")
        self._stream.flush()


class Bar:
    """rich's bar, with the amount done and the time left where the server knows them."""

    def __init__(self, title: str, stream: TextIO, *, transient: bool = False) -> None:
        self._title = title
        self._stream = stream
        self._transient = transient
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
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
            description=harmless(f"{self._title}: {progress.stage}"),
            completed=progress.done,
            total=progress.total or None,
            amount=_amount(progress),
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
        parts.append(harmless(progress.message)[:60])
    return "  ".join(parts)
