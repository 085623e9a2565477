"""run, exec: run a command in a sandbox, stream its output, and return its exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import output, prompts, terminal
from skerry.cli.commands import code
from skerry.cli.commands.completion import files_here
from skerry.cli.commands.pull import report_behind
from skerry.cli.commands.shell.commands import ended, open_terminal, run_in_terminal, with_terminal
from skerry.cli.context import (
    CliContext,
    DashedCommand,
    is_dashed,
    json_option,
    known_images,
    pass_cli,
    sandbox_argument,
)
from skerry.cli.options.network import cassette_of_run
from skerry.cli.options.project import project_from_options
from skerry.cli.options.project_setup import with_setup
from skerry.cli.options.repository import repo_from_options, repo_options
from skerry.cli.options.sandbox import parse_pairs, sandbox_arguments, sandbox_options
from skerry.cli.signals import ForwardedInterrupts
from skerry.cli.terminal import piped_stdin
from skerry.client._sync.run_once import Saving
from skerry.client._sync.run_once import run as run_once
from skerry.codecs.text import escape
from skerry.errors import InvalidRequest
from skerry.types import SUFFIXES, Result

if TYPE_CHECKING:
    from skerry.client._sync.processes import Process
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.results.command import Output

_TAGGED = re.compile(
    r"[a-z0-9][a-z0-9._/-]*(?::[0-9]{1,5}/[a-z0-9._/-]+)?(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|@sha256:[0-9a-f]{64})"
)
MAX_NAME = 255  # bytes of one part of a path; a longer name is not a file
_COMMAND = {"allow_interspersed_args": False}
_command = click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...", shell_complete=files_here
)


_interactive = click.option("-i", "--interactive", is_flag=True, help="Forward stdin also if it is a terminal.")
_tty = click.option(
    "-t/-T", "--tty/--no-tty", "tty", default=None,
    help="Allocate a terminal, or not. Default: at a terminal, for shells, interpreters and full-screen programs.",
)  # fmt: skip


@click.command(cls=DashedCommand, context_settings=_COMMAND)
@_interactive
@_tty
@code.code_options
@repo_options
@sandbox_options
@click.option(
    "--file", "files", multiple=True, metavar="PATH[:DEST]", help="Upload a file to /workspace/DEST.",
    shell_complete=files_here,
)  # fmt: skip
@click.option("--no-auto-upload", is_flag=True, help="Do not upload the local files that COMMAND names.")
@click.option("--out", metavar="DIR", help="Save new and changed files of /workspace to this new or empty directory.")
@code.overwrite_option
@click.option("--max-size", metavar="SIZE", help=code.MAX_SIZE_HELP)
@click.option("--timeout", metavar="TIME", help="End the command after this time, like 90s or 5m. Default: no limit.")
@click.option("--user", metavar="NAME", help="Run as this user. Default: the image's user.")
@click.option(
    "--cwd",
    metavar="DIR",
    help="Run in this directory, absolute or below the default, the image's (/workspace in base).",
)
@json_option
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[IMAGE] [--] [COMMAND...]", shell_complete=files_here
)
@pass_cli
@click.pass_context
def run(ctx: click.Context, cli: CliContext, /, command: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Run COMMAND, or the image's default command, in a new sandbox and delete the sandbox afterwards.

    Output is streamed, stdin is forwarded, and the exit code is that of the command. Ctrl-C sends SIGINT to it; a
    second one within 2 s kills it. Files below this directory that COMMAND names, as in `python3 analyse.py`, are
    uploaded to /workspace; with --repo, the whole repository is.

    With -it, use it in this terminal: `skerry run -it -- bash`, `skerry run -it python:3.12`. A first word with a tag,
    or with -i or -t the name of an image, is the IMAGE.

    With -l, run code instead of COMMAND: `skerry run -l python script.py`. The last value is printed too, and --out
    also receives the pictures that the code drew.
    """
    if not is_dashed(ctx) and not (given["image"] or given["language"] or given["code"]):
        given["image"], command = _split_image(cli, command, local=bool(given["tty"] or given["interactive"]))
    request = code.code_request(given, command)
    tty = terminal.wanted(given.pop("tty"), command, possible=request is None and not as_json)
    if tty:
        _check_terminal(as_json, "skerry run -- COMMAND")
    files, named = _files(given.pop("files")), given["image"]
    if not given.pop("no_auto_upload") and given["repo"] is None and request is None:
        uploads = {place: path for place, path in _named(command).items() if place not in files}
        if uploads and not cli.quiet:
            output.info(f"uploaded: {', '.join(uploads)}")
        files |= uploads
    project = project_from_options(given)
    arguments = sandbox_arguments(given, project)
    arguments = with_setup(cli, arguments if tty else _with_prompt(arguments), project)
    with repo_from_options(cli, given, project, bar=False) as repo:
        arguments |= {"repo": repo}
    cassette = cassette_of_run(given, arguments.get("network"))
    if request is not None:
        given["cassette"] = cassette
        return code.run_once(cli, request, code.without_default_image(arguments, request, named), files, as_json, given)
    network = arguments.get("network")
    presets = network is not None and bool(network.presets)
    saving = Saving(given.pop("out"), given.pop("overwrite"), given.pop("max_size"), cassette)
    options = {
        "timeout": output.parse_seconds(given.pop("timeout"), "--timeout"),
        "user": given.pop("user"),
        "cwd": given.pop("cwd"),
    }
    if tty:
        result = run_in_terminal(cli, list(command), {**options, "env": {}}, arguments, files=files, saving=saving)
        return ended(cli, None) if result is None else _finish(result, command, as_json, cli, presets=presets)
    stdin = piped_stdin(interactive=given.pop("interactive"))
    with ForwardedInterrupts() as interrupts:
        result = run_once(
            list(command) or None,
            files=files,
            out=saving.out,
            overwrite=saving.overwrite,
            max_size=saving.max_size,
            cassette=cassette,
            stdin=stdin,
            on_output=None if as_json else _pass_on,
            on_start=interrupts.started,
            on_warning=output.info,
            server=cli.client(),
            **options,
            **arguments,
        )
    return _finish(result, command, as_json, cli, presets=presets, no_input=_has_no_input(stdin))


def _split_image(cli: CliContext, command: tuple[str, ...], *, local: bool) -> tuple[str | None, tuple[str, ...]]:
    """Return the image that a command begins with, as for `docker run`, and the rest. `local`: also a name without a
    tag, if an image has it or `--` follows."""
    if not command:
        return None, command
    word, rest = command[0], command[1:]
    tagged = _TAGGED.fullmatch(word) is not None and not os.path.lexists(word)
    if not tagged and not (local and (rest[:1] == ("--",) or word in known_images(cli, ("image", "snapshot")))):
        return None, command
    return word, rest[1:] if rest[:1] == ("--",) else rest


def _check_terminal(as_json: bool, instead: str) -> None:
    if as_json:
        raise click.UsageError("-t cannot be combined with --json")
    terminal.require_terminal(instead)


def _with_prompt(arguments: dict[str, Any]) -> dict[str, Any]:
    """Add a terminal prompt for approval requests, for --network ask."""
    network = arguments.get("network")
    if network is None or network.on_unknown != "ask":
        return arguments
    prompt = prompts.open_prompt()
    if prompt is None:
        output.info(
            "no terminal for approval requests: without a rule or the operator's webhook, destinations are denied"
        )
        return arguments
    return {**arguments, "on_unknown": prompt}


def _answering(target: Sandbox) -> AbstractContextManager[object]:
    """Answer approval requests of the sandbox on this terminal, if any, while its command runs."""
    prompt = prompts.open_prompt() if target.cached_info.network.on_unknown == "ask" else None
    return nullcontext() if prompt is None else target.network.ask(prompt)


@click.command("exec", context_settings=_COMMAND)
@click.option(
    "-e",
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable. NAME alone copies your value.",
)
@click.option("--timeout", metavar="TIME", help="End the command after this time, like 90s or 5m. Default: no limit.")
@click.option("--user", metavar="NAME", help="Run as this user. Default: the image's user.")
@click.option("--cwd", metavar="DIR", help="Run in this directory. Default: the image's directory.")
@click.option(
    "--session",
    "shell",
    metavar="NAME",
    help="Run in this session; create it if needed. A single word is a shell line.",
)
@click.option("-d", "--detach", is_flag=True, help="Run in the background and print the process ID.")
@click.option(
    "-i",
    "--interactive",
    is_flag=True,
    help="Forward stdin also if it is a terminal. With -d: keep stdin open for later writes.",
)
@_tty
@click.option("--id", "process_id", metavar="ID", help="With -d: use this process ID instead of a generated one.")
@click.option("--auto-remove", is_flag=True, help="With -d: remove the process and its output soon after its end.")
@click.option("--max-log-size", metavar="SIZE", help="With -d: keep at most this much output, like 64M.")
@code.code_options
@code.context_options
@json_option
@sandbox_argument
@_command
@pass_cli
def exec_(cli: CliContext, /, sandbox: str, command: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Run COMMAND in SANDBOX. A stopped sandbox is started first.

    Ctrl-C sends SIGINT to COMMAND; a second one within 2 s kills it. With -it, use COMMAND in this terminal, as with
    `skerry shell`.

    With -l, run code instead of COMMAND, in a context that keeps its variables: `skerry exec -l python dev script.py`.
    """
    if command[:1] == ("--",) and len(command) > 1:  # click keeps it after an argument
        command = command[1:]
    request = code.code_request(given, command)
    if request is None and not command:
        raise click.UsageError("Missing argument '[--] COMMAND...'.")
    options = {
        "env": parse_pairs(given["env"], "-e", inherit=True),
        "cwd": given["cwd"],
        "user": given["user"],
        "timeout": output.parse_seconds(given["timeout"], "--timeout"),
    }
    possible = not (request or as_json or given["shell"] or given["detach"])
    tty = given["tty"] = terminal.wanted(given["tty"], command, possible=possible)
    if tty and not given["detach"]:
        if given["shell"]:
            raise click.UsageError("-t cannot be combined with --session")
        _check_terminal(as_json, f"skerry exec {sandbox} -- COMMAND")
    target = cli.sandbox(sandbox)
    if sys.stderr.isatty() and not as_json and not given["detach"]:  # elsewhere, stderr belongs to the program
        report_behind(cli, target.id)
    if request is not None:
        with _answering(target):
            return code.run_in_sandbox(cli, target, request, as_json, given, options)
    run: Callable[..., Result] = target.run
    if given["detach"]:
        options |= {"stdin": given["interactive"] or tty, "journal": given["max_log_size"], "id": given["process_id"]}
        options |= {"auto_remove": given["auto_remove"]}
        options = with_terminal(options) if tty else options
        return _print_process(_start(target, command, given, options), as_json)
    for flag, name in (("max_log_size", "--max-log-size"), ("process_id", "--id"), ("auto_remove", "--auto-remove")):
        if given[flag]:
            raise click.UsageError(f"{name} needs -d")
    if given["shell"]:
        run = _in_session(target, given, options.pop("user"))
    elif tty:
        return open_terminal(cli, target, list(command), options)
    stdin = piped_stdin(interactive=given["interactive"])
    with _answering(target), ForwardedInterrupts() as interrupts:
        result = run(
            list(command), stdin=stdin, on_output=None if as_json else _pass_on, on_start=interrupts.started, **options
        )
    presets = bool(target.cached_info.network.presets)
    if given["shell"] and len(command) == 1:
        command = tuple(command[0].split())
    return _finish(result, command, as_json, cli, sandbox, presets=presets, no_input=_has_no_input(stdin))


def _has_no_input(stdin: object) -> bool:
    """Return whether stdin is a terminal that is not forwarded."""
    return stdin is None and terminal.is_terminal()


def _in_session(sandbox: Sandbox, given: dict[str, Any], user: str | None) -> Callable[..., Result]:
    """Return a function that runs a command in a session: one word is a shell line, several are arguments."""
    if given["interactive"]:
        raise click.UsageError("--session cannot be combined with -i")
    shell = sandbox.session(given["shell"], user=user)

    def run(command: list[str], **options: Any) -> Result:
        return shell.run(command[0] if len(command) == 1 else command, **options)

    return run


def _start(sandbox: Sandbox, command: tuple[str, ...], given: dict[str, Any], options: dict[str, Any]) -> Process:
    """Start a background command, in a session if one is named."""
    if not given["shell"]:
        return sandbox.spawn(list(command), **options)
    session = sandbox.session(given["shell"], user=options.pop("user"))
    return session.spawn(command[0] if len(command) == 1 else list(command), **options)


def _print_process(process: Process, as_json: bool) -> int:
    if as_json:
        output.json(process.cached_info)
    else:
        click.echo(escape(process.id))
    return 0


def _pass_on(piece: Output) -> None:
    output.write(piece.stream, piece.data)


def _files(words: tuple[str, ...]) -> dict[str, Path]:
    """Parse PATH[:DEST] into paths in the sandbox and local files. Write a path with a colon as ./a:b:a:b."""
    found = {}
    for word in words:
        path, colon, place = word.rpartition(":") if not Path(word).exists() else (word, "", "")
        source = Path(path if colon else word)
        place = place or source.name
        if place in found:
            raise InvalidRequest(f"--file: two files for {place!r}")
        found[place] = source
    return found


def _named(command: tuple[str, ...]) -> dict[str, Path]:
    """Return the words of a command that are regular files below this directory. Links and other paths are ignored."""
    found = {}
    for word in command:
        parts = Path(word).parts
        if not word or len(word) > 4096 or "\0" in word or Path(word).is_absolute() or ".." in parts:
            continue
        ways = [Path(*parts[:depth]) for depth in range(1, len(parts) + 1)]
        if any(len(os.fsencode(part)) > MAX_NAME for part in parts):
            continue
        if ways and not any(way.is_symlink() for way in ways) and Path(word).is_file():
            found["/".join(parts)] = Path(word)
    return found


def _suggestion(command: tuple[str, ...], sandbox: str | None) -> str | None:
    """Suggest a fix for a command that was not found or cannot be executed."""
    word = command[0]
    if word.startswith("-") and sandbox is not None:
        return "write options before SANDBOX"
    if Path(word).suffix in SUFFIXES and _named((word,)):
        return f"-l {SUFFIXES[Path(word).suffix]} runs a code file"
    return "this is one word; to run a shell line: -- bash -lc '…'" if len(command) == 1 and " " in word else None


def _finish(
    result: Result,
    command: tuple[str, ...],
    as_json: bool,
    cli: CliContext,
    sandbox: str | None = None,
    *,
    presets: bool,
    no_input: bool = False,
) -> int:
    if as_json:
        output.json(output.result_data(result))
    hint = result.hint
    # grep exits with 1 if it found nothing.
    silent = result.exit_code in (0, 1) and not (result.stdout_bytes or result.stderr_bytes)
    if no_input and silent and terminal.reads_stdin(command):
        hint = hint or "it printed nothing and had no input; -it gives it this terminal"
    if result.exit_code in (126, 127) and command and result.cwd is None:
        hint = _suggestion(command, sandbox) or hint
    hints = output.denial_hints(result.denied, sandbox)
    if not presets and (preset := output.preset_hint(command, result.denied, sandbox)):
        hints = [*hints, preset]
    if hint is not None and (not hints or result.timed_out or result.oom_killed):
        hints = [*hints, hint]
    if hints and not cli.quiet:
        sys.stderr.flush()
        for line in hints:
            output.info(f"hint: {line}")
    return output.result_exit_code(result)
