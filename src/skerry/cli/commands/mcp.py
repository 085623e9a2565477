"""mcp: serve MCP on stdin and stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from skerry import extras
from skerry.cli import output
from skerry.cli.commands import mcp_install
from skerry.cli.context import CliContext
from skerry.cli.options.project import project_from_options
from skerry.cli.options.project_setup import with_setup
from skerry.cli.options.repository import repo_from_options, repo_options
from skerry.cli.options.sandbox import lifecycle_options, sandbox_arguments, sandbox_options
from skerry.types import check_name

if TYPE_CHECKING:
    from skerry.mcp.call import SandboxDefaults


@click.group("mcp", invoke_without_command=True)
@click.option("--name", metavar="NAME", help="Use this sandbox by default; create it if needed and keep it.")
@click.option("--keep", is_flag=True, help="Keep all sandboxes when the client disconnects.")
@click.option(
    "--sandbox", "sandboxes", multiple=True, metavar="SANDBOX", help="Also let the client use this existing sandbox."
)
@click.option("--all", "everything", is_flag=True, help="Let the client use all your sandboxes.")
@repo_options
@sandbox_options
@lifecycle_options
@click.pass_context
def mcp(
    ctx: click.Context, /, name: str | None, keep: bool, sandboxes: tuple[str, ...], everything: bool, **given: Any
) -> None:
    """Serve MCP on stdin and stdout, for an MCP client to start; the tools work in sandboxes.

    The options set the image, limits, network, secrets and repository of its sandboxes. The model can choose another
    image and other limits, but nothing that needs a person's permission. Without --name, the default sandbox is
    created on first use and deleted when the client disconnects.

    The client sees and uses only the sandboxes that it created in this connection and those of --name and --sandbox;
    --all removes this restriction.
    """
    if ctx.invoked_subcommand is None:
        connection = _Connection(name, keep, frozenset(sandboxes), everything)
        _serve(ctx.find_object(CliContext) or CliContext(), connection, given)


mcp.add_command(mcp_install.install)


@dataclass(frozen=True)
class _Connection:
    name: str | None
    keep: bool
    sandboxes: frozenset[str]
    everything: bool


def _serve(cli: CliContext, connection: _Connection, given: dict[str, Any]) -> None:
    from skerry.cli import asyncio_run

    extras.require("mcp")
    if sys.stdin.isatty():
        output.info("serving MCP on stdin and stdout; an MCP client usually starts this. Ctrl-D exits")
    check_name(connection.name)
    project = project_from_options(given)  # read once: a later change of the file cannot widen anything
    arguments = sandbox_arguments(given, project)
    if given.pop("cassette") is not None:
        raise click.UsageError("--cassette is for `run`, `shell` and `create`")
    with repo_from_options(cli, given, project, bar=False) as repo:

        def sandbox_defaults() -> Mapping[str, Any]:
            """Called when the first sandbox is created, because a project's setup may take a while."""
            return {**with_setup(cli, arguments, project), "repo": repo}

        asyncio_run.run(_serve_stdio(cli, connection, sandbox_defaults))


async def _serve_stdio(cli: CliContext, connection: _Connection, sandbox_defaults: SandboxDefaults) -> None:
    from skerry.client._async.client import AsyncClient
    from skerry.mcp.call import McpAccess, McpCaller
    from skerry.mcp.transports.stdio import serve

    client = AsyncClient(cli.server)
    caller = McpCaller(client, name=connection.name, keep=connection.keep, sandbox_defaults=sandbox_defaults)
    await serve(caller, McpAccess(connection.sandboxes, connection.everything))
