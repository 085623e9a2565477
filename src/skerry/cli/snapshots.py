"""snapshot create, ls, show, rm; fork; rollback."""

from __future__ import annotations

import time
from typing import Any

import click

from skerry.cli import talk
from skerry.cli.session import (
    ImageName,
    SandboxName,
    Session,
    json_option,
    pass_session,
    sandbox_argument,
    snapshot_argument,
)
from skerry.client.harmless import harmless
from skerry.errors import InvalidRequest
from skerry.types import FORKS_MOST, SnapshotInfo


@click.group("snapshot")
def snapshot() -> None:
    """Sandboxes' files as they were at one moment."""


@snapshot.command()
@json_option
@sandbox_argument
@click.argument("name", required=False)
@pass_session
def create(session: Session, sandbox: str, name: str | None, as_json: bool) -> None:
    """Take one of a sandbox, running or not; it goes on. `skerry create --image NAME` starts from it."""
    _give(session.sandbox(sandbox).snapshot(name).info, as_json)


def _give(info: SnapshotInfo, as_json: bool) -> None:
    if as_json:
        talk.give_json(info)
    else:
        click.echo(harmless(info.name or info.id))


@snapshot.command()
@click.option(
    "--sandbox",
    type=SandboxName(),
    metavar="SANDBOX",
    help="All that were taken of this one, also before its commands.",
)
@click.option("--kind", type=click.Choice(["kept", "auto", "build"]), help="Only these; kept ones if not said.")
@json_option
@pass_session
def ls(session: Session, sandbox: str | None, kind: Any, as_json: bool) -> None:
    """List snapshots."""
    from skerry.client._sync.snapshots import Snapshot

    with session.client() as client:
        found = [one.info for one in Snapshot.list(sandbox=sandbox, kind=kind, server=client)]
    if as_json:
        talk.give_json(found)
        return
    talk.give_table(("ID", "NAME", "KIND", "OF", "SIZE", "AGE"), map(_row, found))


def _row(info: SnapshotInfo) -> tuple[str, ...]:
    kind = f"{info.kind} {info.step}" if info.step is not None else info.kind
    size = talk.size(info.own) if info.own is not None else "-"
    return info.id, info.name or "-", kind, info.sandbox or "-", size, talk.ago(time.time() - info.created_at)


@snapshot.command()
@json_option
@snapshot_argument
@pass_session
def show(session: Session, snapshot: str, as_json: bool) -> None:
    """Show a snapshot."""
    from skerry.client._sync.snapshots import Snapshot

    with session.client() as client:
        info = Snapshot.get(snapshot, server=client).info
    if as_json:
        talk.give_json(info)
    else:
        talk.give_pairs(_pairs(info))


def _pairs(info: SnapshotInfo) -> list[tuple[str, str]]:
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.created_at))
    rows = [("id", info.id), ("name", info.name or "-"), ("kind", info.kind), ("sandbox", info.sandbox or "-"),
            ("image", info.image or "-"), ("taken", taken), ("digest", info.digest)]  # fmt: skip
    if info.own is not None:
        rows.append(("size", talk.size(info.own)))
    if info.sync_s is not None and info.frozen_s is not None:
        rows.append(("took", f"{info.sync_s * 1000:.0f} ms to write out, then {info.frozen_s * 1000:.1f} ms still"))
    rows += [("user", info.user), ("cwd", info.cwd), *(("layer", layer) for layer in info.layers)]
    return [*rows, *(("env", f"{key}={value}") for key, value in info.env.items())]


@snapshot.command()
@click.argument("snapshots", type=ImageName("snapshot"), nargs=-1, required=True, metavar="SNAPSHOT...")
@pass_session
def rm(session: Session, snapshots: tuple[str, ...]) -> None:
    """Delete snapshots on which nothing stands."""
    from skerry.client._sync.snapshots import Snapshot

    with session.client() as client:
        for ref in snapshots:
            Snapshot.get(ref, server=client).delete()
            if not session.quiet:
                talk.say(f"{ref}: deleted")


@click.command()
@click.option("-n", "count", type=click.IntRange(1, FORKS_MOST), default=1, metavar="N", help="How many; 1.")
@json_option
@sandbox_argument
@pass_session
def fork(session: Session, sandbox: str, count: int, as_json: bool) -> None:
    """Make sandboxes that begin as one is now. Their ids are what is printed."""
    made = [one.known for one in session.sandbox(sandbox).fork(count)]
    if as_json:
        talk.give_json(made)
        return
    for info in made:
        click.echo(harmless(info.id))


@click.command()
@click.option("--steps", type=click.IntRange(1), metavar="N", help="So many commands back, with --auto-snapshot.")
@json_option
@sandbox_argument
@click.argument("snapshot", type=ImageName("snapshot"), required=False)
@pass_session
def rollback(session: Session, sandbox: str, snapshot: str | None, steps: int | None, as_json: bool) -> None:
    """Bring a sandbox's files back as they were in a snapshot. Its processes end."""
    if (snapshot is None) == (steps is None):
        raise InvalidRequest("name a snapshot or say --steps, and not both", hint="`skerry snapshot ls` lists yours")
    target = session.sandbox(sandbox)
    target.rollback(snapshot, steps=steps)
    if as_json:
        talk.give_json(target.known)
    elif not session.quiet:
        talk.say(f"{sandbox}: {_whence(snapshot, steps)}; its processes have ended")


def _whence(snapshot: str | None, steps: int | None) -> str:
    if snapshot is not None:
        return f"as in {snapshot}"
    return f"as before its last {f'{steps} commands' if steps != 1 else 'command'}"
