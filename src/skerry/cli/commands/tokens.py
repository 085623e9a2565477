"""token create, ls, rm."""

from __future__ import annotations

import time
from typing import get_args

import click
from msgspec.structs import replace

from skerry.cli import output
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.codecs.api_keys import key_of
from skerry.types import Scope


@click.group("token")
def token() -> None:
    """Manage the tokens for access over TCP."""


@token.command()
@click.option("--scope", type=click.Choice(get_args(Scope)), default="use", show_default=True, help="Grant this scope.")
@click.option("--owner", metavar="NAME", help="Give access to the sandboxes of this owner. Default: a new owner.")
@click.option("--note", metavar="TEXT", help="Describe the purpose of the token.")
@click.option("--e2b", is_flag=True, help="Print the secret in the form of E2B's API keys, for E2B_API_KEY.")
@json_option
@pass_cli
def create(cli: CliContext, scope: str, owner: str | None, note: str | None, e2b: bool, as_json: bool) -> None:
    """Create a token and print its secret, which is shown only once."""
    with cli.client() as client:
        made = client.tokens.create(scope, owner=owner, note=note)
    if e2b and made.secret is not None:
        made = replace(made, secret=key_of(made.secret))
    if as_json:
        output.json(made)
    else:
        click.echo(made.secret)


@token.command()
@json_option
@pass_cli
def ls(cli: CliContext, as_json: bool) -> None:
    """List tokens without their secrets."""
    with cli.client() as client:
        found = client.tokens.list()
    if as_json:
        output.json(found)
        return
    rows = ((t.id, t.scope, t.owner, output.format_age(time.time() - t.created_at), t.note or "-") for t in found)
    output.table(("ID", "SCOPE", "OWNER", "AGE", "NOTE"), rows)


@token.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@pass_cli
def rm(cli: CliContext, ids: tuple[str, ...]) -> None:
    """Delete tokens and close their open connections. Their sandboxes, processes and previews stay."""
    with cli.client() as client:
        for one in ids:
            client.tokens.remove(one)
