"""run, exec: a command inside, its output as it comes, its exit code as ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import asking, code, denials, here, talk
from skerry.cli.completion import files_here
from skerry.cli.creation import creation, creation_options, pairs
from skerry.cli.project import prepared
from skerry.cli.repositories import repo_of, repo_options
from skerry.cli.session import Session, json_option, pass_session, sandbox_argument
from skerry.cli.stdin import given_stdin
from skerry.cli.terminals import open_terminal, with_terminal
from skerry.client.harmless import harmless
from skerry.errors import InvalidRequest
from skerry.types import Result

if TYPE_CHECKING:
    from skerry.client._sync.process import Process
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.outcome import Output

NAME_MOST = 255  # bytes of one part of a path: what is longer names no file
_CODE = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript", ".sh": "bash"}
_COMMAND = {"allow_interspersed_args": False}
_command = click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...", shell_complete=files_here
)


@click.command(context_settings=_COMMAND)
@code.code_options
@repo_options
@creation_options
@click.option(
    "--file", "files", multiple=True, metavar="PATH[:DEST]", help="A file to bring in, to /workspace/DEST.",
    shell_complete=files_here,
)  # fmt: skip
@click.option("--no-bring", is_flag=True, help="Don't bring in the files of this directory that COMMAND names.")
@click.option("--out", metavar="DIR", help="A new or empty directory for the new and changed files of /workspace.")
@click.option("--timeout", metavar="TIME", help="End it after this long, like 90s or 5m. No limit if left out.")
@click.option("--user", metavar="NAME", help="Who runs it; the image's user if left out.")
@click.option("--cwd", metavar="DIR", help="Where it runs; /workspace in base.")
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]", shell_complete=files_here)
@pass_session
def run(session: Session, /, command: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Run COMMAND, or what the image itself would run, in a new sandbox that is gone afterwards.

    Output comes as it is made, stdin is passed on, and the exit code is the command's own. Files below this directory
    that COMMAND names, as in `python3 analyse.py`, are brought along to /workspace; with --repo, the whole repository.

    With -l it is code, in place of COMMAND: `skerry run -l python script.py`. Its last value is printed too, and --out
    also has the pictures that it drew.
    """
    from skerry.client._sync.oneshot import run as run_once

    wanted = code.wanted(given, command)
    files, named = _files(given.pop("files")), given["image"]
    if not given.pop("no_bring") and given["repo"] is None and wanted is None:
        brought = {place: path for place, path in _named(command).items() if place not in files}
        if brought and not session.quiet:
            talk.say(f"brought in: {', '.join(brought)}")
        files |= brought
    skip = given.pop("no_setup")
    wish = prepared(session, _with_questions(creation(given)), skip=skip)
    with repo_of(session, given, bar=False) as repo:
        wish |= {"repo": repo}
    if wanted is not None:
        return code.run_once(session, wanted, code.without_default_image(wish, wanted, named), files, as_json, given)
    result = run_once(
        list(command) or None,
        files=files,
        out=given.pop("out"),
        timeout=talk.seconds(given.pop("timeout"), "--timeout"),
        user=given.pop("user"),
        cwd=given.pop("cwd"),
        stdin=given_stdin(),
        on_output=None if as_json else _pass_on,
        tell=talk.say,
        server=session.client(),
        **wish,
    )
    network = wish.get("network")
    return _finish(result, command, as_json, session, presets=network is not None and bool(network.presets))


def _with_questions(wish: dict[str, Any]) -> dict[str, Any]:
    """--network ask: whoever started it is asked, at the terminal."""
    network = wish.get("network")
    if network is None or network.on_unknown != "ask":
        return wish
    prompt = asking.prompt_or_none()
    if prompt is None:
        talk.say(
            "there is no terminal to ask at: what no rule names is refused, unless the operator's webhook allows it"
        )
        return wish
    return {**wish, "on_unknown": prompt}


def _answering(target: Sandbox) -> AbstractContextManager[object]:
    """While a command of a sandbox that asks is waited for, whoever waits is asked, if there is a terminal."""
    prompt = asking.prompt_or_none() if target.known.network.on_unknown == "ask" else None
    return nullcontext() if prompt is None else target.network.ask(prompt)


@click.command("exec", context_settings=_COMMAND)
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable; NAME alone takes yours.")
@click.option("--timeout", metavar="TIME", help="End it after this long, like 90s or 5m. No limit if left out.")
@click.option("--user", metavar="NAME", help="Who runs it; the image's user if left out.")
@click.option("--cwd", metavar="DIR", help="Where it runs; the image's directory if left out.")
@click.option("--session", "shell", metavar="NAME", help="In that session, made if there is none; one word is a line.")
@click.option("-d", "--detach", is_flag=True, help="Leave it to itself; its id is what is printed.")
@click.option("-i", "--interactive", is_flag=True, help="With -d: keep its stdin open, to write to later.")
@click.option("-t", "--tty", is_flag=True, help="With a terminal, as `skerry shell`.")
@click.option("--journal", metavar="SIZE", help="With -d: how much of its output is kept, like 64M.")
@code.code_options
@code.context_options
@json_option
@sandbox_argument
@_command
@pass_session
def exec_(session: Session, /, sandbox: str, command: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Run COMMAND in SANDBOX. One that is stopped starts again.

    With -l it is code, in place of COMMAND, in a context that remembers: `skerry exec -l python dev script.py`.
    """
    if command[:1] == ("--",) and len(command) > 1:  # behind an argument, click leaves it standing
        command = command[1:]
    wanted = code.wanted(given, command)
    if wanted is None and not command:
        raise click.UsageError("Missing argument '[--] COMMAND...'.")
    options = {
        "env": pairs(given["env"], "-e", inherit=True),
        "cwd": given["cwd"],
        "user": given["user"],
        "timeout": talk.seconds(given["timeout"], "--timeout"),
    }
    if given["tty"] and not given["detach"]:
        if as_json or given["shell"]:
            raise click.UsageError("-t does not go with --json or --session")
        here.require_terminal(f"skerry exec {sandbox} -- COMMAND")
    target = session.sandbox(sandbox)
    if wanted is not None:
        with _answering(target):
            return code.run_there(session, target, wanted, as_json, given, options)
    run: Callable[..., Result] = target.run
    if given["shell"]:
        run = _in_session(target, given, options.pop("user"))
    elif given["detach"]:
        options |= {"stdin": given["interactive"] or given["tty"], "journal": given["journal"]}
        options = with_terminal(options) if given["tty"] else options
        return _leave(target.spawn(list(command), **options), as_json)
    elif given["journal"]:
        raise click.UsageError("--journal goes with -d")
    elif given["tty"]:
        return open_terminal(session, target, list(command), options)
    with _answering(target):
        result = run(list(command), stdin=given_stdin(), on_output=None if as_json else _pass_on, **options)
    return _finish(result, command, as_json, session, sandbox, presets=bool(target.known.network.presets))


def _in_session(sandbox: Sandbox, given: dict[str, Any], user: str | None) -> Callable[..., Result]:
    """One word is a shell line, since that is what a session is for; several are an argv."""
    if given["detach"] or given["interactive"] or given["journal"]:
        raise click.UsageError("--session goes without -d: a command of a session is waited for")
    shell = sandbox.session(given["shell"], user=user)

    def run(command: list[str], **options: Any) -> Result:
        return shell.run(command[0] if len(command) == 1 else command, **options)

    return run


def _leave(process: Process, as_json: bool) -> int:
    if as_json:
        talk.give_json(process.known)
    else:
        click.echo(harmless(process.id))
    return 0


def _pass_on(output: Output) -> None:
    talk.show(output.stream, output.data)


def _files(words: tuple[str, ...]) -> dict[str, Path]:
    """PATH[:DEST] as places inside and files here. A path with a colon in it is written ./a:b:a:b."""
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
    """The words of a command that are regular files below this directory; no links, nothing above or elsewhere."""
    found = {}
    for word in command:
        parts = Path(word).parts
        if not word or len(word) > 4096 or "\0" in word or Path(word).is_absolute() or ".." in parts:
            continue
        ways = [Path(*parts[:depth]) for depth in range(1, len(parts) + 1)]
        if any(len(os.fsencode(part)) > NAME_MOST for part in parts):
            continue
        if ways and not any(way.is_symlink() for way in ways) and Path(word).is_file():
            found["/".join(parts)] = Path(word)
    return found


def _meant(command: tuple[str, ...], sandbox: str | None) -> str | None:
    """What somebody may have meant whose command is not there, or can't be executed."""
    word = command[0]
    if word.startswith("-") and sandbox is not None:
        return "options go before SANDBOX"
    if Path(word).suffix in _CODE and _named((word,)):
        return f"-l {_CODE[Path(word).suffix]} runs a file of code"
    return "that is one word; a shell line goes like: -- bash -lc '…'" if len(command) == 1 and " " in word else None


def _finish(
    result: Result,
    command: tuple[str, ...],
    as_json: bool,
    session: Session,
    sandbox: str | None = None,
    *,
    presets: bool,
) -> int:
    if as_json:
        talk.give_json(talk.result_as_data(result))
    hint = result.hint
    if result.exit_code in (126, 127) and command and result.cwd is None:
        hint = _meant(command, sandbox) or hint
    told = denials.hints(result.denied, sandbox)
    if not presets and (preset := denials.preset_hint(command, result.denied, sandbox)):
        told = [*told, preset]
    if hint is not None and (not told or result.timed_out or result.oom_killed):
        told = [*told, hint]
    if told and not session.quiet:
        sys.stderr.flush()
        for line in told:
            talk.say(f"hint: {line}")
    return talk.code_of_result(result)
