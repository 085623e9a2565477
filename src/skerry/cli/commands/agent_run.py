"""A run of an agent with a prompt, and the changes at its end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from skerry.cli import output
from skerry.cli.commands.agent_sandbox import AgentRequest, mark_used, open_sandbox
from skerry.cli.commands.review import stat_rows_of
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


def show_changes(cli: CliContext, sandbox: Sandbox) -> bool:
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
        if changed:
            output.info(f"hint: skerry review {sandbox.name}; then skerry apply {sandbox.name}")
    return changed


def run_headless(
    cli: CliContext, client: Client, request: AgentRequest, prompt: str, words: Sequence[str], *, fresh: bool
) -> int:
    """Run one prompt; stream the output; return the agent's exit code."""
    sandbox, image, again = open_sandbox(cli, client, request)
    events = request.kit.extension.events
    if events is not None and any(word.partition("=")[0] in events.arguments for word in words):
        events = None  # the user chose another form of the output
    argv = [*image.argv, *request.kit.headless(prompt, again=again and not fresh, events=events is not None), *words]
    shown = AgentOutput(cli, sandbox, EventReader(events.dialect) if events is not None else None)
    with ForwardedInterrupts() as interrupts:
        result = sandbox.run(
            argv, timeout=None, on_output=shown.pass_on, on_start=lambda run: shown.started(run, interrupts)
        )
    shown.end()
    mark_used(sandbox)
    _report_denied(cli, request.kit, sandbox, result)
    show_changes(cli, sandbox)
    return output.result_exit_code(result)


class AgentOutput:
    """Passes an agent's output on. Of events, the text is printed, and the tool calls are reported to the review."""

    def __init__(self, cli: CliContext, sandbox: Sandbox, reader: EventReader | None) -> None:
        self._cli, self._sandbox, self._reader = cli, sandbox, reader
        self._process: str | None = None
        self._last = b"\n"

    def started(self, run: Run, interrupts: ForwardedInterrupts) -> None:
        self._process = run.id
        interrupts.started(run)

    def pass_on(self, piece: Output) -> None:
        if self._reader is None or piece.stream != "stdout":
            output.write(piece.stream, piece.data)
        else:
            self._handle(self._reader.feed(piece.data))

    def end(self) -> None:
        if self._reader is not None:
            self._handle(self._reader.end())
            if self._last != b"\n":
                output.write("stdout", b"\n")

    def _handle(self, events: Iterable[AgentEvent]) -> None:
        calls = []
        for event in events:
            if event.text:
                data = event.text.encode()
                output.write("stdout", data)
                self._last = data[-1:]
            if event.error:
                output.info(f"the agent reported an error: {escape(event.error)}")
            if event.call is not None:
                calls.append(event.call)
                if event.call.name and not self._cli.quiet:
                    output.info(f"  {escape(event.call.name[:MAX_TITLE])}")
        if calls and self._process is not None:
            self._report(self._process, calls)

    def _report(self, process: str, calls: list[ReportedCall]) -> None:
        try:
            self._sandbox.processes.report_tool_calls(process, calls)
        except NotFound:  # it has ended, or the sandbox has no review
            self._process = None
        except SkerryError:  # the output matters more
            return


def _report_denied(cli: CliContext, kit: Kit, sandbox: Sandbox, result: Result) -> None:
    """Name denied hosts, except those that the agent tries for itself: telemetry, updates, price lists."""
    denied = [attempt for attempt in result.denied if not is_expected(kit, attempt)]
    for line in output.denial_hints(denied, sandbox.name) if not cli.quiet else ():
        output.info(f"hint: {line}")


def is_expected(kit: Kit, attempt: NetworkAttempt) -> bool:
    rules = (*kit.network.runtime.deny, *kit.extension.quiet)
    return any(fnmatchcase(attempt.host, rule.partition(":")[0]) for rule in rules)
