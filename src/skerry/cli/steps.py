"""A build, shown on stderr as it goes: `[3/7] RUN make`, and below it what it prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

import click

from skerry.client.harmless import harmless
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from skerry.client.building.options import BuildStep
    from skerry.client.outcome import Output

_LINE_MOST = 64 << 10


class ShownSteps:
    """`first`: a line before the first step that has to run; what is all done already is then not spoken of."""

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
            _say(self._first)
            self._first = None
            for held in self._held[:-1]:
                self._show(held)
        self._show(step)

    def _show(self, step: BuildStep) -> None:
        where = f"{step.where}: " if step.where else ""
        cached = " (as before)" if step.cached else ""
        _say(f"{'stage ' if step.stage else ''}[{step.number}/{step.total}] {where}{step.title}{cached}")

    def output(self, output: Output) -> None:
        self._printed = True
        *lines, self._line = (self._line + output.data).split(b"\n")
        if len(self._line) > _LINE_MOST:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            _say_below(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """What a failed step printed last stands above already: its error need not tell it again."""
        self._end_line()
        if self._printed and isinstance(error, SkerryError) and "step" in error.details:
            step, how, rest = error.message.partition(f": step {error.details['step']} of ")
            error.message = f"{step}{how}{rest.partition(chr(10))[0]}"

    def _end_line(self) -> None:
        if self._line:
            _say_below(self._line)
            self._line = b""


def _say(text: str) -> None:
    click.echo(harmless(text), err=True)


def _say_below(line: bytes) -> None:
    """Of a line that was written over, what stood there last."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    shown = f"  {harmless(text.expandtabs())}"
    click.echo(click.style(shown, dim=True) if sys.stderr.isatty() else shown, err=True)
