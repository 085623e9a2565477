"""token create, ls, rm."""

from __future__ import annotations

import time
from typing import get_args

import click

from skerry.cli import talk
from skerry.cli.session import Session, json_option, pass_session
from skerry.types import Scope


@click.group("token")
def token() -> None:
    """The tokens that open a server on TCP."""


@token.command()
@click.option("--scope", type=click.Choice(get_args(Scope)), default="use", show_default=True, help="What it may do.")
@click.option("--owner", metavar="NAME", help="Whose sandboxes it sees; one of its own if left out.")
@click.option("--note", metavar="TEXT", help="What it is for.")
@json_option
@pass_session
def create(session: Session, scope: str, owner: str | None, note: str | None, as_json: bool) -> None:
    """Make a token. It is shown this once."""
    with session.client() as client:
        made = client.tokens.create(scope, owner=owner, note=note)
    if as_json:
        talk.give_json(made)
    else:
        click.echo(made.secret)


@token.command()
@json_option
@pass_session
def ls(session: Session, as_json: bool) -> None:
    """List tokens, without their secrets."""
    with session.client() as client:
        found = client.tokens.list()
    if as_json:
        talk.give_json(found)
        return
    rows = ((t.id, t.scope, t.owner, talk.ago(time.time() - t.created_at), t.note or "-") for t in found)
    talk.give_table(("ID", "SCOPE", "OWNER", "AGE", "NOTE"), rows)


@token.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@pass_session
def rm(session: Session, ids: tuple[str, ...]) -> None:
    """Remove tokens. They open nothing from then on."""
    with session.client() as client:
        for one in ids:
            client.tokens.remove(one)
