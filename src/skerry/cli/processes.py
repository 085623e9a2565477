"""ps, logs, wait, kill: the processes inside a sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from skerry.cli import talk
from skerry.cli.session import (
    Session,
    json_option,
    pass_session,
    process_argument,
    processes_argument,
    sandbox_argument,
)
from skerry.client.harmless import harmless
from skerry.errors import SkerryError
from skerry.types import ProcessInfo, parse_size

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.outcome import Output


@click.command()
@click.option("-q", "--ids", is_flag=True, help="Ids alone, one a line.")
@click.option("--prune", is_flag=True, help="Forget those that have ended, and their output.")
@json_option
@sandbox_argument
@pass_session
def ps(session: Session, sandbox: str, ids: bool, prune: bool, as_json: bool) -> int:
    """List the processes of SANDBOX, also those that have ended."""
    target = session.sandbox(sandbox)
    found = [process.known for process in target.processes.list()]
    if prune:
        return _prune(session, target, found, as_json)
    if as_json:
        talk.give_json(found)
    elif ids:
        for info in found:
            click.echo(harmless(info.id))
    else:
        talk.give_table(("ID", "PID", "USER", "STATE", "AGE", "OUTPUT", "COMMAND"), map(_row, found))
    return 0


def _row(process: ProcessInfo) -> tuple[str, ...]:
    command = process.cmd if isinstance(process.cmd, str) else " ".join(process.cmd)
    state = talk.ending(process) if process.state == "exited" else process.state
    if process.children:
        state += f", {len(process.children)} left"
    age = talk.ago((process.ended_at or time.time()) - process.started_at)
    return (
        process.id, str(process.pid), process.user, state, age, talk.size(process.offset),
        command if len(command) <= 80 else command[:79] + "…",
    )  # fmt: skip


def _prune(session: Session, sandbox: Sandbox, found: list[ProcessInfo], as_json: bool) -> int:
    ended = [process.id for process in found if process.state == "exited" and not process.children]
    for process in ended:
        sandbox.processes.remove(process)
    if as_json:
        talk.give_json({"removed": ended})
    elif not session.quiet:
        talk.say(f"{len(ended)} forgotten")
    return 0


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on as more comes, to the end of the process.")
@click.option("--since", type=click.IntRange(0), metavar="OFFSET", help="From this byte on.")
@click.option("-n", "--tail", metavar="SIZE", help="Only the last SIZE bytes, like 4K.")
@click.option("--stdout", "only", flag_value="stdout", help="Only what it wrote to stdout.")
@click.option("--stderr", "only", flag_value="stderr", help="Only what it wrote to stderr.")
@sandbox_argument
@process_argument
@pass_session
def logs(
    session: Session, /, sandbox: str, process: str, follow: bool, since: int | None, tail: str | None, only: str | None
) -> None:
    """Print what PROCESS of SANDBOX wrote: its stdout to stdout, its stderr to stderr."""
    if since is not None and tail is not None:
        raise click.UsageError("--since and --tail exclude each other")
    start = -parse_size(tail, "--tail") if tail is not None else since or 0
    one = session.sandbox(sandbox).processes.get(process)
    _print(one.follow(start, wait=follow), only, session)


def _print(pieces: Iterable[Output], only: str | None, session: Session) -> None:
    for piece in pieces:
        if piece.missing and not session.quiet:
            talk.say(f"[skerry: {piece.missing} bytes are gone here]")
        if piece.data and only in (None, piece.stream):
            talk.show(piece.stream, piece.data)


@click.command()
@click.option("--timeout", metavar="TIME", help="Wait no longer than this, like 90s or 5m.")
@json_option
@sandbox_argument
@process_argument
@pass_session
def wait(session: Session, sandbox: str, process: str, timeout: str | None, as_json: bool) -> int:
    """Wait for the end of PROCESS. Its exit code is ours; 124 if it still runs after --timeout."""
    one = session.sandbox(sandbox).processes.get(process)
    try:
        result = one.wait(talk.seconds(timeout, "--timeout"))
    except TimeoutError as error:
        talk.say(f"error: {error}")
        return talk.TIMED_OUT
    if as_json:
        talk.give_json(talk.result_as_data(result))
    if result.hint and not session.quiet:
        talk.say(f"hint: {result.hint}")
    return talk.code_of_result(result)


@click.command()
@click.option("-s", "--signal", "signal", default="TERM", show_default=True, help="KILL takes the whole tree.")
@click.option("-9", "kill", is_flag=True, help="The same as -s KILL.")
@sandbox_argument
@processes_argument
@pass_session
def kill(session: Session, sandbox: str, processes: tuple[str, ...], signal: str, kill: bool) -> int:
    """Send a signal to processes of SANDBOX."""
    target = session.sandbox(sandbox)
    worst = 0
    for process in processes:
        try:
            target.processes.signal(process, "KILL" if kill else signal)
        except SkerryError as error:
            talk.say_error(error)
            worst = max(worst, talk.code_of_error(error))
    return worst
