"""snapshot create, ls, show, rm; fork; rollback."""

from __future__ import annotations

import time
from typing import Any

import click

from skerry.cli import output
from skerry.cli.commands import archives
from skerry.cli.context import (
    CliContext,
    ImageName,
    SandboxName,
    json_option,
    pass_cli,
    sandbox_argument,
    snapshot_argument,
)
from skerry.client._sync.snapshots import Snapshot
from skerry.codecs.text import escape
from skerry.errors import InvalidRequest
from skerry.types import MAX_FORKS, SnapshotInfo


@click.group("snapshot")
def snapshot() -> None:
    """Manage snapshots of sandboxes' files."""


snapshot.add_command(archives.changes)
snapshot.add_command(archives.export_snapshot)
snapshot.add_command(archives.import_snapshot)


@snapshot.command()
@click.option("--path", metavar="DIR", help="Take a snapshot of this directory only, for `skerry snapshot restore`.")
@click.option("--ttl", metavar="TIME", help="Remove the snapshot after this time, like 7d, once nothing needs it.")
@json_option
@sandbox_argument
@click.argument("name", required=False)
@pass_cli
def create(
    cli: CliContext, /, sandbox: str, name: str | None, path: str | None, ttl: str | None, as_json: bool
) -> None:
    """Take a snapshot of a sandbox in any state. `skerry create --image NAME` starts from it."""
    _print(cli.sandbox(sandbox).snapshot(name, path=path, ttl=ttl).info, as_json)


@snapshot.command()
@click.option("--path", metavar="DIR", help="Restore into this directory. Default: its former path.")
@click.option("--user", metavar="NAME", help="Give the files to this user. Default: the image's user.")
@json_option
@snapshot_argument
@sandbox_argument
@pass_cli
def restore(cli: CliContext, /, snapshot: str, sandbox: str, path: str | None, user: str | None, as_json: bool) -> None:
    """Add the files of a snapshot of a directory to SANDBOX."""
    result = cli.sandbox(sandbox).restore(snapshot, path, user=user)
    if as_json:
        output.json(result)
    elif not cli.quiet:
        output.info(f"{sandbox}: {result.files} files restored")


def _print(info: SnapshotInfo, as_json: bool) -> None:
    if as_json:
        output.json(info)
    else:
        click.echo(escape(info.name or info.id))


@snapshot.command()
@click.option(
    "--sandbox",
    type=SandboxName(),
    metavar="SANDBOX",
    help="List all snapshots of this sandbox, including automatic ones.",
)
@click.option("--kind", type=click.Choice(["kept", "auto", "build"]), help="List only this kind. Default: kept.")
@json_option
@pass_cli
def ls(cli: CliContext, sandbox: str | None, kind: Any, as_json: bool) -> None:
    """List snapshots."""
    with cli.client() as client:
        found = [one.info for one in Snapshot.list(sandbox=sandbox, kind=kind, server=client)]
    if as_json:
        output.json(found)
        return
    output.table(("ID", "NAME", "KIND", "OF", "SIZE", "AGE"), map(_row, found))


def _row(info: SnapshotInfo) -> tuple[str, ...]:
    kind = f"{info.kind} {info.step}" if info.step is not None else info.kind
    size = output.format_size(info.own) if info.own is not None else "-"
    return info.id, info.name or "-", kind, info.sandbox or "-", size, output.format_age(time.time() - info.created_at)


@snapshot.command()
@json_option
@snapshot_argument
@pass_cli
def show(cli: CliContext, snapshot: str, as_json: bool) -> None:
    """Show a snapshot."""
    with cli.client() as client:
        info = Snapshot.get(snapshot, server=client).info
    if as_json:
        output.json(info)
    else:
        output.pairs(_pairs(info))


def _pairs(info: SnapshotInfo) -> list[tuple[str, str]]:
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.created_at))
    rows = [("id", info.id), ("name", info.name or "-"), ("kind", info.kind), ("sandbox", info.sandbox or "-"),
            ("image", info.image or "-"), ("taken", taken), ("digest", info.digest)]  # fmt: skip
    if info.own is not None:
        rows.append(("size", output.format_size(info.own)))
    if info.sync_s is not None and info.frozen_s is not None:
        rows.append(("took", f"{info.sync_s * 1000:.0f} ms to sync, {info.frozen_s * 1000:.1f} ms frozen"))
    if info.path is not None:
        rows.append(("path", info.path))
    if info.expires_at is not None:
        rows.append(("expires", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.expires_at))))
    rows += [("user", info.user), ("cwd", info.cwd), *(("layer", layer) for layer in info.layers)]
    return [*rows, *(("env", f"{key}={value}") for key, value in info.env.items())]


@snapshot.command()
@click.argument("snapshots", type=ImageName("snapshot"), nargs=-1, required=True, metavar="SNAPSHOT...")
@pass_cli
def rm(cli: CliContext, snapshots: tuple[str, ...]) -> None:
    """Delete snapshots that nothing depends on."""
    with cli.client() as client:
        for ref in snapshots:
            Snapshot.get(ref, server=client).delete()
            if not cli.quiet:
                output.info(f"{ref}: deleted")


@click.command()
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, MAX_FORKS),
    default=1,
    metavar="N",
    help="Create this many copies. Default: 1.",
)
@click.option("--name", metavar="NAME", help="Name the copy. Default: copies are unnamed.")
@json_option
@sandbox_argument
@pass_cli
def fork(cli: CliContext, sandbox: str, count: int, name: str | None, as_json: bool) -> None:
    """Fork a sandbox into copies with the same files and print their IDs."""
    made = [one.cached_info for one in cli.sandbox(sandbox).fork(count, name=name)]
    if as_json:
        output.json(made)
        return
    for info in made:
        click.echo(escape(info.id))


@click.command()
@click.option(
    "--steps", type=click.IntRange(1), metavar="N", help="Go back this many commands (needs --auto-snapshot)."
)
@json_option
@sandbox_argument
@click.argument("snapshot", type=ImageName("snapshot"), required=False)
@pass_cli
def rollback(cli: CliContext, sandbox: str, snapshot: str | None, steps: int | None, as_json: bool) -> None:
    """Restore a sandbox's files from a snapshot and end its processes."""
    if (snapshot is None) == (steps is None):
        raise InvalidRequest("give either a snapshot or --steps", hint="`skerry snapshot ls` lists snapshots")
    target = cli.sandbox(sandbox)
    target.rollback(snapshot, steps=steps)
    if as_json:
        output.json(target.cached_info)
    elif not cli.quiet:
        output.info(f"{sandbox}: {_restored_to(snapshot, steps)}; its processes have ended")


def _restored_to(snapshot: str | None, steps: int | None) -> str:
    if snapshot is not None:
        return f"restored to {snapshot}"
    return f"restored to before its last {f'{steps} commands' if steps != 1 else 'command'}"
