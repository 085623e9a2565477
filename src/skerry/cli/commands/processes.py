"""ps, logs, wait, kill: the processes inside a sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from skerry.cli import output
from skerry.cli.context import (
    CliContext,
    json_option,
    pass_cli,
    process_argument,
    processes_argument,
    sandbox_argument,
)
from skerry.codecs.text import escape
from skerry.errors import SkerryError
from skerry.types import ProcessInfo, parse_size

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.results.command import Output


@click.command()
@click.option("-q", "--ids", is_flag=True, help="Print IDs only, one per line.")
@click.option("--prune", is_flag=True, help="Remove ended processes and their output.")
@json_option
@sandbox_argument
@pass_cli
def ps(cli: CliContext, sandbox: str, ids: bool, prune: bool, as_json: bool) -> int:
    """List the processes of SANDBOX, including ended ones."""
    target = cli.sandbox(sandbox)
    found = [process.cached_info for process in target.processes.list()]
    if prune:
        return _prune(cli, target, found, as_json)
    if as_json:
        output.json(found)
    elif ids:
        for info in found:
            click.echo(escape(info.id))
    else:
        output.table(("ID", "PID", "USER", "STATUS", "AGE", "OUTPUT", "COMMAND"), map(_row, found))
    return 0


def _row(process: ProcessInfo) -> tuple[str, ...]:
    command = process.cmd if isinstance(process.cmd, str) else " ".join(process.cmd)
    state = output.process_status(process)
    if process.children:
        state += f", {len(process.children)} left"
    age = output.format_age((process.ended_at or time.time()) - process.started_at)
    return (
        process.id, str(process.pid), process.user, state, age, output.format_size(process.offset),
        command if len(command) <= 80 else command[:79] + "…",
    )  # fmt: skip


def _prune(cli: CliContext, sandbox: Sandbox, found: list[ProcessInfo], as_json: bool) -> int:
    ended = [process.id for process in found if process.state == "exited" and not process.children]
    for process in ended:
        sandbox.processes.remove(process)
    if as_json:
        output.json({"removed": ended})
    elif not cli.quiet:
        output.info(f"{len(ended)} removed")
    return 0


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow new output until the process ends.")
@click.option("--since", type=click.IntRange(0), metavar="OFFSET", help="Start at this byte.")
@click.option("-n", "--tail", metavar="SIZE", help="Print only the last SIZE bytes, like 4K.")
@click.option("--stdout", "only", flag_value="stdout", help="Print stdout only.")
@click.option("--stderr", "only", flag_value="stderr", help="Print stderr only.")
@sandbox_argument
@process_argument
@pass_cli
def logs(
    cli: CliContext, /, sandbox: str, process: str, follow: bool, since: int | None, tail: str | None, only: str | None
) -> None:
    """Print the output of PROCESS in SANDBOX, its stdout to stdout and its stderr to stderr."""
    if since is not None and tail is not None:
        raise click.UsageError("--since cannot be combined with --tail")
    start = -parse_size(tail, "--tail") if tail is not None else since or 0
    one = cli.sandbox(sandbox).processes.get(process)
    _print(one.follow(start, wait=follow), only, cli)


def _print(pieces: Iterable[Output], only: str | None, cli: CliContext) -> None:
    for piece in pieces:
        if piece.missing and not cli.quiet:
            output.info(f"[skerry: {piece.missing} bytes are missing here]")
        if piece.data and only in (None, piece.stream):
            output.write(piece.stream, piece.data)


@click.command()
@click.option("--timeout", metavar="TIME", help="Wait at most this long, like 90s or 5m.")
@json_option
@sandbox_argument
@process_argument
@pass_cli
def wait(cli: CliContext, sandbox: str, process: str, timeout: str | None, as_json: bool) -> int:
    """Wait until PROCESS ends and return its exit code, or 124 if it is still running after --timeout."""
    one = cli.sandbox(sandbox).processes.get(process)
    try:
        result = one.wait(output.parse_seconds(timeout, "--timeout"))
    except TimeoutError as error:
        output.info(f"error: {error}")
        return output.EXIT_TIMEOUT
    if as_json:
        output.json(output.result_data(result))
    if result.hint and not cli.quiet:
        output.info(f"hint: {result.hint}")
    return output.result_exit_code(result)


@click.command()
@click.option(
    "-s",
    "--signal",
    "signal",
    default="TERM",
    show_default=True,
    help="Send this signal. KILL ends the whole process tree.",
)
@click.option("-9", "kill", is_flag=True, help="Send KILL.")
@sandbox_argument
@processes_argument
@pass_cli
def kill(cli: CliContext, sandbox: str, processes: tuple[str, ...], signal: str, kill: bool) -> int:
    """Send a signal to processes of SANDBOX."""
    target = cli.sandbox(sandbox)
    worst = 0
    for process in processes:
        try:
            target.processes.signal(process, "KILL" if kill else signal)
        except SkerryError as error:
            output.error(error)
            worst = max(worst, output.error_exit_code(error))
    return worst
