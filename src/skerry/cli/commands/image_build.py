"""image build: build an image from a file of steps, or one of Skerry's own images."""

from __future__ import annotations

import os
from typing import Any

import click

from skerry.cli import output
from skerry.cli.build_progress import BuildProgress
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.cli.options.network import network_options, network_policy
from skerry.cli.options.sandbox import limit_options, limits_from_options, parse_pairs
from skerry.cli.options.secrets import secret_options, secrets_from_options
from skerry.client._sync.build import Image
from skerry.codecs.text import escape
from skerry.config import load
from skerry.errors import InvalidRequest
from skerry.types import Network

FILES = ("image.toml", "Dockerfile")


@click.command()
@click.option(
    "-f", "--file", "file", metavar="FILE", help="Build this image.toml or Dockerfile. Default: the one in DIRECTORY."
)
@click.option("-t", "--tag", metavar="NAME", help="Name the image. Without a name, the result is a snapshot of yours.")
@click.option("--build-arg", "arguments", multiple=True, metavar="NAME=VALUE", help="Set an ARG of the Dockerfile.")
@click.option("--target", metavar="STAGE", help="Stop at this stage of the Dockerfile.")
@click.option("--no-cache", is_flag=True, help="Run every step, ignoring cached ones.")
@click.option("--timeout", metavar="TIME", help="End a step after this time, like 10m. Default: no limit.")
@click.option("--rebuild", is_flag=True, help="For an image of Skerry's own: build it, and those below it, again.")
@limit_options
@network_options
@secret_options
@json_option
@click.argument("what", default=None, required=False, metavar="[DIRECTORY | NAME]")
@pass_cli
def build(cli: CliContext, /, what: str | None, as_json: bool, **given: Any) -> None:
    """Build an image from the steps in FILE and the files of DIRECTORY, or build an image of Skerry's own.

    \b
    skerry image build -f image.toml -t tools    build the steps of image.toml
    skerry image build -t app .                  build ./Dockerfile
    skerry image build base                      build the default image of sandboxes
    skerry image build data                      build `base` with numpy, pandas and their companions

    Each step runs in a sandbox and is cached, so that only changed steps run again. A step reaches only the hosts that
    --allow, --preset and similar options give it; packages listed in image.toml come from the sources that apt, pip or
    npm use on this machine. Progress is printed to stderr.
    """
    file, tag = given.pop("file"), given.pop("tag")
    if file is None and tag is None and (what is None or not os.path.isdir(what)):
        _build_own(cli, what or "base", given["rebuild"], as_json)
        return
    if given.pop("rebuild"):
        raise click.UsageError("--rebuild is for images of Skerry's own; use --no-cache to run all steps again")
    image = _described(file, what, given.pop("arguments"), given.pop("target"))
    progress = BuildProgress()
    for notice in image.notices if not cli.quiet else ():
        output.info(notice)
    settings = load()
    how: dict[str, Any] = {
        "network": _joined(image.network, network_policy(given, settings)),
        "secrets": secrets_from_options(given, settings),
        "limits": limits_from_options(given, settings),
        "timeout": output.parse_seconds(given.pop("timeout"), "--timeout"),
        "cache": not given.pop("no_cache"),
        **({} if cli.quiet else {"on_step": progress.step, "on_output": progress.output}),
    }
    with cli.client() as client, progress:
        built = image.build(tag, server=client, **how)
        found = built if tag is not None else built.info
    if as_json:
        output.json(found)
    else:
        click.echo(escape(f"{tag} {found.digest}" if tag is not None else f"{found.id}"))


def _build_own(cli: CliContext, name: str, rebuild: bool, as_json: bool) -> None:
    with cli.client() as client:
        built = client.images.build(name, rebuild=rebuild)
    if as_json:
        output.json(built)
    else:
        click.echo(escape(f"{built.name} {built.digest}"))


def _described(file: str | None, directory: str | None, arguments: tuple[str, ...], target: str | None) -> Image:
    if file is None:
        places = [os.path.join(directory or ".", name) for name in FILES]
        file = next((place for place in places if os.path.isfile(place)), None)
        if file is None:
            where = directory or "this directory"
            raise InvalidRequest(f"no {' or '.join(FILES)} in {where}", hint="use -f FILE for another file")
        file = os.path.normpath(file)
    if file.endswith(".toml"):
        if arguments or target:
            raise click.UsageError("--build-arg and --target are for a Dockerfile")
        return Image.file(file, context=directory)
    return Image.dockerfile(file, context=directory, arguments=parse_pairs(arguments, "--build-arg"), target=target)


def _joined(file: Network | None, flags: Network | None) -> Network | None:
    """Join the policy of the file with that of the flags."""
    if file is None or flags is None:
        return flags or file
    return Network(
        allow=(*file.allow, *flags.allow), deny=(*file.deny, *flags.deny), presets=(*file.presets, *flags.presets),
        peers=flags.peers, inspect=flags.inspect, on_unknown=flags.on_unknown,
        handlers=flags.handlers, mirror=flags.mirror,
    )  # fmt: skip
