"""image build: from a file of steps, or `base`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from skerry.cli import talk
from skerry.cli.creation import limit_options, limits_of, pairs
from skerry.cli.policy import network_options, policy
from skerry.cli.secrets import secret_options, secrets
from skerry.cli.session import Session, json_option, pass_session
from skerry.cli.steps import ShownSteps
from skerry.client.harmless import harmless
from skerry.config import load
from skerry.errors import InvalidRequest
from skerry.types import Network

if TYPE_CHECKING:
    from skerry.client._sync.image import Image

FILES = ("image.toml", "Dockerfile")


@click.command()
@click.option("-f", "--file", "file", metavar="FILE", help="An image.toml or a Dockerfile; else the one that is there.")
@click.option("-t", "--tag", metavar="NAME", help="What it is to be called; without it, it is a snapshot of yours.")
@click.option("--build-arg", "arguments", multiple=True, metavar="NAME=VALUE", help="A value for a Dockerfile's ARG.")
@click.option("--target", metavar="STAGE", help="The stage of a Dockerfile to stop at.")
@click.option("--no-cache", is_flag=True, help="Run every step, also those that were run before.")
@click.option("--timeout", metavar="TIME", help="How long a step may take, like 10m. No limit if left out.")
@click.option("--rebuild", is_flag=True, help="Of `base`: also if it is there as this version makes it.")
@limit_options
@network_options
@secret_options
@json_option
@click.argument("what", default=None, required=False, metavar="[DIRECTORY | base]")
@pass_session
def build(session: Session, /, what: str | None, as_json: bool, **given: Any) -> None:
    """Make an image: from the steps in FILE, with the files of DIRECTORY, or the image `base`.

    \b
    skerry image build -f image.toml -t tools    steps as they stand in image.toml
    skerry image build -t app .                  from ./Dockerfile
    skerry image build base                      the image that sandboxes start from

    Each step runs in a sandbox and is kept, so that only what has changed runs again. A step reaches nothing but what
    --allow, --preset and the like give it; packages that image.toml lists come from where this machine's own apt, pip
    or npm would get them. Progress is on stderr.
    """
    file, tag = given.pop("file"), given.pop("tag")
    if file is None and tag is None and (what is None or not os.path.isdir(what)):
        _build_base(session, what or "base", given["rebuild"], as_json)
        return
    if given.pop("rebuild"):
        raise click.UsageError("--rebuild is for `base`; steps are run again by --no-cache")
    image = _described(file, what, given.pop("arguments"), given.pop("target"))
    shown = ShownSteps()
    for notice in image.notices if not session.quiet else ():
        talk.say(notice)
    settings = load()
    how: dict[str, Any] = {
        "network": _joined(image.network, policy(given, settings)),
        "secrets": secrets(given, settings),
        "limits": limits_of(given, settings),
        "timeout": talk.seconds(given.pop("timeout"), "--timeout"),
        "cache": not given.pop("no_cache"),
        **({} if session.quiet else {"on_step": shown.step, "on_output": shown.output}),
    }
    with session.client() as client, shown:
        built = image.build(tag, server=client, **how)
        found = built if tag is not None else built.info
    if as_json:
        talk.give_json(found)
    else:
        click.echo(harmless(f"{tag} {found.digest}" if tag is not None else f"{found.id}"))


def _build_base(session: Session, name: str, rebuild: bool, as_json: bool) -> None:
    with session.client() as client:
        built = client.images.build(name, rebuild=rebuild)
    if as_json:
        talk.give_json(built)
    else:
        click.echo(harmless(f"{built.name} {built.digest}"))


def _described(file: str | None, directory: str | None, arguments: tuple[str, ...], target: str | None) -> Image:
    from skerry.client._sync.image import Image

    if file is None:
        places = [os.path.join(directory or ".", name) for name in FILES]
        file = next((place for place in places if os.path.isfile(place)), None)
        if file is None:
            where = directory or "this directory"
            raise InvalidRequest(f"there is no {' or '.join(FILES)} in {where}", hint="-f FILE names another")
        file = os.path.normpath(file)
    if file.endswith(".toml"):
        if arguments or target:
            raise click.UsageError("--build-arg and --target are for a Dockerfile")
        return Image.file(file, context=directory)
    return Image.dockerfile(file, context=directory, arguments=pairs(arguments, "--build-arg"), target=target)


def _joined(file: Network | None, flags: Network | None) -> Network | None:
    """What the file says its steps need, and what the caller adds."""
    if file is None or flags is None:
        return flags or file
    return Network(
        allow=(*file.allow, *flags.allow), deny=(*file.deny, *flags.deny), presets=(*file.presets, *flags.presets),
        peers=flags.peers, inspect=flags.inspect, on_unknown=flags.on_unknown,
    )  # fmt: skip
