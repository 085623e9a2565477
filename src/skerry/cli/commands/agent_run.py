"""A run of an agent with a prompt, and the changes at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from skerry.cli import output
from skerry.cli.commands.agent_sandbox import AgentRequest, mark_used, open_sandbox
from skerry.cli.commands.review import stat_rows_of
from skerry.cli.context import CliContext
from skerry.cli.signals import ForwardedInterrupts
from skerry.client.agents.kits import Kit
from skerry.errors import SkerryError
from skerry.types import NetworkAttempt, Result

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.results.command import Output


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
    argv = [*image.argv, *request.kit.headless(prompt, again=again and not fresh), *words]
    with ForwardedInterrupts() as interrupts:
        result = sandbox.run(argv, timeout=None, on_output=_pass_on, on_start=interrupts.started)
    mark_used(sandbox)
    _report_denied(cli, request.kit, sandbox, result)
    show_changes(cli, sandbox)
    return output.result_exit_code(result)


def _pass_on(piece: Output) -> None:
    output.write(piece.stream, piece.data)


def _report_denied(cli: CliContext, kit: Kit, sandbox: Sandbox, result: Result) -> None:
    """Name denied hosts, except those that the agent tries for itself: telemetry, updates, price lists."""
    denied = [attempt for attempt in result.denied if not is_expected(kit, attempt)]
    for line in output.denial_hints(denied, sandbox.name) if not cli.quiet else ():
        output.info(f"hint: {line}")


def is_expected(kit: Kit, attempt: NetworkAttempt) -> bool:
    rules = (*kit.network.runtime.deny, *kit.extension.quiet)
    return any(fnmatchcase(attempt.host, rule.partition(":")[0]) for rule in rules)
