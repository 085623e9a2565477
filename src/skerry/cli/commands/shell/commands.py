"""shell, attach: connect the terminal to a process in a sandbox."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from skerry.cli import output, terminal
from skerry.cli.commands.shell.escapes import HELP_TEMPORARY, EscapeKeys
from skerry.cli.context import (
    CliContext,
    DashedCommand,
    SandboxName,
    is_dashed,
    pass_cli,
    process_argument,
    sandbox_argument,
)
from skerry.cli.options.network import cassette_of_run
from skerry.cli.options.project import project_from_options
from skerry.cli.options.project_setup import with_setup
from skerry.cli.options.sandbox import parse_pairs, sandbox_arguments, sandbox_options
from skerry.cli.terminal import read_chunks
from skerry.client._sync.run_once import Saving, run_sandbox
from skerry.client.transport.terminal_messages import REPLAY
from skerry.errors import CommandFailed, InvalidRequest, SkerryError
from skerry.types import Result

if TYPE_CHECKING:
    from skerry.client._sync.processes import Process
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.create_options import CreateOptions

# Prints the user's login shell; else bash, else sh.
_WHICH_SHELL = """\
u=$(id -u) s=
while IFS=: read -r _ _ i _ _ _ t; do [ "$i" = "$u" ] && { s=$t; break; }; done </etc/passwd
case $s in */nologin | */false) s= ;; esac
[ -x "$s" ] || s=$(command -v bash) || s=/bin/sh
printf %s "$s"
"""

no_escape_option = click.option(
    "-E", "--no-escape", is_flag=True, help="Send `~` to the program instead of using it as the escape key."
)


@click.command(cls=DashedCommand, context_settings={"allow_interspersed_args": False})
@sandbox_options
@click.option("--user", metavar="NAME", help="Run as this user. Default: the image's user.")
@click.option("--cwd", metavar="DIR", help="Run in this directory. Default: the image's directory.")
@no_escape_option
@click.argument("sandbox", type=SandboxName(), required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@pass_cli
@click.pass_context
def shell(
    ctx: click.Context, cli: CliContext, /, sandbox: str | None, command: tuple[str, ...], no_escape: bool, **given: Any
) -> int:
    """Open a terminal in SANDBOX: a login shell, or COMMAND. Without SANDBOX, create a sandbox and delete it at the
    end; a COMMAND then needs the `--`.

    The exit code is that of the shell. `~.` right after Enter detaches, `~?` shows help. A detached shell, also after
    closing the window, keeps running: `skerry ps` lists it, `skerry attach` returns to it. In a new sandbox, both end
    the shell.

    Only -e, --user, --cwd and -E apply to an existing sandbox; all other options describe a new one.
    """
    terminal.require_terminal(f"skerry exec {sandbox} -- COMMAND" if sandbox else "skerry run -- COMMAND")
    words = list(command[1:] if command[:1] == ("--",) else command)
    options: dict[str, Any] = {"user": given.pop("user"), "cwd": given.pop("cwd"), "env": {}}
    if sandbox is None or is_dashed(ctx):
        words = words if sandbox is None else [sandbox, *command]
        project = project_from_options(given)
        arguments = with_setup(cli, sandbox_arguments(given, project), project)
        options["login"] = True
        saving = Saving(cassette=cassette_of_run(given, arguments.get("network")))
        return ended(cli, run_in_terminal(cli, words, options, arguments, saving=saving, escape=not no_escape))
    _check_options(ctx)
    target = cli.sandbox(sandbox)
    options["env"] = parse_pairs(given["env"], "-e", inherit=True)
    return open_terminal(cli, target, words or _login_shell(target, options["user"]), options, no_escape)


def _check_options(ctx: click.Context) -> None:
    """Reject options of a new sandbox for an existing one."""
    known = ("sandbox", "command", "env", "user", "cwd", "no_escape")
    for param in ctx.command.params:
        if param.name not in known and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[-1]} needs a new sandbox: leave SANDBOX out")


def open_terminal(
    cli: CliContext, sandbox: Sandbox, words: list[str], options: dict[str, Any], no_escape: bool = False
) -> int:
    """Start a command with a terminal and connect to it."""
    _note_approvals(cli, sandbox)
    process = sandbox.spawn(words, **with_terminal(options))
    return _use(cli, sandbox, process, EscapeKeys(escape=not no_escape), fresh=True)


def run_in_terminal(
    cli: CliContext,
    words: list[str],
    options: dict[str, Any],
    arguments: dict[str, Any],
    *,
    files: Mapping[str, Path] = {},
    saving: Saving | None = None,
    escape: bool = True,
) -> Result | None:
    """Start a command with a terminal in a new sandbox, connect to it, and delete the sandbox at the end. Without a
    command, start the image's command, or a login shell. Return None if the user left before the end."""
    from skerry.cli.commands.shell import viewer

    login = options.pop("login", False)
    creation = cast("CreateOptions", {**arguments, "server": cli.client()})
    with run_sandbox(files, saving or Saving(), (), output.info, creation) as sandbox:
        _note_approvals(cli, sandbox)
        process = (
            _spawn_default(sandbox, options, login) if not words else sandbox.spawn(words, **with_terminal(options))
        )
        keys = EscapeKeys(escape, HELP_TEMPORARY)
        return viewer.use(cli.server, sandbox.cached_info, process.id, keys, fresh=True)


def _spawn_default(sandbox: Sandbox, options: dict[str, Any], login: bool) -> Process:
    if not login:
        with contextlib.suppress(InvalidRequest):  # the image has no command
            return sandbox.spawn(None, **with_terminal(options))
    return sandbox.spawn(_login_shell(sandbox, options["user"]), **with_terminal(options))


def _note_approvals(cli: CliContext, sandbox: Sandbox) -> None:
    if sandbox.cached_info.network.on_unknown == "ask" and not cli.quiet:
        output.info(f"answer approval requests in another terminal: skerry network ask {sandbox.name or sandbox.id}")


def ended(cli: CliContext, result: Result | None) -> int:
    """Return the exit code of a program in a new sandbox."""
    if result is None:
        output.info("left before the end; the sandbox was deleted")
        return output.EXIT_INTERRUPTED
    return _ended(cli, result)


def with_terminal(options: dict[str, Any]) -> dict[str, Any]:
    """Add a terminal with the size and type of this one."""
    return {**options, "pty": terminal.size(), "env": {**terminal.environment(), **options["env"]}}


def _login_shell(sandbox: Sandbox, user: str | None) -> list[str]:
    found = sandbox.run(["/bin/sh", "-c", _WHICH_SHELL], user=user, timeout=30)
    with contextlib.suppress(SkerryError):  # not a command of the user: do not list it
        sandbox.processes.remove(found.id)
    if not found.ok or not found.stdout.startswith("/"):
        raise CommandFailed("this sandbox has no shell", hint=f"give a command: skerry shell {sandbox.id} -- COMMAND")
    return [found.stdout, "-l"]


@click.command()
@click.option("--no-stdin", is_flag=True, help="Show output only; send no input.")
@no_escape_option
@sandbox_argument
@process_argument
@pass_cli
def attach(cli: CliContext, sandbox: str, process: str, no_stdin: bool, no_escape: bool) -> int:
    """Attach to PROCESS in SANDBOX: show its recent and new output, and send it your input.

    With a terminal, `~.` right after Enter detaches, as with `shell`. Without one, Ctrl-C detaches. The process keeps
    running in both cases. If it ends, its exit code is returned.
    """
    target = cli.sandbox(sandbox)
    one = target.processes.get(process)
    if not one.cached_info.pty:
        return _follow(cli, target, one, reads=not no_stdin)
    if no_stdin or not terminal.is_terminal():
        return _view(cli, target, one, reads=not no_stdin)
    return _use(cli, target, one, EscapeKeys(escape=not no_escape), fresh=False)


def _use(cli: CliContext, sandbox: Sandbox, process: Process, keys: EscapeKeys, *, fresh: bool) -> int:
    from skerry.cli.commands.shell import viewer  # asyncio and the async SDK take a moment to load

    result = viewer.use(cli.server, sandbox.cached_info, process.id, keys, fresh=fresh)
    return _detached(cli, sandbox, process) if result is None else _ended(cli, result)


def _view(cli: CliContext, sandbox: Sandbox, process: Process, *, reads: bool) -> int:
    from skerry.cli.commands.shell import viewer

    try:
        result = viewer.view(cli.server, sandbox.cached_info, process.id, reads=reads)
    except KeyboardInterrupt:
        return _detached(cli, sandbox, process)
    return _ended(cli, result)


def _follow(cli: CliContext, sandbox: Sandbox, process: Process, *, reads: bool) -> int:
    if reads and process.state == "running":
        threading.Thread(target=_feed, args=(process,), name="skerry-stdin", daemon=True).start()
    try:
        for piece in process.follow(-REPLAY):
            if piece.missing and not cli.quiet:
                output.info(f"[skerry: {piece.missing} bytes are missing here]")
            output.write(piece.stream, piece.data)
        return _ended(cli, process.wait())
    except KeyboardInterrupt:
        return _detached(cli, sandbox, process)


def _feed(process: Process) -> None:
    """Send stdin to a process. Ignore a process that takes no input or has ended: its output or its end is shown."""
    try:
        pieces: Iterator[bytes] = read_chunks(0)
        for piece in pieces:
            process.stdin.write(piece)
        process.stdin.close()
    except (SkerryError, OSError):
        return


def _ended(cli: CliContext, result: Result) -> int:
    if result.hint and not cli.quiet:
        sys.stdout.flush()
        output.info(f"hint: {result.hint}")
    return output.result_exit_code(result)


def _detached(cli: CliContext, sandbox: Sandbox, process: Process) -> int:
    if not cli.quiet:
        name = sandbox.name or sandbox.id
        output.info(f"detached; the process keeps running. To return: skerry attach {name} {process.id}")
    return 0
