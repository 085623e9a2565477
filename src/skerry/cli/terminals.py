"""shell, attach: a terminal in front of a process inside."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import here, talk
from skerry.cli.creation import pairs
from skerry.cli.keys import Keys
from skerry.cli.session import Session, pass_session, process_argument, sandbox_argument
from skerry.cli.stdin import pieces_of
from skerry.errors import CommandFailed, SkerryError
from skerry.types import Result

if TYPE_CHECKING:
    from skerry.client._sync.process import Process
    from skerry.client._sync.sandbox import Sandbox

# The user's login shell, as far as it is one; bash, or sh where there is none.
_WHICH_SHELL = """\
u=$(id -u) s=
while IFS=: read -r _ _ i _ _ _ t; do [ "$i" = "$u" ] && { s=$t; break; }; done </etc/passwd
case $s in */nologin | */false) s= ;; esac
[ -x "$s" ] || s=$(command -v bash) || s=/bin/sh
printf %s "$s"
"""

no_escape_option = click.option("-E", "--no-escape", is_flag=True, help="`~` is a key like any other.")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable; NAME alone takes yours.")
@click.option("--user", metavar="NAME", help="Who runs it; the image's user if left out.")
@click.option("--cwd", metavar="DIR", help="Where it runs; the image's directory if left out.")
@no_escape_option
@sandbox_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@pass_session
def shell(session: Session, /, sandbox: str, command: tuple[str, ...], no_escape: bool, **given: Any) -> int:
    """Open a terminal in SANDBOX: a login shell, or COMMAND.

    Its exit code is ours. `~.` right after Enter leaves it, `~?` helps. What is left, also by closing the window, goes
    on until it ends by itself: `skerry ps` lists it, `skerry attach` comes back to it.
    """
    here.require_terminal(f"skerry exec {sandbox} -- COMMAND")
    target = session.sandbox(sandbox)
    words = list(command[1:] if command[:1] == ("--",) else command)
    options = {"env": pairs(given["env"], "-e", inherit=True), "user": given["user"], "cwd": given["cwd"]}
    return open_terminal(session, target, words or _login_shell(target, given["user"]), options, no_escape)


def open_terminal(
    session: Session, sandbox: Sandbox, words: list[str], options: dict[str, Any], no_escape: bool = False
) -> int:
    """Start a command with a terminal, and be in front of it."""
    process = sandbox.spawn(words, **with_terminal(options))
    return _use(session, sandbox, process, Keys(escape=not no_escape), fresh=True)


def with_terminal(options: dict[str, Any]) -> dict[str, Any]:
    """The same for a terminal like the one here."""
    return {**options, "pty": here.size(), "env": {**here.description(), **options["env"]}}


def _login_shell(sandbox: Sandbox, user: str | None) -> list[str]:
    found = sandbox.run(["/bin/sh", "-c", _WHICH_SHELL], user=user, timeout=30)
    with contextlib.suppress(SkerryError):  # a question of ours, not a command of the user's
        sandbox.processes.remove(found.id)
    if not found.ok or not found.stdout.startswith("/"):
        raise CommandFailed("this sandbox has no shell", hint=f"name a command: skerry shell {sandbox.id} -- COMMAND")
    return [found.stdout, "-l"]


@click.command()
@click.option("--no-stdin", is_flag=True, help="Only look on: nothing that is typed goes in.")
@no_escape_option
@sandbox_argument
@process_argument
@pass_session
def attach(session: Session, sandbox: str, process: str, no_stdin: bool, no_escape: bool) -> int:
    """Come back to PROCESS of SANDBOX: what it showed last, then what it shows; what is typed goes in.

    With a terminal, as `shell`: `~.` right after Enter leaves it. Without one, Ctrl-C leaves it. It goes on in either
    case; if it ends, its exit code is ours.
    """
    target = session.sandbox(sandbox)
    one = target.processes.get(process)
    if not one.known.pty:
        return _follow(session, target, one, reads=not no_stdin)
    if no_stdin or not here.is_terminal():
        return _look_on(session, target, one, reads=not no_stdin)
    return _use(session, target, one, Keys(escape=not no_escape), fresh=False)


def _use(session: Session, sandbox: Sandbox, process: Process, keys: Keys, *, fresh: bool) -> int:
    from skerry.cli import viewer  # asyncio and the SDK take a moment to load

    result = viewer.use(session.server, sandbox.known, process.id, keys, fresh=fresh)
    return _left(session, sandbox, process) if result is None else _ended(session, result)


def _look_on(session: Session, sandbox: Sandbox, process: Process, *, reads: bool) -> int:
    from skerry.cli import viewer

    try:
        result = viewer.look_on(session.server, sandbox.known, process.id, reads=reads)
    except KeyboardInterrupt:
        return _left(session, sandbox, process)
    return _ended(session, result)


def _follow(session: Session, sandbox: Sandbox, process: Process, *, reads: bool) -> int:
    from skerry.client.screen import REPLAY

    if reads and process.state == "running":
        threading.Thread(target=_feed, args=(process,), name="skerry-stdin", daemon=True).start()
    try:
        for piece in process.follow(-REPLAY):
            if piece.missing and not session.quiet:
                talk.say(f"[skerry: {piece.missing} bytes are gone here]")
            talk.show(piece.stream, piece.data)
        return _ended(session, process.wait())
    except KeyboardInterrupt:
        return _left(session, sandbox, process)


def _feed(process: Process) -> None:
    """A process that takes no input, or has ended, is nobody's failure: its output goes on, or its end is told."""
    try:
        pieces: Iterator[bytes] = pieces_of(0)
        for piece in pieces:
            process.stdin.write(piece)
        process.stdin.close()
    except (SkerryError, OSError):
        return


def _ended(session: Session, result: Result) -> int:
    if result.hint and not session.quiet:
        sys.stdout.flush()
        talk.say(f"hint: {result.hint}")
    return talk.code_of_result(result)


def _left(session: Session, sandbox: Sandbox, process: Process) -> int:
    if not session.quiet:
        name = sandbox.name or sandbox.id
        talk.say(f"left; it goes on. Come back: skerry attach {name} {process.id}")
    return 0
