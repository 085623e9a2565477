"""pool show, set, drain."""

from __future__ import annotations

import click

from skerry.cli import talk
from skerry.cli.session import ImageName, Session, json_option, pass_session
from skerry.types import PoolInfo


@click.group("pool", invoke_without_command=True)
@json_option
@click.pass_context
def pool(ctx: click.Context, as_json: bool) -> None:
    """Sandboxes that are made ahead of need, so that a create finds one. Alone it does what `show` does."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(show, as_json=as_json)
    elif as_json:
        raise click.UsageError(f"--json goes behind {ctx.invoked_subcommand}", ctx)


@pool.command()
@json_option
@pass_session
def show(session: Session, as_json: bool) -> None:
    """How many are ready, of which image, and how often one was found."""
    with session.client() as client:
        _give(client.pool.show(), as_json)


@pool.command("set")
@click.argument("image", type=ImageName("image", "snapshot"))
@click.argument("wanted", type=int, metavar="N")
@json_option
@pass_session
def set_(session: Session, image: str, wanted: int, as_json: bool) -> None:
    """Keep N of an image ready, for as long as the server runs."""
    with session.client() as client:
        info = client.pool.set(image, wanted)
    _give(info, as_json)
    kept = next((one.wanted for one in info.images if one.image == image), wanted)
    if kept < wanted and not session.quiet:
        talk.say(f"{image}: {kept} and not {wanted}: there are at most as many of all images as pool.total says")


@pool.command()
@json_option
@pass_session
def drain(session: Session, as_json: bool) -> None:
    """Let all of them go; none is made until an image is used again."""
    with session.client() as client:
        _give(client.pool.drain(), as_json)


def _give(info: PoolInfo, as_json: bool) -> None:
    if as_json:
        talk.give_json(info)
        return
    rows = ((i.image, str(i.ready), str(i.wanted), str(i.making), str(i.hits), str(i.misses)) for i in info.images)
    talk.give_table(("IMAGE", "READY", "WANTED", "MAKING", "HITS", "MISSES"), rows)
    if info.paused is not None:
        talk.say(f"none is being made: {info.paused}")
