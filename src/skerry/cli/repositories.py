"""--repo: a repository that a new sandbox begins with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli import talk
from skerry.cli.files import tell_skipped
from skerry.cli.session import Session
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from skerry.client.repository.source import Imported, Repo

F = TypeVar("F", bound=Callable[..., Any])


def repo_options(command: F) -> F:
    for option in (
        click.option("--ignored", is_flag=True, help="With --repo: also the files that git ignores."),
        click.option(
            "--repo", metavar="DIR|URL", help="A copy of that repository in /workspace, uncommitted work included."
        ),
    ):
        command = option(command)
    return command


@contextmanager
def repo_of(session: Session, given: dict[str, Any], *, bar: bool = True) -> Iterator[Repo | None]:
    """What the options say, with a bar while it is brought."""
    source, ignored = given["repo"], given["ignored"]
    if source is None:
        if ignored:
            raise click.UsageError("--ignored goes with --repo")
        yield None
        return
    from skerry.client.progress import Bar
    from skerry.client.repository.source import Repo

    repo = Repo(source, ignored=ignored)
    if not bar or session.quiet or not sys.stderr.isatty():
        yield repo
        return
    with Bar("copying", sys.stderr, transient=True) as shown:
        yield replace(repo, progress=shown.update)


def tell_imported(session: Session, imported: Imported | None) -> None:
    if imported is None or imported.moved is None:
        return
    tell_skipped(imported.moved)
    if session.quiet:
        return
    if imported.part is not None:
        talk.say(f"{imported.part} is a part of {imported.top}: all of it is copied")
    count = imported.repositories - 1
    within = f", with {count} {'repository' if count == 1 else 'repositories'} within it" if count > 0 else ""
    files = "1 file" if imported.moved.files == 1 else f"{imported.moved.files:,} files"
    talk.say(f"copied {imported.top} to /workspace: {files}{within}")


def add_remote(session: Session, imported: Imported | None) -> None:
    """`git fetch skerry`, for what its sandboxes do. Not having it is no reason to have no sandbox."""
    if imported is None or imported.top is None:
        return
    from skerry.client.repository import remote
    from skerry.client.repository.finding import find

    try:
        place = find(imported.top)
        added = place.git_dir is not None and remote.add(place.git(), session.server or remote.LOCAL)
    except SkerryError as error:
        talk.say(f"no remote was added: {error.message}")
        return
    if added and not session.quiet:
        talk.say("added the remote skerry: `git fetch skerry` has the history of its sandboxes")
