"""mcp install: add Skerry's tools to the settings of an MCP client."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import click

from skerry.cli import output
from skerry.cli.context import CliContext, pass_cli
from skerry.codecs.text import escape
from skerry.mcp.install import config_files
from skerry.mcp.install.clients import CLIENTS, TOKEN_VARIABLE, Scope
from skerry.mcp.install.installer import ConfigChange, InstallRequest, change_of, entry_of, entry_text, file_of

_TOKEN = re.compile(r"(skt_\w{4})[\w-]+")  # also hides a token that is already in the file


@click.command()
@click.argument("client", type=click.Choice(tuple(CLIENTS)), metavar="CLIENT")
@click.argument("options", nargs=-1, metavar="[-- OPTIONS OF skerry mcp]")
@click.option(
    "--scope", type=click.Choice(("user", "project")), default="user", show_default=True,
    help="Change your user settings, or the file of this directory's project.",
)  # fmt: skip
@click.option("--server", metavar="ADDRESS", help="Use the /mcp endpoint of this http:// or https:// server.")
@click.option(
    "--token-env", metavar="NAME", default=TOKEN_VARIABLE, show_default=True,
    help="Read the token from this variable of the client's environment.",
)  # fmt: skip
@click.option(
    "--write-token", is_flag=True, help="Write the current value of that variable into the file in clear text."
)
@click.option("--name", metavar="NAME", default="skerry", show_default=True, help="Register under this name.")
@click.option("--remove", is_flag=True, help="Remove the entry.")
@click.option("--print", "only_print", is_flag=True, help="Print the entry without changing the file.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_cli
def install(
    cli: CliContext,
    /,
    client: str,
    options: tuple[str, ...],
    scope: Scope,
    server: str | None,
    token_env: str,
    write_token: bool,
    name: str,
    remove: bool,
    only_print: bool,
    yes: bool,
) -> None:
    """Add Skerry to the MCP servers of a client. The change is shown first, and nothing else is changed.

    CLIENT is claude-code, claude-desktop, cursor, vscode, codex, windsurf, zed, gemini-cli or cline.

    \b
    skerry mcp install claude-code
    skerry mcp install cursor --scope project -- --repo . --preset pip
    skerry mcp install codex --server https://skerry.example.com --token-env SKERRY_TOKEN
    """
    _check(options)
    token = os.environ.get(token_env) if write_token else None
    if write_token and not token:
        raise click.UsageError(f"--write-token: {token_env} is not set")
    request = InstallRequest(
        client=CLIENTS[client], scope=scope, name=name, server=server or cli.server, variable=token_env,
        token=token, program=_program(scope), options=options,
    )  # fmt: skip
    here = Path.cwd()
    path = file_of(request.client, scope, home=Path.home(), here=here, platform=sys.platform, env=os.environ)
    if only_print:
        text = entry_text(request)
        output.info(f"in {escape(str(path))}:")
        click.echo(text, nl=False)
        return
    real = config_files.resolve(path, here if scope == "project" else None)
    entry = None if remove else entry_of(request)
    change = change_of(request.client, real, config_files.read(real), name, entry)
    _write(change, request, yes, gone=remove)


def _check(options: tuple[str, ...]) -> None:
    """Check the options of `skerry mcp` now: with an unknown option, a client would only show no tools."""
    group = click.get_current_context().parent
    if options and group is not None:
        given = group.command.make_context("skerry mcp", [*options])
        _, words, _ = group.command.make_parser(given).parse_args([*options])
        if words:
            raise click.UsageError(f"{words[0]!r} is not an option", given)


def _write(change: ConfigChange, request: InstallRequest, yes: bool, *, gone: bool) -> None:
    where = escape(str(change.path))
    if not change.differs:
        output.info(f"{where} is up to date")
        return
    diff = change.diff()
    if request.token:
        diff = diff.replace(request.token, request.token[:8] + "…")
    for line in diff.splitlines():
        click.echo(escape(_TOKEN.sub(r"\1…", line).expandtabs(4)))
    if not output.confirm(f"Change {where}?", yes=yes):
        raise click.Abort
    config_files.write(change, private=request.scope == "user", secret=request.token is not None)
    if gone:
        output.info(f"done. Restart {request.client.title}")
        return
    output.info(f"done. {request.client.title}: {request.client.then}")
    if request.scope == "project" and request.server is None and shutil.which("skerry") is None:
        output.info("note: the project's file runs `skerry`, which is not in your PATH")


def _program(scope: Scope) -> tuple[str, ...]:
    """Return the command for the client's file. A project's file is shared with users that have `skerry` elsewhere; a
    user's file has an absolute path, because a desktop program has another PATH than a shell."""
    if scope == "project":
        return ("skerry",)
    invoked = Path(sys.argv[0])
    if invoked.name == "skerry" and invoked.is_absolute() and os.access(invoked, os.X_OK):
        return (str(invoked),)
    beside = Path(sys.executable).with_name("skerry")
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "skerry")
