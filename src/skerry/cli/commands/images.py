"""image ls, show, build, from, pull, rm, prune, verify."""

from __future__ import annotations

import shlex
import sys
import time

import click

from skerry.cli import output
from skerry.cli.commands import archives, image_build
from skerry.cli.context import CliContext, ImageName, image_argument, json_option, pass_cli
from skerry.codecs.text import escape
from skerry.types import Credentials


@click.group("image")
def image() -> None:
    """Manage images."""


@image.command()
@json_option
@pass_cli
def ls(cli: CliContext, as_json: bool) -> None:
    """List images. SIZE is the size on disk, SHARED the part shared with other images."""
    with cli.client() as client:
        found = client.images.list()
    if as_json:
        output.json(found)
        return
    rows = (
        (
            i.name,
            i.digest[:19],
            output.format_size(i.size),
            output.format_size(i.shared),
            output.format_age(time.time() - i.created_at),
        )
        for i in found
    )
    output.table(("NAME", "DIGEST", "SIZE", "SHARED", "AGE"), rows)


@image.command()
@json_option
@image_argument
@pass_cli
def show(cli: CliContext, name: str, as_json: bool) -> None:
    """Show an image."""
    with cli.client() as client:
        found = client.images.get(name)
    if as_json:
        output.json(found)
        return
    rows = [("name", found.name), ("digest", found.digest), ("source", found.source or ""),
            ("platform", found.platform or ""), ("size", output.format_size(found.size)),
            ("shared", output.format_size(found.shared)),
            ("user", found.user), ("cwd", found.cwd), ("entrypoint", shlex.join(found.entrypoint)),
            ("cmd", shlex.join(found.cmd))]  # fmt: skip
    rows = [(key, value) for key, value in rows if value]
    rows += [("layer", layer) for layer in found.layers]
    output.pairs([*rows, *(("env", f"{key}={value}") for key, value in found.env.items())])


image.add_command(image_build.build)
image.add_command(archives.export_image)
image.add_command(archives.import_image)


@image.command("from")
@json_option
@click.argument("snapshot", type=ImageName("snapshot"))
@click.argument("name")
@pass_cli
def from_(cli: CliContext, snapshot: str, name: str, as_json: bool) -> None:
    """Create an image for all users of this server from a snapshot, replacing any image of that NAME."""
    with cli.client() as client:
        made = client.images.from_snapshot(snapshot, name)
    if as_json:
        output.json(made)
    else:
        click.echo(escape(f"{made.name} {made.digest}"))


@image.command()
@click.option("--name", help="Store the image under this name. Default: REFERENCE.")
@click.option(
    "--platform", metavar="OS/ARCH", help="Pull for another platform, like linux/arm64. Default: the server's."
)
@click.option("--insecure", is_flag=True, help="Allow a registry without TLS or with an unverified certificate.")
@click.option("--username", "-u", metavar="NAME", help="Log in as NAME; needs --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@json_option
@click.argument("reference")
@pass_cli
def pull(
    cli: CliContext,
    reference: str,
    name: str | None,
    platform: str | None,
    insecure: bool,
    username: str | None,
    password_stdin: bool,
    as_json: bool,
) -> None:
    """Pull an image from a registry, like python:3.12 or ghcr.io/owner/app@sha256:…

    Without --username, the logins in this machine's docker and podman files are used. Progress is printed to stderr.
    """
    with cli.client() as client:
        pulled = client.images.pull(
            reference, name=name, platform=platform, insecure=insecure,
            credentials=_credentials(username, password_stdin),
        )  # fmt: skip
    if as_json:
        output.json(pulled)
    else:
        click.echo(escape(f"{pulled.name} {pulled.digest}"))


def _credentials(username: str | None, password_stdin: bool) -> Credentials | None:
    if (username is None) == (not password_stdin):
        if username is None:
            return None
        password = sys.stdin.read(1 << 16).rstrip("\r\n")
        return Credentials(username=username, password=password)
    raise click.UsageError("--username needs --password-stdin, and the reverse")


@image.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Also remove unused images and cached build steps.")
@json_option
@pass_cli
def prune(cli: CliContext, everything: bool, as_json: bool) -> None:
    """Remove unused data: layers without an image and incomplete downloads. `base` is kept."""
    with cli.client() as client:
        gone = client.images.prune(all=everything)
    if as_json:
        output.json(gone)
        return
    for name in gone.images:
        click.echo(escape(name))
    if not cli.quiet:
        output.info(f"{output.format_size(gone.bytes)} freed")


@image.command()
@json_option
@click.argument("name", type=ImageName("image"), required=False)
@pass_cli
def verify(cli: CliContext, name: str | None, as_json: bool) -> None:
    """Verify every byte of an image's layers, or of all layers, and list damaged ones.

    A damaged layer is not used until it is pulled or built again. The exit code is 1 if a layer is damaged.
    """
    with cli.client() as client:
        found = client.images.verify(name)
    if as_json:
        output.json(found)
    else:
        for state in found.layers:
            if not state.ok:
                click.echo(escape(f"damaged {state.layer} {' '.join(state.images)}".rstrip()))
        count = len(found.layers)
        if not cli.quiet:
            output.info(f"{count} layer{'s' * (count != 1)}, {sum(not state.ok for state in found.layers)} damaged")
    if not found.ok:
        sys.exit(1)


@image.command()
@click.argument("names", type=ImageName("image"), nargs=-1, required=True, metavar="NAME...")
@pass_cli
def rm(cli: CliContext, names: tuple[str, ...]) -> None:
    """Delete images that no sandbox and no snapshot depends on."""
    with cli.client() as client:
        for name in names:
            client.images.remove(name)
            if not cli.quiet:
                output.info(f"{name}: removed")
