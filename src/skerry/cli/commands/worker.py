"""worker claude: serve a self-hosted environment of Claude Managed Agents, one sandbox per session."""

from __future__ import annotations

import itertools
import logging
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import output
from skerry.cli.build_progress import BuildProgress
from skerry.cli.commands.agent_image import LIMITS
from skerry.cli.context import CliContext, json_lines_option, pass_cli
from skerry.cli.options.project import project_from_options
from skerry.cli.options.project_setup import with_setup
from skerry.cli.options.repository import repo_from_options, repo_options
from skerry.cli.options.sandbox import lifecycle_options, sandbox_arguments, sandbox_options
from skerry.client.agents.claude_worker import KEY, PROGRAMS, SERVICE, ClaudeProvider, sdk_requirement, session_program
from skerry.client.agents.credentials import find_value
from skerry.codecs.text import escape
from skerry.errors import InvalidRequest
from skerry.types import WORKSPACE, parse_span

if TYPE_CHECKING:
    from skerry.client.agents.worker import Provider, Worker, WorkerEvent, WorkerTerms

BAD = ("failed", "released", "warning")


@click.group("worker")
def worker() -> None:
    """Serve the sessions of a service that runs agents: their tools run in sandboxes here."""


@worker.command()
@click.option(
    "--environment", envvar="ANTHROPIC_ENVIRONMENT_ID", required=True, metavar="ID",
    help="Serve this self-hosted environment. Default: ANTHROPIC_ENVIRONMENT_ID.",
)  # fmt: skip
@click.option(
    "--max-sessions", type=click.IntRange(1, 1000), default=4, show_default=True, metavar="N",
    help="Serve at most N sessions at once.",
)  # fmt: skip
@click.option(
    "--max-idle", default="60s", show_default=True, metavar="TIME",
    help="End the run of a session this long after its agent has finished; a later message starts the next one.",
)  # fmt: skip
@click.option(
    "--workdir", default=WORKSPACE, show_default=True, metavar="DIR",
    help="Run the tools in this directory; skills are placed in its `skills`.",
)  # fmt: skip
@click.option(
    "--keep", default="7d", show_default=True, metavar="TIME",
    help="Delete a sandbox this long after the last run of its session, like 12h, or never. Sandboxes of ended "
    "sessions are always deleted.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="End when the queue is empty and the claimed sessions have ended.")
@click.option("--build", is_flag=True, help="Build the image and end.")
@json_lines_option
@repo_options
@sandbox_options
@lifecycle_options
@pass_cli
def claude(
    cli: CliContext,
    /,
    environment: str,
    max_sessions: int,
    max_idle: str,
    workdir: str,
    keep: str,
    once: bool,
    build: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Serve a self-hosted environment of Claude Managed Agents until SIGTERM or Ctrl-C.

    Each session has a separate sandbox, with the options below; it keeps its files between runs. The environment's
    key is read from ANTHROPIC_ENVIRONMENT_KEY or the store (`skerry secret set claude-environment`), and never enters a
    sandbox; neither does the token of a session.

    The first signal lets the running sessions end and claims no others, the second one interrupts them, and the third
    one ends without waiting for them.
    """
    if not workdir.startswith("/"):
        raise InvalidRequest(f"--workdir: {workdir!r} is not an absolute path")
    idle_s, keep_s = parse_span(max_idle, "--max-idle"), None if keep == "never" else parse_span(keep, "--keep")
    project = project_from_options(given)
    arguments = sandbox_arguments(given, project)
    if given.pop("cassette") is not None:
        raise click.UsageError("--cassette is for `run`, `shell` and `create`")
    key = None if build else _key()
    arguments = with_setup(cli, arguments, project)
    with session_program() as program:
        image = _image(cli, arguments.pop("image"), program)
    if key is None:
        click.echo(escape(image))
        return 0
    from skerry.client.agents.worker import WorkerTerms

    with repo_from_options(cli, given, project, bar=False) as repo:
        terms = WorkerTerms(image, {**arguments, "repo": repo}, max_sessions, keep_s)
        provider = ClaudeProvider(environment, key, workdir=workdir, max_idle=idle_s)
        return _run(cli, provider, terms, once=once, as_json=as_json)


def _image(cli: CliContext, base: str, program: Path) -> str:
    """Return `base` with the SDK and the program that runs inside. Each step is cached."""
    from skerry.client._sync.build import Image

    sdk = sdk_requirement()
    progress = BuildProgress(first=f"installing {sdk} (once; later starts use it)")
    shown: dict[str, Any] = {} if cli.quiet else {"on_step": progress.step, "on_output": progress.output}
    described = Image.base(base).pip(sdk).copy(program, f"{PROGRAMS}/{program.name}", mode="644")
    with cli.client() as client, progress:
        snapshot = described.build(limits=LIMITS, server=client, **shown)
    return str(snapshot.id)


def _key() -> str:
    key = find_value(SERVICE, (KEY,))
    if key is None:
        raise InvalidRequest(
            f"the environment's key is missing: {KEY} is not set here",
            hint=f"generate a key in the Claude Console, and set {KEY}, or: skerry secret set {SERVICE}",
        )
    return key


def _run(cli: CliContext, provider: ClaudeProvider, terms: WorkerTerms, *, once: bool, as_json: bool) -> int:
    import asyncio  # takes a moment to load

    async def serve() -> int:
        try:
            return await _serve(cli, provider, terms, once=once, as_json=as_json)
        finally:
            await provider.aclose()

    try:
        return asyncio.run(serve())
    except asyncio.CancelledError:
        return output.EXIT_INTERRUPTED


async def _serve(cli: CliContext, provider: Provider, terms: WorkerTerms, *, once: bool, as_json: bool) -> int:
    import asyncio

    from skerry.client._async.client import AsyncClient
    from skerry.client.agents.worker import Worker

    logging.getLogger("anthropic").addHandler(_SdkWarnings(cli, as_json=as_json))
    async with AsyncClient(cli.server) as client:
        running = Worker(provider, client, terms)
        task = asyncio.create_task(_show_events(cli, running, once=once, as_json=as_json))
        presses = itertools.count(1)

        def end() -> None:
            if next(presses) > 2:
                task.cancel()
            else:
                running.drain()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, end)
        if not (as_json or cli.quiet):
            output.info(f"serving {provider.environment}: up to {terms.max_sessions} sessions at once")
        return await task


async def _show_events(cli: CliContext, running: Worker, *, once: bool, as_json: bool) -> int:
    failed = False
    async for event in running.events(once=once):
        failed = failed or event.kind in ("failed", "released")
        _show(cli, event, as_json=as_json)
    return int(once and failed)


def _show(cli: CliContext, event: WorkerEvent, *, as_json: bool) -> None:
    if as_json:
        output.json_line(asdict(event))
    elif event.kind in BAD or not cli.quiet:
        place, reason = event.sandbox and f"in {event.sandbox}", event.reason and f"({event.reason})"
        output.info(" ".join(word for word in (event.session, event.kind, place, reason) if word))


class _SdkWarnings(logging.Handler):
    """Shows warnings of the SDK, such as polls that failed and are repeated, like events of the worker."""

    def __init__(self, cli: CliContext, *, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self._cli = cli
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        from skerry.client.agents.worker import WorkerEvent

        _show(self._cli, WorkerEvent("warning", reason=record.getMessage()[:400]), as_json=self._as_json)
