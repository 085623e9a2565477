"""mcp install: a client's own settings, changed so that it has Skerry's tools."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skerry.cli import talk
from skerry.cli.session import Session, pass_session
from skerry.client.harmless import harmless
from skerry.mcp.clients import CLIENTS, TOKEN_VARIABLE, Scope

if TYPE_CHECKING:
    from skerry.mcp.install import Change, Wish


_TOKEN = re.compile(r"(skt_\w{4})[\w-]+")  # also one that was there before


@click.command()
@click.argument("client", type=click.Choice(tuple(CLIENTS)), metavar="CLIENT")
@click.argument("options", nargs=-1, metavar="[-- OPTIONS OF skerry mcp]")
@click.option(
    "--scope", type=click.Choice(("user", "project")), default="user", show_default=True,
    help="For all that you do, or in the file of this directory's project.",
)  # fmt: skip
@click.option("--server", metavar="ADDRESS", help="A server elsewhere, http:// or https://: the client calls its /mcp.")
@click.option(
    "--token-env", metavar="NAME", default=TOKEN_VARIABLE, show_default=True,
    help="The variable in the client's environment that has the token for it.",
)  # fmt: skip
@click.option("--write-token", is_flag=True, help="Write what that variable holds now into the file, in clear.")
@click.option("--name", metavar="NAME", default="skerry", show_default=True, help="What the client calls it.")
@click.option("--remove", is_flag=True, help="Take it out again.")
@click.option("--print", "only_print", is_flag=True, help="Change nothing; print what would be in the file.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@pass_session
def install(
    session: Session,
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
    """Set up a client: put Skerry among its MCP servers. The change is shown first, and nothing else is touched.

    CLIENT is claude-code, claude-desktop, cursor, vscode, codex, windsurf, zed, gemini-cli or cline.

    \b
    skerry mcp install claude-code
    skerry mcp install cursor --scope project -- --repo . --preset pip
    skerry mcp install codex --server https://skerry.example.com --token-env SKERRY_TOKEN
    """
    from skerry.mcp import config_files
    from skerry.mcp.install import Wish, change_of, entry_of, file_of, shown

    _check(options)
    token = os.environ.get(token_env) if write_token else None
    if write_token and not token:
        raise click.UsageError(f"--write-token: {token_env} is not set")
    wish = Wish(
        client=CLIENTS[client], scope=scope, name=name, server=server or session.server, variable=token_env,
        token=token, program=_program(scope), options=options,
    )  # fmt: skip
    here = Path.cwd()
    path = file_of(wish.client, scope, home=Path.home(), here=here, platform=sys.platform, env=os.environ)
    if only_print:
        text = shown(wish)
        talk.say(f"in {harmless(str(path))}:")
        click.echo(text, nl=False)
        return
    real = config_files.settle(path, here if scope == "project" else None)
    entry = None if remove else entry_of(wish)
    change = change_of(wish.client, real, config_files.read(real), name, entry)
    _make(change, wish, yes, gone=remove)


def _check(options: tuple[str, ...]) -> None:
    """A client that starts `skerry mcp` with what it does not know only shows no tools."""
    group = click.get_current_context().parent
    if options and group is not None:
        given = group.command.make_context("skerry mcp", [*options])
        _, words, _ = group.command.make_parser(given).parse_args([*options])
        if words:
            raise click.UsageError(f"{words[0]!r} is no option", given)


def _make(change: Change, wish: Wish, yes: bool, *, gone: bool) -> None:
    from skerry.mcp import config_files

    where = harmless(str(change.path))
    if not change.any:
        talk.say(f"{where} is as it should be already")
        return
    diff = change.diff()
    if wish.token:
        diff = diff.replace(wish.token, wish.token[:8] + "…")
    for line in diff.splitlines():
        click.echo(harmless(_TOKEN.sub(r"\1…", line).expandtabs(4)))
    if not talk.confirm(f"Change {where}?", yes=yes):
        raise click.Abort
    config_files.write(change, private=wish.scope == "user", secret=wish.token is not None)
    if gone:
        talk.say(f"done. {wish.client.title} no longer has it once it is started again")
        return
    talk.say(f"done. {wish.client.title}: {wish.client.then}")
    if wish.scope == "project" and wish.server is None and shutil.which("skerry") is None:
        talk.say("note: a project's file says `skerry`, and there is none in your PATH")


def _program(scope: Scope) -> tuple[str, ...]:
    """How a client starts this. A project's file is for others too, whose `skerry` lies elsewhere; a program with a
    window has another PATH than a shell."""
    if scope == "project":
        return ("skerry",)
    invoked = Path(sys.argv[0])
    if invoked.name == "skerry" and invoked.is_absolute() and os.access(invoked, os.X_OK):
        return (str(invoked),)
    beside = Path(sys.executable).with_name("skerry")
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "skerry")
