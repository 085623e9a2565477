"""mcp: tools for a model's client, on stdin and stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import talk
from skerry.cli.creation import creation, creation_options, lifecycle_options
from skerry.cli.project import prepared
from skerry.cli.repositories import repo_of, repo_options
from skerry.cli.session import Session
from skerry.types import check_name

if TYPE_CHECKING:
    from skerry.mcp.callers import Terms


@click.group("mcp", invoke_without_command=True)
@click.option("--name", metavar="NAME", help="The default sandbox: this one, made if there is none; it stays.")
@click.option("--keep", is_flag=True, help="Delete no sandbox when the client goes.")
@repo_options
@creation_options
@lifecycle_options
@click.pass_context
def mcp(ctx: click.Context, /, name: str | None, keep: bool, **given: Any) -> None:
    """Speak MCP on stdin and stdout: a model's client starts this, and has sandboxes as tools.

    The options say how its sandboxes are made: which image, limits, network, secrets and repository. The model can ask
    for another image and other limits, but for nothing that a person has to allow. Without --name, its default
    sandbox is made when first needed and deleted when the client goes.
    """
    if ctx.invoked_subcommand is None:
        _serve(ctx.find_object(Session) or Session(), name, keep, given)


def _serve(session: Session, name: str | None, keep: bool, given: dict[str, Any]) -> None:
    from skerry.cli import loop

    if sys.stdin.isatty():
        talk.say("this speaks MCP on stdin and stdout, for a model's client to start; Ctrl-D ends it")
    check_name(name)
    skip, project = given.pop("no_setup"), Path.cwd()
    wish = creation(given, project=project)
    with repo_of(session, given, bar=False) as repo:

        def terms() -> Mapping[str, Any]:
            """Asked when the first sandbox is made: a project's setup may take a while."""
            return {**prepared(session, wish, skip=skip, project=project), "repo": repo}

        loop.run(_until_the_end(session, name, keep, terms))


async def _until_the_end(session: Session, name: str | None, keep: bool, terms: Terms) -> None:
    from skerry.client._async.client import AsyncClient
    from skerry.mcp.callers import Caller
    from skerry.mcp.stdio import serve

    await serve(Caller(AsyncClient(session.server), name=name, keep=keep, terms=terms))
