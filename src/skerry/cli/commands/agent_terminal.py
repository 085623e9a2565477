"""An agent in the local terminal: its start, a return to it, and the review at its end."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from skerry.cli import output
from skerry.cli.commands.agent_run import report_denied, review_changes
from skerry.cli.commands.agent_sandbox import (
    LABEL,
    LABEL_REPO,
    AgentRequest,
    find_sandbox,
    mark_used,
    open_sandbox,
    repository_id,
)
from skerry.cli.commands.shell.commands import with_terminal
from skerry.cli.commands.shell.escapes import EscapeKeys, TypedInput
from skerry.cli.context import CliContext
from skerry.client._sync.sandbox import Sandbox
from skerry.client.agents.kits import labels_of
from skerry.errors import NotFound
from skerry.types import Result

if TYPE_CHECKING:
    from skerry.client._sync.client import Client
    from skerry.client._sync.processes import Process

PREFIX: Final = "agent-"  # of the IDs of agents in terminals


class AgentKeys(EscapeKeys):
    """Notes whether the user has entered a line: only then there is a conversation."""

    entered = False

    def feed(self, data: bytes) -> list[TypedInput]:
        found = super().feed(data)
        self.entered |= any(b"\r" in typed.data or b"\n" in typed.data for typed in found)
        return found


def run_in_terminal(
    cli: CliContext,
    client: Client,
    request: AgentRequest,
    words: Sequence[str],
    *,
    fresh: bool,
    review: bool | None,
    escape: bool,
) -> int:
    """Open the agent in this terminal, or return to a running one; return its exit code."""
    sandbox, image, again = open_sandbox(cli, client, request)
    running = None if fresh else _running(sandbox)
    if running is not None:
        if not cli.quiet:
            output.info(f"{request.kit.name} is running in {sandbox.name}: back to it. --new starts another one")
        return attach_terminal(cli, sandbox, running, review=review, escape=escape, request=request)
    again = again and not fresh
    keys = AgentKeys(escape)
    process = _start(sandbox, [*image.argv, *request.kit.in_terminal(again=again), *words])
    result = _use(cli, sandbox, process, keys, fresh=True)
    if again and result is not None and result.exit_code and not keys.entered:
        output.info("no conversation to continue; starting a new one")
        process = _start(sandbox, [*image.argv, *request.kit.in_terminal(again=False), *words])
        result = _use(cli, sandbox, process, keys, fresh=True)
    if result is None or keys.entered:
        mark_used(sandbox)
    return _ended(cli, sandbox, result, request, review=review)


def _start(sandbox: Sandbox, argv: Sequence[str]) -> Process:
    return sandbox.spawn(list(argv), id=f"{PREFIX}{secrets.token_hex(4)}", **with_terminal({"env": {}}))


def attach_terminal(
    cli: CliContext,
    sandbox: Sandbox,
    process: Process,
    *,
    review: bool | None,
    escape: bool,
    request: AgentRequest | None = None,
) -> int:
    """Return to a running agent; return its exit code."""
    result = _use(cli, sandbox, process, AgentKeys(escape), fresh=False)
    mark_used(sandbox)
    return _ended(cli, sandbox, result, request, review=review)


def _use(cli: CliContext, sandbox: Sandbox, process: Process, keys: EscapeKeys, *, fresh: bool) -> Result | None:
    from skerry.cli.commands.shell import viewer  # asyncio and the async SDK take a moment to load

    return viewer.use(cli.server, sandbox.cached_info, process.id, keys, fresh=fresh)


def _ended(
    cli: CliContext, sandbox: Sandbox, result: Result | None, request: AgentRequest | None, *, review: bool | None
) -> int:
    if result is None:
        if not cli.quiet:
            output.info(f"detached; the agent keeps running. To return: skerry agent attach --name {sandbox.name}")
        return 0
    if request is not None:
        report_denied(cli, request.kit, sandbox, result)
    review_changes(cli, sandbox, review=review is not False)
    return output.result_exit_code(result)


def _running(sandbox: Sandbox) -> Process | None:
    """Return the newest agent that runs in a terminal."""
    if sandbox.state not in ("running", "paused"):  # a look would start it
        return None
    found = [
        one
        for one in sandbox.processes.list()
        if one.state == "running" and one.cached_info.pty and one.id.startswith(PREFIX)
    ]
    return max(found, key=lambda one: one.cached_info.started_at, default=None)


def find_attachable(client: Client, top: str | None, agent: str | None, name: str | None) -> tuple[Sandbox, Process]:
    """Return the newest running agent: in the sandbox `name`, or in one of the repository, of `agent` if given."""
    if name is not None:
        named = find_sandbox(client, name)
        found = [named] if named is not None else []
    else:
        of_repository = Sandbox.list(labels={LABEL_REPO: repository_id(top)}, server=client)
        found = [one for one in of_repository if agent is None or one.labels.get(LABEL) in labels_of(agent)]
    running = [(one, process) for one in found for process in [_running(one)] if process is not None]
    if not running:
        where = f"sandbox {name}" if name is not None else "a sandbox of this repository"
        raise NotFound(
            f"{agent or 'an agent'} is not running in a terminal of {where}",
            hint=f"skerry agent {agent or 'AGENT'} starts it and continues its conversation",
        )
    return max(running, key=lambda pair: pair[1].cached_info.started_at)
