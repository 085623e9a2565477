"""snapshot changes, export, import; image export, import; volume export, import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import click

from skerry.cli import output
from skerry.cli.context import (
    CliContext,
    ImageName,
    image_argument,
    json_option,
    pass_cli,
    snapshot_argument,
    volume_argument,
)
from skerry.client._sync.snapshots import Snapshot
from skerry.client.host.progress import ProgressBar
from skerry.codecs.text import escape
from skerry.errors import InvalidRequest
from skerry.types import Progress, TransferResult

if TYPE_CHECKING:
    from skerry.types import SnapshotChange

_SIGNS = {"added": "A", "modified": "M", "deleted": "D"}
_SHOWN = 20
EXIT_SKIPPED = 1


@click.command()
@json_option
@snapshot_argument
@click.argument("to", type=ImageName("image", "snapshot", "sandbox"), required=False)
@pass_cli
def changes(cli: CliContext, snapshot: str, to: str | None, as_json: bool) -> None:
    """List the paths that were added (A), modified (M) or deleted (D) since a snapshot.

    TO is another snapshot, a sandbox in its current state, or an image. Default: the sandbox that the snapshot was
    taken of.
    """
    with cli.client() as client:
        found = Snapshot.get(snapshot, server=client).changes(to)
    if as_json:
        output.json(found)
        return
    for change in found.changes:
        output.line(f"{_SIGNS[change.kind]} {_path_text(change)}")
    if found.truncated:
        output.info(f"more than {len(found.changes):,} changes: the rest is not listed")


def _path_text(change: SnapshotChange) -> str:
    return f"{change.path}/" if change.type == "directory" and change.path != "/" else change.path


@click.command("export")
@json_option
@snapshot_argument
@click.argument("file")
@pass_cli
def export_snapshot(cli: CliContext, snapshot: str, file: str, as_json: bool) -> int:
    """Export a snapshot as an archive that `docker load`, skopeo and `skerry snapshot import` read.

    A FILE that ends in .gz or .zst is compressed; - is stdout.
    """
    with cli.client() as client, _bar(cli, "writing") as show:
        moved = Snapshot.get(snapshot, server=client).export(_target(file), progress=show)
    return _report(cli, moved, file, as_json)


@click.command("export")
@json_option
@image_argument
@click.argument("file")
@pass_cli
def export_image(cli: CliContext, name: str, file: str, as_json: bool) -> int:
    """Export an image as an archive that `docker load`, skopeo and `skerry image import` read.

    A FILE that ends in .gz or .zst is compressed; - is stdout.
    """
    with cli.client() as client, _bar(cli, "writing") as show:
        moved = client.images.export(name, _target(file), progress=show)
    return _report(cli, moved, file, as_json)


@click.command("import")
@json_option
@click.argument("source")
@click.argument("name", required=False)
@pass_cli
def import_snapshot(cli: CliContext, source: str, name: str | None, as_json: bool) -> None:
    """Create a snapshot from an archive or a directory.

    SOURCE is an archive from `export`, `docker save` or skopeo (OCI layout or docker-archive), a root file system as a
    tar archive, each optionally compressed, or a directory; - is stdin.
    """
    with cli.client() as client:
        with _bar(cli, "reading") as show:
            notices: list[str] = []
            given = _source(source)
            made = Snapshot.import_(given, name, on_notice=notices.append, progress=show, server=client).info
        _print_notices(notices)
    if as_json:
        output.json(made)
    else:
        click.echo(escape(made.name or made.id))


@click.command("import")
@click.option("--replace", is_flag=True, help="Replace an image of that name.")
@json_option
@click.argument("source")
@click.argument("name")
@pass_cli
def import_image(cli: CliContext, source: str, name: str, replace: bool, as_json: bool) -> None:
    """Create an image from an archive or a directory.

    SOURCE is an archive from `export`, `docker save` or skopeo (OCI layout or docker-archive), a root file system as a
    tar archive, each optionally compressed, or a directory; - is stdin.
    """
    with cli.client() as client:
        with _bar(cli, "reading") as show:
            notices: list[str] = []
            given = _source(source)
            made = client.images.import_(given, name, replace=replace, on_notice=notices.append, progress=show)
        _print_notices(notices)
    if as_json:
        output.json(made)
    else:
        click.echo(escape(f"{made.name} {made.digest}"))


@click.command("export")
@json_option
@volume_argument
@click.argument("file")
@pass_cli
def export_volume(cli: CliContext, volume: str, file: str, as_json: bool) -> int:
    """Export the current files of a volume as a tar archive.

    A FILE that ends in .gz or .zst is compressed; - is stdout.
    """
    with cli.client() as client, _bar(cli, "writing") as show:
        moved = client.volumes.get(volume).export(_target(file), progress=show)
    return _report(cli, moved, file, as_json)


@click.command("import")
@click.option("--size", metavar="SIZE", help="Limit the disk space of the volume, like 10G.")
@json_option
@click.argument("source")
@click.argument("name")
@pass_cli
def import_volume(cli: CliContext, source: str, name: str, size: str | None, as_json: bool) -> None:
    """Create a volume from a tar archive or a directory.

    SOURCE is an archive from `export` or any other tar archive, optionally compressed, or a directory; - is stdin.
    """
    with cli.client() as client:
        with _bar(cli, "reading") as show:
            notices: list[str] = []
            made = client.volumes.import_(_source(source), name, size, on_notice=notices.append, progress=show).info
        _print_notices(notices)
    if as_json:
        output.json(made)
    else:
        click.echo(escape(made.name))


def _target(file: str) -> str | BinaryIO:
    if file != "-":
        return file
    if sys.stdout.isatty():
        raise InvalidRequest("stdout is a terminal", hint="name a file, or redirect stdout")
    return sys.stdout.buffer


def _source(source: str) -> str | BinaryIO:
    return sys.stdin.buffer if source == "-" else source


@contextmanager
def _bar(cli: CliContext, title: str) -> Iterator[Callable[[Progress], None] | None]:
    """Show a progress bar on a terminal and remove it at the end."""
    if cli.quiet or not sys.stderr.isatty():
        yield None
        return
    with ProgressBar(title, sys.stderr, transient=True) as bar:
        yield bar.update


def _print_notices(notices: list[str]) -> None:
    for notice in notices:
        output.info(notice)


def _report(cli: CliContext, moved: TransferResult, file: str, as_json: bool) -> int:
    if as_json and file != "-":
        output.json(moved)
    _print_notices([f"left out: {one.path}: {one.reason}" for one in moved.skipped[:_SHOWN]])
    more = moved.more + max(0, len(moved.skipped) - _SHOWN)
    if more:
        output.info(f"left out: {more} more")
    if not cli.quiet:
        output.info(f"wrote {moved.files:,} files, {output.format_size(moved.bytes)}")
    return EXIT_SKIPPED if moved.skipped or moved.more else 0
