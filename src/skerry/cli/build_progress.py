"""Progress of a build on stderr: `[3/7] RUN make`, followed by the output of the step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

import click

from skerry.codecs.text import escape
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from skerry.client.build.options import BuildStep
    from skerry.client.results.command import Output

_MAX_LINE = 64 << 10


class BuildProgress:
    """Prints steps and their output. `first` is a line before the first step that runs; if all steps are cached,
    nothing is printed."""

    def __init__(self, first: str | None = None) -> None:
        self._first = first
        self._held: list[BuildStep] = []
        self._line = b""
        self._printed = False

    def step(self, step: BuildStep) -> None:
        self._end_line()
        if self._first is not None:
            self._held.append(step)
            if step.cached:
                return
            _print(self._first)
            self._first = None
            for held in self._held[:-1]:
                self._show(held)
        self._show(step)

    def _show(self, step: BuildStep) -> None:
        where = f"{step.where}: " if step.where else ""
        cached = " (cached)" if step.cached else ""
        _print(f"{'stage ' if step.stage else ''}[{step.number}/{step.total}] {where}{step.title}{cached}")

    def output(self, output: Output) -> None:
        self._printed = True
        *lines, self._line = (self._line + output.data).split(b"\n")
        if len(self._line) > _MAX_LINE:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            _print_output(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove the output of a failed step from the error: it is printed above already."""
        self._end_line()
        if self._printed and isinstance(error, SkerryError) and "step" in error.details:
            step, how, rest = error.message.partition(f": step {error.details['step']} of ")
            error.message = f"{step}{how}{rest.partition(chr(10))[0]}"

    def _end_line(self) -> None:
        if self._line:
            _print_output(self._line)
            self._line = b""


def _print(text: str) -> None:
    click.echo(escape(text), err=True)


def _print_output(line: bytes) -> None:
    """Print a line of output. Of a line that was overwritten with carriage returns, print the last version."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    text = f"  {escape(text.expandtabs())}"
    click.echo(click.style(text, dim=True) if sys.stderr.isatty() else text, err=True)
