"""image ls, show, build, rm."""

from __future__ import annotations

import time

import click

from skerry.cli import building, talk
from skerry.cli.session import Session, json_option, pass_session


@click.group("image")
def image() -> None:
    """The images in the store."""


@image.command()
@json_option
@pass_session
def ls(session: Session, as_json: bool) -> None:
    """List images."""
    with session.client() as client:
        found = client.images.list()
    if as_json:
        talk.give_json(found)
        return
    rows = ((i.name, i.digest[:19], _size(i.size), talk.ago(time.time() - i.created_at)) for i in found)
    talk.give_table(("NAME", "DIGEST", "SIZE", "AGE"), rows)


@image.command()
@json_option
@click.argument("name")
@pass_session
def show(session: Session, name: str, as_json: bool) -> None:
    """Show an image."""
    with session.client() as client:
        found = client.images.get(name)
    if as_json:
        talk.give_json(found)
        return
    rows = [("name", found.name), ("digest", found.digest), ("size", _size(found.size)), ("user", found.user),
            ("cwd", found.cwd)]  # fmt: skip
    rows += [("layer", layer) for layer in found.layers]
    talk.give_pairs([*rows, *(("env", f"{key}={value}") for key, value in found.env.items())])


image.add_command(building.build)


@image.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@pass_session
def rm(session: Session, names: tuple[str, ...]) -> None:
    """Remove images. Sandboxes that were made from them live on."""
    with session.client() as client:
        for name in names:
            client.images.remove(name)


def _size(number: int) -> str:
    return f"{number / (1 << 20):.1f} MiB"
