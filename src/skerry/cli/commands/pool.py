"""pool show, set, drain."""

from __future__ import annotations

import click

from skerry.cli import output
from skerry.cli.context import CliContext, ImageName, json_option, pass_cli
from skerry.types import PoolInfo


@click.group("pool", invoke_without_command=True)
@json_option
@click.pass_context
def pool(ctx: click.Context, as_json: bool) -> None:
    """Manage the pool of ready sandboxes, which makes creation fast. Without a subcommand, show it."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(show, as_json=as_json)
    elif as_json:
        raise click.UsageError(f"write --json after {ctx.invoked_subcommand}", ctx)


@pool.command()
@json_option
@pass_cli
def show(cli: CliContext, as_json: bool) -> None:
    """Show the ready sandboxes of each image and the hit counts."""
    with cli.client() as client:
        _print(client.pool.show(), as_json)


@pool.command("set")
@click.argument("image", type=ImageName("image", "snapshot"))
@click.argument("size", type=int, metavar="N")
@json_option
@pass_cli
def set_(cli: CliContext, image: str, size: int, as_json: bool) -> None:
    """Keep N sandboxes of an image ready until the server stops."""
    with cli.client() as client:
        info = client.pool.set(image, size)
    _print(info, as_json)
    kept = next((one.size for one in info.images if one.image == image), size)
    if kept < size and not cli.quiet:
        output.info(f"{image}: {kept} instead of {size}: pool.max_total limits the sandboxes of all images")


@pool.command()
@json_option
@pass_cli
def drain(cli: CliContext, as_json: bool) -> None:
    """Delete all ready sandboxes; the pool refills when an image is used again."""
    with cli.client() as client:
        _print(client.pool.drain(), as_json)


def _print(info: PoolInfo, as_json: bool) -> None:
    if as_json:
        output.json(info)
        return
    rows = ((i.image, str(i.ready), str(i.size), str(i.making), str(i.hits), str(i.misses)) for i in info.images)
    output.table(("IMAGE", "READY", "SIZE", "MAKING", "HITS", "MISSES"), rows)
    if info.paused is not None:
        output.info(f"the pool is paused: {info.paused}")
