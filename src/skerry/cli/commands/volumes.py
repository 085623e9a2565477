"""volume create, ls, show, rm, snapshot, clone."""

from __future__ import annotations

import time

import click

from skerry.cli import output
from skerry.cli.commands import archives
from skerry.cli.context import CliContext, ImageName, json_option, pass_cli, volume_argument
from skerry.codecs.text import escape
from skerry.types import VolumeInfo

_SIZE = click.option("--size", metavar="SIZE", help="Limit the disk space of the volume, like 10G.")


@click.group("volume")
def volume() -> None:
    """Manage volumes: directories that outlive sandboxes."""


volume.add_command(archives.export_volume)
volume.add_command(archives.import_volume)


@volume.command()
@_SIZE
@json_option
@click.argument("name")
@pass_cli
def create(cli: CliContext, name: str, size: str | None, as_json: bool) -> None:
    """Create an empty volume. `skerry create --volume NAME:/data` mounts it."""
    with cli.client() as client:
        _print(client.volumes.create(name, size).info, as_json)


@volume.command()
@json_option
@volume_argument
@click.argument("name")
@pass_cli
def snapshot(cli: CliContext, volume: str, name: str, as_json: bool) -> None:
    """Make a copy of a volume that never changes."""
    with cli.client() as client:
        _print(client.volumes.get(volume).snapshot(name).info, as_json)


@volume.command()
@_SIZE
@json_option
@volume_argument
@click.argument("name")
@pass_cli
def clone(cli: CliContext, volume: str, name: str, size: str | None, as_json: bool) -> None:
    """Create a volume with the files of a volume or of its snapshot."""
    with cli.client() as client:
        _print(client.volumes.get(volume).clone(name, size).info, as_json)


def _print(info: VolumeInfo, as_json: bool) -> None:
    if as_json:
        output.json(info)
    else:
        click.echo(escape(info.name))


@volume.command()
@json_option
@pass_cli
def ls(cli: CliContext, as_json: bool) -> None:
    """List volumes and their snapshots."""
    with cli.client() as client:
        found = [one.info for one in client.volumes.list()]
    if as_json:
        output.json(found)
        return
    output.table(("NAME", "KIND", "USED", "SIZE", "SANDBOXES", "AGE"), map(_row, found))


def _row(info: VolumeInfo) -> tuple[str, ...]:
    age = output.format_age(time.time() - info.created_at)
    return info.name, info.kind, _used(info), info.size, str(len(info.sandboxes)), age


def _used(info: VolumeInfo) -> str:
    return output.format_size(info.used) if info.used is not None else "-"


@volume.command()
@json_option
@volume_argument
@pass_cli
def show(cli: CliContext, volume: str, as_json: bool) -> None:
    """Show a volume."""
    with cli.client() as client:
        info = client.volumes.get(volume).info
    if as_json:
        output.json(info)
        return
    created = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.created_at))
    rows = [("id", info.id), ("name", info.name), ("kind", info.kind), ("used", _used(info)), ("size", info.size)]
    rows += [("source", info.source or "-"), ("created", created)]
    output.pairs([*rows, *(("sandbox", name) for name in info.sandboxes)])


@volume.command()
@click.argument("volumes", type=ImageName("volume"), nargs=-1, required=True, metavar="VOLUME...")
@pass_cli
def rm(cli: CliContext, volumes: tuple[str, ...]) -> None:
    """Delete volumes that no sandbox mounts, with all their files."""
    with cli.client() as client:
        for ref in volumes:
            client.volumes.get(ref).delete()
            if not cli.quiet:
                output.info(f"{ref}: deleted")
