"""image ls, show, build, from, pull, rm, prune, verify."""

from __future__ import annotations

import shlex
import sys
import time

import click

from skerry.cli import building, talk
from skerry.cli.session import ImageName, Session, image_argument, json_option, pass_session
from skerry.client.harmless import harmless
from skerry.types import Credentials


@click.group("image")
def image() -> None:
    """The images in the store."""


@image.command()
@json_option
@pass_session
def ls(session: Session, as_json: bool) -> None:
    """List images. SIZE is what one takes on disk, SHARED the part of it that others have too."""
    with session.client() as client:
        found = client.images.list()
    if as_json:
        talk.give_json(found)
        return
    rows = (
        (i.name, i.digest[:19], talk.size(i.size), talk.size(i.shared), talk.ago(time.time() - i.created_at))
        for i in found
    )
    talk.give_table(("NAME", "DIGEST", "SIZE", "SHARED", "AGE"), rows)


@image.command()
@json_option
@image_argument
@pass_session
def show(session: Session, name: str, as_json: bool) -> None:
    """Show an image."""
    with session.client() as client:
        found = client.images.get(name)
    if as_json:
        talk.give_json(found)
        return
    rows = [("name", found.name), ("digest", found.digest), ("source", found.source or ""),
            ("platform", found.platform or ""), ("size", talk.size(found.size)), ("shared", talk.size(found.shared)),
            ("user", found.user), ("cwd", found.cwd), ("entrypoint", shlex.join(found.entrypoint)),
            ("cmd", shlex.join(found.cmd))]  # fmt: skip
    rows = [(key, value) for key, value in rows if value]
    rows += [("layer", layer) for layer in found.layers]
    talk.give_pairs([*rows, *(("env", f"{key}={value}") for key, value in found.env.items())])


image.add_command(building.build)


@image.command("from")
@json_option
@click.argument("snapshot", type=ImageName("snapshot"))
@click.argument("name")
@pass_session
def from_(session: Session, snapshot: str, name: str, as_json: bool) -> None:
    """Make a snapshot an image for everyone on this server, in place of one of that NAME. The snapshot stays."""
    with session.client() as client:
        made = client.images.from_snapshot(snapshot, name)
    if as_json:
        talk.give_json(made)
    else:
        click.echo(harmless(f"{made.name} {made.digest}"))


@image.command()
@click.option("--name", help="Keep it under this name, and not as REFERENCE is written.")
@click.option("--platform", metavar="OS/ARCH", help="For another machine than the server's: linux/arm64.")
@click.option("--insecure", is_flag=True, help="The registry may be asked without TLS, or with anybody's certificate.")
@click.option("--username", "-u", metavar="NAME", help="Log in as NAME; the password comes with --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@json_option
@click.argument("reference")
@pass_session
def pull(
    session: Session,
    reference: str,
    name: str | None,
    platform: str | None,
    insecure: bool,
    username: str | None,
    password_stdin: bool,
    as_json: bool,
) -> None:
    """Fetch an image from a registry: python:3.12, ghcr.io/owner/app@sha256:…

    Without --username, the logins in docker's and podman's files on this machine are used. Progress is on stderr.
    """
    with session.client() as client:
        pulled = client.images.pull(
            reference, name=name, platform=platform, insecure=insecure,
            credentials=_credentials(username, password_stdin),
        )  # fmt: skip
    if as_json:
        talk.give_json(pulled)
    else:
        click.echo(harmless(f"{pulled.name} {pulled.digest}"))


def _credentials(username: str | None, password_stdin: bool) -> Credentials | None:
    if (username is None) == (not password_stdin):
        if username is None:
            return None
        password = sys.stdin.read(1 << 16).rstrip("\r\n")
        return Credentials(username=username, password=password)
    raise click.UsageError("--username and --password-stdin go together")


@image.command()
@click.option(
    "--all", "-a", "everything", is_flag=True, help="Also images that nothing stands on, and the kept steps of builds."
)
@json_option
@pass_session
def prune(session: Session, everything: bool, as_json: bool) -> None:
    """Remove what nothing needs: layers without an image, downloads that broke off. `base` always stays."""
    with session.client() as client:
        gone = client.images.prune(all=everything)
    if as_json:
        talk.give_json(gone)
        return
    for name in gone.images:
        click.echo(harmless(name))
    if not session.quiet:
        talk.say(f"{talk.size(gone.bytes)} freed")


@image.command()
@json_option
@click.argument("name", type=ImageName("image"), required=False)
@pass_session
def verify(session: Session, name: str | None, as_json: bool) -> None:
    """Read every byte of an image's layers, or of all that there are, and name those that are damaged.

    A damaged one is not served any more, until it is pulled or built again. Exit status 1 if there is one.
    """
    with session.client() as client:
        found = client.images.verify(name)
    if as_json:
        talk.give_json(found)
    else:
        for state in found.layers:
            if not state.ok:
                click.echo(harmless(f"damaged {state.layer} {' '.join(state.images)}".rstrip()))
        count = len(found.layers)
        if not session.quiet:
            talk.say(f"{count} layer{'s' * (count != 1)}, {sum(not state.ok for state in found.layers)} damaged")
    if not found.ok:
        sys.exit(1)


@image.command()
@click.argument("names", type=ImageName("image"), nargs=-1, required=True, metavar="NAME...")
@pass_session
def rm(session: Session, names: tuple[str, ...]) -> None:
    """Remove images on which no sandbox and no snapshot stands."""
    with session.client() as client:
        for name in names:
            client.images.remove(name)
            if not session.quiet:
                talk.say(f"{name}: removed")
