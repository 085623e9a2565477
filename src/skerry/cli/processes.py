"""ps, kill: the processes inside a sandbox."""

from __future__ import annotations

import click

from skerry.cli import talk
from skerry.cli.session import Session, json_option, pass_session, sandbox_argument
from skerry.types import ProcessInfo


@click.command()
@json_option
@sandbox_argument
@pass_session
def ps(session: Session, sandbox: str, as_json: bool) -> None:
    """List the processes of SANDBOX."""
    found = session.sandbox(sandbox).processes.list()
    if as_json:
        talk.give_json(found)
    else:
        talk.give_table(("ID", "PID", "USER", "STATE", "COMMAND"), map(_row, found))


def _row(process: ProcessInfo) -> tuple[str, ...]:
    command = process.cmd if isinstance(process.cmd, str) else " ".join(process.cmd)
    state: str = process.state
    if process.state == "exited":
        state = talk.ending(process)
    if process.children:
        state += f", {len(process.children)} left"
    return process.id, str(process.pid), process.user, state, command if len(command) <= 80 else command[:79] + "…"


@click.command()
@click.option("-s", "--signal", "signal", default="TERM", show_default=True, help="KILL takes the whole tree.")
@sandbox_argument
@click.argument("processes", nargs=-1, required=True, metavar="PROCESS...")
@pass_session
def kill(session: Session, sandbox: str, processes: tuple[str, ...], signal: str) -> None:
    """Send a signal to processes of SANDBOX."""
    target = session.sandbox(sandbox)
    for process in processes:
        target.processes.signal(process, signal)
