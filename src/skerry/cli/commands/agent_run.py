"""A run of an agent with a prompt, and the changes at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from skerry.cli import output, terminal
from skerry.cli.commands.agent_image import AgentImage
from skerry.cli.commands.agent_sandbox import AgentRequest, mark_used, open_sandbox
from skerry.cli.commands.review import run_review, stat_rows_of
from skerry.cli.context import CliContext
from skerry.cli.signals import ForwardedInterrupts
from skerry.client.agents.events import AgentEvent, EventReader
from skerry.client.agents.kits import Kit
from skerry.codecs.text import escape
from skerry.errors import NotFound, SkerryError
from skerry.types import NetworkAttempt, ReportedCall, Result

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client._sync.processes import Run
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.results.command import Output

MAX_TITLE = 100  # characters of a tool call's title in the progress


def show_changes(cli: CliContext, sandbox: Sandbox, *, hint: bool = True) -> bool:
    """Print the changed files to stderr. Return False if nothing changed."""
    try:
        found = sandbox.review.diff(stat=True)
    except SkerryError:  # a sandbox without a repository has no review
        return False
    changed = bool(found.files)
    if not cli.quiet:
        sys.stdout.flush()
        for row in stat_rows_of(found):
            output.info("".join(span.text for span in row))
        if changed and hint:
            output.info(f"hint: skerry review {sandbox.name}; then skerry apply {sandbox.name}")
    return changed


def review_changes(cli: CliContext, sandbox: Sandbox, *, review: bool) -> None:
    """Print the changed files. With `review` and a terminal, open the review."""
    if show_changes(cli, sandbox, hint=not review) and review:
        name = sandbox.name or sandbox.id
        if terminal.is_interactive():
            run_review(cli, sandbox, name)
        else:
            output.info(f"hint: the review needs a terminal: skerry review {name}")


def run_headless(
    cli: CliContext,
    client: Client,
    request: AgentRequest,
    prompt: str,
    words: Sequence[str],
    *,
    fresh: bool,
    review: bool | None = None,
) -> int:
    """Run one prompt; stream the output; return the agent's exit code."""
    sandbox, image, again = open_sandbox(cli, client, request)
    argv, dialect = headless_command(request.kit, image, prompt, words, again=again and not fresh)
    shown = AgentOutput(cli, sandbox, dialect)
    with ForwardedInterrupts() as interrupts:
        result = sandbox.run(
            argv, timeout=None, on_output=shown.pass_on, on_start=lambda run: _started(run, shown, interrupts)
        )
    shown.end()
    mark_used(sandbox)
    report_denied(cli, request.kit, sandbox, result)
    review_changes(cli, sandbox, review=bool(review))
    return shown.exit_code(result)


def headless_command(
    kit: Kit, image: AgentImage, prompt: str, words: Sequence[str], *, again: bool
) -> tuple[list[str], str | None]:
    """Return the command for a prompt, and the dialect of the events that it prints. `again`: continue the last
    conversation."""
    events = kit.extension.events
    if events is not None and any(word.partition("=")[0] in events.arguments for word in words):
        events = None  # the user chose another form of the output
    rest = kit.headless(prompt, again=again, events=events is not None, arguments=words)
    return [*image.argv, *rest], events.dialect if events is not None else None


def _started(run: Run, shown: AgentOutput, interrupts: ForwardedInterrupts) -> None:
    shown.started(run.id)
    interrupts.started(run)


class AgentOutput:
    """Passes an agent's output on. Of events (`dialect`), the text is printed, and the tool calls are reported to the
    review. `write` and `info`: where output and messages go."""

    def __init__(
        self,
        cli: CliContext,
        sandbox: Sandbox,
        dialect: str | None,
        write: Callable[[str, bytes], None] = output.write,
        info: Callable[[str], None] = output.info,
    ) -> None:
        self._cli, self._sandbox, self._write, self._info = cli, sandbox, write, info
        self._reader = EventReader(dialect) if dialect is not None else None
        self._process: str | None = None
        self._last = b"\n"
        self._failed = False  # the last event was an error

    def started(self, process: str) -> None:
        self._process = process

    def pass_on(self, piece: Output) -> None:
        if self._reader is None or piece.stream != "stdout":
            self._write(piece.stream, piece.data)
        else:
            self._handle(self._reader.feed(piece.data))

    def end(self) -> None:
        if self._reader is not None:
            self._handle(self._reader.end())
            if self._last != b"\n":
                self._write("stdout", b"\n")

    def _handle(self, events: Iterable[AgentEvent]) -> None:
        calls = []
        for event in events:
            self._failed = bool(event.error) or (self._failed and not event.text)
            if event.text:
                data = event.text.encode()
                self._write("stdout", data)
                self._last = data[-1:]
            if event.error:
                self._info(f"the agent reported an error: {escape(event.error)}")
            if event.call is not None:
                calls.append(event.call)
                if event.call.name and not self._cli.quiet:
                    self._info(f"  {escape(event.call.name[:MAX_TITLE])}")
        if calls and self._process is not None:
            self._report(self._process, calls)

    def exit_code(self, result: Result) -> int:
        """Return the agent's exit code. Some agents that print events end with 0 after an error too."""
        return output.result_exit_code(result) or int(self._failed)

    def _report(self, process: str, calls: list[ReportedCall]) -> None:
        try:
            self._sandbox.processes.report_tool_calls(process, calls)
        except NotFound:  # it has ended, or the sandbox has no review
            self._process = None
        except SkerryError:  # the output matters more
            return


def report_denied(cli: CliContext, kit: Kit, sandbox: Sandbox, result: Result) -> None:
    """Name denied hosts, except those that the agent tries for itself: telemetry, updates, price lists."""
    denied = [attempt for attempt in result.denied if not is_expected(kit, attempt)]
    for line in output.denial_hints(denied, sandbox.name) if not cli.quiet else ():
        output.info(f"hint: {line}")


def is_expected(kit: Kit, attempt: NetworkAttempt) -> bool:
    rules = (*kit.network.runtime.deny, *kit.extension.quiet)
    return any(fnmatchcase(attempt.host, rule.partition(":")[0]) for rule in rules)
