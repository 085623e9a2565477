"""snapshot changes, export, import; image export, import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import click

from skerry.cli import talk
from skerry.cli.session import ImageName, Session, image_argument, json_option, pass_session, snapshot_argument
from skerry.client.harmless import harmless
from skerry.errors import InvalidRequest
from skerry.types import Progress, Transfer

if TYPE_CHECKING:
    from skerry.types import Change

_SIGNS = {"added": "A", "modified": "M", "deleted": "D"}
_SHOWN = 20
LEFT_OUT = 1


@click.command()
@json_option
@snapshot_argument
@click.argument("to", type=ImageName("image", "snapshot", "sandbox"), required=False)
@pass_session
def changes(session: Session, snapshot: str, to: str | None, as_json: bool) -> None:
    """Paths that were added (A), modified (M) or deleted (D) since a snapshot.

    TO is another snapshot, a sandbox as it is now, or an image; without it, the sandbox that the snapshot was taken of.
    """
    from skerry.client._sync.snapshots import Snapshot

    with session.client() as client:
        found = Snapshot.get(snapshot, server=client).changes(to)
    if as_json:
        talk.give_json(found)
        return
    for change in found.changes:
        talk.give_text(f"{_SIGNS[change.kind]} {_shown(change)}")
    if found.truncated:
        talk.say(f"there are more than {len(found.changes):,}")


def _shown(change: Change) -> str:
    return f"{change.path}/" if change.type == "directory" and change.path != "/" else change.path


@click.command("export")
@json_option
@snapshot_argument
@click.argument("file")
@pass_session
def export_snapshot(session: Session, snapshot: str, file: str, as_json: bool) -> int:
    """Write a snapshot as an archive that `docker load`, skopeo and `skerry snapshot import` read.

    FILE ending in .gz or .zst is compressed so; - is stdout.
    """
    from skerry.client._sync.snapshots import Snapshot

    with session.client() as client, _bar(session, "writing") as show:
        moved = Snapshot.get(snapshot, server=client).export(_target(file), progress=show)
    return _tell(session, moved, file, as_json)


@click.command("export")
@json_option
@image_argument
@click.argument("file")
@pass_session
def export_image(session: Session, name: str, file: str, as_json: bool) -> int:
    """Write an image as an archive that `docker load`, skopeo and `skerry image import` read.

    FILE ending in .gz or .zst is compressed so; - is stdout.
    """
    with session.client() as client, _bar(session, "writing") as show:
        moved = client.images.export(name, _target(file), progress=show)
    return _tell(session, moved, file, as_json)


@click.command("import")
@json_option
@click.argument("source")
@click.argument("name", required=False)
@pass_session
def import_snapshot(session: Session, source: str, name: str | None, as_json: bool) -> None:
    """Make a snapshot of an archive or a directory.

    SOURCE is what `export`, `docker save` or skopeo wrote (OCI layout or docker-archive), a root file system as a tar
    archive, all of them also compressed, or a directory; - is stdin.
    """
    from skerry.client._sync.snapshots import Snapshot

    with session.client() as client:
        with _bar(session, "reading") as show:
            notices: list[str] = []
            given = _source(source)
            made = Snapshot.import_(given, name, on_notice=notices.append, progress=show, server=client).info
        _say(notices)
    if as_json:
        talk.give_json(made)
    else:
        click.echo(harmless(made.name or made.id))


@click.command("import")
@click.option("--replace", is_flag=True, help="Also if there is an image of that name.")
@json_option
@click.argument("source")
@click.argument("name")
@pass_session
def import_image(session: Session, source: str, name: str, replace: bool, as_json: bool) -> None:
    """Make an image of an archive or a directory.

    SOURCE is what `export`, `docker save` or skopeo wrote (OCI layout or docker-archive), a root file system as a tar
    archive, all of them also compressed, or a directory; - is stdin.
    """
    with session.client() as client:
        with _bar(session, "reading") as show:
            notices: list[str] = []
            given = _source(source)
            made = client.images.import_(given, name, replace=replace, on_notice=notices.append, progress=show)
        _say(notices)
    if as_json:
        talk.give_json(made)
    else:
        click.echo(harmless(f"{made.name} {made.digest}"))


def _target(file: str) -> str | BinaryIO:
    if file != "-":
        return file
    if sys.stdout.isatty():
        raise InvalidRequest("an archive does not go to a terminal", hint="name a file, or send stdout elsewhere")
    return sys.stdout.buffer


def _source(source: str) -> str | BinaryIO:
    return sys.stdin.buffer if source == "-" else source


@contextmanager
def _bar(session: Session, title: str) -> Iterator[Callable[[Progress], None] | None]:
    """For people; it is gone when they are done."""
    from skerry.client.progress import Bar

    if session.quiet or not sys.stderr.isatty():
        yield None
        return
    with Bar(title, sys.stderr, transient=True) as bar:
        yield bar.update


def _say(notices: list[str]) -> None:
    for notice in notices:
        talk.say(notice)


def _tell(session: Session, moved: Transfer, file: str, as_json: bool) -> int:
    if as_json and file != "-":
        talk.give_json(moved)
    _say([f"left out: {one.path}: {one.reason}" for one in moved.skipped[:_SHOWN]])
    more = moved.more + max(0, len(moved.skipped) - _SHOWN)
    if more:
        talk.say(f"left out: {more} more")
    if not session.quiet:
        talk.say(f"wrote {moved.files:,} files, {talk.size(moved.bytes)}")
    return LEFT_OUT if moved.skipped or moved.more else 0


def add(snapshot: click.Group, image: click.Group) -> None:
    """To the groups of those whose archives they are."""
    for command in (changes, export_snapshot, import_snapshot):
        snapshot.add_command(command)
    for command in (export_image, import_image):
        image.add_command(command)
