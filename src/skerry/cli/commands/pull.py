"""pull: the user's later edits in a sandbox. Also reports copies that are behind their repository."""

from __future__ import annotations

import os
import shlex
from typing import Literal

import click

from skerry.cli import output
from skerry.cli.commands.apply import report_conflict
from skerry.cli.context import CliContext, json_option, pass_cli, sandbox_argument
from skerry.client._sync.client import Client
from skerry.client._sync.repository import copies_of, copy_status
from skerry.client.repository.locate import RepositoryPlace, find_repository
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.types import PullResult, RepoCopy, RepoStatus
from skerry.types.values import decode_path

MAX_COPIES = 20  # that one call compares


@click.command()
@click.option(
    "--prefer",
    type=click.Choice(["host", "sandbox"]),
    help="Take your version of conflicting files, or leave the sandbox's.",
)
@click.option("--dry-run", is_flag=True, help="Show the planned changes; write nothing.")
@click.option(
    "--dir", "source", metavar="DIR", callback=lambda _, __, given: os.path.abspath(given) if given else ".",
    help="Read this directory. Default: the directory that the sandbox was created from.",
)  # fmt: skip
@json_option
@sandbox_argument
@pass_cli
def pull(
    cli: CliContext, sandbox: str, source: str, prefer: Literal["host", "sandbox"] | None, dry_run: bool, as_json: bool
) -> int:
    """Bring your edits since the copy into SANDBOX, merged with its changes.

    Your edits are entered in the sandbox's history as yours and are not part of the review. If you and the sandbox
    changed the same lines, the conflicts are listed, nothing is changed, and the exit code is 4.
    """
    try:
        target = cli.sandbox(sandbox)
    except NotFound as error:
        raise NotFound(error.message, hint=f"{error.hint}; `skerry image pull {sandbox}` pulls an image") from None
    try:
        done = target.repo.pull(source, prefer=prefer, dry_run=dry_run)
    except Conflict as error:
        return report_conflict(error, as_json)
    if as_json:
        output.json(done)
    else:
        _report(cli, done, dry_run)
    return 0


def _report(cli: CliContext, done: PullResult, dry_run: bool) -> None:
    for file in done.files:
        output.line(f"{file.how} {decode_path(file.path, file.raw_path)}")
    if cli.quiet:
        return
    number = sum(file.how != "same" for file in done.files)
    files = "1 file" if number == 1 else f"{number} files"
    if dry_run:
        output.info(f"{files} would change; nothing was written")
    else:
        output.info(f"{files} changed in the sandbox" if number else "the sandbox has your current files")


# -- copies that are behind -------------------------------------------------------------------------------------------


def copy_states(cli: CliContext, sandbox: str | None = None) -> list[tuple[RepoCopy, RepoStatus]]:
    """Compare the copies of the repository of this directory with it: all of them, or that of one sandbox. Outside of
    such a repository, and after any error, there is nothing to compare."""
    try:
        place = find_repository(".")
        with cli.client() as client:
            found = [one for one in copies_of(client, place) if sandbox in (None, one.sandbox, one.name)]
            return [(one, status) for one in found[:MAX_COPIES] if (status := _status(client, place, one)) is not None]
    except (SkerryError, OSError):
        return []


def _status(client: Client, place: RepositoryPlace, copy: RepoCopy) -> RepoStatus | None:
    try:
        return copy_status(client, place, copy)
    except (SkerryError, OSError):  # it is being deleted, for example
        return None


def report_behind(cli: CliContext, sandbox: str | None = None) -> None:
    """Name the copies that are behind the repository of this directory."""
    if cli.quiet:
        return
    for copy, status in copy_states(cli, sandbox):
        if status.behind:
            name = copy.name or copy.sandbox
            output.info(f"{name}: {status}: `skerry pull {shlex.quote(name)}` brings your edits in")
